"""A generated case as a `flex` module, its arguments, and the passes after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from flexc import universe
from flexc.codegen.cpp.target import CppSourceTarget
from flexc.dialects.tile import KernelOp
from flexc.errors import ScheduleError
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.targets.target import MachineName
from flexc.runtime.inputs.arguments import NO_SCALES, Pages, Scales
from flexc.runtime.interpreters.host_ops import add_outputs
from flexc.runtime.kernels.kernel import Kernel
from tests.property.cases import Case
from tests.support.flex_modules import LSE_AND_MAX, make_call, make_module


def context() -> Context:
    made = Context()
    for name, factory in (get_all_dialects() | universe.DIALECTS).items():
        made.register_dialect(name, factory)
    return made


def flex_module(case: Case) -> tuple[ModuleOp, list[Any]]:
    """What the frontend makes of a case, and the arguments to run it with."""
    score_mod, mask_mod = case.given_mods
    return attention_module(
        case.inputs, score_mod, case.block_mask, mask_mod, case.scale_value
    )


def attention_module(
    inputs: Sequence[Tensor],
    score_mod: Any,
    block_mask: BlockMask | None,
    mask_mod: Any,
    scale: float,
    pages: Pages | None = None,
    scales: Scales = NO_SCALES,
) -> tuple[ModuleOp, list[Any]]:
    """The same of a call of attention for out, lse and max_scores."""
    mask = mask_mod if block_mask is None else block_mask
    call = make_call(inputs, score_mod, mask, scale, LSE_AND_MAX, "cpp")
    return make_module(replace(call, pages=pages, scales=scales))


def passes(
    target: str,
    block_m: int | None = None,
    block_n: int | None = None,
    machine: MachineName = "avx2",
) -> tuple[ModulePass, ...]:
    """All passes from `flex` to what a printer takes; a machine is that of a CPU."""
    convert = ConvertFlexToBlocksparsePass(target, block_m, block_n, machine=machine)
    rest = {
        "triton": pipelines.to_triton,
        "gluon": pipelines.to_schedule,
        "cpp": lambda: pipelines.to_cpp(machine),
    }[target]
    return (*pipelines.to_blocksparse(convert), *pipelines.to_tile(target), *rest())


def levels(
    case: Case,
    target: str,
    block_m: int | None = None,
    block_n: int | None = None,
    machine: MachineName = "avx2",
) -> Iterator[tuple[str, ModuleOp, list[Any]]]:
    """The module as imported and after each pass that changed it."""
    return lowered(*flex_module(case), target, block_m, block_n, machine)


def lowered(
    module: ModuleOp,
    args: list[Any],
    target: str,
    block_m: int | None = None,
    block_n: int | None = None,
    machine: MachineName = "avx2",
) -> Iterator[tuple[str, ModuleOp, list[Any]]]:
    """A `flex` module and what passes make of it, each with its arguments.

    Of a kernel without a schedule, up to the pass that refuses it.
    """
    module.verify()
    yield "import", module, args
    try:
        for name in changes(module, passes(target, block_m, block_n, machine)):
            yield f"{name} for {target}", module, args
    except ScheduleError:  # Not all kernels can be given one.
        return


def changes(module: ModuleOp, passes: Sequence[ModulePass]) -> Iterator[str]:
    """Apply passes; stop after each that changed the module, which is verified."""
    ctx, after = context(), contents(module)
    for number, each in enumerate(passes):
        each.apply(ctx, module)
        before, after = after, contents(module)
        if after != before:
            module.verify()
            yield f"{number} {each.name}"


def contents(module: ModuleOp) -> list[Any]:
    """The ops of a module, with what a pass may change of them in place."""
    return [
        (
            op,
            op.parent,
            tuple(op.operands),
            op.properties.copy(),
            op.attributes.copy(),
            [value.type for value in op.results],
            [a.type for r in op.regions for b in r.blocks for a in b.args],
        )
        for op in module.walk()
    ]


def run_cpp(module: ModuleOp, args: Sequence[Any]) -> list[Tensor]:
    """Compile and run the kernel that passes for C++ made of a module."""
    (spec,), call = CppSourceTarget().print_kernels(module), list(args)
    (kernel,) = (op for op in module.ops if isinstance(op, KernelOp))
    outputs = add_outputs(kernel, call)
    Kernel(spec)(call[0], call)
    return outputs
