"""Sums over pairs for schedules with roles, with at most two products for each pair.

The products of a block are in the order in which a schedule issues them:

1. the scores; p and the factors of other values, 0 for dead pairs;
2. the second product, if any; sums of p;
3. values as multiples of the second product, and their sums by row and by column.

The values of a gradient are p, which follows from the score, and multiples of
dp - delta, such as ds = p * (dp - delta) * score_mod'(s). With

    factors(s) = p, p * score_mod'(s)        dx = (dp - delta) * factor

only factors are live between the two products, and a mask applies to factors alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, BFloat16Type, f32
from xdsl.ir import Operation, Region, SSAValue

from flexc.dialects import flex, tile
from flexc.dialects.blocksparse import PairSumsOp
from flexc.dialects.constants import float_constant
from flexc.dialects.flex import SumKind
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import ReduceKind
from flexc.errors import ScheduleError
from flexc.passes.blocksparse.programs.builder import RowBlock, Visit
from flexc.passes.blocksparse.programs.heads import Heads
from flexc.passes.blocksparse.programs.pair_sums import PairSumsKernelBuilder
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.scalar_code import (
    ScalarCode,
    combined,
    inline_region,
    region_like,
)
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_maps,
    build_row_map,
    extended,
)

Factor = tuple[SSAValue, AnyFloat]
"""A factor of the code of a pair, and the type in which it is kept."""


class FactoredSumsKernelBuilder(PairSumsKernelBuilder):
    """A builder of a `blocksparse.pair_sums` with values that have a common factor.

    A transposed op may also have sums by column: one visit to each pair then serves the
    gradients of key, value and query. A program adds to the sums of each block of
    columns in memory, to which other programs add as well. The runtime fills these sums
    with zeros before the launch.

    If the op is `ordered`, programs start with the last rows, visit blocks in rising
    order, and add to a block in the order in which they start. A program's progress is
    the number of blocks to which it and all programs before it have added, as far as
    they visit them. So a program waits for its predecessor alone. Where bounds are
    `rising`, earlier programs visit no block before a program's first, and later ones
    none after its last: they need not wait for each other there. (A program without
    blocks adds zeros to the first block at any time. That changes no sum.)

    Programs of several query heads add to the same sums of rows in the order of heads.
    """

    order: ProgramOrder | None = None
    order_of_heads: ProgramOrder | None = None
    visits: SSAValue | None = None
    """The condition that the program visits a block, if its bounds are `rising`."""

    @cached_property
    def pairs(self) -> FactoredPairs:
        """The code of a pair, in two parts."""
        return factor_pairs(self.op)

    @property
    def sums_rows(self) -> bool:
        """True if sums by column include rows beyond the last, which must then be 0."""
        return bool(self.checked) and bool(self.of_kind(SumKind.COLUMN_MATRIX))

    @property
    def all_matrices(self) -> list[SSAValue]:
        sums = [value for _, value in self.of_kind(SumKind.COLUMN_MATRIX)]
        # The runtime allocates values of columns with aligned rows.
        return [*super().all_matrices, *sums, *self.op.column_values]

    def locate(self) -> None:
        super().locate()
        if self.op.ordered is None:
            return
        segments = self.segments()
        if len(segments) != 1 or not segments[0].is_entered:
            raise ScheduleError(
                "an ordered op expects one segment that runs at least once; run "
                "blocksparse-merge-segments{into_one=true} before"
            )
        code, rows = self.code, self.rows
        blocks, one = code.ceildiv(self.row_len, self.block_m), code.const(1)
        heads = code.add(code.mul(rows.b, self.own_heads), rows.h)
        own = code.add(code.mul(heads, blocks), self.row_block, "own")
        is_first = code.cmp("eq", self.row_block, code.sub(blocks, one))
        earlier = code.select(is_first, own, code.add(own, one), "earlier")
        self.order = ProgramOrder(self.progress(), own, earlier, is_first)
        if self.key_rows is not None:
            self.order_of_heads = self.before_in_group(self.key_rows, blocks)

    def before_in_group(self, key_rows: RowBlock, blocks: SSAValue) -> ProgramOrder:
        """Find the program of the same rows and of the query head before this one.

        Each query head has `blocks` programs.
        """
        assert self.order is not None
        code, rows, one = self.code, self.rows, self.code.const(1)
        begins = code.cmp("eq", rows.h, code.mul(key_rows.h, self.group))
        is_first = code.and_(begins, code.cmp("eq", rows.b, key_rows.b))
        # If batches share a key, its heads follow those of the batch before.
        step = code.add(code.sub(self.own_heads, self.group), one)
        step = code.select(begins, step, one)
        own = self.order.own
        earlier = code.sub(own, code.mul(step, blocks))
        earlier = code.select(is_first, own, earlier, "earlier_head")
        return replace(self.order, earlier=earlier, is_first=is_first)

    def start_visits(self) -> None:
        """Report the blocks that are before this program's first, if bounds rise."""
        order, code = self.order, self.code
        if order is None or self.op.rising is None:
            return
        (segment,) = self.segments()
        captures = [self.args[v] for v in self.op.captures]
        rest = [self.row_len, self.column_len, *captures]
        begin, end = inline_region(segment.bounds, [*self.place.where, *rest], code)
        args = [*self.place.where, begin, *rest]
        (start,) = inline_region(segment.block, args, code)
        self.visits = code.cmp("slt", begin, end)
        block = code.div(start, code.const(self.block_n))
        first = code.select(self.visits, block, code.const(0), "first")
        report = tile.ReportProgressOp(order.progress, order.own, first)
        code.builder.insert(report)

    def end_visits(self) -> None:
        """Report that the program visits no further block."""
        if (order := self.order) is not None:
            # Larger numbers, up to `ALL`, say which sums of rows have been added.
            visited = self.code.const(ALL - len(self.matrices))
            zero = self.code.const(0)
            earlier, least, own, done = order.turn(self.code, visited)
            if self.visits is not None:
                # Later programs visit no block that comes after this one's last.
                least = self.code.select(self.visits, zero, least)
            wait = tile.AwaitProgressOp(order.progress, earlier, least, zero)
            self.code.builder.insert(wait)
            report = tile.ReportProgressOp(order.progress, own, done)
            self.code.builder.insert(report)

    def turn_of_sum(self, result: SSAValue) -> tuple[SSAValue | None, list[SSAValue]]:
        order, code = self.order_of_heads, self.code
        if order is None:
            return super().turn_of_sum(result)
        # The addition to the last sum ends the program.
        left = [value for _, value in reversed(self.matrices)].index(result)
        every, done = code.const(ALL), code.const(ALL - left)
        return order.progress, order.turn(code, done, every)

    def each_head(self, state: list[SSAValue]) -> list[SSAValue]:
        """Visit the segment of all query heads in one loop, if heads have equal bounds.

        Products then overlap from head to head, and sums stay in their registers.
        """
        segments, code, rows = self.segments(), self.code, self.rows
        by_head = [arg for s in segments for arg in s.bounds.block.args[:2] if arg.uses]
        if by_head or len(segments) != 1 or self.totals or self.op.row_values:
            return super().each_head(state)
        group, shared = self.sharing()
        b, h = code.mul(rows.b, shared), code.mul(rows.h, group)
        heads = Heads(b, h, shared, group)
        self.row_values = []
        return self.loop(segments[0], self.place, state, self.step, heads)

    def step(self, visit: Visit, state: list[SSAValue]) -> Sequence[SSAValue]:
        self.place, self.columns = visit.place, self.columns_of(visit.place)
        tiles, checked = self.load_columns(visit)
        first, *rest = self.op.product_list()
        factors = self.factors(visit, self.dot(first, tiles))
        products = [self.dot(product, tiles) for product in rest]
        values = {i: v for i, v in enumerate(factors) if i not in self.pairs.late}
        new: dict[int, SSAValue] = {}
        self.accumulate(values, tiles, state, new)
        for product in products:
            values |= self.multiples(product, factors)
            self.accumulate(values, tiles, state, new)
        self.add_to_columns(values, visit, checked)
        return [new[i] for i in range(len(state))]

    def factors(self, visit: Visit, score: SSAValue) -> list[SSAValue]:
        """Write the values of the score, and the factors of other values.

        They are rounded within the branches, which takes fewer registers.
        """
        outside = self.outside(visit)
        has_mask = visit.segment.mask_mod is not None

        def partial() -> list[SSAValue]:
            found = self.live_factors(visit, score, has_mask)
            return self.existing(visit, found)

        tests = [*outside, *([] if visit.is_partial is None else [visit.is_partial])]
        some_are_dead = combined(self.code.or_, tests)
        if some_are_dead is None or (has_mask and visit.is_partial is None):
            found = partial()
        else:
            whole = replace(visit, is_inside=True)
            found = self.branch(
                some_are_dead,
                partial,
                lambda: self.live_factors(whole, score, has_mask=False),
            )
        by_factor = dict(zip(self.distinct, found, strict=True))
        return [by_factor[self.factor(i)] for i in range(len(self.names()))]

    def outside(self, visit: Visit) -> list[SSAValue]:
        """Write conditions of which one is true if pairs of a block do not exist.

        Columns beyond the last are left out if only partial blocks have any: these
        blocks call `existing` anyway.
        """
        code = self.code
        found: list[SSAValue] = []
        if visit.full_sticks_out:
            end = code.add(visit.start, code.const(self.block_n))
            found.append(code.cmp("sgt", end, self.column_len))
        if self.sums_rows:
            end = code.add(self.rows.start, code.const(self.block_m))
            found.append(code.cmp("sgt", end, self.row_len))
        if visit.exists is not None:
            found.append(code.not_(visit.exists))
        return found

    def existing(self, visit: Visit, factors: Sequence[SSAValue]) -> list[SSAValue]:
        """Map the rounded factors of pairs that do not exist to 0.

        A map of its own takes fewer registers: scores are no longer live.
        """
        given: list[Input] = [(factor, FULL) for factor in factors]
        if visit.sticks_out:
            given += [(self.column_idx, COLUMN), (self.column_len, UNIFORM)]
        if self.sums_rows:
            given += [(self.row_idx, ROW), (self.row_len, UNIFORM)]
        if visit.exists is not None:
            given.append((visit.exists, UNIFORM))
        if len(given) == len(factors):
            return list(factors)

        def body(code: ScalarCode, *args: SSAValue) -> list[SSAValue]:
            values, rest = args[: len(factors)], list(args[len(factors) :])
            tests: list[SSAValue] = []
            while len(rest) > 1:
                tests.append(code.cmp("slt", rest.pop(0), rest.pop(0)))
            live = combined(code.and_, [*tests, *rest])
            return [self.select(code, live, value) for value in values]

        shape = (self.block_m, self.block_n)
        names = [factor.name_hint or "factor" for factor in factors]
        return build_maps(self.code, shape, given, body, names)

    @cached_property
    def distinct(self) -> dict[Factor, int]:
        """The factors without repetition, and the number of one value of each."""
        numbers = range(len(self.names()))
        return {self.factor(i): i for i in reversed(numbers)}

    def factor(self, number: int) -> Factor:
        """Return the factor of a value, and the type in which it is kept.

        Factors are rounded as the products' operands are. fp16 has not the range of
        f32, so a factor stays wide unless it is p, which has an operand of its own.
        """
        values, late = yielded(self.pairs.region.block), self.pairs.late
        narrow = flex.element_type(self.op.columns[0])
        assert isinstance(narrow, AnyFloat)
        operands = [v for i, v in enumerate(values) if i not in late]
        value = values[number]
        is_narrow = isinstance(narrow, BFloat16Type) or value in operands
        return value, narrow if is_narrow else self.op.score_type

    def live_factors(
        self, visit: Visit, score: SSAValue, has_mask: bool
    ) -> list[SSAValue]:
        """Map pairs to their distinct factors, masked pairs to 0 if there is a mask."""
        mask = visit.segment.mask_mod if has_mask else None
        # A table may list a block as full for which the mask is not true.
        listed = (
            [] if visit.is_partial is None or not self.op.tables else [visit.is_partial]
        )
        given: list[Input] = [
            *((flag, UNIFORM) for flag in listed),
            (score, FULL),
            (self.args[self.op.scale], UNIFORM),
            *((v, ROW) for v in self.row_values),
            *((v, COLUMN) for v in self.column_values),
        ]

        def body(code: ScalarCode, *args: SSAValue) -> list[SSAValue]:
            flags, own = args[: len(listed)], list(args[len(listed) : len(given)])
            mod_args, _, _ = self.pair(code, visit, args[len(given) :], masks=False)
            # No factor depends on the second product.
            own[1:1] = [code.const(0.0, own[0].type)] * (len(self.op.products) - 1)
            values = inline_region(self.pairs.region, [*own, *mod_args], code)
            live = None
            if mask is not None:
                (live,) = inline_region(mask, mod_args, code)
                for is_partial in flags:
                    live = code.or_(live, code.not_(is_partial))
            return [
                self.round(code, self.select(code, live, values[i]), element)
                for (_, element), i in self.distinct.items()
            ]

        names = [f"{self.names()[i]}_factor" for i in self.distinct.values()]
        return self.map_of(visit, given, body, names)

    @staticmethod
    def round(code: ScalarCode, value: SSAValue, element: AnyFloat) -> SSAValue:
        if value.type == element:
            return value
        return code.insert(arith.TruncFOp(value, element), value.name_hint)

    def multiples(
        self, product: SSAValue, factors: Sequence[SSAValue]
    ) -> dict[int, SSAValue]:
        """Write the values that are multiples of the second product less a number."""
        numbers = sorted(self.pairs.late)
        minus = self.minus()
        given: list[Input] = [(product, FULL), minus]
        given += [(factors[i], FULL) for i in numbers]
        element = self.op.score_type

        def body(
            code: ScalarCode, product: SSAValue, minus: SSAValue, *factors: SSAValue
        ) -> list[SSAValue]:
            centred = code.insert(arith.SubfOp(product, minus))
            wide = (extended(code, factor, element) for factor in factors)
            return [code.insert(arith.MulfOp(factor, centred)) for factor in wide]

        shape = (self.block_m, self.block_n)
        names = [f"value_{i}" for i in numbers]
        return dict(
            zip(numbers, build_maps(self.code, shape, given, body, names), strict=True)
        )

    def minus(self) -> Input:
        """Return the number of a row or column that the second product is less."""
        number = self.pairs.minus - len(self.op.products) - 1
        if number < len(self.row_values):
            return self.row_values[number], ROW
        return self.column_values[number - len(self.row_values)], COLUMN

    def accumulate(
        self,
        values: Mapping[int, SSAValue],
        tiles: Sequence[SSAValue],
        state: Sequence[SSAValue],
        new: dict[int, SSAValue],
    ) -> None:
        """Add to the sums whose values are known, except those that are in `new`."""
        for i, (attr, _) in enumerate([*self.matrices, *self.totals]):
            numbers = [term[0] for term in attr.term_list()]
            if i in new or any(number not in values for number in numbers):
                continue
            if attr.sum_kind == SumKind.MATRIX:
                new[i] = self.add_products(attr, values, tiles, state[i], None)
                continue
            new[i] = state[i]
            for number in numbers:
                row_sum = tile.ReduceOp(ReduceKind.SUM, values[number], 1, None)
                parts = [new[i], self.code.insert(row_sum, "row_sum")]
                new[i] = build_row_map(self.code, parts, ScalarCode.addf, "total")

    def add_to_columns(
        self, values: Mapping[int, SSAValue], visit: Visit, checked: Sequence[int]
    ) -> None:
        """Add to the sums of a block of columns in memory."""
        side = replace(self.columns, start=visit.start)
        for attr, result in self.of_kind(SumKind.COLUMN_MATRIX):
            factors = [self.row_tiles[number] for _, number in attr.term_list()]
            sums = self.column_sums(attr, result, values, factors)
            where = [*side.where, self.code.const(0)]
            progress, turn = None, list[SSAValue]()
            if (order := self.order) is not None:
                progress, turn = order.progress, self.turn_at(order, visit.start)
            add = tile.AddToOp(
                sums, self.args[result], where, None, checked, True, progress, turn
            )
            self.code.builder.insert(add)

    def turn_at(self, order: ProgramOrder, start: SSAValue) -> list[SSAValue]:
        """Return the turn for an addition to a block of columns."""
        block = self.code.div(start, self.code.const(self.block_n))
        done = self.code.add(block, self.code.const(1), "done")
        return order.turn(self.code, done)


