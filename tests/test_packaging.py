"""Wheel, sdist and editable install, each in a fresh environment and used from another folder.

The fresh environments see the dependencies of the running one (a .pth line and its share/ folder) but not its roofkit,
so that a test takes seconds; installing every dependency from nothing is what `make test` itself did.
"""
import re
import signal
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from processes import run, serving

pytestmark = pytest.mark.slow
SHIPPED = {"roofkit": "roofkit", "widgets/roofkit_widgets": "roofkit_widgets", "data/roofkit_data": "roofkit_data", "notebooks": "roofkit_notebooks"}


@pytest.fixture(scope="module")
def built(root, tmp_path_factory) -> tuple[Path, Path]:
    """(wheel, sdist); the wheel is built from the unpacked sdist, so the sdist is complete."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, root, cwd=out)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


class Environment:
    """A fresh virtual environment with `package` installed (a wheel, or "-e", folder)."""

    def __init__(self, folder: Path, *package: str | Path) -> None:
        venv.create(folder / "venv", symlinks=True)
        self.home = folder / "elsewhere"
        self.home.mkdir()
        self.python, self.roofkit = folder / "venv" / "bin" / "python", folder / "venv" / "bin" / "roofkit"
        running = Path(sys.prefix)
        site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        # named to be read before an editable install's own .pth; those inside the added folder are not read
        (site / "0_dependencies.pth").write_text(str(next((running / "lib").glob("python*/site-packages"))) + "\n")
        (folder / "venv" / "share").symlink_to(running / "share")  # kernels, Voila templates, lab extensions
        run(sys.executable, "-m", "pip", "--python", self.python, "install", "-q", "--no-deps", "--no-index", "--ignore-installed",
            "--no-build-isolation", *package, cwd=self.home)

    def says(self, code: str) -> str:
        return run(self.python, "-c", code, cwd=self.home).stdout.strip()


@pytest.fixture(scope="module", params=["wheel", "editable"])
def environment(request, root, tmp_path_factory) -> Environment:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "wheel":
        return Environment(folder, request.getfixturevalue("built")[0])
    return Environment(folder, "-e", root)


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(p.parts)}


def test_wheel_carries_the_library_the_widgets_the_data_and_the_notebooks(built, root):
    names = set(zipfile.ZipFile(built[0]).namelist())
    for folder, package in SHIPPED.items():
        missing = {f"{package}/{name}" for name in files(root / folder)} - names
        assert not missing, f"the wheel lacks {sorted(missing)}"
    stray = {name.split("/")[0] for name in names} - set(SHIPPED.values())
    assert all(re.fullmatch(r"roofkit-[\w.]+\.dist-info", name) for name in stray), f"the wheel installs {stray} beside its packages"


def test_sdist_carries_what_building_and_testing_need(built, root):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "constraints.txt", "tests/test_rooms.py"}
    wanted |= {f"{folder}/{name}" for folder in [*SHIPPED, "binder"] for name in files(root / folder)}
    assert not wanted - names, f"the sdist lacks {sorted(wanted - names)}"


def test_nothing_that_is_shipped_names_a_folder_of_the_machine_that_built_it(built, root):
    with zipfile.ZipFile(built[0]) as wheel:
        for name in wheel.namelist():
            assert str(root).encode() not in wheel.read(name), f"{name} contains {root}"


def test_installed_command_runs_from_another_folder(environment):
    listed = run(environment.roofkit, "list", "devices", cwd=environment.home).stdout
    assert "h100-sxm-80gb" in listed
    assert "roofkit" in run(environment.python, "-m", "roofkit", "version", cwd=environment.home).stdout


def test_install_adds_no_other_names(environment):
    """Folders of the checkout must not become importable: `import data` would find a stranger's package or ours."""
    code = "import importlib.util as u; print([n for n in ('data', 'widgets', 'tests', 'notebooks', 'binder', 'docs') if u.find_spec(n)])"
    assert environment.says(code) == "[]"


def test_editable_install_runs_the_checkout_and_the_wheel_its_copy(environment, root):
    where = Path(environment.says("from roofkit.notebooks import notebook_folder; print(notebook_folder())"))
    live = environment.says("import roofkit; print(roofkit.__file__)") == str(root / "roofkit" / "__init__.py")
    assert where == (root / "notebooks" if live else where)
    assert live or where.name == "roofkit_notebooks"
    assert (where / "01_step_explorer.ipynb").is_file()


def test_installed_app_serves_its_page_until_interrupted(environment):
    with serving([str(environment.roofkit), "app", "--no-browser"], environment.home / "log", environment.home) as server:
        found = server.wait(lambda: re.search(r"http://\S+", server.output), "address")
        assert found[0].endswith("/voila/render/01_step_explorer.ipynb")
        status, page = server.get(found[0])  # Voila runs the cells before it sends the page
        assert status == 200, page[:2000]
        assert "There was an error when executing cell" not in page
        assert "application/vnd.jupyter.widget-view+json" in page
        server.process.send_signal(signal.SIGINT)
        server.process.wait(30)
        assert "Traceback" not in server.output
