"""Simplified regions compute the same bits; intervals hold what they say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import IntegerType, bf16, f16, f32, f64, i1, i8, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from flexc.dialects.constants import to_signed
from flexc.passes.scalar.canonicalization import simplify_region
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import INDEX, Interval
from flexc.passes.scalar.ranges.value_ranges import BINARY
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.runtime.interpreters import run_region

LOW, HIGH = -(2**31), 2**31 - 1

ARGS: tuple[Attribute, ...] = (i32, i32, i32, i64, i1, i1, f32, f16)
"""Two indices, then anything."""

INDICES = [0, 1, 2, 3, 5, 16, 17, 2**30, HIGH - 1]
NUMBERS = [LOW, LOW + 1, -17, -16, -4, -3, -2, -1, 0, 1, 2, 3, 4, 15, 2**30, HIGH]
WIDE = [-(2**63), -(2**32), LOW - 1, -5, -1, 0, 1, 6, HIGH + 1, 2**63 - 1]
REALS = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 3.4e38, 1e-45, 7.0]
HALVES = [0.0, -0.0, 1.0, -2.5, math.inf, math.nan, 65504.0, 6e-8]

INPUTS = (
    torch.tensor(INDICES, dtype=torch.int32),
    torch.tensor(INDICES, dtype=torch.int32),
    torch.tensor(NUMBERS, dtype=torch.int32),
    torch.tensor(WIDE),
    torch.tensor([False, True]),
    torch.tensor([False, True]),
    torch.tensor(REALS),
    torch.tensor(HALVES, dtype=torch.float16),
)


def inputs() -> list[Tensor]:
    """Every argument along an axis of its own: all combinations."""
    count = len(INPUTS)
    return [
        x.reshape([-1 if j == i else 1 for j in range(count)])
        for i, x in enumerate(INPUTS)
    ]


def same_bits(a: Tensor, b: Tensor) -> bool:
    a, b = torch.broadcast_tensors(a, b)
    if a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    same = (a == b) & (a.signbit() == b.signbit())
    return bool((same | (a.isnan() & b.isnan())).all())


def simplified(region: Region) -> Region:
    region = region.clone()
    indices = region.block.args[:2]
    simplify_region(region, dict.fromkeys(indices, INDEX))
    region.block.verify()
    return region


def text(region: Region) -> str:
    return str(test_dialect.TestOp(regions=[region.clone()]))


def check(region: Region) -> Region:
    """The simplified region, which computes the same."""
    after = simplified(region)
    results = zip(
        run_region(region, inputs()), run_region(after, inputs()), strict=True
    )
    for i, (want, got) in enumerate(results):
        assert same_bits(got, want), (i, text(region), text(after))
    return after


# Random regions.

INT_BINARY = (
    *(arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.DivSIOp, arith.RemSIOp),
    *(arith.FloorDivSIOp, arith.CeilDivSIOp, arith.DivUIOp, arith.RemUIOp),
    *(arith.MinSIOp, arith.MaxSIOp, arith.MinUIOp, arith.MaxUIOp),
    *(arith.AndIOp, arith.OrIOp, arith.XOrIOp),
    *(arith.ShLIOp, arith.ShRSIOp, arith.ShRUIOp),
)
BOOL_BINARY = (arith.AndIOp, arith.OrIOp, arith.XOrIOp)
FLOAT_BINARY = (arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.DivfOp)
CASTS: tuple[tuple[type, Attribute, Attribute], ...] = (
    (arith.ExtSIOp, i32, i64),
    (arith.ExtUIOp, i32, i64),
    (arith.ExtSIOp, i8, i32),
    (arith.ExtUIOp, i8, i32),
    (arith.ExtUIOp, i1, i32),
    (arith.ExtUIOp, i1, i32),
    (arith.ExtSIOp, i1, i64),
    (arith.TruncIOp, i64, i32),
    (arith.TruncIOp, i32, i8),
    (arith.TruncIOp, i32, i1),
    (arith.SIToFPOp, i32, f32),
    (arith.UIToFPOp, i32, f32),
    (arith.SIToFPOp, i64, f32),
    (arith.UIToFPOp, i1, f32),
    (arith.ExtFOp, f16, f32),
    (arith.TruncFOp, f32, f16),
    (arith.ExtFOp, f32, f64),
    (arith.TruncFOp, f64, f32),
)
SMALL = (0, 1, -1, 2, 3, 4, 16, 31, -4, LOW, HIGH)
SMALL_REALS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.25, 3.0, -8.0, math.inf, math.nan)


class RegionMaker:
    """Draws ops over the values there are."""

    def __init__(self, draw: Callable):
        self.draw = draw
        self.block = Block(arg_types=ARGS)
        self.code = ScalarCode(self.block)
        self.values: list[SSAValue] = list(self.block.args)

    def pick(self, type_: Attribute) -> SSAValue:
        """A value of a type, the youngest first; or a constant."""
        values = [v for v in reversed(self.values) if v.type == type_]
        index = self.draw(st.integers(0, len(values)))
        return values[index] if index < len(values) else self.constant(type_)

    def constant(self, type_: Attribute) -> SSAValue:
        if type_ in (f32, f16, f64):
            return self.code.const(self.draw(st.sampled_from(SMALL_REALS)), type_)
        if type_ == i1:
            return self.code.const(self.draw(st.sampled_from((0, -1))), type_)
        value = self.draw(st.sampled_from(SMALL))
        return self.code.const(to_signed(value, 8) if type_ == i8 else value, type_)

    def add(self) -> None:
        kinds = ("binary", "cmp", "select", "logic", "float", "cast", "unary")
        kind = self.draw(st.sampled_from((*kinds, "binary", "idiom", "chain")))
        made = getattr(self, kind)()
        if isinstance(made, Operation):
            made = self.code.insert(made)
        self.values.append(made)

    def binary(self) -> Operation:
        type_ = self.draw(st.sampled_from((i32, i32, i64)))
        kind = self.draw(st.sampled_from(INT_BINARY))
        if self.draw(st.booleans()):
            return kind(self.pick(type_), self.constant(type_))
        return kind(self.pick(type_), self.pick(type_))

    def idiom(self) -> SSAValue:
        """What frontends write, whole."""
        x, n = self.pick(i32), self.draw(st.sampled_from((1, 2, 3, 16, -4, HIGH)))
        code, divisor = self.code, self.code.const(n)
        match self.draw(st.integers(0, 5)):
            case 0:
                return python_mod(code, x, n)
            case 1:
                return wrapped(code, x, self.pick(i32))
            case 2:
                return code.sub(x, code.mul(code.div(x, divisor), divisor))
            case 3:
                floor = code.insert(arith.FloorDivSIOp(x, divisor))
                return code.sub(x, code.mul(floor, divisor))
            case 4:
                both = self.pick(f32)
                return code.insert(arith.MaximumfOp(both, both))
            case _:
                flag = code.int_cast(self.pick(i1), i32)
                predicate = self.draw(st.integers(0, 9))
                return code.insert(arith.CmpiOp(flag, code.const(n % 2), predicate))

    def chain(self) -> SSAValue:
        """Conversions in a row."""
        value = self.pick(self.draw(st.sampled_from((i32, i64, i1, f32, f16))))
        for _ in range(3):
            casts = [c for c in CASTS if c[1] == value.type]
            if casts:
                kind, _, target = self.draw(st.sampled_from(casts))
                value = self.code.insert(kind(value, target))
        return value

    def cmp(self) -> Operation:
        type_ = self.draw(st.sampled_from((i32, i32, i64, i1)))
        predicate = self.draw(st.integers(0, 9))
        return arith.CmpiOp(self.pick(type_), self.pick(type_), predicate)

    def select(self) -> Operation:
        type_ = self.draw(st.sampled_from((i32, i64, i1, f32)))
        return arith.SelectOp(self.pick(i1), self.pick(type_), self.pick(type_))

    def logic(self) -> Operation:
        kind = self.draw(st.sampled_from(BOOL_BINARY))
        return kind(self.pick(i1), self.pick(i1))

    def float(self) -> Operation:
        type_ = self.draw(st.sampled_from((f32, f32, f16)))
        kind = self.draw(st.sampled_from((*FLOAT_BINARY, arith.CmpfOp)))
        a, b = self.pick(type_), self.pick(type_)
        if kind is arith.CmpfOp:
            return arith.CmpfOp(a, b, self.draw(st.integers(0, 15)))
        return kind(a, b)

    def cast(self) -> Operation:
        kind, source, target = self.draw(st.sampled_from(CASTS))
        return kind(self.pick(source), target)

    def unary(self) -> Operation:
        if self.draw(st.booleans()):
            return math_dialect.AbsIOp(
                self.pick(self.draw(st.sampled_from((i32, i64))))
            )
        kind = self.draw(st.sampled_from((arith.NegfOp, math_dialect.AbsFOp)))
        return kind(self.pick(f32))

    def finish(self) -> Region:
        self.code.yield_(*self.values[len(ARGS) :][-4:])
        return Region(self.block)


class Printed:
    """A region that hypothesis prints as IR."""

    def __init__(self, region: Region):
        self.region = region

    def __repr__(self) -> str:
        return text(self.region)


@st.composite
def regions(draw: Callable) -> Printed:
    maker = RegionMaker(draw)
    for _ in range(draw(st.integers(1, 14))):
        maker.add()
    return Printed(maker.finish())


@given(regions())
def test_random_regions_compute_the_same(code: Printed) -> None:
    after = check(code.region)
    # Nothing is left to do.
    assert text(simplified(after)) == text(after)


# What must become of common code.

Body = Callable[[ScalarCode, Sequence[SSAValue]], SSAValue]


def region_of(body: Body) -> Region:
    block = Block(arg_types=ARGS)
    code = ScalarCode(block)
    code.yield_(body(code, block.args))
    return Region(block)


def ops_of(region: Region) -> list[str]:
    """The ops but constants and the yield."""
    names = [op.name.split(".")[1] for op in region.block.ops]
    return [n for n in names if n not in ("constant", "yield")]


def python_mod(code: ScalarCode, x: SSAValue, n: int) -> SSAValue:
    """x % n as the frontend spells it."""
    y, zero = code.const(n, x.type), code.const(0, x.type)
    rest = code.rem(x, y)
    signs = (code.cmp("slt", rest, zero), code.cmp("slt", y, zero))
    differ = code.insert(arith.XOrIOp(*signs))
    fix = code.and_(code.cmp("ne", rest, zero), differ)
    return code.select(fix, code.add(rest, y), rest)


@pytest.mark.parametrize(
    ("n", "index", "number"),
    [
        (1, [], []),
        (2, ["andi"], ["andi"]),
        (16, ["andi"], ["andi"]),
        (2**30, ["andi"], ["andi"]),
        (3, ["remsi"], None),
        (100, ["remsi"], None),
        (-4, None, None),
        (-3, None, None),
    ],
)
def test_python_remainder(
    n: int, index: list[str] | None, number: list[str] | None
) -> None:
    for arg, expected in ((0, index), (2, number)):
        after = check(region_of(lambda code, args, a=arg: python_mod(code, args[a], n)))
        if expected is not None:
            assert ops_of(after) == expected
        else:
            assert "select" in ops_of(after)


@pytest.mark.parametrize("kind", [arith.DivSIOp, arith.FloorDivSIOp])
@pytest.mark.parametrize("n", [1, 2, 8, 3, HIGH, -1, -2, LOW])
def test_division(kind: type, n: int) -> None:
    for arg in (0, 2):
        after = check(
            region_of(
                lambda code, args, a=arg: code.insert(kind(args[a], code.const(n)))
            )
        )
        expected = {1: [], 2: ["shrsi"], 8: ["shrsi"], HIGH: []}.get(n, ["divsi"])
        known = arg == 0 and n > 0
        if known or (kind is arith.FloorDivSIOp and n in (1, 2, 8)):
            assert ops_of(after) == expected
        elif arg == 0 and n == LOW and kind is arith.DivSIOp:
            assert ops_of(after) == []
        elif n != 1:
            assert ops_of(after) == [kind.name.split(".")[1]]


def wrapped(code: ScalarCode, index: SSAValue, size: SSAValue) -> SSAValue:
    negative = code.cmp("slt", index, code.const(0))
    return code.select(negative, code.add(index, size), index)


def test_wrapping_of_indices() -> None:
    after = check(region_of(lambda code, a: wrapped(code, a[0], a[2])))
    assert ops_of(after) == []
    after = check(region_of(lambda code, a: wrapped(code, a[2], a[0])))
    assert ops_of(after) == ["cmpi", "addi", "select"]


@pytest.mark.parametrize(
    ("body", "proven"),
    [
        (lambda c, a: c.add(a[0], c.const(1)), True),
        (lambda c, a: c.add(a[0], c.const(2)), False),
        (lambda c, a: c.add(a[0], a[1]), False),
        (lambda c, a: c.sub(a[0], a[1]), False),
        (lambda c, a: c.add(c.div(a[0], c.const(2)), c.div(a[1], c.const(2))), True),
        (lambda c, a: c.mul(c.rem(a[0], c.const(64)), c.const(2**25)), True),
        (lambda c, a: c.mul(c.rem(a[0], c.const(64)), c.const(2**26)), False),
        (lambda c, a: c.add(c.int_cast(a[0], i64), c.int_cast(a[1], i64)), True),
        (lambda c, a: c.int_cast(a[4], i32), True),
        (lambda c, a: c.select(a[4], a[0], a[1]), True),
        (lambda c, a: c.select(a[4], a[0], a[2]), False),
        (lambda c, a: c.insert(arith.MaxSIOp(a[2], a[0])), True),
        (lambda c, a: c.insert(arith.MinSIOp(a[2], a[0])), False),
        (lambda c, a: c.insert(arith.AndIOp(a[2], a[0])), True),
        (lambda c, a: c.insert(math_dialect.AbsIOp(a[2])), False),
        (lambda c, a: c.insert(math_dialect.AbsIOp(c.sub(a[0], a[1]))), True),
    ],
)
def test_what_is_known_to_be_nonnegative(body: Body, proven: bool) -> None:
    def negative(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        value = body(code, args)
        return code.cmp("slt", value, code.const(0, value.type))

    assert (ops_of(check(region_of(negative))) == []) == proven


def n(code: ScalarCode, x: SSAValue) -> SSAValue:
    return code.insert(arith.NegfOp(x))


REAL, FLAG = 6, 4
MUL_SUB = ["mulf", "subf"]
EXACT: list[tuple[Callable, list[str]]] = [
    (lambda c, x, k: arith.MulfOp(x, k(1.0)), []),
    (lambda c, x, k: arith.MulfOp(k(1.0), x), []),
    (lambda c, x, k: arith.DivfOp(x, k(1.0)), []),
    (lambda c, x, k: arith.SubfOp(x, k(0.0)), []),
    (lambda c, x, k: arith.AddfOp(x, k(-0.0)), []),
    (lambda c, x, k: arith.AddfOp(x, k(0.0)), ["addf"]),
    (lambda c, x, k: arith.SubfOp(x, k(-0.0)), ["subf"]),
    (lambda c, x, k: arith.MulfOp(x, k(0.0)), ["mulf"]),
    (lambda c, x, k: arith.MulfOp(x, k(-1.0)), ["negf"]),
    (lambda c, x, k: arith.SubfOp(x, x), ["subf"]),
    (lambda c, x, k: arith.DivfOp(x, x), ["divf"]),
    (lambda c, x, k: arith.DivfOp(x, k(4.0)), ["mulf"]),
    (lambda c, x, k: arith.DivfOp(x, k(-(2.0**-100))), ["mulf"]),
    (lambda c, x, k: arith.DivfOp(x, k(2.0**127)), ["divf"]),
    (lambda c, x, k: arith.DivfOp(x, k(3.0)), ["divf"]),
    (lambda c, x, k: arith.DivfOp(x, k(0.0)), ["divf"]),
    (lambda c, x, k: arith.AddfOp(x, n(c, k(2.0))), ["addf"]),
    (lambda c, x, k: arith.AddfOp(c.insert(arith.MulfOp(x, x)), n(c, x)), MUL_SUB),
    (lambda c, x, k: arith.AddfOp(n(c, x), c.insert(arith.MulfOp(x, x))), MUL_SUB),
    (lambda c, x, k: arith.SubfOp(x, n(c, x)), ["addf"]),
    (lambda c, x, k: arith.SubfOp(n(c, x), x), ["negf", "subf"]),
    (lambda c, x, k: arith.MulfOp(n(c, x), n(c, x)), ["mulf"]),
    (lambda c, x, k: arith.MulfOp(n(c, x), k(3.0)), ["mulf"]),
    (lambda c, x, k: arith.MulfOp(n(c, x), x), ["negf", "mulf"]),
    (lambda c, x, k: arith.DivfOp(n(c, x), k(3.0)), ["divf"]),
    (lambda c, x, k: arith.DivfOp(k(3.0), n(c, x)), ["divf"]),
    (lambda c, x, k: arith.NegfOp(c.insert(arith.MulfOp(x, k(3.0)))), ["mulf"]),
    (lambda c, x, k: arith.NegfOp(c.insert(arith.DivfOp(k(3.0), x))), ["divf"]),
    (lambda c, x, k: arith.NegfOp(c.insert(arith.MulfOp(x, x))), ["mulf", "negf"]),
    (lambda c, x, k: arith.CmpfOp(x, x, "oeq"), ["cmpf"]),
    (lambda c, x, k: arith.CmpfOp(x, x, "ueq"), []),
    (lambda c, x, k: arith.CmpfOp(x, x, "olt"), []),
]


@pytest.mark.parametrize(("build", "expected"), EXACT)
def test_float_identities(build: Callable, expected: list[str]) -> None:
    def body(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        return code.insert(build(code, args[REAL], lambda v: code.const(v, f32)))

    assert ops_of(check(region_of(body))) == expected


def test_choice_of_negations() -> None:
    def body(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        x = args[REAL]
        other = code.insert(arith.MulfOp(x, x))
        return code.select(args[FLAG], n(code, x), n(code, other))

    assert ops_of(check(region_of(body))) == ["mulf", "select", "negf"]


ROUNDED = (0.1, 1 / 3, 65519.0, 65520.0, 1e30, 3.3e38, 1e-40, -7.7)


@pytest.mark.parametrize("type_", [f16, bf16, f32, f64], ids=str)
@pytest.mark.parametrize("kind", [*FLOAT_BINARY], ids=lambda k: k.name)
def test_folding_rounds_to_the_type(type_: Attribute, kind: type) -> None:
    for a, b in itertools.product(ROUNDED, ROUNDED):
        if type_ == f16 and max(a, b) > 65519.0:
            continue

        def body(code: ScalarCode, args: Sequence[SSAValue], a=a, b=b) -> SSAValue:
            return code.insert(kind(code.const(a, type_), code.const(b, type_)))

        after = check(region_of(body))
        assert ops_of(after) in ([], [kind.name.split(".")[1]])


@pytest.mark.parametrize("value", [0.0, -0.0, 2.5, -2.5, 1e10, -1e10, 127.0, -128.9])
@pytest.mark.parametrize("target", [i8, i32, i64], ids=str)
def test_folding_of_conversions_to_integers(value: float, target: IntegerType) -> None:
    def body(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        return code.insert(arith.FPToSIOp(code.const(value, f32), target))

    width = target.width.data
    fits = int(value) in intervals.full(width)
    region = region_of(body)
    after = check(region) if fits else simplified(region)
    assert ops_of(after) == ([] if fits else ["fptosi"])


def test_common_code_is_merged_and_unused_code_erased() -> None:
    def body(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        code.mul(args[0], args[2])
        first, second = code.add(args[0], args[2]), code.add(args[2], args[0])
        return code.mul(first, second)

    assert ops_of(check(region_of(body))) == ["addi", "muli"]


def test_names_and_locations_stay() -> None:
    def body(code: ScalarCode, args: Sequence[SSAValue]) -> SSAValue:
        op = arith.FloorDivSIOp(args[2], code.const(8))
        return code.insert(op, "block")

    after = simplified(region_of(body))
    assert after.block.last_op is not None
    assert after.block.last_op.operands[0].name_hint == "block"


# Intervals, exhaustively at three bits.

WIDTH = 3
MASK = (1 << WIDTH) - 1
ALL = range(-(1 << (WIDTH - 1)), 1 << (WIDTH - 1))
INTERVALS = [Interval(lo, hi) for lo in ALL for hi in ALL if lo <= hi]


def _shift(function: Callable[[int, int], int]) -> Callable[[int, int], int | None]:
    return lambda a, b: function(a, b) if 0 <= b < WIDTH else None


def _divide(function: Callable[[int, int], int]) -> Callable[[int, int], int | None]:
    return lambda a, b: function(a, b) if b else None


def _unsigned(function: Callable[[int, int], int | None]) -> Callable:
    return lambda a, b: function(a & MASK, b & MASK)


MEANING: dict[type[Operation], Callable[[int, int], int | None]] = {
    arith.AddiOp: lambda a, b: a + b,
    arith.SubiOp: lambda a, b: a - b,
    arith.MuliOp: lambda a, b: a * b,
    arith.DivSIOp: _divide(lambda a, b: math.trunc(a / b)),
    arith.FloorDivSIOp: _divide(lambda a, b: a // b),
    arith.CeilDivSIOp: _divide(lambda a, b: math.ceil(a / b)),
    arith.RemSIOp: _divide(lambda a, b: int(math.fmod(a, b))),
    arith.DivUIOp: _unsigned(_divide(lambda a, b: a // b)),
    arith.RemUIOp: _unsigned(_divide(lambda a, b: a % b)),
    arith.MinSIOp: min,
    arith.MaxSIOp: max,
    arith.MinUIOp: _unsigned(min),
    arith.MaxUIOp: _unsigned(max),
    arith.AndIOp: lambda a, b: a & b,
    arith.OrIOp: lambda a, b: a | b,
    arith.XOrIOp: lambda a, b: a ^ b,
    arith.ShLIOp: _shift(lambda a, b: a << b),
    arith.ShRSIOp: _shift(lambda a, b: a >> b),
    arith.ShRUIOp: _shift(lambda a, b: (a & MASK) >> b),
}


def members(a: Interval) -> range:
    return range(a.lo, a.hi + 1)


@pytest.mark.parametrize("op", BINARY, ids=lambda o: o.name)
def test_intervals_of_results(op: type[Operation]) -> None:
    table = {(a, b): MEANING[op](a, b) for a in ALL for b in ALL}
    for a, b in itertools.product(INTERVALS, INTERVALS):
        found = BINARY[op](a, b, WIDTH)
        assert found.within(intervals.full(WIDTH))
        for pair in itertools.product(members(a), members(b)):
            value = table[pair]
            assert value is None or to_signed(value, WIDTH) in found, (a, b, pair)


@pytest.mark.parametrize("predicate", arith.CMPI_COMPARISON_OPERATIONS)
def test_intervals_of_comparisons(predicate: str) -> None:
    relations = {"eq": "__eq__", "ne": "__ne__"}
    name = relations.get(predicate, f"__{predicate[1:]}__")

    def holds(a: int, b: int) -> bool:
        if predicate[0] == "u":
            a, b = a & MASK, b & MASK
        return getattr(a, name)(b)

    for a, b in itertools.product(INTERVALS, INTERVALS):
        results = {holds(x, y) for x in members(a) for y in members(b)}
        found = intervals.compare(predicate, a, b)
        assert found == (results.pop() if len(results) == 1 else None), (a, b)


def test_intervals_of_one_operand() -> None:
    for a in INTERVALS:
        for x in members(a):
            assert to_signed(abs(x), WIDTH) in intervals.absolute(a, WIDTH)
            assert x & MASK in intervals.zero_extend(a, WIDTH)
            assert to_signed(x, WIDTH - 1) in intervals.truncate(a, WIDTH - 1)
