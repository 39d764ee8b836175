"""Kernels of a derivative: functions with one op each, and their launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.transforms.dead_code_elimination import region_dce

from flexc.dialects import flex
from flexc.dialects.flex import DerivativeOp, SumAttr, SumKind
from flexc.dialects.flex.pair_sums import MATRICES, rank_of
from flexc.passes.flex.pair_code import DotSum, PairCode
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region, new_region


@dataclass(frozen=True)
class PairSum:
    """One result of a sum over pairs.

    Each term names a value of the pair code. For a matrix it also names a matrix of the
    columns, and for a column matrix a matrix of the rows.
    """

    kind: SumKind
    terms: Sequence[tuple[str, ...]]
    element: Attribute
    dim: int | None = None
    """The number of columns of a matrix."""
    scaled: bool = False
    name: str | None = None

    def type(self, transposed: bool = False) -> TensorType[Attribute]:
        """Return the type of the result, of keys' rows if `transposed`."""
        shape: list[int | None] = [None] * rank_of(self.kind, transposed)
        if self.kind in MATRICES:
            shape[-1] = self.dim
        return fresh(shape, self.element)


def fresh(shape: Sequence[int | None], element: Attribute) -> TensorType[Attribute]:
    """Return the type of a tensor that the runtime allocates: its last stride is 1."""
    strides = ArrayAttr([*[NoneAttr()] * (len(shape) - 1), IntAttr(1)])
    dims = [DYNAMIC_INDEX if d is None else d for d in shape]
    return TensorType(element, dims, StridedLayoutAttr(strides))


@dataclass
class HostFunction:
    """The function around a derivative op; launches of kernels replace the op."""

    op: DerivativeOp
    name: str
    named: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])
    """The values of the function, by their names in `pair_code`."""
    per_query_head: bool = False
    """True if programs of each query head add to the sums of keys' rows."""
    functions: list[func.FuncOp] = field(default_factory=list[func.FuncOp])

    def __post_init__(self) -> None:
        self.code = ScalarCode(InsertPoint.before(self.op))

    def append(self, op: Operation, name: str | None = None) -> SSAValue:
        """Append an op and return its single result."""
        return self.code.insert(op, name)

    def kernel(
        self, suffix: str, op: Operation, plus: Sequence[SSAValue] = ()
    ) -> Sequence[SSAValue]:
        """Move an op into a kernel of its own; return the results of its launch.

        The last results are added to `plus`.
        """
        operands, results = list(op.operands), list(op.results)
        block = Block(arg_types=[v.type for v in operands])
        for arg, value in zip(block.args, operands, strict=True):
            arg.name_hint = value.name_hint
        op.operands = list(block.args)
        block.add_ops([op, func.ReturnOp(*op.results)])
        name = f"{self.name}_{suffix}"
        types = [v.type for v in operands], [r.type for r in results]
        self.functions.append(func.FuncOp(name, types, Region(block)))
        call = flex.LaunchOp(name, operands, [r.type for r in results], plus)
        self.code.builder.insert(call)
        for result, inner in zip(call.outputs, results, strict=True):
            result.name_hint = inner.name_hint
        return call.outputs

    def pair_sums(
        self,
        suffix: str,
        code: PairCode,
        sums: Sequence[PairSum],
        transposed: bool = False,
        origin: Sequence[SSAValue] = (),
        plus: Sequence[SSAValue] = (),
    ) -> Sequence[SSAValue]:
        """Launch a kernel for sums over pairs; return its results, () without sums.

        The last sums are added to `plus`.
        """
        if not sums:
            return ()
        op = PairSumsWriter(self, code, sums, transposed).write(origin)
        return self.kernel(suffix, op, plus)

    def map_rows(
        self,
        suffix: str,
        types: Mapping[str, Attribute],
        write: Callable[..., Sequence[SSAValue]],
        values: Sequence[SSAValue],
        dots: Sequence[tuple[str, str]] = (),
    ) -> Sequence[SSAValue]:
        """Launch a kernel that maps rows; return its results, of these names and types.

        `write` receives the sum of the dot products of `dots`, if any, and an element
        of each of `values`, and writes an element of each result.
        """
        lhs, rhs = ([self.named[pair[i]] for pair in dots] for i in (0, 1))
        names = [*(["dot"] if dots else []), *(v.name_hint for v in values)]
        region = new_region(flex.MapRowsOp.code_types(lhs, values), names)
        code = ScalarCode(region.block)
        code.yield_(*write(code, *region.block.args))
        facts = self.op.facts()
        known = {n: facts[n] for n in ("alignment", "max_length") if n in facts}
        op = flex.MapRowsOp(lhs, rhs, values, list(types.values()), region, known)
        for result, name in zip(op.results, types, strict=True):
            result.name_hint = name
        return self.kernel(suffix, op)


