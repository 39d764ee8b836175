"""Mods differentiated as regions of scalar code and by torch, over the same points.

A mod is imported and its region differentiated; what is read of a captured tensor is
added up by the indices of the reads, which gives the gradient of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from xdsl.context import Context
from xdsl.dialects.builtin import AnyFloat, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from flexc.dialects.flex import AttentionOp
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes.flex.flex_widen_indices import FlexWidenIndicesPass
from flexc.passes.scalar.canonicalization import simplify_region
from flexc.passes.scalar.differentiation.derivative_code import derivative_type
from flexc.passes.scalar.differentiation.modes import pull_back, push_forward
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.runtime.interpreters import run_region

SCORE = 0
ARITY = 5
"""Arguments of a score mod's region before the captures."""


def is_float_tensor(type_: Attribute) -> bool:
    return isinstance(type_, TensorType) and isinstance(type_.element_type, AnyFloat)


@dataclass(frozen=True)
class Copy:
    """A region's code, copied into a block that has more arguments."""

    block: Block
    code: ScalarCode
    args: Sequence[SSAValue]
    """The region's own arguments."""
    extra: Sequence[SSAValue]
    results: Sequence[SSAValue]

    @classmethod
    def of(cls, region: Region, extra: Sequence[Attribute]) -> Copy:
        own = list(region.block.arg_types)
        block = Block(arg_types=[*own, *extra])
        for arg, old in zip(block.args, region.block.args, strict=False):
            arg.name_hint = old.name_hint
        args, rest = block.args[: len(own)], block.args[len(own) :]
        code = ScalarCode(block)
        return cls(block, code, args, rest, inline_region(region, args, code))

    @property
    def ops(self) -> list[Operation]:
        return list(self.block.ops)

    @property
    def tensors(self) -> list[SSAValue]:
        return [a for a in self.args if is_float_tensor(a.type)]

    def finish(self, *values: SSAValue) -> Region:
        self.code.yield_(*values)
        self.block.verify()
        return Region(self.block)

    def number(self, value: SSAValue | None, type_: Attribute) -> SSAValue:
        """A derivative, 0 if there is none."""
        type_ = derivative_type(type_)
        return self.code.const(0.0, type_) if value is None else value


