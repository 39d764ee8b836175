"""Widened regions compute what int64 arithmetic does; proofs hold as they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType, f64, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.passes.flex.flex_widen_indices import RegionWidener
from flexc.passes.scalar.canonicalization import simplify_region
from flexc.passes.scalar.ranges.exact_ranges import position_args
from flexc.passes.scalar.ranges.index_proofs import (
    IndexWidths,
    captures_inside,
    indices_fit,
)
from flexc.passes.scalar.ranges.intervals import INDEX, Interval
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.runtime.interpreters import run_region

LENGTH = 2**24
POSITIONS = (INDEX, INDEX, Interval(0, LENGTH - 1), Interval(0, LENGTH - 1))

HEADS = [0, 1, 2, 7, 2**30, 2**31 - 2]
ROWS = [0, 1, 2, 3, 5, 46_340, 46_341, 65_536, 100_000, LENGTH - 1]
WINDOWS = [0, 1, -1, 3, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**40, -(2**40)]

ARGS = (i32, i32, i32, i32, i64)
"""b, h, q_idx, kv_idx and a captured number."""

BINARY = (
    *(arith.AddiOp, arith.SubiOp, arith.MuliOp),
    *(arith.MinSIOp, arith.MaxSIOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp),
)
DIVISIONS = (arith.DivSIOp, arith.FloorDivSIOp, arith.CeilDivSIOp, arith.RemSIOp)
SHIFTS = (arith.ShLIOp, arith.ShRSIOp)
NUMBERS = (0, 1, -1, 2, 3, 64, -7, 65_536, 2**31 - 1, -(2**31))
DIVISORS = (1, 2, 3, 64, -7, 65_536)


@dataclass(frozen=True)
class Twin:
    """A value as the frontend writes it, and as an i64."""

    narrow: SSAValue
    wide: SSAValue
    origin: str
    """number, position or other"""


def origin_of(*twins: Twin) -> str:
    origins = [t.origin for t in twins]
    return next((o for o in ("position", "other") if o in origins), "number")


class TwinMaker:
    """Draws ops and writes each twice."""

    def __init__(self, draw: Callable):
        self.draw = draw
        self.narrow, self.wide = Block(arg_types=ARGS), Block(arg_types=ARGS)
        self.n, self.w = ScalarCode(self.narrow), ScalarCode(self.wide)
        self.twins = [
            Twin(a, self.w.int_cast(b, i64), "position")
            for a, b in zip(self.narrow.args[:4], self.wide.args[:4], strict=True)
        ]
        cut = self.n.insert(arith.TruncIOp(self.narrow.args[4], i32))
        self.twins.append(Twin(cut, self.wide.args[4], "number"))
        self.flags: list[tuple[SSAValue, SSAValue]] = []

    def pick(self) -> Twin:
        index = self.draw(st.integers(0, len(self.twins)))
        if index < len(self.twins):
            return self.twins[-1 - index]
        return self.constant(self.draw(st.sampled_from(NUMBERS)))

    def constant(self, value: int) -> Twin:
        return Twin(self.n.const(value, i32), self.w.const(value, i64), "number")

    def both(self, kind: type, *twins: Twin) -> Twin:
        """An op; where no position is among loaded values, it wraps as an i32."""
        narrow = self.n.insert(kind(*(t.narrow for t in twins)))
        origin = origin_of(*twins)
        if origin == "other":
            cut = [self.w.int_cast(t.wide, i32) for t in twins]
            wide = self.w.int_cast(self.w.insert(kind(*cut)), i64)
        else:
            wide = self.w.insert(kind(*(t.wide for t in twins)))
        return Twin(narrow, wide, origin)

    def add(self) -> None:
        kinds = ("binary", "binary", "binary", "divide", "shift", "unary", "cast")
        kind = self.draw(st.sampled_from((*kinds, "select", "compare", "mod")))
        made = getattr(self, kind)()
        if made is not None:
            self.twins.append(made)

    def binary(self) -> Twin:
        return self.both(self.draw(st.sampled_from(BINARY)), self.pick(), self.pick())

    def divide(self) -> Twin:
        divisor = self.constant(self.draw(st.sampled_from(DIVISORS)))
        return self.both(self.draw(st.sampled_from(DIVISIONS)), self.pick(), divisor)

    def shift(self) -> Twin:
        amount = self.constant(self.draw(st.integers(0, 31)))
        return self.both(self.draw(st.sampled_from(SHIFTS)), self.pick(), amount)

    def unary(self) -> Twin:
        return self.both(math_dialect.AbsIOp, self.pick())

    def cast(self) -> Twin:
        """A user's own: to i64, and cut to i32 again."""
        twin = self.pick()
        factor = self.draw(st.sampled_from((3, 65_537)))
        long = self.n.insert(arith.ExtSIOp(twin.narrow, i64))
        product = self.n.mul(self.n.mul(long, long), self.n.const(factor, i64))
        cut = self.n.insert(arith.TruncIOp(product, i32))
        square = self.w.mul(self.w.mul(twin.wide, twin.wide), self.w.const(factor, i64))
        if twin.origin == "number":
            return Twin(cut, square, "number")
        return Twin(cut, self.w.int_cast(self.w.int_cast(square, i32), i64), "other")

    def compare(self) -> None:
        predicate = self.draw(st.sampled_from(("eq", "ne", "slt", "sle", "sgt", "sge")))
        self.flag(predicate, self.pick(), self.pick())

    def flag(self, predicate: str, a: Twin, b: Twin) -> tuple[SSAValue, SSAValue]:
        narrow = self.n.cmp(predicate, a.narrow, b.narrow)
        sides = [a.wide, b.wide]
        if origin_of(a, b) == "other":
            sides = [self.w.int_cast(v, i32) for v in sides]
        self.flags.append((narrow, self.w.cmp(predicate, *sides)))
        return self.flags[-1]

    def select(self) -> Twin | None:
        if not self.flags:
            return None
        flag = self.flags[self.draw(st.integers(0, len(self.flags) - 1))]
        return self.choose(flag, self.pick(), self.pick())

    def choose(self, flag: tuple[SSAValue, SSAValue], a: Twin, b: Twin) -> Twin:
        origin = origin_of(a, b)
        wide_a, wide_b = a.wide, b.wide
        if origin == "other":
            wide_a, wide_b = (
                self.w.int_cast(self.w.int_cast(v, i32), i64) for v in (wide_a, wide_b)
            )
        return Twin(
            self.n.select(flag[0], a.narrow, b.narrow),
            self.w.select(flag[1], wide_a, wide_b),
            origin,
        )

    def mod(self) -> Twin:
        """x < 0 ? x + n : x."""
        x, n = self.pick(), self.constant(self.draw(st.sampled_from(NUMBERS)))
        flag = self.flag("slt", x, self.constant(0))
        return self.choose(flag, self.both(arith.AddiOp, x, n), x)

    def finish(self) -> tuple[Region, Region]:
        regions: list[Region] = []
        for side, (code, block) in enumerate(
            ((self.n, self.narrow), (self.w, self.wide))
        ):
            values = [(t.narrow, t.wide)[side] for t in self.twins[-4:]]
            flags = [f[side] for f in self.flags[-3:]]
            floats = [code.insert(arith.SIToFPOp(v, f64)) for v in values]
            code.yield_(*flags, *floats)
            regions.append(Region(block))
        return regions[0], regions[1]


