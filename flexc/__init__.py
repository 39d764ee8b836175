"""flexc: a compiler for attention.

`flexc.flex_attention` is torch's `flex_attention`, compiled when it is called;
`flexc.compile` compiles functions that contain it; `flexc.create_block_mask` is
torch's, without looking at every pair, `flexc.explain` says what is known of a mask,
and `flexc.warmup` compiles what calls will need. Names are loaded when they are first
used, so that `flexc-opt` starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexc.runtime.compiled.compiled_function import compile
    from flexc.runtime.explain import explain
    from flexc.runtime.interface import flex_attention
    from flexc.runtime.planner.block_mask import create_block_mask
    from flexc.runtime.warmup import warmup

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "compile",
    "create_block_mask",
    "explain",
    "flex_attention",
    "warmup",
]

_EXPORTS = {
    "compile": "flexc.runtime.compiled.compiled_function",
    "create_block_mask": "flexc.runtime.planner.block_mask",
    "explain": "flexc.runtime.explain",
    "flex_attention": "flexc.runtime.interface",
    "warmup": "flexc.runtime.warmup",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'flexc' has no attribute {name!r}")
    from flexc.runtime.process.collection import without_collection

    with without_collection():
        found = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = found  # To come here again takes longer than many a kernel.
    return found
