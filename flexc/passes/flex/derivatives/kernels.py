"""Kernels of a derivative: functions of one op each, and calls of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DenseArrayBase,
    IntAttr,
    NoneAttr,
    StridedLayoutAttr,
    TensorType,
    UnitAttr,
    i32,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects import flex
from flexc.dialects.flex import DerivativeOp, SumAttr, SumKind
from flexc.passes.flex.derivatives.pairs_code import PairsCode, Product
from flexc.passes.scalar.scalar_code import (
    ScalarCode,
    inline_region,
    new_region,
)
from flexc.passes.tidy import erase_dead


@dataclass(frozen=True)
class Sum:
    """One result: terms name values of the code, and for a matrix the columns'.

    Those of a column matrix name the rows'.
    """

    kind: SumKind
    terms: Sequence[tuple[str, ...]]
    element: Attribute
    dim: int | None = None
    """Columns of a matrix."""
    scaled: bool = False
    name: str | None = None

    @property
    def type(self) -> TensorType[Attribute]:
        match self.kind:
            case SumKind.MATRIX:
                return fresh([None, None, None, self.dim], self.element)
            case SumKind.COLUMN_MATRIX:
                return fresh([None, None, None, None, self.dim], self.element)
            case SumKind.TOTAL:
                return fresh([None] * 3, self.element)
            case _:
                return fresh([None] * 4, self.element)


def fresh(shape: Sequence[int | None], element: Attribute) -> TensorType[Attribute]:
    """A tensor that the runtime makes: its last stride is 1."""
    strides = ArrayAttr([*[NoneAttr()] * (len(shape) - 1), IntAttr(1)])
    dims = [DYNAMIC_INDEX if d is None else d for d in shape]
    return TensorType(element, dims, StridedLayoutAttr(strides))


@dataclass
class HostFunction:
    """The function that a derivative op is in, as kernels take the op's place."""

    op: DerivativeOp
    name: str
    named: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    """Its values by the names that `pairs_code` has."""
    functions: list[func.FuncOp] = field(default_factory=list[func.FuncOp])

    def __post_init__(self) -> None:
        self.code = ScalarCode(InsertPoint.before(self.op))

    def append(self, op: Operation) -> Sequence[SSAValue]:
        self.code.builder.insert(op)
        return op.results

    def kernel(self, suffix: str, op: Operation) -> Sequence[SSAValue]:
        """Put an op into a function of its own, and call that in its place."""
        operands, results = list(op.operands), list(op.results)
        block = Block(arg_types=[v.type for v in operands])
        for arg, value in zip(block.args, operands, strict=True):
            arg.name_hint = value.name_hint
        op.operands = list(block.args)
        block.add_ops([op, func.ReturnOp(*op.results)])
        name = f"{self.name}_{suffix}"
        types = [v.type for v in operands], [r.type for r in results]
        self.functions.append(func.FuncOp(name, types, Region(block)))
        call = flex.LaunchOp(name, operands, [r.type for r in results])
        self.code.builder.insert(call)
        for result, inner in zip(call.outputs, results, strict=True):
            result.name_hint = inner.name_hint
        return call.outputs

    def pair_sums(
        self,
        suffix: str,
        code: PairsCode,
        sums: Sequence[Sum],
        transposed: bool = False,
        first: Sequence[SSAValue] = (),
    ) -> Sequence[SSAValue]:
        """A kernel for some sums over pairs; nothing if there are none."""
        if not sums:
            return ()
        op = PairSumsWriter(self, code, sums, transposed).write(first)
        return self.kernel(suffix, op)


