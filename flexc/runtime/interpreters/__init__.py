"""Reference semantics: interpreters of all levels of the IR, on torch tensors.

Tests check a pass by running a module before and after the pass. The interpreters are
simple and slow, and share no code with code generation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.ir import Region
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects.tile import KernelOp
from flexc.runtime.interpreters.attention import FlexFunctions
from flexc.runtime.interpreters.blocksparse import BlockSparseFunctions
from flexc.runtime.interpreters.cpu import CpuFunctions
from flexc.runtime.interpreters.derivatives import DerivativeFunctions
from flexc.runtime.interpreters.host_ops import (
    HostFunctions,
    remember_sizes,
    run_kernel,
)
from flexc.runtime.interpreters.pair_sums import PairSumsFunctions
from flexc.runtime.interpreters.scalar import (
    ControlFunctions,
    ScalarFunctions,
    call_function,
)
from flexc.runtime.interpreters.schedule import ScheduleFunctions, set_interleaving
from flexc.runtime.interpreters.tile import TileFunctions
from flexc.runtime.interpreters.values import as_value

ENTRIES = (
    "attention",
    "attention_backward",
    "attention_jvp",
    "combine_splits",
)
"""The names of the functions that `run_module` runs."""


def make_interpreter(
    module: ModuleOp | None = None,
    compute_dtype: torch.dtype | None = None,
    interleaving: int | None = None,
) -> Interpreter:
    """Return an interpreter of all levels.

    `compute_dtype` is the dtype of attention's products and softmax; by default, the
    dtype of the scores. `interleaving` is a seed that chooses the order in which the
    roles of a schedule continue; by default, each role runs until the role waits.
    """
    interpreter = Interpreter(ModuleOp([]) if module is None else module)
    set_interleaving(interpreter, interleaving)
    for functions in (
        ScalarFunctions(),
        ControlFunctions(),
        FlexFunctions(compute_dtype),
        DerivativeFunctions(compute_dtype),
        PairSumsFunctions(compute_dtype),
        HostFunctions(compute_dtype),
        BlockSparseFunctions(compute_dtype),
        TileFunctions(compute_dtype),
        ScheduleFunctions(compute_dtype),
        CpuFunctions(compute_dtype),
    ):
        interpreter.register_implementations(functions)
    return interpreter


def run_region(region: Region, args: Sequence[object]) -> tuple[Tensor, ...]:
    """Return the values that a region of scalar code yields for tensors and numbers.

    Unlike the arguments of `run_module`, numbers may be tensors of any broadcastable
    shape.
    """
    values = [
        a if isinstance(a, Tensor) else as_value(a, arg.type)
        for a, arg in zip(args, region.block.args, strict=True)
    ]
    return make_interpreter().run_ssacfg_region(region, tuple(values))


@torch.no_grad()
def run_module(
    module: ModuleOp,
    args: Sequence[object],
    *,
    compute_dtype: torch.dtype | None = None,
    interleaving: int | None = None,
) -> list[Tensor]:
    """Run a module's function or kernel, and return its outputs in order.

    The `args` of attention are query, key, value, scale, captures and tables, as
    tensors and numbers. The `args` of a kernel may also have out, lse and max_scores,
    which the kernel writes in place; the interpreter allocates missing outputs. A
    derivative's function runs the functions or kernels that it launches. `interleaving`
    is a seed for the order in which the roles of a schedule continue. Raise
    InterpretationError if the module has no such function and no kernel.
    """
    interpreter = make_interpreter(module, compute_dtype, interleaving)
    for op in module.ops:
        if isinstance(op, func.FuncOp) and op.sym_name.data in ENTRIES:
            remember_sizes(interpreter, args)
            return call_function(interpreter, op, args)
    for op in module.ops:
        if isinstance(op, KernelOp):
            return run_kernel(interpreter, op, args)
    raise InterpretationError(
        f"expected a function of {', '.join(ENTRIES)} or a kernel, got neither"
    )
