"""The shape of the code base: who may import whom, sizes, docstrings, names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import flexc
from flexc import universe
from flexc.runtime.inputs.options import BACKENDS

pytestmark = pytest.mark.whole

PACKAGE = Path(flexc.__file__).parent

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_CHAIN = 38
MAX_FILES = 311

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

MAY_IMPORT_RUNTIME = {"flexc", "cli", "distributed", "doctor", "integrations"}

ROOMS = {
    "passes": ("targets scalar tile masks flex blocksparse hopper cpu pipelines"),
    "runtime": (
        "process inputs tapes interpreters kernels replay planner attention autograd "
        "growing call_plans interception torch_compile interface varlen kv_cache "
        "paged_kv warmup compiled explain"
    ),
}
"""Rooms of a folder, from the ground up: none imports from one above it."""

INDIRECT = {
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
}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


PATHS = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
"""Every module of flexc, by name."""
TREES = {name: ast.parse(path.read_text()) for name, path in PATHS.items()}


def _imports(module: str) -> set[str]:
    """Return the modules of flexc that one imports, in functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {n if n in PATHS else node.module for n in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & PATHS.keys() - {module}


GRAPH = {module: _imports(module) for module in PATHS}


def _part(module: str, depth: int) -> str:
    """A folder or module at a depth within flexc; flexc itself above them."""
    return ".".join(module.split(".")[depth : depth + 1])


def refuse(faults: Iterator[str]) -> None:
    """Fail with all faults, of which each names its module."""
    found = list(faults)
    assert not found, "\n".join(found)


def _imports_against_the_flow() -> Iterator[str]:
    for module, imported in GRAPH.items():
        area = _part(module, 1) or "flexc"
        others = {_part(name, 1) or "flexc" for name in imported} - {area}
        if area in ALLOWED:
            wrong = others - ALLOWED[area]
        else:
            wrong = others & {"runtime"} if area not in MAY_IMPORT_RUNTIME else set()
        if wrong:
            yield f"{module} imports {wrong}"


def test_imports_flow_one_way() -> None:
    refuse(_imports_against_the_flow())


@pytest.mark.parametrize("area", ROOMS)
def test_no_room_imports_from_one_above_it(area: str) -> None:
    floors = {room: floor for floor, room in enumerate(ROOMS[area].split())}
    within = {m: _part(m, 2) for m in PATHS if _part(m, 1) == area}
    assert {room for room in within.values() if room} == floors.keys()
    refuse(
        f"{module} imports {name}"
        for module, room in within.items()
        for name in GRAPH[module] & within.keys()
        if floors.get(within[name], 0) > floors.get(room, len(floors))
    )


def test_no_cycles_and_short_chains() -> None:
    chains: dict[str, int] = {"flexc": 0}  # Its public names are not followed.
    inner = {module: GRAPH[module] for module in GRAPH if module != "flexc"}
    for module in TopologicalSorter(inner).static_order():
        if module != "flexc":
            chains[module] = 1 + max((chains[m] for m in inner[module]), default=0)
    assert max(chains.values()) <= MAX_CHAIN


def test_a_helper_of_one_module_is_beside_it() -> None:
    """In a room, such as `runtime/kernels`; rooms may offer one thing to one other."""
    importers: defaultdict[str, list[str]] = defaultdict(list)
    for module in GRAPH.keys() - {"flexc"}:
        for name in GRAPH[module] - {"flexc"}:
            importers[name].append(module)
    refuse(
        f"{module} helps {users[0]} alone"
        for module, users in importers.items()
        if len(users) == 1
        and module.split(".")[:3] == users[0].split(".")[:3]
        and not PATHS[module].parent.is_relative_to(PATHS[users[0]].parent)
    )


def test_number_of_files() -> None:
    assert len(PATHS) <= MAX_FILES


def _long_parts() -> Iterator[str]:
    for module, path in PATHS.items():
        if (length := len(path.read_text().splitlines())) > MAX_FILE_LINES:
            yield f"{module}: {length} lines"
        for node in ast.walk(TREES[module]):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    yield f"{module}.{node.name}: {length} lines"


def test_files_and_functions_are_short() -> None:
    refuse(_long_parts())


def test_public_classes_have_docstrings() -> None:
    """Ops, attributes, types, passes, patterns and targets."""
    refuse(
        f"{module}.{node.name}"
        for module, tree in TREES.items()
        if _part(module, 1) in {"dialects", "passes", "codegen"}
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    )


def test_files_have_docstrings() -> None:
    refuse(m for m, tree in TREES.items() if tree.body and not ast.get_docstring(tree))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Strings that are statements: of attributes too."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield text.lstrip()
            case _:
                pass


def test_docstrings_say_it_directly() -> None:
    """They begin with a verb or a noun, not with a relative clause."""
    refuse(
        f"{module}: {text}"
        for module, tree in TREES.items()
        for text in _docstrings(tree)
        if text.partition(" ")[0].strip(",.:") in INDIRECT
    )


def test_flexc_opt_starts_without_torch_and_triton() -> None:
    code = (
        "import sys; import flexc.opt;"
        "print([m for m in ('torch', 'triton') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", ["DIALECTS", "PASSES", "TARGETS"])
def test_registered_names_load(kind: str) -> None:
    factories = getattr(universe, kind)
    assert {name: factory().name for name, factory in factories.items()} == {
        name: name for name in factories
    }


def _strings(node: ast.AST) -> set[str]:
    """Return the strings in a comparison's operand or a case's pattern."""
    return {
        n.value
        for n in ast.walk(node)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }


def _compared(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for operand in (node.left, *node.comparators):
                yield from _strings(operand)
        elif isinstance(node, ast.match_case):
            yield from _strings(node.pattern)


def test_targets_are_asked_not_named() -> None:
    """No decision compares a name with that of a target or backend."""
    names = {*universe.TARGETS, *BACKENDS}
    refuse(
        f"{module} compares with {text!r}"
        for module, tree in TREES.items()
        for text in _compared(tree)
        if text in names
    )
