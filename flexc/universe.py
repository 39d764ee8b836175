"""Dialects, passes and targets by name, and passes by the text of `flexc-opt -p`.

The names are read from the sources that declare them, so that starting the tool imports
none of these modules. An object is imported when it is first needed.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass, PassPipeline
from xdsl.universe import Universe
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from flexc.errors import OptionError, did_you_mean

PACKAGE = Path(__file__).parent

DIALECT = r'^(?P<object>\w+) = Dialect\(\s*"(?P<name>\w+)"'
PASS = r'^class (?P<object>\w+Pass)\((?:\n(?!class )|.)*?^    name = "(?P<name>[\w-]+)"'
TARGET = (
    r"^class (?P<object>\w+)\(SourceTarget\)(?:\n(?!class )|.)*?"
    r'^    name = "(?P<name>\w+)"'
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

Passes = tuple[ModulePass, ...]


def run(passes: Passes, ctx: Context, module: ModuleOp) -> None:
    """Run passes one after another, without verifying in between."""
    for each in passes:
        each.apply(ctx, module)


@dataclass(frozen=True)
class Pipeline(ModulePass):
    """A pass that runs others, between which `flexc-opt` can look."""

    @abstractmethod
    def passes(self) -> Passes:
        """Return the passes, in order."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        run(self.passes(), ctx, op)


def known_passes() -> dict[str, Callable[[], Any]]:
    """Return factories of all passes: flexc's first, then xDSL's and of plug-ins."""
    others = Universe.get_multiverse().all_passes
    return PASSES | {n: make for n, make in others.items() if n not in PASSES}


def parse_passes(text: str, known: Mapping[str, Callable[[], Any]]) -> Passes:
    """Return the passes that a text names, those of pipelines one by one.

    Raises:
        OptionError: if the text, a name or an option is invalid.
    """
    try:
        for spec in parse_pipeline(text):
            if spec.name not in known:
                hint = did_you_mean(spec.name, list(known)) or "; see flexc-opt --help"
                raise OptionError(f"no pass or pipeline is called {spec.name!r}{hint}")
        passes = PassPipeline.parse_spec(dict(known), text).passes
    except (ArgSpecParseError, ValueError) as error:
        raise OptionError(f"{text!r}: {error}") from error
    groups = (p.passes() if isinstance(p, Pipeline) else (p,) for p in passes)
    return tuple(each for group in groups for each in group)
