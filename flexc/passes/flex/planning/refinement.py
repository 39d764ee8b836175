"""`refine`: the exact class of what is unknown, by looking at every pair.

A program takes one row of a tile of blocks. Unless the tile's flag is raised its loop
does nothing. It reads classes and writes them in place: no other program has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import i8, i32
from xdsl.ir import Region, SSAValue

from flexc.dialects import tile
from flexc.dialects.tile import ReduceKind, TileType
from flexc.passes.flex.planning import program as plan
from flexc.passes.flex.planning.control import (
    flagged_tile,
    loop,
    read,
)
from flexc.passes.flex.planning.program import (
    TILE_COLUMNS,
    Program,
    Scalars,
    mask_at,
)
from flexc.passes.flex.planning.samples import (
    minimum,
    negated,
    whole,
)
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import (
    COLUMN,
    ROW,
    UNIFORM,
)

PAIR_ROWS, PAIR_COLUMNS = 32, 128
"""Pairs that are looked at in one step."""

FOUND = ("live", "dead")
"""1 where there is such a pair, kept for each column."""


class RefineBuilder:
    """Builds the kernel."""

    def __init__(self, mask: Region):
        self.program = Program("refine", mask)
        self.mask = mask
        self.classes = self.program.classes(written=False)
        self.out = self.program.classes(written=True)

    @property
    def code(self) -> ScalarCode:
        return self.program.code

    def build(self) -> tile.KernelOp:
        """A loop over the tile's blocks, of no step where none is unknown."""
        code, columns = self.code, self.program.blocks("kv")
        place = flagged_tile(self.program)
        self.row, self.m = place.row, place.m
        left = code.sub(columns, place.column)
        count = minimum(code, left, code.const(TILE_COLUMNS))
        count = code.mul(count, place.flag, "count")

        def one(i: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
            return self.block(self.code.add(place.column, i, "n"))

        loop(self.program, count, [], one)
        return self.program.finish()

    def block(self, column: SSAValue) -> list[SSAValue]:
        """One block: find its class if it is unknown, and write it."""
        code, uniform = self.code, self.program.uniform
        where = [self.program.b, self.program.h, self.row, column]
        kind = read(self.program, self.classes, where, "kind")
        unknown = code.cmp("eq", kind, code.const(plan.UNKNOWN, i8))
        rows = code.ceildiv(uniform["q_block"], PAIR_ROWS)
        rows = code.select(unknown, rows, code.const(0))
        steps = code.ceildiv(uniform["kv_block"], PAIR_COLUMNS, "steps")
        zero, type_ = code.const(0), TileType(i32, [PAIR_COLUMNS])
        state = [code.insert(tile.FullOp(zero, type_), name) for name in FOUND]

        def along_rows(i: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
            def along_columns(k: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
                return self.step(column, i, k, state)

            return loop(self.program, steps, state, along_columns, FOUND)

        found = loop(self.program, rows, state, along_rows, FOUND)
        found = [self.any_of(v) for v in found]
        store = tile.StoreOp(self.refined(kind, column, found), self.out, where, [])
        self.code.builder.insert(store)
        return []

    def step(
        self, column: SSAValue, i: SSAValue, k: SSAValue, state: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Look at a tile of pairs."""
        code = self.code
        first_row = code.mul(i, code.const(PAIR_ROWS))
        first_column = code.mul(k, code.const(PAIR_COLUMNS))
        rows = code.insert(tile.IotaOp(first_row, PAIR_ROWS), "row")
        columns = code.insert(tile.IotaOp(first_column, PAIR_COLUMNS), "column")
        varying = {
            "q": (rows, ROW),
            "kv": (columns, COLUMN),
            "q_index": (self.m, UNIFORM),
            "kv_index": (column, UNIFORM),
        }
        shape = [PAIR_ROWS, PAIR_COLUMNS]
        parts = self.program.map(shape, varying, self.pairs, FOUND)
        results: list[SSAValue] = []
        for name, part, old in zip(FOUND, parts, state, strict=True):
            new = code.insert(tile.ReduceOp(ReduceKind.MAX, part, 0), name)

            def either(
                code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
            ) -> list[SSAValue]:
                return [code.insert(arith.OrIOp(at["old"], at["new"]))]

            varying = {"old": (old, ROW), "new": (new, ROW)}
            results += self.program.map([PAIR_COLUMNS], varying, either, [name])
        return results

    def pairs(
        self, code: ScalarCode, at: Scalars, captures: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Whether a pair exists and is live, and whether it exists and is not."""
        pair: list[SSAValue] = []
        exists = None
        for axis in ("q", "kv"):
            size, length = at[f"{axis}_block"], at[f"{axis}_len"]
            start = code.mul(at[f"{axis}_index"], size)
            index = code.add(start, at[axis], f"{axis}_idx")
            inside = code.and_(
                code.cmp("slt", at[axis], size), code.cmp("slt", index, length)
            )
            exists = inside if exists is None else code.and_(exists, inside)
            pair.append(minimum(code, index, code.sub(length, code.const(1))))
        assert exists is not None
        live = mask_at(self.mask, code, at, (pair[0], pair[1]), captures)
        dead = negated(code, live)
        return [code.int_cast(code.and_(exists, v), i32) for v in (live, dead)]

    def any_of(self, found: SSAValue) -> SSAValue:
        """The one element that says whether any column has found something."""

        def same(
            code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
        ) -> list[SSAValue]:
            return [code.add(at["found"], code.const(0))]

        shape = [1, PAIR_COLUMNS]
        (wide,) = self.program.map(shape, {"found": (found, COLUMN)}, same, ["found"])
        return self.code.insert(tile.ReduceOp(ReduceKind.MAX, wide, 1), "found")

    def refined(
        self, kind: SSAValue, column: SSAValue, found: Sequence[SSAValue]
    ) -> SSAValue:
        """The class of a block, as a tile of one element."""

        def body(
            code: ScalarCode, at: Scalars, _: Sequence[SSAValue]
        ) -> list[SSAValue]:
            kinds = [code.const(kind, i8) for kind in range(4)]
            live, dead = (code.cmp("ne", at[n], code.const(0)) for n in FOUND)
            broken = code.insert(arith.OrIOp(dead, negated(code, whole(code, at))))
            exact = code.select(broken, kinds[plan.PARTIAL], kinds[plan.FULL])
            exact = code.select(live, exact, kinds[plan.DEAD])
            unknown = code.cmp("eq", at["kind"], kinds[plan.UNKNOWN])
            return [code.select(unknown, exact, at["kind"])]

        varying = dict(zip(FOUND, ((v, ROW) for v in found), strict=True))
        varying |= {
            "kind": (kind, UNIFORM),
            "m": (self.m, UNIFORM),
            "n": (column, UNIFORM),
        }
        (result,) = self.program.map([1], varying, body, ["kind"])
        return result


def build_refine(mask: Region) -> tile.KernelOp:
    """The kernel that decides unknown blocks."""
    return RefineBuilder(mask).build()
