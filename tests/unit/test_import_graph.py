"""The graph of imports: no cycles, short chains, helpers beside what they help."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import flexc

PACKAGE = Path(flexc.__file__).parent
MAX_CHAIN = 38
MAX_FILES = 309


def _modules() -> dict[str, Path]:
    """Return the modules of flexc by name, without the package's public names."""
    found: dict[str, Path] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    del found["flexc"]
    return found


MODULES = _modules()


def _imports(module: str) -> set[str]:
    """Return the modules that one imports, in functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {n if n in MODULES else node.module for n in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & MODULES.keys() - {module}


GRAPH = {module: _imports(module) for module in MODULES}


def test_no_cycles_and_short_chains() -> None:
    chains: dict[str, int] = {}
    for module in TopologicalSorter(GRAPH).static_order():
        chains[module] = 1 + max((chains[m] for m in GRAPH[module]), default=0)
    assert max(chains.values()) <= MAX_CHAIN


def test_a_helper_of_one_module_is_beside_it() -> None:
    """In a room, such as `runtime/kernels`; rooms may offer one thing to one other."""
    importers: defaultdict[str, list[str]] = defaultdict(list)
    for module, imported in GRAPH.items():
        for name in imported:
            importers[name].append(module)
    away = [
        f"{module} helps {users[0]} alone"
        for module, users in importers.items()
        if len(users) == 1
        and module.split(".")[:3] == users[0].split(".")[:3]
        and not MODULES[module].parent.is_relative_to(MODULES[users[0]].parent)
    ]
    assert not away


def test_number_of_files() -> None:
    assert len(MODULES) <= MAX_FILES
