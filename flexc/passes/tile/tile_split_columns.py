"""`tile-split-columns`: split padded columns into two parts with fewer columns.

Triton's tiles have powers of two, so that rows of 576 numbers take 1,024 columns. This
pass splits such a dimension into parts of 512 and 64 columns:

- loads and stores access the two parts of a tensor's last dimension;
- a product along the dimension is two products, and a product that sums over the
  dimension adds a second one to the first;
- other tiles with that dimension, those of maps, constants, loops and branches, are two
  tiles.

A dimension stays whole if other ops use it, as reductions do, and in kernels whose rows
are not aligned (see `UNALIGNED_VALUE_DIM`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.dialects.tile import TileType, shape_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.triton import column_parts
from flexc.passes.tile.tile_access import (
    Accesses,
    accessed_tile,
    element_width,
    has_count,
    is_zero,
    static_dim,
)
from flexc.passes.tile.tile_values import (
    TileDims,
    defined_values,
    rank,
    separate_constants,
    values_of,
)

SPLITTABLE = (
    *(tile.LoadOp, tile.StoreOp, tile.AddToOp, tile.FullOp, tile.TransposeOp),
    *(tile.MapOp, tile.DotOp, scf.ForOp, scf.IfOp, scf.YieldOp),
)


def size_of(op: Accesses) -> int | None:
    """Return the last dimension of the memory that is accessed, if it is known."""
    memory = op.tensor if isinstance(op, tile.LoadOp) else op.memref
    return static_dim(memory.type, -1)


def padded_accesses(block: Block) -> Iterator[tuple[Accesses, tuple[int, ...]]]:
    """Yield the accesses whose columns may be split, and the columns of the parts."""
    products = [op for op in block.walk() if isinstance(op, tile.DotOp)]
    bits = max((element_width(op.lhs.type) for op in products), default=0)
    for op in block.walk():
        if isinstance(op, Accesses) and (size := size_of(op)) is not None:
            parts = column_parts(size, bits)
            if len(parts) > 1:
                yield op, parts


def operands_and_results(op: Operation) -> Iterable[SSAValue]:
    return *op.operands, *defined_values(op)


def find_splitter(block: Block) -> ColumnSplitter | None:
    """Return the splitter of a dimension that can be split, if there is one."""
    dims = TileDims(block)
    values = dict.fromkeys(values_of(block))
    for op, parts in padded_accesses(block):
        value = accessed_tile(op)
        last = rank(value) - 1
        column = dims.find((value, last))
        found = [(v, d) for v in values for d in dims.along(v, column)]
        split = dict(found)
        is_padded = shape_of(value.type)[last] > sum(parts)
        # No value has the dimension twice.
        if is_padded and len(split) == len(found) and may_split(block, split, op):
            return ColumnSplitter(split, parts)
    return None


def may_split(block: Block, split: Mapping[SSAValue, int], access: Accesses) -> bool:
    """Return True if all ops with a dimension can be written for its parts.

    `split` has the values with that dimension, and its number among theirs. All
    accesses along it must cover a last dimension as wide as that of `access`.
    """
    for op in block.walk():
        if split.keys().isdisjoint(operands_and_results(op)):
            continue
        if not isinstance(op, SPLITTABLE) or has_count(op):
            return False
        if isinstance(op, Accesses):
            value = accessed_tile(op)
            is_whole = size_of(op) == size_of(access) and is_zero(op.indices[-1])
            if split[value] != rank(value) - 1 or not is_whole:
                return False
    return True


class ColumnSplitter:
    """The rewrite that splits one dimension of a kernel's tiles into two parts."""

    def __init__(self, split: Mapping[SSAValue, int], sizes: Sequence[int]):
        self.split = split
        """The values that are split, and along which dimension."""
        self.sizes = sizes
        """The columns of the two parts."""
        self.made: dict[SSAValue, Sequence[SSAValue]] = {}
        """The parts of the values that are split."""
        self.replaced: list[Operation] = []

    def run(self, block: Block) -> None:
        self.rewrite(block)
        for op in reversed(self.replaced):
            op.detach()
            op.erase()
        for value in self.made:
            if isinstance(value.owner, Block):
                value.owner.erase_arg(value)  # pyright: ignore[reportArgumentType]

    def types(self, value: SSAValue) -> list[Attribute]:
        """Return the types of the parts of a value, or its type if it is not split."""
        if value not in self.split:
            return [value.type]
        assert isinstance(value.type, TileType)
        shape, types = list(shape_of(value.type)), list[Attribute]()
        for size in self.sizes:
            shape[self.split[value]] = size
            types.append(TileType(value.type.element_type, shape))
        return types

    def rewrite(self, block: Block) -> None:
        for op in list(block.ops):
            match op:
                case scf.ForOp():
                    self.loop(op)
                case scf.IfOp():
                    self.branch(op)
                case _ if any(v in self.split for v in operands_and_results(op)):
                    self.write_parts(op)
                case _:
                    pass

    def flat(self, values: Iterable[SSAValue]) -> list[SSAValue]:
        """Return values, with the parts of split ones in their place."""
        return [part for v in values for part in self.made.get(v, [v])]

    def hand_on(self, old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        """Let the results of a new loop or branch replace those of an old one."""
        rest = iter(new)
        for value in old:
            if value in self.split:
                self.made[value] = [next(rest) for _ in self.sizes]
                self.name(value)
            else:
                result = next(rest)
                result.name_hint = value.name_hint
                value.replace_all_uses_with(result)

    def name(self, value: SSAValue) -> None:
        """Name the parts of a value after it."""
        if value.name_hint is not None:
            for suffix, result in zip(("", "_rest"), self.made[value], strict=True):
                result.name_hint = value.name_hint + suffix

    def loop(self, op: scf.ForOp) -> None:
        """Rewrite a loop, which carries parts."""
        body = op.body.block
        for arg in [a for a in body.args if a in self.split]:
            types = enumerate(self.types(arg), arg.index + 1)
            self.made[arg] = [body.insert_arg(type_, at) for at, type_ in types]
            self.name(arg)
        self.rewrite(body)
        region, initial = op.detach_region(op.body), self.flat(op.iter_args)
        new = scf.ForOp(op.lb, op.ub, op.step, initial, region)
        self.replace(op, new)

    def branch(self, op: scf.IfOp) -> None:
        """Rewrite a branch, which yields parts."""
        for block in [b for region in op.regions for b in region.blocks]:
            self.rewrite(block)
        then, otherwise = (op.detach_region(r) for r in list(op.regions))
        types = [t for v in op.results for t in self.types(v)]
        new = scf.IfOp(op.cond, types, then, otherwise)
        self.replace(op, new)

    def replace(self, op: Operation, new: Operation) -> None:
        """Insert a new loop or branch in place of an old one."""
        new.attributes |= op.attributes
        ScalarCode(InsertPoint.before(op)).builder.insert(new)
        self.hand_on(op.results, new.results)
        self.replaced.append(op)

    def write_parts(self, op: Operation) -> None:
        """Write an op for each part."""
        code = ScalarCode(InsertPoint.before(op))
        self.replaced.append(op)
        if isinstance(op, scf.YieldOp):
            code.builder.insert(scf.YieldOp(*self.flat(op.operands)))
        elif isinstance(op, tile.DotOp) and self.split.get(op.lhs) == 1:
            total = op.acc
            for lhs, rhs in zip(self.made[op.lhs], self.made[op.rhs], strict=True):
                total = code.insert(tile.DotOp(lhs, rhs, total), op.result.name_hint)
            op.result.replace_all_uses_with(total)
        else:
            clones = [self.clone(op, part, code) for part in (0, 1)]
            for i, result in enumerate(op.results):
                self.made[result] = [clone.results[i] for clone in clones]
                self.name(result)

    def clone(self, op: Operation, part: int, code: ScalarCode) -> Operation:
        """Write an op for one part."""
        new = op.clone({v: p[part] for v, p in self.made.items()})
        code.builder.insert(new)
        for result, old in zip(list(new.results), op.results, strict=True):
            Rewriter.replace_value_with_new_type(result, self.types(old)[part])
        if isinstance(new, Accesses):
            move(new, part and self.sizes[0])
        return new


def move(op: Accesses, start: int) -> None:
    """Let an access begin at a column, and check its columns only if some lack."""
    if start:
        first = 1 if isinstance(op, tile.LoadOp) else 2
        index = ScalarCode(InsertPoint.before(op)).const(start)
        op.operands[first + len(op.indices) - 1] = index
    size, shape = size_of(op), shape_of(accessed_tile(op).type)
    assert size is not None
    column = len(shape) - 1
    checked = [d for d in op.checked.get_values() if d != column]
    if start + shape[column] > size:
        checked.append(column)
    op.checked = DenseArrayBase.from_list(i32, checked)


@dataclass(frozen=True)
class TileSplitColumnsPass(ModulePass):
    """Split padded columns into two parts with fewer columns."""

    name = "tile-split-columns"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in [o for o in op.ops if isinstance(o, tile.KernelOp)]:
            block = kernel.body.block
            is_aligned = "alignment" in kernel.attributes
            if not is_aligned or not any(padded_accesses(block)):
                continue
            separate_constants(block)
            while (splitter := find_splitter(block)) is not None:
                splitter.run(block)
