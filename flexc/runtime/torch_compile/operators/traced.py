"""Traced calls, which run as operators of torch.library, as their derivatives do.

An operator takes tensors, sizes, and a handle to the constants (see `handles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from flexc.errors import TracingError
from flexc.frontend.captured import CapturedMod
from flexc.runtime.attention.call import Attention
from flexc.runtime.autograd.derivatives import (
    OPERATORS,
    Cotangents,
    Direction,
    Gradients,
    Tangents,
    Wanted,
    check_gradient,
    spread,
)
from flexc.runtime.autograd.functions import is_differentiated
from flexc.runtime.autograd.template import ReadFacts
from flexc.runtime.inputs.arguments import Results
from flexc.runtime.inputs.options import BACKENDS, Backend, resolve_backend
from flexc.runtime.inputs.tensor_facts import check_captures
from flexc.runtime.inputs.wrappers import (
    has_dispatch,
    is_transformed,
    plain,
    without_modes,
)
from flexc.runtime.kernels.driver import trace_mods
from flexc.runtime.torch_compile.graph_call import GraphCall, Operands
from flexc.runtime.torch_compile.mod_graphs import GraphSignature, ModGraphs, mods_of
from flexc.runtime.torch_compile.operators.handles import (
    Constants,
    PlannedBlocks,
    lookup,
)

Arguments = tuple[
    Tensor, Tensor, Tensor, list[Tensor], list[Tensor], list[int], float | None, str
]
"""Query, key, value, captured tensors, tables, sizes, scale and handle.

If the scale is not yet known, it is None, and a tensor with the scale precedes the
captured tensors.
"""

ARGUMENTS = 8
"""The number of an operator's arguments that identify its call."""


@dataclass(frozen=True, eq=False)
class TracedAttention(Attention):
    """A call of tensors without data. The call and its derivatives run as operators."""

    mods: ModGraphs | None = None
    blocks: PlannedBlocks | None = None

    @classmethod
    def of(cls, call: GraphCall, operands: Operands) -> TracedAttention:
        """Return the call of operands, in which floats may be tensors or symbols."""
        operands = operands.checked(call.enable_gqa)
        query, key, value, *_ = operands
        assert isinstance(call.mods, ModGraphs), "functions are not traced but run"
        mods, captures = _without_symbols(call.mods, operands.captures)
        own = [c for i, c in enumerate(captures) if i not in mods.numbers]
        check_captures(own, query.device)
        return cls(
            query,
            key,
            value,
            _constant_or_tensor(operands.factor),
            operands.make_tables(expand=is_transformed()),
            GraphSignature(mods.graphs, (), captures, True, False, mods.slots),
            call.outputs,
            OPERATORS,
            call.choices,
            mods=mods,
        )

    @classmethod
    def of_eager(cls, call: Attention) -> TracedAttention:
        """Return a call of Python functions, which flexc traces here.

        The call may be of tensors without data, or of classes with their own dispatch.
        """
        captures = call.signature.captures
        differentiated = is_differentiated(call)
        with without_modes():
            known = replace(call.signature, captures=tuple(map(known_value, captures)))
            found, mods = trace_mods(known, call.score_dtype, call.query.device)
        if differentiated:
            check_gradient(mods)
        # Mods were traced for the hints of symbols, so other values need these guards.
        if not mods.guards.hold(captures):
            raise TracingError(
                "a mod expects numbers that are known while it is traced, got symbols; "
                "make the lengths that it reads static"
            )
        captures = (*captures, *found.captures[len(captures) :])
        pair = (mods.score, mods.mask)
        graphs, values = mods_of(
            (pair[0] and pair[0].graph, pair[1] and pair[1].graph),
            (inputs_of_mod(pair[0], captures), inputs_of_mod(pair[1], captures)),
        )
        assert isinstance(graphs, ModGraphs)
        graphs, values = _without_symbols(graphs, values)
        return cls(
            call.query,
            call.key,
            call.value,
            _constant_or_tensor(call.scale),
            call.tables and call.tables.bare,
            GraphSignature(graphs.graphs, (), values, True, False, graphs.slots),
            call.outputs,
            OPERATORS,
            call.choices,
            mods=graphs,
        )

    @classmethod
    def bind(cls, arguments: Sequence[Any]) -> TracedAttention:
        """Return the call of an operator's arguments."""
        query, key, value, _, tables, sizes, _, handle = arguments
        constants = lookup(handle)
        mods = constants.mods
        captures = captures_of(arguments)
        return cls(
            query,
            key,
            value,
            scale_of(arguments),
            constants.tables(query, key, tables, sizes),
            GraphSignature(mods.graphs, (), captures, True, False, mods.slots),
            constants.outputs,
            OPERATORS,
            constants.choices,
            mods=mods,
            blocks=constants.blocks,
        )

    @property
    def computed_by(self) -> Backend:
        return BACKENDS[resolve_backend(self.choices.backend, self.query.device)]

    def imported(self) -> TracedAttention:
        """Return the call with graphs by flexc in place of those by Dynamo."""
        assert self.mods is not None
        if self.mods.numbers:
            return self
        signature = self.mods.signature(self.signature.captures)
        return TracedAttention.of_eager(replace(self, signature=signature))

    def reads(self) -> ReadFacts:
        assert self.mods is not None
        return self.mods.reads(self.signature.captures)

    def arguments(self) -> Arguments:
        """Return the arguments of the operators."""
        assert self.mods is not None
        captures = self.signature.captures
        kinds = tuple(map(kind_of, captures))
        columns = self.tables is not None and self.tables.columns is not None
        constants = Constants(
            self.mods, kinds, self.outputs, self.choices, columns, self.blocks
        )
        constants.remember()
        block = () if self.tables is None else self.tables.block_size
        numbers = [c for c, kind in zip(captures, kinds, strict=True) if kind is int]
        tensors = [c for c in (self.scale, *captures) if isinstance(c, Tensor)]
        return (
            self.query,
            self.key,
            self.value,
            tensors,
            [] if self.tables is None else list(self.tables.all_tensors),
            [*block, *numbers],  # pyright: ignore[reportReturnType]
            None if isinstance(self.scale, Tensor) else self.scale,
            constants.handle,
        )


