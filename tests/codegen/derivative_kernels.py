"""The kernels of derivatives of the corpus, as the runtime makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from flexc.codegen.kernel_spec import KernelSpec
from flexc.dialects.flex import CAPTURE, AttentionOp
from flexc.dialects.flex.pair_sums import is_float_tensor
from flexc.passes.flex.flex_differentiate import Derivative, derivative_module
from flexc.runtime.autograd.gradient_programs import expand
from flexc.runtime.kernels import driver
from tests.codegen.triton_kernels import Variant, call_of, vendor_of

INPUTS = ("query", "key", "value")


def derivative_of(module: ModuleOp, kind: str) -> Derivative:
    """By all that has a derivative; tables of columns are as many as of rows."""
    attention = next(o for o in module.walk() if isinstance(o, AttentionOp))
    captures = enumerate(attention.captures)
    names = *INPUTS, *(f"{CAPTURE}{i}" for i, c in captures if is_float_tensor(c.type))
    block = attention.sparse_block
    rows, columns = block.get_values() if block is not None else (0, 0)
    return Derivative(
        wrt=() if kind == "jvp" else names,
        along=() if kind == "backward" else (*names, *(["d_out"] * (kind == "second"))),
        d_lse=kind == "backward",
        lse_rest=kind == "backward",
        column_tables=len(attention.tables),
        column_block=None if block is None else (columns, rows),
    )


def lowered(module: ModuleOp, build: driver.Build, kind: str) -> Iterator[KernelSpec]:
    """The emitted kernels of a derivative, in the order in which they run."""
    expanded = derivative_module(module, derivative_of(module, kind))
    expand(expanded, "queries" if build.backend == "cpp" else "none")
    *kernels, _host = (o for o in expanded.ops if isinstance(o, func.FuncOp))
    for kernel in kernels:
        yield driver.lower(ModuleOp([kernel.clone()]), build)


def triton_kernels(variant: Variant, kind: str) -> list[KernelSpec]:
    module, build = call_of(variant)
    with vendor_of(variant.target):
        return list(lowered(module, build, kind))


def cpp_kernels(variant: Variant, kind: str) -> list[KernelSpec]:
    module, build = call_of(variant)
    return list(lowered(module, replace(build, backend="cpp", device="cpu"), kind))
