"""What legalisations share: where a tile of a tensor begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile import shape_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.tile_shapes import static_dim


def is_zero(value: SSAValue) -> bool:
    """Whether a value is the constant 0 or +0.0."""
    if not isinstance(value.owner, arith.ConstantOp):
        return False
    constant: Attribute = value.owner.value
    if isa(constant, IntegerAttr):
        return constant.value.data == 0
    return isinstance(constant, FloatAttr) and str(constant.value.data) == "0.0"


COUNTED = (
    *(tile.LoadOp, tile.StoreOp, tile.AddToOp),
    *(tile.ReduceOp, tile.DotOp, tile.DiagonalsOp),
)
"""Ops that may have a count."""


def has_count(op: Operation) -> bool:
    """Whether an op takes the first elements of a dimension only, as on a CPU."""
    return isinstance(op, COUNTED) and op.count is not None


@dataclass(frozen=True)
class TileAccess:
    """A tile of a tensor or memref, about to be read or written.

    A target's legalisation adds how it spells the tile's place.
    """

    code: ScalarCode
    tensor: SSAValue
    indices: Sequence[SSAValue]
    shape: tuple[int, ...]
    checked: Sequence[int]

    @classmethod
    def of_load(cls, op: tile.LoadOp) -> Self:
        """What a load reads, with code that goes before it."""
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.result.type)
        return cls(code, op.tensor, op.indices, shape, op.checked.get_values())

    @classmethod
    def of_store(cls, op: tile.StoreOp) -> Self:
        """What a store writes, with code that goes before it."""
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.value.type)
        return cls(code, op.memref, op.indices, shape, op.checked.get_values())

    @classmethod
    def of_add(cls, op: tile.AddToOp) -> Self:
        """What is added to, with code that goes before it."""
        code, shape = ScalarCode(InsertPoint.before(op)), shape_of(op.value.type)
        return cls(code, op.memref, op.indices, shape, ())

    @property
    def first_dim(self) -> int:
        """The tensor's dimension that the tile's dimension 0 runs along."""
        return len(self.indices) - len(self.shape)

    def hint(self, what: str) -> str:
        """A name for a value that says something of the tensor."""
        return f"{self.tensor.name_hint or 'tensor'}_{what}"

    def size(self, dim: int) -> SSAValue:
        """The size of one of the tensor's dimensions."""
        if (static := static_dim(self.tensor.type, dim)) is not None:
            return self.code.const(static)
        return self.code.insert(tile.DimOp(self.tensor, dim), self.hint(f"size{dim}"))
