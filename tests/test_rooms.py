"""The rooms: imports point down the list of DESIGN section 3 only, and modules and functions stay small."""
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ["ground", "architectures", "hardware", "ops", "cost", "inference", "serving", "training", "chips", "evidence", "views", "doors"]
GROUND = ["errors", "units", "formats", "tables"]  # each may import those before it
DOORS = ["__init__", "__main__", "cli", "notebooks"]
WIDGETS_MAY = {"roofkit.tables", "roofkit.units", "roofkit.errors", "roofkit.views.values", "roofkit.views.validation_values"}
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 400, 70
LIBRARY = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in sorted((ROOT / "roofkit").rglob("*.py"))}
WIDGETS = {f"roofkit_widgets.{p.stem}": p for p in sorted((ROOT / "widgets" / "roofkit_widgets").rglob("*.py"))}
EVERY = pytest.mark.parametrize("module, path", (LIBRARY | WIDGETS).items(), ids=[*LIBRARY, *WIDGETS])


def room(module: str) -> str:
    first = module.split(".")[1]
    return "ground" if first in GROUND else "doors" if first in DOORS else first


def imported(path: Path) -> set[str]:
    """Modules of this repository that the file imports, anywhere in it; `from roofkit.a import b` is roofkit.a.b where that is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the full module name, not a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in LIBRARY or f"{name}.__init__" in LIBRARY else node.module for name in names}
    return {name for name in found if name.split(".")[0] in ("roofkit", "roofkit_widgets", "roofkit_data")}


def code_lines(node: ast.AST, source: str) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    docs = [n.body[0] for n in ast.walk(node) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(n, clean=False)]
    skip = {line for doc in docs for line in range(doc.lineno, doc.end_lineno + 1)}
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or len(source.splitlines())
    lines = enumerate(source.splitlines()[first - 1:last], first)
    return sum(1 for number, text in lines if number not in skip and text.strip() and not text.lstrip().startswith("#"))


@pytest.mark.parametrize("module, path", LIBRARY.items(), ids=list(LIBRARY))
def test_library_imports_point_down(module, path):
    here = room(module)
    assert here in ROOMS, f"{module}: room {here!r} is not in the list of rooms; add it there and to CONTRIBUTING.md"
    for name in imported(path):
        if here == "doors":
            continue
        assert name not in ("roofkit", "roofkit.__init__"), f"{module} imports the root __init__; import the module that defines the name"
        assert name.split(".")[0] != "roofkit_widgets", f"{module} imports {name}: only a notebook joins library and widgets"
        if not name.startswith("roofkit."):
            continue
        assert ROOMS.index(room(name)) <= ROOMS.index(here), f"{module} ({here}) imports {name} ({room(name)}): imports point down the list only"
        if here == "ground":
            assert GROUND.index(name.split(".")[1]) < GROUND.index(module.split(".")[1]), f"{module} imports {name}"


def test_no_module_imports_itself_through_others():
    """No cycles inside a room either."""
    edges = {module: imported(path) & set(LIBRARY) for module, path in LIBRARY.items()}
    while ends := {m for m in edges if not edges[m]} | (set(edges) - set().union(*edges.values())):  # need nothing, or are needed by nothing
        edges = {module: needs - ends for module, needs in edges.items() if module not in ends}
    assert not edges, f"these modules import each other in a circle: {', '.join(sorted(edges))}"


@pytest.mark.parametrize("module, path", WIDGETS.items(), ids=list(WIDGETS))
def test_widgets_compute_nothing(module, path):
    wrong = {name for name in imported(path) if name.split(".")[0] != "roofkit_widgets"} - WIDGETS_MAY
    assert not wrong, f"{module} imports {', '.join(sorted(wrong))}; a widget draws values and may import {', '.join(sorted(WIDGETS_MAY))} only"


def test_values_of_a_page_are_plain():
    assert imported(ROOT / "roofkit" / "views" / "values.py") == set()


@EVERY
def test_modules_and_functions_stay_small(module, path):
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    lines = code_lines(tree, source)
    assert lines <= MAX_MODULE_LINES, f"{module} has {lines} code lines, more than {MAX_MODULE_LINES}: split it by subject"
    long = {n.name: code_lines(n, source) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    long = {name: count for name, count in long.items() if count > MAX_FUNCTION_LINES}
    assert not long, f"{module}: functions of more than {MAX_FUNCTION_LINES} code lines: {long}"
