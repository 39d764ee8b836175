"""The shape of the code base: who may import whom, sizes, docstrings, names."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import flexc
from flexc import universe
from flexc.runtime.inputs.options import BACKENDS

pytestmark = pytest.mark.whole

PACKAGE = Path(flexc.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

ALLOWED = {
    "dialects": {"errors"},
    "passes": {"dialects", "errors", "universe"},
    "codegen": {"dialects", "passes", "errors"},
    "frontend": {"dialects", "errors"},
    "runtime": {"dialects", "passes", "codegen", "frontend", "errors", "universe"},
}
"""What each folder of flexc may import from flexc, besides itself.

Top-level modules, `distributed` and `integrations` are free, but only these import the
runtime:
"""

MAY_IMPORT_RUNTIME = {"__init__", "cli", "distributed", "doctor", "integrations"}


def _ids(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _area(path: Path) -> str:
    """The folder of flexc that a file lies in, or a top-level module's name."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def _imported_areas(path: Path) -> set[str]:
    """Areas of flexc imported by a file, in functions and for types too."""
    package = ("flexc", *path.relative_to(PACKAGE).parts[:-1])
    areas: set[str] = set()
    for node in ast.walk(_tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        areas |= {n.split(".")[1] for n in names if n.startswith("flexc.")}
    return areas


ROOMS = {
    "passes": ("targets scalar tile masks flex blocksparse hopper cpu pipelines"),
    "runtime": (
        "process inputs tapes interpreters kernels replay planner attention autograd "
        "growing call_plans interception torch_compile interface varlen kv_cache "
        "paged_kv warmup compiled explain"
    ),
}
"""Rooms of a folder, from the ground up: none imports from one above it."""


def _imported_modules(path: Path) -> set[tuple[str, ...]]:
    """Modules of flexc that a file imports, without `flexc` itself."""
    return {
        tuple(node.module.split(".")[1:])
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom)
        and node.module is not None
        and node.module.startswith("flexc.")
    }


@pytest.mark.parametrize("area", ROOMS)
def test_no_room_imports_from_one_above_it(area: str) -> None:
    floors = {room: floor for floor, room in enumerate(ROOMS[area].split())}
    found = {path.stem if path.is_file() else path.name for path in _rooms(area)}
    assert found == floors.keys()
    upward: list[str] = []
    for path in (PACKAGE / area).rglob("*.py"):
        own = path.relative_to(PACKAGE / area).parts[0].removesuffix(".py")
        for top, *within in _imported_modules(path):
            is_within = own in floors and top == area and len(within) > 0
            if is_within and floors[within[0]] > floors[own]:
                upward.append(f"{_ids(path)} imports {'.'.join(within)}")
    assert not upward


def _rooms(area: str) -> list[Path]:
    """Return the folders and files of a folder that hold code."""
    return [
        path
        for path in (PACKAGE / area).iterdir()
        if path.stem != "__init__" and (path.suffix == ".py" or any(path.rglob("*.py")))
    ]


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("path", FILES, ids=_ids)
def test_imports_flow_one_way(path: Path) -> None:
    area = _area(path)
    imported = _imported_areas(path) - {area}
    if area in ALLOWED:
        assert imported <= ALLOWED[area]
    elif area not in MAY_IMPORT_RUNTIME:
        assert "runtime" not in imported


@pytest.mark.parametrize("path", FILES, ids=_ids)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES
    long = {
        f.name: length
        for f in _functions(path)
        if (length := (f.end_lineno or 0) - f.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not long


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if _area(p) in {"dialects", "passes", "codegen"}],
    ids=_ids,
)
def test_public_classes_have_docstrings(path: Path) -> None:
    """Ops, attributes, types, passes, patterns and targets."""
    bare = [
        node.name
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not bare


@pytest.mark.parametrize("path", FILES, ids=_ids)
def test_files_have_docstrings(path: Path) -> None:
    tree = _tree(path)
    assert not tree.body or ast.get_docstring(tree)


INDIRECT = [
    "What",
    "Whether",
    "Which",
    "How",
    "Of",
    "That",
    "Where",
    "Who",
    "Whose",
    "When",
    "Why",
]


@pytest.mark.parametrize("path", FILES, ids=_ids)
def test_docstrings_say_it_directly(path: Path) -> None:
    """They begin with a verb or a noun, not with a relative clause."""
    bodies = (getattr(node, "body", None) for node in ast.walk(_tree(path)))
    texts = [
        statement.value.value.lstrip()
        for body in bodies
        if isinstance(body, list)
        for statement in body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]
    assert not [t for t in texts if t.partition(" ")[0].strip(",.:") in INDIRECT]


def test_flexc_opt_starts_without_torch_and_triton() -> None:
    code = (
        "import sys; import flexc.opt;"
        "print([m for m in ('torch', 'triton') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


REGISTERED = [
    (kind, name)
    for kind in ("DIALECTS", "PASSES", "TARGETS")
    for name in getattr(universe, kind)
]


@pytest.mark.parametrize(("kind", "name"), REGISTERED, ids=[n for _, n in REGISTERED])
def test_registered_names_load(kind: str, name: str) -> None:
    assert getattr(universe, kind)[name]().name == name


def _strings(node: ast.AST) -> set[str]:
    """Return the strings in a comparison's operand or a case's pattern."""
    return {
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }


@pytest.mark.parametrize("path", FILES, ids=_ids)
def test_targets_are_asked_not_named(path: Path) -> None:
    """No decision compares a name with that of a target or backend."""
    compared: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Compare):
            for operand in (node.left, *node.comparators):
                compared |= _strings(operand)
        elif isinstance(node, ast.match_case):
            compared |= _strings(node.pattern)
    assert not compared & (set(universe.TARGETS) | set(BACKENDS))