@dataclass(frozen=True)
class Pair:
    """Two regions that hypothesis prints as IR."""

    narrow: Region
    wide: Region

    def __repr__(self) -> str:
        return text(self.narrow) + text(self.wide)


def text(region: Region) -> str:
    return str(test_dialect.TestOp(regions=[region.clone()]))


@st.composite
def pairs(draw: Callable) -> Pair:
    maker = TwinMaker(draw)
    for _ in range(draw(st.integers(1, 9))):
        maker.add()
    return Pair(*maker.finish())


def inputs(windows: Sequence[int] = WINDOWS) -> list[Tensor]:
    values = (HEADS, HEADS[:3], ROWS, ROWS, windows)
    shapes = ([-1 if j == i else 1 for j in range(5)] for i in range(5))
    dtypes = [torch.int32] * 4 + [torch.int64]
    return [
        torch.tensor(v, dtype=t).reshape(s)
        for v, t, s in zip(values, dtypes, shapes, strict=True)
    ]


def widened(region: Region) -> Region:
    region = region.clone()
    known = dict(zip(position_args(region), POSITIONS, strict=True))
    RegionWidener(IndexWidths(region, known)).run()
    region.block.verify()
    return region


def check_same(got: Region, want: Region, args: list[Tensor]) -> None:
    for a, b in zip(run_region(got, args), run_region(want, args), strict=True):
        assert torch.equal(*torch.broadcast_tensors(a, b)), text(got)


@given(pairs())
def test_random_regions_compute_as_int64_does(pair: Pair) -> None:
    after = widened(pair.narrow)
    check_same(after, pair.wide, inputs())
    simplify_region(after, dict(zip(position_args(after), POSITIONS, strict=True)))
    check_same(after, pair.wide, inputs())


@given(pairs(), st.sampled_from([1, 3, 2**31 - 1, 2**31, -(2**40)]))
def test_what_is_proved_to_fit_does(pair: Pair, window: int) -> None:
    lengths = (8, 3, 100_001, 6)
    if not indices_fit(pair.narrow, positions_of(lengths), [window]):
        return
    args = inputs([window])
    for i, length in enumerate(lengths):
        args[i] = args[i].clamp(max=length - 1)
    check_same(pair.narrow, pair.wide, args)


def positions_of(lengths: Sequence[int]) -> list[Interval]:
    return [Interval(0, n - 1) for n in lengths]


# What must become of common code.

Body = Callable[[ScalarCode, Sequence[SSAValue]], SSAValue]