ALL = full(32).hi
"""The progress of a program that has added everything: more than there are blocks."""


@dataclass(frozen=True)
class ProgramOrder:
    """The order in which programs add to the same blocks of columns, or of rows."""

    progress: SSAValue
    own: SSAValue
    """The number of this program."""
    earlier: SSAValue
    """The number of the program before it, or its own."""
    is_first: SSAValue
    """The condition that no program is before it."""

    def turn(
        self, code: ScalarCode, done: SSAValue, least: SSAValue | None = None
    ) -> list[SSAValue]:
        """Return the turn of an addition that makes the program's progress `done`.

        It is after the earlier program's progress is `least`, which is `done` if None.
        """
        least = code.select(self.is_first, code.const(0), least or done)
        return [self.earlier, least, self.own, done]


@dataclass(frozen=True)
class FactoredPairs:
    """The code of a pair in two parts.

    `region` has the arguments of the op's `pairs`. It yields, for each value of
    `pairs`, the value itself, or its factor if the value is in `late`. A value in
    `late` is its factor times (product - minus), for the second product.
    """

    region: Region
    late: frozenset[int]
    minus: int
    """The index of `minus` among the arguments of `pairs`; 0 without such values."""


def factor_pairs(op: PairSumsOp) -> FactoredPairs:
    """Split the code of a pair of an op with two products.

    Raises:
        ScheduleError: a value is no multiple of the second product less a number.
    """
    block = op.pairs.block
    if len(op.products) == 1:
        return FactoredPairs(op.pairs, frozenset(), 0)
    if len(op.products) != 2:
        raise ScheduleError(f"pairs have {len(op.products)} products")
    centred = centred_product(block.args[1])
    last = block.last_op
    assert last is not None
    args = block.args
    region = region_like(op.pairs)
    code = ScalarCode(region.block)
    known: dict[SSAValue, SSAValue] = {}
    known.update(zip(args, region.block.args, strict=True))
    factors = Factors(centred, Copier(code, known))
    late = frozenset(i for i, v in enumerate(last.operands) if v in factors.dependent)
    yields = [
        factors.of(v) if i in late else factors.copier.value(v)
        for i, v in enumerate(last.operands)
    ]
    for new, old in zip(yields, last.operands, strict=True):
        new.name_hint = new.name_hint or old.name_hint
    code.yield_(*yields)
    return FactoredPairs(region, late, args.index(centred.rhs))


