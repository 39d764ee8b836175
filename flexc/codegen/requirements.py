"""What a target asks of a module before it prints."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from flexc.dialects import tile
from flexc.errors import OptionError


def require_kernels(module: ModuleOp, target: str) -> None:
    """Refuse a module of which nothing would be printed."""
    if not any(isinstance(op, tile.KernelOp) for op in module.ops):
        raise OptionError(
            f"-t {target} expects a tile.kernel, got none; lower what is there with "
            f"-p flexc-to-{target}"
        )
