"""`legalize-tile-for-triton`: turn tile accesses into pointers, offsets and masks.

A tile of a tensor is read at `base + offsets`. The base is a 64-bit scalar: the sum of
the leading indices and the tile's start, each times its stride. The offsets within the
tile are 32 bits wide; once hoisted, they are computed once for a whole loop. The mask
compares indices with the size along each checked dimension. Elements are gathered as
memory holds them, and converted by a map if the tile has a wider type. The pass refuses
ops with a count.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    IntegerType,
    ModuleOp,
    StringAttr,
    bf16,
    f16,
    f32,
    i32,
    i64,
)
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from flexc.dialects import tile
from flexc.dialects.constants import int_constant
from flexc.dialects.flex import element_type
from flexc.dialects.tile import element_of, shape_of
from flexc.errors import UnsupportedOpError, refuse
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.target import F32Precision
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    Input,
    build_map,
    widened,
)
from flexc.passes.tile.tile_access import (
    TileAccess,
    has_count,
    is_zero,
    static_dim,
    static_stride,
)


@dataclass(frozen=True)
class PointerAccess(TileAccess):
    """The base, offsets and mask of a tile within a tensor or memref."""

    def base(self) -> SSAValue:
        """Return the offset of the tile's first element, in 64 bits.

        Each term is a map of its own, so that each can be hoisted out of a loop by
        itself.
        """
        terms = [
            self.base_term(dim, index)
            for dim, index in enumerate(self.indices)
            if not is_zero(index)
        ]
        base = terms[0] if terms else self.code.const(0, i64)
        for term in terms[1:]:
            base = self.code.add(base, term, self.hint("base"))
        return base

    def base_term(self, dim: int, index: SSAValue) -> SSAValue:
        """Return index * stride in 64 bits."""

        def body(code: ScalarCode, i: SSAValue, s: SSAValue) -> SSAValue:
            return code.mul(code.int_cast(i, i64), s)

        stride = self.code.insert(
            tile.StrideOp(self.tensor, dim), self.hint(f"stride{dim}")
        )
        return build_map(
            self.code,
            (),
            [(index, UNIFORM), (stride, UNIFORM)],
            body,
            self.hint(f"{index.name_hint or 'start'}_offset"),
        )

    @property
    def width(self) -> IntegerType:
        """The type of offsets.

        Tiles that end `below` a row are stored as products leave them in registers.
        Constant parts of 64-bit offsets are parts of instructions there, as sums are
        not extended.
        """
        return i32 if self.below is None else i64

    def offsets(self) -> SSAValue:
        """Return the offsets within the tile, equal for all tiles of a tensor."""
        zero = self.code.const(0)
        inputs: list[Input] = []
        for i, size in enumerate(self.shape):
            index = self.code.insert(tile.IotaOp(zero, size), self.hint(f"iota{i}"))
            inputs.append((index, (i,)))
        strided: list[bool] = []
        for i in range(len(self.shape)):
            dim = self.first_dim + i
            strided.append(static_stride(self.tensor.type, dim) != 1)
            if strided[-1]:
                stride = tile.StrideOp(self.tensor, dim, self.width)
                name = self.hint(f"stride{dim}_{self.width}")
                inputs.append((self.code.insert(stride, name), UNIFORM))

        def body(code: ScalarCode, *args: SSAValue) -> SSAValue:
            strides = iter(args[len(self.shape) :])
            total = None
            for index, is_strided in zip(args, strided, strict=False):
                index = code.int_cast(index, self.width)
                term = code.mul(index, next(strides)) if is_strided else index
                total = term if total is None else code.add(total, term)
            assert total is not None
            return total

        return build_map(self.code, self.shape, inputs, body, self.hint("offsets"))

    def mask(self) -> SSAValue | None:
        """Return a mask of elements in range along checked dimensions, or None."""
        if not self.checked:
            return None
        inputs: list[Input] = []
        for i in self.checked:
            start = self.indices[self.first_dim + i]
            index = self.code.insert(tile.IotaOp(start, self.shape[i]), "index")
            inputs.append((index, (i,)))
        for i in self.checked:
            inputs.append((self.end(i), UNIFORM))

        def body(code: ScalarCode, *args: SSAValue) -> SSAValue:
            count = len(self.checked)
            inside = None
            for index, size in zip(args[:count], args[count:], strict=True):
                one = code.cmp("slt", index, size)
                inside = one if inside is None else code.and_(inside, one)
            assert inside is not None
            return inside

        return build_map(self.code, self.shape, inputs, body, self.hint("inside"))

    def mask_of(self, live: SSAValue | None) -> SSAValue | None:
        """Return the mask of elements in range, of rows that are live."""
        mask = self.mask()
        if live is None:
            return mask
        inputs: list[Input] = [(live, ROW), *([] if mask is None else [(mask, FULL)])]

        def body(code: ScalarCode, live: SSAValue, *inside: SSAValue) -> SSAValue:
            return code.and_(live, inside[0]) if inside else live

        return build_map(self.code, self.shape, inputs, body, self.hint("live"))


def is_multiple(value: SSAValue, size: int) -> bool:
    """Return True if a product with a constant shows that a value is a multiple."""
    op = value.owner
    if not isinstance(op, arith.MuliOp):
        return False
    factors = [int_constant(v) for v in op.operands]
    return any(n is not None and n % size == 0 for n in factors)


@dataclass(frozen=True)
class PagedAccess(PointerAccess):
    """The base, offsets and mask of a tile whose rows lie in pages of a tensor."""

    table: SSAValue

    @classmethod
    def of_paged(cls, op: tile.LoadOp, table: SSAValue) -> PagedAccess:
        """Describe the access of a load of pages; new code goes before it."""
        at = PointerAccess.of_load(op)
        return cls(at.code, at.tensor, at.indices, at.shape, at.checked, table)

    def base(self) -> SSAValue:
        """Return the offset of the head and of the first column, in 64 bits."""
        head, column = (self.base_term(dim, self.indices[dim]) for dim in (1, 3))
        return self.code.add(head, column, self.hint("base"))

    @property
    def page_size(self) -> int:
        size = static_dim(self.tensor.type, 2)
        assert size is not None
        return size

    def rows(self) -> tuple[SSAValue, SSAValue | None]:
        """Return the rows of the tile, and the page entry that they count from.

        Rows that begin with a page are counted from there: where each lies in its page
        is then known before the loop. Other rows are those of the sequence.
        """
        code, start, size = self.code, self.indices[2], self.page_size
        if not is_multiple(start, size):
            return code.insert(tile.IotaOp(start, self.shape[0]), "row"), None
        rows = code.insert(tile.IotaOp(code.const(0), self.shape[0]), "row")
        return rows, code.div(start, code.const(size), "entry")

    def pages(self) -> SSAValue:
        """Return the numbers of the pages in which the rows lie, as the table has them.

        Rows beyond the table have its last page.
        """
        code, shape, size = self.code, [self.shape[0]], self.page_size
        rows, first = self.rows()
        count = code.insert(tile.DimOp(self.table, 1), "pages_size1")

        def pages_before(code: ScalarCode, row: SSAValue) -> SSAValue:
            return code.div(row, code.const(size))

        step = build_map(code, shape, [(rows, ROW)], pages_before, "step")

        def entry(code: ScalarCode, step: SSAValue, *args: SSAValue) -> SSAValue:
            last = code.sub(args[0], code.const(1))
            return code.min(step if first is None else code.add(step, args[1]), last)

        inputs: list[Input] = [(step, ROW), (count, UNIFORM)]
        inputs += [] if first is None else [(first, UNIFORM)]
        entries = build_map(code, shape, inputs, entry, "entries")
        table = PointerAccess(code, self.table, self.indices[:1], (), ())
        type_ = tile.TileType(i32, shape)
        gather = tile.GatherOp(self.table, table.base(), entries, None, type_)
        return code.insert(gather, "pages")

    def within(self) -> SSAValue:
        """Return the offsets of rows within their pages, in 64 bits."""
        stride = self.code.insert(tile.StrideOp(self.tensor, 2, i64), "stride")

        def body(code: ScalarCode, row: SSAValue, stride: SSAValue) -> SSAValue:
            row = code.rem(row, code.const(self.page_size))
            return code.mul(code.int_cast(row, i64), stride)

        inputs: list[Input] = [(self.rows()[0], ROW), (stride, UNIFORM)]
        return build_map(self.code, [self.shape[0]], inputs, body, self.hint("within"))

    def offsets(self) -> SSAValue:
        """Return the offsets within the tile, in 64 bits."""
        code = self.code
        column = code.insert(tile.IotaOp(code.const(0), self.shape[1]), "column")
        strides = [tile.StrideOp(self.tensor, dim, i64) for dim in (0, 3)]
        inputs: list[Input] = [
            (self.pages(), ROW),
            (column, COLUMN),
            (self.within(), ROW),
            (code.insert(tile.DimOp(self.tensor, 0), "num_pages"), UNIFORM),
            *((code.insert(s, self.hint("stride")), UNIFORM) for s in strides),
        ]

        def body(code: ScalarCode, page: SSAValue, *args: SSAValue) -> SSAValue:
            column, within, count, *steps = args
            page = code.min(page, code.sub(count, code.const(1)))
            page = code.max(page, code.const(0))
            terms = [
                code.mul(code.int_cast(at, i64), step)
                for at, step in zip((page, column), steps, strict=True)
            ]
            return code.add(code.add(terms[0], within), terms[1])

        return build_map(code, self.shape, inputs, body, self.hint("offsets"))

    def size(self, dim: int) -> SSAValue:
        """Return a dimension's size, which for the rows is the number of keys."""
        if dim != 2:
            return super().size(dim)
        pages = self.code.insert(tile.DimOp(self.table, 1), "pages_size1")
        return self.code.mul(pages, self.code.const(self.page_size), "kv_len")