class PairSumsWriter:
    """A writer of one `flex.pair_sums` with the operands that its sums need."""

    def __init__(
        self,
        host: HostFunction,
        code: PairCode,
        sums: Sequence[PairSum],
        transposed: bool,
    ):
        self.host, self.code = host, code
        self.sums, self.transposed = sums, transposed
        wanted = dict.fromkeys(term[0] for s in sums for term in s.terms)
        self.yields = list(wanted) or ["p"]
        self.region, self.dots, self.values = pruned(code, self.yields)
        pairs = [pair for dot in self.dots.values() for pair in dot]
        query, key = ([p[i] for p in pairs] for i in (0, 1))
        rows, columns = (key, query) if transposed else (query, key)
        rows += self.summed(SumKind.COLUMN_MATRIX)
        columns += self.summed(SumKind.MATRIX)
        self.rows = list(dict.fromkeys(rows))
        self.columns = list(dict.fromkeys(columns))

    def summed(self, kind: SumKind) -> list[str]:
        """Return the names of the matrices whose rows the sums of a kind add up."""
        return [t[1] for s in self.sums if s.kind == kind for t in s.terms]

    def write(self, origin: Sequence[SSAValue]) -> flex.PairSumsOp:
        op, named = self.host.op, self.host.named
        values = [named[n] for n in self.values]
        on_rows, on_columns = ([], values) if self.transposed else (values, [])
        tables = op.column_tables if self.transposed else op.tables
        block = op.column_block if self.transposed else op.sparse_block
        properties: dict[str, Attribute] = op.facts() | {
            "products": ArrayAttr([self.product(dot) for dot in self.dots.values()]),
            "sums": ArrayAttr([self.attribute(s) for s in self.sums]),
        }
        if self.transposed:
            properties["transposed"] = UnitAttr()
            kinds = {s.kind for s in self.sums}
            if op.ordered is not None and SumKind.COLUMN_MATRIX in kinds:
                properties["ordered"] = op.ordered
            if self.host.per_query_head and SumKind.MATRIX in kinds:
                properties["per_query_head"] = UnitAttr()
        if tables and block is not None:
            properties["sparse_block"] = block
        sums = flex.PairSumsOp(
            {
                "rows": [named[n] for n in self.rows],
                "columns": [named[n] for n in self.columns],
                "row_values": on_rows,
                "column_values": on_columns,
                "tile_origin": origin,
                "scale": op.scale,
                "captures": self.code.captures,
                "tables": tables,
            },
            [[s.type(self.transposed) for s in self.sums]],
            [self.region, with_captures(op.mask_mod, self.code.captures)],
            properties,
        )
        for result, s in zip(sums.results, self.sums, strict=True):
            result.name_hint = s.name
        return sums

    def product(self, dot: DotSum) -> DenseArrayBase:
        flat: list[int] = []
        for query, key in dot:
            row, column = (key, query) if self.transposed else (query, key)
            flat += [self.rows.index(row), self.columns.index(column)]
        return DenseArrayBase.from_list(i32, flat)

    def attribute(self, s: PairSum) -> SumAttr:
        names = self.rows if s.kind == SumKind.COLUMN_MATRIX else self.columns
        terms = [
            [self.yields.index(t[0]), *(names.index(name) for name in t[1:])]
            for t in s.terms
        ]
        return SumAttr.of(s.kind, terms, s.scaled)