def centred_product(product: SSAValue) -> arith.SubfOp:
    """Return the only use of a product: its difference from an argument."""
    users = [use.operation for use in product.uses]
    if len(users) == 1 and isinstance(users[0], arith.SubfOp):
        op = users[0]
        if op.lhs is product and op.rhs.owner is product.owner:
            return op
    raise ScheduleError("the second product is not used as a difference alone")


class Factors:
    """The factors of multiples of one value, and a copier of all other values."""

    def __init__(self, of: arith.SubfOp, copier: Copier):
        self.centred = of.result
        self.copier = copier
        self.dependent = dependent_on(of)

    def of(self, value: SSAValue) -> SSAValue:
        """Append the factor of a multiple, and return it."""
        found = self.factor(value)
        return self.copier.code.const(1.0, f32) if found is None else found

    def factor(self, value: SSAValue) -> SSAValue | None:
        """Append the factor of a multiple, and return it; None stands for 1."""
        if value is self.centred:
            return None
        code, other = self.copier.code, self.copier.value
        match value.owner:
            case arith.MulfOp(lhs=a, rhs=b) if (a in self.dependent) != (
                b in self.dependent
            ):
                a, b = (a, b) if a in self.dependent else (b, a)
                factor = self.factor(a)
                return other(b) if factor is None else self.times(factor, other(b))
            case arith.DivfOp(lhs=a, rhs=b) if b not in self.dependent:
                return code.insert(arith.DivfOp(self.of(a), other(b)))
            case arith.NegfOp(operand=a):
                return code.insert(arith.NegfOp(self.of(a)))
            case arith.AddfOp(lhs=a, rhs=b) | arith.SubfOp(lhs=a, rhs=b) if {
                a,
                b,
            } <= self.dependent:
                return code.insert(type(value.owner)(self.of(a), self.of(b)))
            case arith.SelectOp(cond=c, lhs=a, rhs=b) if c not in self.dependent:
                return code.select(other(c), self.branch(a), self.branch(b))
            case _:
                raise ScheduleError("a value is no multiple of the second product")

    def branch(self, value: SSAValue) -> SSAValue:
        """Append the factor of a branch of a select, which may be 0."""
        if value not in self.dependent and float_constant(value) == 0.0:
            return self.copier.value(value)
        return self.of(value)

    def times(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.copier.code.insert(arith.MulfOp(a, b))


def dependent_on(op: Operation) -> set[SSAValue]:
    """Return the results of an op, and all values of its block computed from them."""
    found: set[SSAValue] = set(op.results)
    work: list[SSAValue] = list(op.results)
    while work:
        for use in work.pop().uses:
            new: Sequence[SSAValue] = use.operation.results
            work += [v for v in new if v not in found]
            found.update(new)
    return found