@dataclass(frozen=True)
class LoadToGather(RewritePattern):
    """A pattern that rewrites tile.load to tile.gather, and converts the elements."""

    widens_bytes: bool = False

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.LoadOp, rewriter: PatternRewriter) -> None:
        access = PointerAccess.of_load(op)
        if op.pages is not None:
            access = PagedAccess.of_paged(op, op.pages)
        element, shape = element_type(op.tensor), access.shape
        gather = tile.GatherOp(
            op.tensor,
            access.base(),
            access.offsets(),
            access.mask_of(op.live),
            tile.TileType(element, shape),
        )
        gather.result.name_hint = op.result.name_hint
        if element_of(op.result.type) == element:
            rewriter.replace(op, gather)
            return
        stored = access.code.insert(gather, f"{op.result.name_hint or 'tile'}_stored")
        rewriter.replace(op, [], [self.converted(op, access.code, stored)])

    def converted(
        self, op: tile.LoadOp, code: ScalarCode, stored: SSAValue
    ) -> SSAValue:
        """Write the conversion of a load's elements to the type of its tile."""
        element = element_of(op.result.type)
        if not self.widens_bytes or element not in (bf16, f16):
            return widened(code, stored, element)
        # A product's rhs is transposed as it moves to it. Elements of 16 bits have
        # instructions for that.
        staged = all(isinstance(u.operation, tile.DotOp) for u in op.result.uses)

        def body(code: ScalarCode, x: SSAValue) -> SSAValue:
            return code.insert(tile.WidenBytesOp(x, element, staged))

        name = op.result.name_hint or "tile"
        return build_map(code, shape_of(stored.type), [(stored, (0, 1))], body, name)