@dataclass(frozen=True)
class Reverse:
    """A region of a mod's arguments and a cotangent of its result.

    It yields the adjoint of the score, and for each read that of the element and the
    indices.
    """

    region: Region
    reads: Sequence[tuple[int, int]]
    """For each read the number of the tensor's argument, and the number of indices."""

    def split(self, values: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Adjoints and indices."""
        adjoints, indices, place = [values[0]], list[Tensor](), 1
        for _, rank in self.reads:
            adjoints.append(values[place])
            indices += values[place + 1 : place + 1 + rank]
            place += 1 + rank
        return adjoints, indices


def result_type(region: Region) -> Attribute:
    last = region.block.last_op
    assert last is not None
    return last.operands[0].type


def reversed_mod(region: Region) -> Reverse:
    """The adjoints of a mod's score and of all float reads."""
    copy = Copy.of(region, [derivative_type(result_type(region))])
    wanted = [copy.args[SCORE], *copy.tensors]
    (result,) = copy.results
    adjoints = pull_back(copy.code, copy.ops, {result: copy.extra[0]}, wanted)
    values = [copy.number(adjoints[copy.args[SCORE]], copy.args[SCORE].type)]
    reads: list[tuple[int, int]] = []
    for load, adjoint in adjoints.reads:
        values += [adjoint, *load.indices]
        reads.append((copy.args.index(load.tensor), len(load.indices)))
    return Reverse(copy.finish(*values), reads)


def pulled(region: Region) -> Region:
    """The adjoints of all float arguments, given one of the result."""
    copy = Copy.of(region, [derivative_type(result_type(region))])
    (result,) = copy.results
    adjoints = pull_back(copy.code, copy.ops, {result: copy.extra[0]})
    floats = [a for a in copy.args if isinstance(a.type, AnyFloat)]
    return copy.finish(*[copy.number(adjoints[a], a.type) for a in floats])


def pushed_mod(region: Region, of: Sequence[int]) -> Region:
    """The tangents of what a region yields, after tangents of some arguments.

    `of` are the arguments, floats or tensors, that vary.
    """
    extra = [region.block.args[i].type for i in of]
    copy = Copy.of(region, extra)
    tangents: dict[SSAValue, SSAValue | None] = {}
    captured: dict[SSAValue, SSAValue] = {}
    for i, tangent in zip(of, copy.extra, strict=True):
        arg = copy.args[i]
        (captured if is_float_tensor(arg.type) else tangents)[arg] = tangent
    found = push_forward(copy.code, copy.ops, tangents, captured)
    floats = [v for v in copy.results if isinstance(v.type, AnyFloat)]
    return copy.finish(*[copy.number(found[v], v.type) for v in floats])


@dataclass(frozen=True)
class Points:
    """Scores and positions at which mods are evaluated, all in a row."""

    score: Tensor
    indices: Sequence[Tensor]

    @classmethod
    def all(cls, score: Tensor) -> Points:
        """Every pair of a (B, H, Sq, Skv) tensor of scores."""
        grids = torch.meshgrid(*map(torch.arange, score.shape), indexing="ij")
        return cls(score.flatten(), [g.flatten() for g in grids])


class Imported:
    """A score mod as a region, with its captures."""

    def __init__(self, mod: Callable[..., Any], dtype: torch.dtype = torch.float64):
        self.mod = mod
        signature = read_mods(mod, None)
        mods = capture_mods(signature, dtype)
        built = build_attention_module(mods.score, None, AttentionCall(dtype, 8, 8))
        FlexWidenIndicesPass().apply(Context(), built.module)
        (function,) = built.module.ops
        assert isinstance(function, FuncOp)
        op = function.body.block.first_op
        assert isinstance(op, AttentionOp)
        self.dtype = dtype
        self.region = op.score_mod
        self.captures = built.arguments(signature.captures)

    @property
    def tensors(self) -> dict[int, Tensor]:
        """Captured float tensors by the number of their argument."""
        args = self.region.block.args
        return {
            i + ARITY: c
            for i, c in enumerate(self.captures)
            if is_float_tensor(args[i + ARITY].type)
        }

    def run(self, region: Region, points: Points, *extra: Tensor) -> list[Tensor]:
        """What a region of the mod's and other arguments yields at the points."""
        captures = [c.detach() if isinstance(c, Tensor) else c for c in self.captures]
        indices = [i.to(torch.int32) for i in points.indices]
        args = [points.score.detach(), *indices, *captures, *extra]
        return [x.expand(points.score.shape) for x in run_both(region, args)]

    def gradients(
        self, reverse: Reverse, adjoints: Sequence[Tensor], indices: Sequence[Tensor]
    ) -> list[Tensor]:
        """Of the score and of each tensor, in f64.

        `adjoints` are that of the score and those of the reads; `indices` those of
        all reads.
        """
        sums = {
            i: torch.zeros_like(t, dtype=torch.float64) for i, t in self.tensors.items()
        }
        left = iter(indices)
        for (tensor, rank), adjoint in zip(reverse.reads, adjoints[1:], strict=True):
            at = [next(left).long() for _ in range(rank)]
            add_where_inside(sums[tensor], at, adjoint)
        return [adjoints[0].double(), *sums.values()]

    def pulled_back(self, points: Points, cotangent: Tensor) -> list[Tensor]:
        """Gradients of the score and of each tensor by reverse mode."""
        reverse = reversed_mod(self.region)
        values = self.run(reverse.region, points, cotangent)
        return self.gradients(reverse, *reverse.split(values))

    def pushed_forward(self, points: Points, tangents: Sequence[Tensor]) -> Tensor:
        """The tangent of the result; `tangents` of the score and of each tensor."""
        region = pushed_mod(self.region, [SCORE, *self.tensors])
        (tangent,) = self.run(region, points, *tangents)
        return tangent

    def second_order(
        self,
        points: Points,
        cotangent: Tensor,
        along: Tensor,
        tangents: Sequence[Tensor],
    ) -> list[Tensor]:
        """Tangents of the gradients, by forward mode over reverse mode.

        `along` is the tangent of the cotangent.
        """
        reverse = reversed_mod(self.region)
        extra = len(self.region.block.args)
        region = pushed_mod(reverse.region, [SCORE, *self.tensors, extra])
        _, indices = reverse.split(self.run(reverse.region, points, cotangent))
        values = self.run(region, points, cotangent, *tangents, along)
        return self.gradients(reverse, values, indices)


def run_both(region: Region, args: Sequence[Any]) -> list[Tensor]:
    """What a region yields, which it does simplified too."""
    simplified = region.clone()
    simplify_region(simplified, {})
    results = list(run_region(region, args))
    for plain, other in zip(results, run_region(simplified, args), strict=True):
        torch.testing.assert_close(
            other.expand_as(plain), plain, rtol=0, atol=0, equal_nan=True
        )
    return results


def add_where_inside(to: Tensor, at: Sequence[Tensor], values: Tensor) -> None:
    """Add values at indices; those out of range were no reads."""
    inside = torch.ones_like(values, dtype=torch.bool)
    for i, size in zip(at, to.shape, strict=True):
        inside = inside & (i >= 0) & (i < size)
    values = values.to(to.dtype)[inside]
    if not at:
        to += values.sum()
    else:
        to.index_put_(tuple(i[inside] for i in at), values, accumulate=True)


class IndexAsOp(TorchFunctionMode):
    """Reads `x[i]` by a 0-d tensor as an op that is differentiable twice.

    torch's own `TransformGetItemToIndex` makes one that is only once.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(i, Tensor) for i in index):
                return torch.ops.aten.index(args[0], index)
        return func(*args, **(kwargs or {}))


def torch_scores(mod: Callable[..., Any], points: Points) -> Tensor:
    """What torch computes at the points."""
    with IndexAsOp():
        scores = torch.vmap(mod)(points.score, *points.indices)
    return scores.to(points.score.dtype)
