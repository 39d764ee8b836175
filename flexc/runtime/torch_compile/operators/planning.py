"""`flexc::plan`: an operator of torch's graphs that finds the blocks of a mask.

Layers that share a mask have equal calls of this operator, and torch's compilers keep
one of them. The operator takes the mask's captures and returns all tables, of rows and
of columns, in one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from flexc.passes.scalar.variation import Along
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.inputs.options import NO_CHOICES, resolve_backend
from flexc.runtime.inputs.wrappers import is_transformed, without_modes
from flexc.runtime.kernels.driver import trace_mods
from flexc.runtime.planner.plans import (
    PlanningProblem,
    collapsed,
    find_plan,
    is_ordered,
)
from flexc.runtime.planner.tables import plan_problem
from flexc.runtime.replay.repeats import repeat
from flexc.runtime.torch_compile.mod_graphs import ModGraphs
from flexc.runtime.torch_compile.operators.handles import (
    Constants,
    PlannedBlocks,
    lookup,
)
from flexc.runtime.torch_compile.operators.traced import (
    TracedAttention,
    captures_of,
    kind_of,
)


def choose_blocks(call: Attention) -> PlannedBlocks | None:
    """Return the blocks for a call, whose tensors need no data, or None."""
    call = call.with_traced()
    mask = call.proved_in(call.compiled()).mask
    if mask.has_bounds or not mask.is_planned(call.sizes):
        return None
    device, backend = call.query.device, call.backend
    block = mask.block_for(*call.sizes[2:])
    problem = PlanningProblem(*call.sizes, *block)
    along = find_plan(call.signature, call.trace(), problem, device, backend).along
    if not is_ordered(collapsed(problem, along), device):
        return None
    derived = call.derivative_block(block)
    return PlannedBlocks(block, Along.BATCH in along, Along.HEAD in along, derived)


def plan(
    captures: list[Tensor],
    sizes: Sequence[int],
    numbers: Sequence[int],
    handle: str,
    device: torch.device,
) -> Tensor:
    """Return the tables of a mask for sizes (batch, heads, q_len, kv_len)."""
    captures, numbers = captures or [], numbers or ()  # AOTInductor's empty lists.

    def run() -> tuple[Tensor]:
        constants = lookup(handle)
        blocks = constants.blocks
        assert blocks is not None
        given = (None, None, None, captures, (), numbers, 1.0, handle)
        signature = constants.mods.signature(captures_of(given))
        problem, backend = blocks.problem(sizes), resolve_backend("auto", device)
        found, mods = trace_mods(signature, torch.float32, device)
        planned = plan_problem(found, mods, problem, device, backend, both=True)
        assert planned.packed is not None
        return (planned.packed.tensor,)

    key = (handle, tuple(sizes), tuple(numbers))
    return repeat(key, captures, device, run)[0]


def plan_fake(*args: Any) -> Tensor:
    _, sizes, _, handle, device = args
    blocks = lookup(handle).blocks
    assert blocks is not None
    return blocks.layouts(blocks.problem(sizes))[-1].empty(device)


def with_planned(traced: TracedAttention) -> TracedAttention:
    """Return a traced call whose blocks are planned by `flexc::plan`, if possible.

    If the mask depends on numbers that the trace does not know, the operator of
    attention plans the blocks itself, and the call is returned unchanged.
    """
    mods, captures = traced.mods, traced.signature.captures
    assert mods is not None
    graph, slots = mods.graphs[1], mods.slots[1]
    if graph is None or traced.tables is not None or mods.numbers & set(slots):
        return traced
    if traced.computed_by.is_dense or is_transformed():
        return traced
    with without_modes():
        call = stand_in(traced, mods)
        blocks = None if call is None else choose_blocks(call)
    if blocks is None:
        return traced
    given = tuple(captures[slot] for slot in slots)
    own = ModGraphs.of((None, graph), ((), tuple(range(len(given)))))
    constants = Constants(
        own, tuple(map(kind_of, given)), Outputs(), NO_CHOICES, blocks=blocks
    )
    constants.remember()
    sizes = [*traced.query.shape[:3], traced.key.size(2)]
    packed = torch.ops.flexc.plan(
        [c for c in given if isinstance(c, Tensor)],
        sizes,
        [c for c in given if kind_of(c) is int],
        constants.handle,
        traced.query.device,
    )
    return replace(traced, tables=blocks.packed(packed, sizes), blocks=blocks)


def stand_in(traced: TracedAttention, mods: ModGraphs) -> Attention | None:
    """Return a call like a traced one, of tensors without data.

    Return None if a size is unknown.
    """
    # A stand-in for captured floats that are known only at run time.
    one = torch.ones((), dtype=torch.float64, device="cpu")
    tensors = [_empty(t) for t in (traced.query, traced.key, traced.value)]
    values = [
        one if slot in mods.numbers else _value(capture)
        for slot, capture in enumerate(traced.signature.captures)
    ]
    if any(t is None for t in (*tensors, *values)):
        return None
    query, key, value = (t for t in tensors if t is not None)
    for tensor in (query, key, value):
        tensor.untyped_storage().resize_(0)
    return Attention(
        query,
        key,
        value,
        traced.scale if type(traced.scale) is float else 1.0,
        None,
        mods.signature(values),
        traced.outputs,
        traced.computed_by.name,
        traced.choices,
    )


def _value(capture: Any) -> Any:
    """Return a captured number, or zeros like a captured tensor."""
    if not isinstance(capture, Tensor):
        return _hint(capture)
    made = _empty(capture)
    if made is not None:
        # An expanded tensor may have far more elements than its storage has bytes.
        storage: Any = made.untyped_storage()
        storage.fill_(0)
    return made


def _empty(tensor: Tensor) -> Tensor | None:
    """Return an empty tensor of the sizes and strides that the trace has as hints.

    Return None if a hint is missing.
    """
    shape, strides = ([_hint(n) for n in ns] for ns in (tensor.shape, tensor.stride()))
    if None in shape or None in strides:
        return None
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)


def _hint(number: Any) -> Any:
    """Return the hint of a symbolic number, None if the trace has none."""
    return number.node.hint if isinstance(number, torch.SymInt) else number
