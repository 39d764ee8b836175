"""`order`: turn the classes of blocks into torch's tables, one line at a time.

A program takes a line of blocks: a row, or a column if the classes are transposed. The
program counts the partial and the full blocks, and then stores the index of each block
at its place: live blocks in ascending order, then the others, as torch's stable sort
does. The kernel has scalar loops, for a CPU; a GPU has a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    ArrayAttr,
    IntAttr,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    TensorType,
    i1,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from flexc.dialects import flex, tile
from flexc.dialects.tile import ParamAttr, ParamKind, TileType
from flexc.passes.flex.planning import kernel_builder as plan
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import UNIFORM, build_maps

KINDS = ("partial", "full")


def _layout(rank: int) -> ArrayAttr[IntAttr | NoneAttr]:
    return ArrayAttr([*[NoneAttr()] * (rank - 1), IntAttr(1)])


def _argument_types() -> list[tuple[str, Attribute]]:
    """Return names and types of arguments: classes, then counts and indices by kind."""
    classes = TensorType(i8, [DYNAMIC_INDEX] * 4, StridedLayoutAttr(_layout(4)))
    types: list[tuple[str, Attribute]] = [("classes", classes)]
    for kind in KINDS:
        for what, rank in (("count", 3), ("indices", 4)):
            layout = StridedLayoutAttr(_layout(rank), 0)
            memref = MemRefType(i32, [DYNAMIC_INDEX] * rank, layout)
            types.append((f"{kind}_{what}", memref))
    return types


class OrderBuilder:
    """A builder of `order`."""

    def __init__(self) -> None:
        self.block = Block(arg_types=[type_ for _, type_ in _argument_types()])
        for arg, (name, _) in zip(self.block.args, _argument_types(), strict=True):
            arg.name_hint = name
        self.code = ScalarCode(self.block)
        self.classes = self.block.args[0]
        ids = [self.code.insert(tile.ProgramIdOp(axis)) for axis in (2, 1, 0)]
        self.where = ids
        for value, name in zip(ids, ("b", "h", "line"), strict=True):
            value.name_hint = name

    def build(self) -> tile.KernelOp:
        code = self.code
        entries = code.insert(tile.DimOp(self.classes, 3), "entries")
        zeros = [code.const(0), code.const(0)]
        totals = plan.loop(self, entries, zeros, self.seen, KINDS)
        for total, memref in zip(totals, self.block.args[1::2], strict=True):
            self.store(total, memref, self.where)
        plan.loop(
            self, entries, zeros, lambda n, seen: self.place(n, seen, totals), KINDS
        )
        code.builder.insert(tile.ReturnOp())
        params = [ParamAttr(ParamKind.ARGUMENT, i) for i in range(5)]
        b, h, lines = (AffineExpr.dimension(i) for i in range(3))
        grid = AffineMapAttr(AffineMap(3, 0, (lines, h, b)))
        one = IntegerAttr(1, i64)
        options: dict[str, Attribute] = {"num_warps": one, "num_stages": one}
        return tile.KernelOp("order", grid, params, Region(self.block), options)

    def kinds(self, n: SSAValue) -> list[SSAValue]:
        """Return two flags of block n: partial or unknown, and full."""

        def body(code: ScalarCode, t: SSAValue, *where: SSAValue) -> list[SSAValue]:
            kind = code.insert(flex.LoadCaptureOp(t, where, inside=True), "kind")
            found = [
                code.cmp("eq", kind, code.const(value, i8))
                for value in (plan.PARTIAL, plan.UNKNOWN, plan.FULL)
            ]
            partial = code.insert(arith.OrIOp(found[0], found[1]))
            assert partial.type == i1
            return [code.int_cast(partial, i32), code.int_cast(found[2], i32)]

        inputs = [(v, UNIFORM) for v in (self.classes, *self.where, n)]
        return build_maps(self.code, (), inputs, body, KINDS)

    def seen(self, n: SSAValue, counts: Sequence[SSAValue]) -> list[SSAValue]:
        """Return the counts including block n."""
        return [
            self.code.add(count, kind)
            for count, kind in zip(counts, self.kinds(n), strict=True)
        ]

    def place(
        self, n: SSAValue, seen: Sequence[SSAValue], totals: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Store the index of block n: live blocks first, then the others."""
        code, kinds = self.code, self.kinds(n)
        outputs = self.block.args[2::2]
        for kind, before, total, memref in zip(
            kinds, seen, totals, outputs, strict=True
        ):
            dead = code.add(total, code.sub(n, before))
            live = code.cmp("ne", kind, code.const(0))
            self.store(n, memref, [*self.where, code.select(live, before, dead)])
        return [code.add(b, kind) for b, kind in zip(seen, kinds, strict=True)]

    def store(self, value: SSAValue, memref: SSAValue, at: Sequence[SSAValue]) -> None:
        one = self.code.insert(tile.FullOp(value, TileType(i32, [1])))
        self.code.builder.insert(tile.StoreOp(one, memref, at, []))


def build_order() -> tile.KernelOp:
    """Return the kernel that fills the tables."""
    return OrderBuilder().build()