def pruned(
    code: PairCode, yields: Sequence[str]
) -> tuple[Region, dict[str, DotSum], list[str]]:
    """Return a region that yields only `yields`, and the dots and row values it needs.

    The first dot product always stays: its matrices give the sizes of rows and columns.
    """
    region = code.region.clone()
    last = region.block.last_op
    assert last is not None
    last.operands = [last.operands[code.yields[name]] for name in yields]
    region_dce(region)
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
    """Return a copy of a mask with arguments for all `captures`.

    The mask's own captures are the first of them.
    """
    given = mask.block.args
    more = captures[len(given) - 4 :]
    types = [*(a.type for a in given), *(c.type for c in more)]
    names = [*(a.name_hint for a in given), *(c.name_hint for c in more)]
    region = new_region(types, names)
    code = ScalarCode(region.block)
    code.yield_(*inline_region(mask, region.block.args[: len(given)], code))
    return region


def absorb_rows(host: func.FuncOp, kernels: Mapping[str, func.FuncOp]) -> None:
    """Move ops over rows into the kernels over pairs that alone read their results.

    Delta and weighed cotangents are values of the rows that a program over pairs owns.
    The program computes them when it loads these rows, which saves a kernel and its
    stores. A transposed kernel reads them as columns, in every program, so they keep a
    kernel of their own. `kernels` are the kernels that `host` launches, by name.
    """
    for launch in reversed(list(host.body.ops)):
        if not isinstance(launch, flex.LaunchOp):
            continue
        op = op_of(kernels[launch.callee.string_value()])
        if not isinstance(op, flex.MapRowsOp) or len(op.results) > 1:
            continue
        readers = {use.operation for use in launch.outputs[0].uses}
        if len(readers) == 1 and isinstance(reader := readers.pop(), flex.LaunchOp):
            kernel = kernels[reader.callee.string_value()]
            sums = op_of(kernel)
            if isinstance(sums, flex.PairSumsOp) and not sums.is_transposed:
                absorb(launch, op, reader, kernel)


def op_of(kernel: func.FuncOp) -> Operation:
    """Return the op whose results a kernel returns."""
    last = kernel.body.block.last_op
    assert isinstance(last, func.ReturnOp)
    owner = last.operands[0].owner
    assert isinstance(owner, Operation)
    return owner


def absorb(
    launch: flex.LaunchOp,
    op: flex.MapRowsOp,
    reader: flex.LaunchOp,
    kernel: func.FuncOp,
) -> None:
    """Move the op of a launched kernel into the kernel that reads its result."""
    block, inputs = kernel.body.block, list(reader.inputs)
    values: dict[SSAValue, SSAValue] = {}
    for given, operand in zip(launch.inputs, op.operands, strict=True):
        if given not in inputs:
            inputs.append(given)
            arg = block.insert_arg(operand.type, len(block.args))
            arg.name_hint = operand.name_hint
        values[operand] = block.args[inputs.index(given)]
    made = op.clone(values)
    (result,) = made.results
    result.name_hint = op.results[0].name_hint
    Rewriter.insert_op(made, InsertPoint.at_start(block))
    for number in reversed(range(len(inputs))):
        if inputs[number] is launch.outputs[0]:
            block.args[number].replace_all_uses_with(result)
            block.erase_arg(block.args[number])
            del inputs[number]
    callee, types = reader.callee.string_value(), reader.result_types
    Rewriter.replace_op(reader, flex.LaunchOp(callee, inputs, types, reader.plus))
    Rewriter.erase_op(launch)
    kernel.update_function_type()
