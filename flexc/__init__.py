"""flexc: a compiler for attention.

- `flexc.flex_attention` is torch's `flex_attention`, compiled when it is called.
- `flexc.flex_attention_varlen` is the same for packed sequences of any lengths.
- `flexc.compile` compiles functions that contain attention.
- `flexc.create_block_mask` is torch's function, without evaluating every pair.
- `flexc.debug` checks what mods read and make, for all pairs of a call.
- `flexc.explain` reports what flexc proves of a mask.
- `flexc.KVCache` and `flexc.PagedKV` hold keys and values of sequences that grow.
- `flexc.register_operators` lets torch load programs that it exported.
- `flexc.warmup` compiles kernels before the calls that need them.

Names are imported at their first use, so that `flexc-opt` starts without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexc.runtime.compiled.compiled_function import compile
    from flexc.runtime.explain import explain
    from flexc.runtime.inputs.arguments import pages_of_torch
    from flexc.runtime.interface import debug, flex_attention
    from flexc.runtime.kv_cache import KVCache, causal_lower_right, merge_attention
    from flexc.runtime.paged_kv import PagedKV
    from flexc.runtime.planner.block_mask import create_block_mask
    from flexc.runtime.torch_compile.operators.library import register_operators
    from flexc.runtime.varlen import flex_attention_varlen
    from flexc.runtime.warmup import warmup

__version__ = "0.1.0"

__all__ = [
    "KVCache",
    "PagedKV",
    "__version__",
    "causal_lower_right",
    "compile",
    "create_block_mask",
    "debug",
    "explain",
    "flex_attention",
    "flex_attention_varlen",
    "merge_attention",
    "pages_of_torch",
    "register_operators",
    "warmup",
]

_EXPORTS = {
    "KVCache": "flexc.runtime.kv_cache",
    "PagedKV": "flexc.runtime.paged_kv",
    "causal_lower_right": "flexc.runtime.kv_cache",
    "compile": "flexc.runtime.compiled.compiled_function",
    "create_block_mask": "flexc.runtime.planner.block_mask",
    "debug": "flexc.runtime.interface",
    "explain": "flexc.runtime.explain",
    "flex_attention": "flexc.runtime.interface",
    "flex_attention_varlen": "flexc.runtime.varlen",
    "merge_attention": "flexc.runtime.kv_cache",
    "pages_of_torch": "flexc.runtime.inputs.arguments",
    "register_operators": "flexc.runtime.torch_compile.operators.library",
    "warmup": "flexc.runtime.warmup",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'flexc' has no attribute {name!r}")
    from flexc.runtime.process.recent import without_collection

    with without_collection():
        found = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = found  # Later lookups then skip this slow function.
    return found