@dataclass
class PairSumsWriter:
    """Writes one op, of what its sums need and no more."""

    host: HostFunction
    code: PairsCode
    sums: Sequence[Sum]
    transposed: bool

    def write(self, first: Sequence[SSAValue]) -> flex.PairSumsOp:
        wanted = dict.fromkeys(term[0] for s in self.sums for term in s.terms)
        self.yields = list(wanted) or ["p"]
        region, dots, values = pruned(self.code, self.yields)
        self.rows, self.columns = self.matrices(dots)
        named = self.host.named
        on_rows, on_columns = ([], values) if self.transposed else (values, [])
        op = self.host.op
        tables = op.column_tables if self.transposed else op.tables
        block = op.column_block if self.transposed else op.sparse_block
        properties: dict[str, Attribute] = op.facts() | {
            "products": ArrayAttr([self.product(p) for p in dots.values()]),
            "sums": ArrayAttr([self.attribute(s) for s in self.sums]),
        }
        if self.transposed:
            properties["transposed"] = UnitAttr()
        if tables and block is not None:
            properties["sparse_block"] = block
        sums = flex.PairSumsOp(
            [
                [named[n] for n in self.rows],
                [named[n] for n in self.columns],
                [named[n] for n in on_rows],
                [named[n] for n in on_columns],
                first,
                op.scale,
                self.code.captures,
                tables,
            ],
            [s.type for s in self.sums],
            region,
            with_captures(op.mask_mod, self.code.captures),
            properties,
        )
        for result, s in zip(sums.results, self.sums, strict=True):
            result.name_hint = s.name
        return sums

    def matrices(self, dots: Mapping[str, Product]) -> tuple[list[str], list[str]]:
        """Names of the matrices of the rows and of the columns."""
        pairs = [p for product in dots.values() for p in product]
        query, key = ([p[i] for p in pairs] for i in (0, 1))
        rows, columns = (key, query) if self.transposed else (query, key)
        rows += self.summed(SumKind.COLUMN_MATRIX)
        columns += self.summed(SumKind.MATRIX)
        return list(dict.fromkeys(rows)), list(dict.fromkeys(columns))

    def summed(self, kind: SumKind) -> list[str]:
        """Names of the matrices whose rows sums of a kind add up."""
        return [t[1] for s in self.sums if s.kind == kind for t in s.terms]

    def product(self, product: Product) -> DenseArrayBase:
        flat: list[int] = []
        for query, key in product:
            row, column = (key, query) if self.transposed else (query, key)
            flat += [self.rows.index(row), self.columns.index(column)]
        return DenseArrayBase.from_list(i32, flat)

    def attribute(self, s: Sum) -> SumAttr:
        names = self.rows if s.kind == SumKind.COLUMN_MATRIX else self.columns
        terms = [
            [self.yields.index(t[0]), *(names.index(name) for name in t[1:])]
            for t in s.terms
        ]
        return SumAttr.of(s.kind, terms, s.scaled)


def pruned(
    code: PairsCode, yields: Sequence[str]
) -> tuple[Region, dict[str, Product], list[str]]:
    """The region that yields these only, and the dots and values that it needs.

    The first dot product stays in any case, as something has to say what rows are.
    """
    region = code.region.clone()
    last = region.block.last_op
    assert last is not None
    last.operands = [last.operands[code.yields[name]] for name in yields]
    erase_dead(region)
    dots, values = dict(code.dots), list(code.values)
    given = [*dots, "scale", *values]
    args = dict(zip(given, region.block.args, strict=False))
    for name in [*list(dots)[1:], *code.values]:
        if not args[name].uses.get_length():
            region.block.erase_arg(args[name])
            if name in dots:
                del dots[name]
            else:
                values.remove(name)
    return region, dots, values


def with_captures(mask: Region, captures: Sequence[SSAValue]) -> Region:
    """A mask that receives more captures than it reads."""
    given = mask.block.args
    more = captures[len(given) - 4 :]
    types = [*(a.type for a in given), *(c.type for c in more)]
    names = [*(a.name_hint for a in given), *(c.name_hint for c in more)]
    region = new_region(types, names)
    code = ScalarCode(region.block)
    code.yield_(*inline_region(mask, region.block.args[: len(given)], code))
    return region
