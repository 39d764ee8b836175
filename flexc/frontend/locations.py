"""Lines of user files: the source locations of mods, traced ops and exceptions."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from flexc.errors import SourceLocation


def _found(package: str) -> Sequence[str]:
    """Return the folders of a package, without importing it."""
    spec = find_spec(package)
    return () if spec is None else spec.submodule_search_locations or ()


_OURS = (
    str(Path(__file__).parent.parent),
    str(Path(torch.__file__).parent),
    *_found("xdsl"),
)
"""Folders of packages that run during a trace."""

_PYTHONS = (sysconfig.get_path("stdlib"), "<frozen", "<eval_with_key>")

_INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages. They may lie within Python's own library."""


def mod_location(mod: Any) -> SourceLocation | None:
    """Return the location of a mod's function, or of the end of a mod's graph."""
    if isinstance(mod, GraphModule):
        return next(filter(None, map(node_location, reversed(mod.graph.nodes))), None)
    while not hasattr(mod, "__code__"):
        if isinstance(mod, functools.partial):
            mod = mod.func
        elif hasattr(mod, "__func__"):
            mod = mod.__func__
        elif isinstance(mod, torch.nn.Module):
            mod = type(mod).forward
        elif hasattr(type(mod).__call__, "__code__"):
            mod = type(mod).__call__
        else:
            return None
    code: CodeType = mod.__code__
    return SourceLocation(code.co_filename, code.co_firstlineno)


@functools.lru_cache(4096)
def is_user_file(filename: str) -> bool:
    """Return True if a file belongs neither to Python nor to torch, xDSL or flexc."""
    pythons = filename.startswith(_PYTHONS) and not is_installed(filename)
    return not pythons and not filename.startswith(_OURS)


def is_installed(filename: str) -> bool:
    """Return True if a file lies in a folder of installed packages."""
    return any(folder in filename for folder in _INSTALLED)


def user_trace(error: BaseException) -> TracebackType | None:
    """Return the innermost frame of user code that an exception passed through."""
    found = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if is_user_file(trace.tb_frame.f_code.co_filename):
            found = trace
        trace = trace.tb_next
    return found


def error_location(error: BaseException) -> SourceLocation | None:
    """Return the innermost line of user code that an exception passed through."""
    lines = [_user_line(*step) for step in walk_tb(error.__traceback__)]
    return next(filter(None, reversed(lines)), None)


_RUN_NODE = Interpreter.run_node.__code__


def _user_line(frame: FrameType, line: int | None = None) -> SourceLocation | None:
    """Return the user's line that a frame runs, None for a library's line.

    `line` is the frame's current line by default. For an interpreted graph, such as
    Dynamo's, return the line that a node came from.
    """
    code = frame.f_code
    if code is _RUN_NODE:
        return node_location(frame.f_locals["n"])
    if not is_user_file(code.co_filename):
        return None
    return SourceLocation(code.co_filename, frame.f_lineno if line is None else line)


def node_location(node: Node) -> SourceLocation | None:
    """Return the user's line that an FX node was traced from."""
    text = node.meta.get("stack_trace") or ""
    for line in reversed(text.split('File "')[1:]):
        filename, quote, rest = line.partition('", line ')
        digits = rest.partition(",")[0]
        if quote and digits and is_user_file(filename):
            return SourceLocation(filename, int(digits))
    return None


class RecordLines(TorchFunctionMode):
    """A mode that records the user's line as the stack trace of every traced node.

    FX would record whole Python stacks, which is slow.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        frame: FrameType | None = sys._getframe(1)
        where = None
        while frame is not None and where is None:
            where = _user_line(frame)
            frame = frame.f_back
        if where is not None:
            fx_traceback.set_stack_trace(
                [f'File "{where.filename}", line {where.line}, in a mod']
            )
        return func(*args, **(kwargs or {}))