def inputs_of_mod(mod: CapturedMod | None, captures: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values that a traced mod takes after its arguments."""
    return () if mod is None else tuple(i.value(captures) for i in mod.inputs)


def known_value(capture: Any) -> Any:
    """Return a capture with the hints of its symbols, and without its own dispatch."""
    if isinstance(capture, torch.SymInt | torch.SymFloat):
        return capture.node.hint
    if not isinstance(capture, Tensor) or not has_dispatch(capture := plain(capture)):
        return capture
    extents = [
        [known_value(n) for n in what] for what in (capture.shape, capture.stride())
    ]
    options: Any = {"dtype": capture.dtype, "device": capture.device}
    with FakeTensorMode():
        known = torch.empty_strided(*extents, **options)
    known.requires_grad_(capture.requires_grad)
    return torch.nn.Parameter(known) if isinstance(capture, Parameter) else known


def _constant_or_tensor(scale: Any) -> Any:
    """Return a number, or a tensor for a number that changes between calls.

    torch's compilers turn the product into an op of tensors. Other uses of a symbolic
    float would make it a constant.
    """
    if not isinstance(scale, torch.SymFloat):
        return float(scale)
    return torch.mul(torch.ones((), dtype=torch.float64, device="cpu"), scale)  # pyright: ignore


def _without_symbols(
    mods: ModGraphs, captures: Sequence[Any]
) -> tuple[ModGraphs, tuple[Any, ...]]:
    """Return mods and captures with tensors in place of symbolic floats.

    Dynamo passes such a float if code around the call uses it too.
    """
    floats = {i for i, c in enumerate(captures) if isinstance(c, torch.SymFloat)}
    values = (
        _constant_or_tensor(c) if i in floats else c for i, c in enumerate(captures)
    )
    return replace(mods, numbers=mods.numbers | floats), tuple(values)


def kind_of(capture: Any) -> Any:
    if isinstance(capture, Tensor):
        return Tensor
    is_size = isinstance(capture, int | torch.SymInt) and not isinstance(capture, bool)
    return int if is_size else capture


def scale_of(arguments: Sequence[Any]) -> Any:
    """Return the scale of a call, which may be a tensor."""
    return arguments[3][0] if arguments[-2] is None else arguments[-2]


Resolved = tuple[GraphSignature, float]
"""The mods and the scale of a call, with all numbers as Python numbers."""


def resolved(arguments: Sequence[Any]) -> Resolved:
    """Return the numbers of an operator's arguments that have data."""
    mods = lookup(arguments[-1]).mods
    return mods.signature(captures_of(arguments)), float(scale_of(arguments))


def bind(arguments: Sequence[Any], numbers: Resolved | None = None) -> Attention:
    """Return the call of an operator's arguments, which have data and were checked."""
    query, key, value, _, tables, sizes, _, handle = arguments
    constants = lookup(handle)
    signature, scale = numbers or resolved(arguments)
    check_captures(signature.captures, query.device)
    found = constants.tables(query, key, tables, sizes, unpack=True)
    return Attention(
        query,
        key,
        value,
        scale,
        found,
        signature,
        constants.outputs,
        resolve_backend(constants.choices.backend, query.device),
        constants.choices,
        resolved=found is not None,
    )


def captures_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return all captures of a call. Floats may be tensors."""
    _, _, _, tensors, tables, sizes, scale, handle = arguments
    given: dict[Any, Any] = {
        Tensor: iter(tensors[1:] if scale is None else tensors),
        int: iter(sizes[2:] if tables else sizes),
    }
    kinds = lookup(handle).captures
    return tuple(next(given[k]) if k in (Tensor, int) else k for k in kinds)


def run(call: Attention) -> Results:
    """Return the results of a call."""
    outputs, tables = call.outputs, call.tables
    if tables is not None and tables.columns is not None:
        # Tables of columns are for derivatives.
        call = replace(call, tables=replace(tables, columns=None))
    out, *rest = torch.ops.flexc.attention(*_arguments(call))
    lse = rest[0] if outputs.lse else None
    return out, lse, rest[-1] if outputs.max_scores else None


class DerivativeRun:
    """The derivatives of one call, by operators (see `derivatives.Derivatives`)."""

    def __init__(self, call: Attention, out: Tensor, lse: Tensor):
        self.args = (*_arguments(call), out, lse)

    def backward(
        self, cotangents: Cotangents, wanted: Wanted, along: Direction | None
    ) -> Gradients:
        args = (*self.args, *cotangents)
        if along is None:
            found = torch.ops.flexc.attention_backward(*args, list(wanted))
        else:
            args += (*along.cotangents, *_listed(along.inputs))
            found = torch.ops.flexc.attention_backward_jvp(*args, list(wanted))
        return spread(found, wanted)

    def jvp(self, tangents: Tangents) -> tuple[Tensor, Tensor]:
        return torch.ops.flexc.attention_jvp(*self.args, *_listed(tangents))


def _arguments(call: Attention) -> Arguments:
    return cast(TracedAttention, call).arguments()


def _listed(tangents: Tangents) -> tuple[list[Tensor], list[bool]]:
    """Return the tangents that are not zero, and a flag for each tangent."""
    return [t for t in tangents if t is not None], [t is not None for t in tangents]
