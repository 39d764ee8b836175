"""Reference semantics: every level of the IR, executed on torch tensors.

Run a module before and after a pass, and the pass is checked. Nothing here is
fast or clever, and nothing is shared with code generation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter, InterpreterFunctions
from xdsl.ir import Region
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects.tile import KernelOp
from flexc.runtime.interpreters.blocksparse import BlockSparseFunctions
from flexc.runtime.interpreters.control import CallFunctions, ControlFunctions
from flexc.runtime.interpreters.derivatives import DerivativeFunctions
from flexc.runtime.interpreters.finish import FinishFunctions, remember_sizes
from flexc.runtime.interpreters.flex import FlexFunctions
from flexc.runtime.interpreters.host import HostFunctions
from flexc.runtime.interpreters.kernel import run_kernel
from flexc.runtime.interpreters.pair_sums import PairSumsFunctions
from flexc.runtime.interpreters.panels import PanelFunctions
from flexc.runtime.interpreters.scalar import ScalarFunctions
from flexc.runtime.interpreters.schedule import schedule_functions, set_interleaving
from flexc.runtime.interpreters.tile import TileApproxFunctions, TileFunctions
from flexc.runtime.interpreters.values import as_value

ENTRIES = (
    "attention",
    "attention_backward",
    "attention_jvp",
    "combine_splits",
)
"""The names of functions to run."""


def make_interpreter(
    module: ModuleOp | None = None,
    compute_dtype: torch.dtype | None = None,
    interleaving: int | None = None,
) -> Interpreter:
    """An interpreter of all levels.

    `compute_dtype` is what attention's products and softmax are computed in;
    without it, in the type of the scores. `interleaving` is a seed that chooses in
    which order the roles of a schedule go on; without it, each runs until it waits.
    """
    interpreter = Interpreter(ModuleOp([]) if module is None else module)
    set_interleaving(interpreter, interleaving)
    for functions in (
        CallFunctions(),
        ScalarFunctions(),
        ControlFunctions(),
        FlexFunctions(compute_dtype),
        DerivativeFunctions(compute_dtype),
        PairSumsFunctions(compute_dtype),
        FinishFunctions(compute_dtype),
        BlockSparseFunctions(compute_dtype),
        TileFunctions(compute_dtype),
        TileApproxFunctions(),
        *schedule_functions(compute_dtype),
        HostFunctions(),
        PanelFunctions(compute_dtype),
    ):
        interpreter.register_implementations(functions)
    return interpreter


def run_function(
    module: ModuleOp, args: Sequence[object], attention: InterpreterFunctions
) -> list[Tensor]:
    """Run a `flex` module's function, with a meaning of its own for attention.

    Autograd records it, where it is on.
    """
    interpreter = Interpreter(module)
    for functions in (CallFunctions(), ScalarFunctions(), attention):
        interpreter.register_implementations(functions)
    (function,) = [op for op in module.ops if isinstance(op, func.FuncOp)]
    return _run_function(interpreter, function, args)


def run_region(region: Region, args: Sequence[object]) -> tuple[Tensor, ...]:
    """What a region of scalar code yields for tensors and numbers.

    Unlike a module's, its numbers may be tensors of any broadcastable shape.
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

    `args` of attention are query, key, value, scale, captures and tables: tensors
    and numbers. A kernel's may go on with out, lse and max_scores, to be written in
    place; those not given are made. A derivative's function runs what it launches:
    functions, or the kernels that these became. `interleaving` is a seed for the
    order in which a schedule's roles go on.
    """
    interpreter = make_interpreter(module, compute_dtype, interleaving)
    for op in module.ops:
        if isinstance(op, func.FuncOp) and op.sym_name.data in ENTRIES:
            remember_sizes(interpreter, args)
            return _run_function(interpreter, op, args)
    for op in module.ops:
        if isinstance(op, KernelOp):
            return run_kernel(interpreter, op, args)
    raise InterpretationError(
        f"expected a function of {', '.join(ENTRIES)} or a kernel, got neither"
    )


def _run_function(
    interpreter: Interpreter, op: func.FuncOp, args: Sequence[object]
) -> list[Tensor]:
    if len(args) != len(op.args):
        raise InterpretationError(f"expected {len(op.args)} arguments, got {len(args)}")
    values = [as_value(a, arg.type) for a, arg in zip(args, op.args, strict=True)]
    return list(interpreter.call_op(op, tuple(values)))
