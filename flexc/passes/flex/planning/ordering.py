"""`order`: from the classes of blocks to torch's tables, one line at a time.

A program takes a row of blocks, or a column if it is given the transpose. It counts
the partial and the full ones, and then puts each block's index in its place: live
blocks in ascending order, then the others, as torch's stable sort does. Loops of
scalars are what a CPU likes; a GPU has a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith, scf
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
from flexc.passes.flex.planning import program as plan
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import UNIFORM, build_maps

KINDS = ("partial", "full")


def _layout(rank: int) -> ArrayAttr[IntAttr | NoneAttr]:
    return ArrayAttr([*[NoneAttr()] * (rank - 1), IntAttr(1)])


def _argument_types() -> list[tuple[str, Attribute]]:
    """Classes, and for each kind its counts and indices."""
    classes = TensorType(i8, [DYNAMIC_INDEX] * 4, StridedLayoutAttr(_layout(4)))
    types: list[tuple[str, Attribute]] = [("classes", classes)]
    for kind in KINDS:
        for what, rank in (("count", 3), ("indices", 4)):
            layout = StridedLayoutAttr(_layout(rank), 0)
            memref = MemRefType(i32, [DYNAMIC_INDEX] * rank, layout)
            types.append((f"{kind}_{what}", memref))
    return types


class OrderBuilder:
    """Builds the kernel."""

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
        totals = self.loop(entries, zeros, self.seen)
        for total, memref in zip(totals, self.block.args[1::2], strict=True):
            self.store(total, memref, self.where)
        self.loop(entries, zeros, lambda n, seen: self.place(n, seen, totals))
        code.builder.insert(tile.ReturnOp())
        params = [ParamAttr(ParamKind.ARGUMENT, i) for i in range(5)]
        b, h, lines = (AffineExpr.dimension(i) for i in range(3))
        grid = AffineMapAttr(AffineMap(3, 0, (lines, h, b)))
        one = IntegerAttr(1, i64)
        options: dict[str, Attribute] = {"num_warps": one, "num_stages": one}
        return tile.KernelOp("order", grid, params, Region(self.block), options)

    def loop(
        self,
        count: SSAValue,
        state: Sequence[SSAValue],
        body: Callable[[SSAValue, Sequence[SSAValue]], Sequence[SSAValue]],
    ) -> list[SSAValue]:
        """A loop over the blocks of the line that carries counts."""
        outer, block = self.code, Block(arg_types=[i32, i32, i32])
        for arg, name in zip(block.args, ("n", *KINDS), strict=True):
            arg.name_hint = name
        self.code = ScalarCode(block)
        self.code.builder.insert(scf.YieldOp(*body(block.args[0], block.args[1:])))
        self.code = outer
        zero, one = outer.const(0), outer.const(1)
        loop = scf.ForOp(zero, count, one, state, Region(block))
        outer.builder.insert(loop)
        return list(loop.results)

    def kinds(self, n: SSAValue) -> list[SSAValue]:
        """1 if block n is partial, or may be, and 1 if it is full; else 0."""

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
        """The counts with block n."""
        return [
            self.code.add(count, kind)
            for count, kind in zip(counts, self.kinds(n), strict=True)
        ]

    def place(
        self, n: SSAValue, seen: Sequence[SSAValue], totals: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Put block n after the live blocks before it, or after all and the dead."""
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
    """The kernel that fills the tables."""
    return OrderBuilder().build()