@dataclass(frozen=True)
class SetPrecision(RewritePattern):
    """A pattern that sets the precision of products of f32 tiles."""

    precision: str

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.DotOp, rewriter: PatternRewriter) -> None:
        if element_of(op.lhs.type) == f32 and "precision" not in op.attributes:
            op.attributes["precision"] = StringAttr(self.precision)
            rewriter.notify_op_modified(op)


class StoreToScatter(RewritePattern):
    """A pattern that rewrites tile.store to tile.scatter."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.StoreOp, rewriter: PatternRewriter) -> None:
        access = PointerAccess.of_store(op)
        scatter = tile.ScatterOp(
            op.value, op.memref, access.base(), access.offsets(), access.mask()
        )
        rewriter.replace(op, scatter)


class AddToScatter(RewritePattern):
    """A pattern that rewrites tile.add_to to tile.scatter_add."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.AddToOp, rewriter: PatternRewriter) -> None:
        if op.progress is not None:
            refuse(op, "has an order, which needs a schedule with roles")
        access = PointerAccess.of_add(op)
        place = access.base(), access.offsets(), access.mask()
        atomic = op.atomic is not None
        rewriter.replace(op, tile.ScatterAddOp(op.value, op.memref, *place, atomic))


@dataclass(frozen=True)
class LegalizeTileForTritonPass(ModulePass):
    """Turn tile accesses into gathers and scatters at pointers, offsets and masks."""

    name = "legalize-tile-for-triton"

    f32_precision: F32Precision = "ieee"
    widens_bytes: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for counted in filter(has_count, op.walk()):
            raise UnsupportedOpError(
                f"{counted.name} has a count, but tiles of Triton have none: "
                "segments that are trimmed are for C++"
            )
        patterns: list[RewritePattern] = [
            LoadToGather(self.widens_bytes),
            StoreToScatter(),
            AddToScatter(),
            SetPrecision(self.f32_precision),
        ]
        PatternRewriteWalker(
            GreedyRewritePatternApplier(patterns), apply_recursively=False
        ).rewrite_module(op)