def region_of(body: Body, extra: Sequence[Attribute] = ()) -> Region:
    block = Block(arg_types=[*ARGS, *extra])
    code = ScalarCode(block)
    code.yield_(body(code, block.args))
    return Region(block)


def bits_of(region: Region, kind: type[Operation]) -> list[int]:
    """The widths that ops of a kind are computed in."""
    found = [op for op in region.block.ops if isinstance(op, kind)]
    return [width_of(op.operands[-1].type) for op in found]


def cut(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
    """The captured number, as the frontend writes it."""
    return code.insert(arith.TruncIOp(args[4], i32))


@pytest.mark.parametrize("predicate", ["eq", "ne", "slt", "sle", "sgt", "sge"])
def test_windows_are_compared_narrow(predicate: str) -> None:
    def distance(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        return code.cmp(predicate, code.sub(args[2], args[3]), cut(code, args))

    after = widened(region_of(distance))
    assert bits_of(after, arith.CmpiOp) == [32]
    want = run_region(after, inputs())[0]
    q, k, window = (inputs()[i].long() for i in (2, 3, 4))
    compare = {"eq": torch.eq, "ne": torch.ne, "slt": torch.lt}
    compare |= {"sle": torch.le, "sgt": torch.gt, "sge": torch.ge}
    assert torch.equal(
        *torch.broadcast_tensors(want, compare[predicate](q - k, window))
    )


@pytest.mark.parametrize(("offset", "bits"), [(0, 64), (-1, 32)])
def test_no_clamp_at_the_bounds(offset: int, bits: int) -> None:
    """The largest i32 is less than a window beyond, but not than its clamp."""

    def reach(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        largest = code.const(2**31 - LENGTH + offset)
        return code.cmp("slt", code.add(args[2], largest), cut(code, args))

    after = widened(region_of(reach))
    assert bits_of(after, arith.CmpiOp) == [bits]
    q, window = inputs()[2].long(), inputs()[4]
    got = run_region(after, inputs())[0]
    want = q + 2**31 - LENGTH + offset < window
    assert torch.equal(*torch.broadcast_tensors(got, want))


def test_rows_are_clamped_for_columns() -> None:
    """What varies along rows alone is clamped once for each."""

    def shifted(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        return code.cmp("sge", code.add(args[2], cut(code, args)), args[3])

    after = widened(region_of(shifted))
    assert bits_of(after, arith.AddiOp) == [64]
    assert bits_of(after, arith.CmpiOp) == [32]


def test_no_clamp_where_both_are_wide() -> None:
    def squares(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        q, k = args[2:4]
        return code.cmp("sge", code.mul(q, q), code.mul(k, k))

    assert bits_of(widened(region_of(squares)), arith.CmpiOp) == [64]


def test_what_fits_again_is_narrow() -> None:
    def bucket(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        q = args[2]
        square = code.mul(q, q)
        root = code.div(square, code.const(2**24))
        return code.add(root, args[3])

    after = widened(region_of(bucket))
    assert bits_of(after, arith.DivSIOp) == [64]
    assert bits_of(after, arith.AddiOp) == [32]


def python_mod(code: ScalarCode, x: SSAValue, n: SSAValue) -> SSAValue:
    """x % n as the frontend spells it."""
    zero, rest = code.const(0), code.rem(x, n)
    signs = (code.cmp("slt", rest, zero), code.cmp("slt", n, zero))
    differ = code.insert(arith.XOrIOp(*signs))
    fix = code.and_(code.cmp("ne", rest, zero), differ)
    return code.select(fix, code.add(rest, n), rest)


def test_sums_that_nobody_sees_may_overflow() -> None:
    """Remainders by a loaded number, and indices counted from an end, are narrow."""
    lengths = TensorType(i32, [DYNAMIC_INDEX])

    def loaded(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        n = code.insert(flex.LoadCaptureOp(args[5], [args[0]]))
        return python_mod(code, code.sub(args[2], args[3]), n)

    def from_the_end(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        x, n = code.sub(args[2], args[3]), code.insert(flex.DimOp(args[5], 0))
        wrapped = code.add(x, n)
        return code.select(code.cmp("slt", x, code.const(0)), wrapped, x)

    for body in (loaded, from_the_end):
        region = region_of(body, [lengths])
        assert text(widened(region)) == text(region)


def test_loads_are_proved_for_exact_indices() -> None:
    """An index that wraps into range as an i32 is out of range."""
    table = TensorType(i32, [DYNAMIC_INDEX])

    def read(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        high = code.insert(arith.ShRSIOp(code.mul(args[2], args[2]), code.const(16)))
        index = code.insert(arith.MaxSIOp(high, code.const(0)))
        return code.insert(flex.LoadCaptureOp(args[5], [index]))

    region = region_of(read, [table])
    for length, inside in ((40_000, True), (2**23, False)):
        positions = positions_of((1, 1, length, 1))
        assert captures_inside(region, positions, [0, (2**15,)]) == inside
