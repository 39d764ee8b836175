"""Names of dialects, passes and targets that `flexc-opt` knows.

The names are read from the sources that declare them, so that starting the tool imports
none of these modules. An object is imported when it is first needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent

DIALECT = r'^(?P<object>\w+) = Dialect\(\s*"(?P<name>\w+)"'
PASS = r'^class (?P<object>\w+Pass)\((?:\n(?!class )|.)*?^    name = "(?P<name>[\w-]+)"'
TARGET = (
    r'^class (?P<object>\w+)\(Target\)(?:\n(?!class )|.)*?^    name = "(?P<name>\w+)"'
)


def lazy(module: str, name: str) -> Callable[[], Any]:
    """Return a factory that imports an object of a module when it is called."""
    return lambda: getattr(import_module(module), name)


def declared(pattern: str, files: Iterable[Path]) -> dict[str, Callable[[], Any]]:
    """Return factories of the objects that files declare, by their names."""
    found: dict[str, Callable[[], Any]] = {}
    for path in sorted(files):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        for match in re.finditer(pattern, path.read_text(), re.MULTILINE):
            found[match["name"]] = lazy(".".join(parts), match["object"])
    return found


DIALECTS = declared(DIALECT, PACKAGE.glob("dialects/**/*.py"))

PASSES = declared(PASS, PACKAGE.glob("passes/*/**/*.py"))
PASSES |= declared(PASS, [PACKAGE / "passes" / "pipelines.py"])
"""All passes of the folders, and the pipelines."""

TARGETS = declared(TARGET, PACKAGE.glob("codegen/*/target.py"))
