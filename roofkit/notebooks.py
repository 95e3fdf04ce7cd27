"""The apps' notebooks: where they lie and which one a short name means. Room: doors."""
import importlib.util
import re
from difflib import get_close_matches
from pathlib import Path

from roofkit.errors import RoofkitError

HOME = "step_explorer"  # the page that `roofkit app` opens


def notebook_folder() -> Path:
    """notebooks/ of the checkout where the package runs from one, else the copy that the wheel installed."""
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file() and (root / "notebooks").is_dir():
        return root / "notebooks"
    spec = importlib.util.find_spec("roofkit_notebooks")
    if spec is None or not spec.submodule_search_locations:
        raise RoofkitError("the notebooks of the apps are not installed; install roofkit from its wheel, or run from a checkout")
    return Path(next(iter(spec.submodule_search_locations)))


def list_apps(folder: Path | None = None) -> dict[str, Path]:
    """Short name -> notebook, in reading order: 01_step_explorer.ipynb is "step_explorer"."""
    files = sorted((folder or notebook_folder()).glob("*.ipynb"))
    return {re.sub(r"^\d+_", "", file.stem): file for file in files}


def find_app(name: str = HOME, folder: Path | None = None) -> Path:
    """The notebook that `name` means: its file name, the name without number, or a part that only one has ("explorer")."""
    apps = list_apps(folder)
    wanted = Path(name).stem.lower().replace("-", "_")
    for short, file in apps.items():
        if wanted in (short.lower(), file.stem.lower()):
            return file
    matches = [file for short, file in apps.items() if wanted and wanted in short.lower()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RoofkitError(f"app {name!r} may be {' or '.join(file.stem for file in matches)}; write more of its name")
    near = get_close_matches(wanted, apps, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(apps) or 'none: the folder is empty'}"
    raise RoofkitError(f"no app {name!r}; {hint}")
