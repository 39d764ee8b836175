"""`flex.pair_sums`: sums over pairs of positions, which all derivatives use.

The rows of a result are queries, or keys if the op is `transposed`. Most kinds of sums
(see `SumKind`) are over the columns, which are the other side. The gradients of query,
key and value are therefore the same op with the same code for each pair.

```mlir
%dq = flex.pair_sums rows(%q, %do : ...) columns(%k, %v : ...)
    row_values(%lse, %delta : ...) scale(%scale : f32) -> tensor<?x?x?x64xf32>
    {products = [array<i32: 0, 0>, array<i32: 1, 1>],
     sums = [#flex.sum<matrix [[0, 0]] scaled>]}
    pairs(%qk : f32, %dp : f32, %scale_ : f32, %lse_ : f32, %delta_ : f32,
          %b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {
  ...
  flex.yield %ds : f32
} mask_mod(%b : i32, %h : i32, %q_idx : i32, %kv_idx : i32) {...}
```
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from xdsl.dialects.builtin import (
    I32,
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    i32,
)
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue
from xdsl.irdl import (
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    param_def,
    prop_def,
    region_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.str_enum import StrEnum

from flexc.dialects.flex.facts import (
    PAIRS_FORMAT,
    MaskedOp,
    PairsOp,
    element_type,
    score_type,
    tensor_shape,
    verify_rank,
)
from flexc.dialects.mod_region import INDEX_ARGS, operand_groups, verify_scalar_region

DIAGONAL_UNIT = 128
"""The largest size of blocks of rows and columns that are summed along diagonals."""


def diagonal_zero(kv_len: int) -> int:
    """Return the index of the diagonal entry that sums pairs of equal positions.

    No pair of positions has one of the first `DIAGONAL_UNIT` entries.
    """
    return -(-kv_len // DIAGONAL_UNIT) * DIAGONAL_UNIT + DIAGONAL_UNIT


def diagonal_entries(q_len: int, kv_len: int) -> int:
    """Return the number of entries of a diagonal sum."""
    return diagonal_zero(kv_len) + -(-q_len // DIAGONAL_UNIT) * DIAGONAL_UNIT


class SumKind(StrEnum):
    """The kind of a sum: the shape of its result, and the pairs that each element sums.

    MATRIX  (B, H, rows, D): for each row, the sum over columns of value times the
            column's row of the matrix, also over all query heads and batches that
            read the row's head and batch.
    TOTAL   (B, Hq, rows): for each row, and each query head, the sum over columns.
    DIAGONAL (B, Hq, N, L): entry q_idx - kv_idx + U sums the pairs with that
            difference, where U is `diagonal_zero` and L `diagonal_entries`. The
            lowering chooses N; the gradient is the sum over N.
    PAIRS   (B, Hq, rows, columns): the values themselves, 0 where a pair is dead.
    COLUMN_MATRIX (N, B, H, columns, D): for each column, the sum over rows of value
            times the row's row of the matrix, also over all query heads and batches
            that read the column's head and batch.
            The lowering chooses N; the gradient is the sum over N. If rows are keys,
            there is no N: all programs add to one sum.
    """

    MATRIX = "matrix"
    COLUMN_MATRIX = "column_matrix"
    TOTAL = "total"
    DIAGONAL = "diagonal"
    PAIRS = "pairs"


MATRICES = (SumKind.MATRIX, SumKind.COLUMN_MATRIX)
"""The kinds that sum rows of matrices."""

OF_ROWS = (SumKind.MATRIX, SumKind.TOTAL, SumKind.PAIRS)
"""The kinds whose results have the rows as their third dimension."""


def rank_of(kind: SumKind, transposed: bool) -> int:
    """Return the rank of a result."""
    if kind == SumKind.COLUMN_MATRIX and not transposed:
        return 5
    return 3 if kind == SumKind.TOTAL else 4


@irdl_attr_definition
class SumAttr(ParametrizedAttribute):
    """One result: its kind, and the values that it sums.

    A term is [value], the index of a value that `pairs` yields. For MATRIX and
    COLUMN_MATRIX it is [value, matrix], where `matrix` is an index into `columns` or
    `rows`, respectively. The result is the sum of its terms; DIAGONAL and PAIRS have
    exactly one. If `scaled`, the result is multiplied by the op's scale.
    """

    name = "flex.sum"

    kind: StringAttr = param_def()
    terms: ArrayAttr[DenseArrayBase[I32]] = param_def()
    is_scaled: IntegerAttr[I32] = param_def()

    @classmethod
    def of(
        cls, kind: SumKind, terms: Sequence[Sequence[int]], scaled: bool = False
    ) -> SumAttr:
        return cls(
            StringAttr(kind.value),
            ArrayAttr([DenseArrayBase.from_list(i32, t) for t in terms]),
            IntegerAttr(int(scaled), i32),
        )

    @property
    def sum_kind(self) -> SumKind:
        return SumKind(self.kind.data)

    @property
    def scaled(self) -> bool:
        return bool(self.is_scaled.value.data)

    def term_list(self) -> list[tuple[int, ...]]:
        return [tuple(t.get_values()) for t in self.terms]

    def print_parameters(self, printer: Printer) -> None:
        terms = ", ".join(str(list(t)) for t in self.term_list())
        scaled = " scaled" if self.scaled else ""
        with printer.in_angle_brackets():
            printer.print_string(f"{self.kind.data} [{terms}]{scaled}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            kind = parser.parse_keyword_in([k.value for k in SumKind])
            terms = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE,
                lambda: parser.parse_comma_separated_list(
                    parser.Delimiter.SQUARE, parser.parse_integer
                ),
            )
            scaled = parser.parse_optional_keyword("scaled") is not None
        return cls.of(SumKind(kind), terms, scaled).parameters


RANKED = {"rows": 4, "columns": 4, "row_values": 3, "column_values": 3}
"""The ranks of the tensors of operand groups."""

PAIR_SUMS_FORMAT = (
    operand_groups(*RANKED, "tile_origin")
    + PAIRS_FORMAT
    + " `->` type($sums_) attr-dict `pairs` custom<ScalarRegion>($pairs)"
)
"""The assembly format of pair sums, without their last region."""


class PairSumsLike(PairsOp):
    """Operands, results and properties of the pair sums of two dialects.

    `rows` are matrices (B, H, rows, D) and `row_values` vectors (B, H, rows) on the
    side of the rows; `columns` and `column_values` are those of the columns. The side
    of the query has B batches of Hq heads, the side of the key B or 1 batches of Hkv
    heads. `tile_origin`, if given, is the batch, head and row (i32) at which the
    results start, or the row alone. The sizes of the results say how many rows are
    computed. With `alignment` and a COLUMN_MATRIX of a transposed op, the rows of
    column values are aligned too.

    `products[i]` is a list of pairs [r, c, r, c, ...]. Dot product i of a pair of
    positions is the sum of dot(rows[r], columns[c]) over this list. `pairs` receives
    the dot products, the scale, the row values, the column values, the query's b and h,
    q_idx, kv_idx and the captures. Dead pairs contribute nothing, whatever `pairs`
    yields.
    """

    rows = var_operand_def(TensorType[Attribute])
    columns = var_operand_def(TensorType[Attribute])
    row_values = var_operand_def(TensorType[Attribute])
    column_values = var_operand_def(TensorType[Attribute])
    tile_origin = var_operand_def(i32)
    sums_ = var_result_def(TensorType[Attribute])

    products = prop_def(ArrayAttr[DenseArrayBase[I32]])
    sums = prop_def(ArrayAttr[SumAttr])
    transposed = opt_prop_def(UnitAttr)
    """True if rows are keys and columns are queries."""
    ordered = opt_prop_def(UnitAttr)
    """True if sums to which several programs add have equal bits at every run.

    Programs of the same columns, or of the same rows, then add in a fixed order.
    """
    per_query_head = opt_prop_def(UnitAttr)
    """True if rows are keys, and each query head has programs of its own.

    These programs add to MATRIX sums in memory, which holds zeros before.
    """

    pairs = region_def("single_block")

    @property
    def score_type(self) -> AnyFloat:
        return score_type(self.rows[0].type)

    @property
    def is_transposed(self) -> bool:
        return self.transposed is not None

    @property
    def shares_rows(self) -> bool:
        """True if sums of rows are of all query heads that share these rows."""
        own_head = self.paired_heads is not None or self.per_query_head is not None
        return self.is_transposed and not own_head

    def product_list(self) -> list[list[tuple[int, int]]]:
        """Return the (row matrix, column matrix) index pairs of each dot product."""
        found: list[list[tuple[int, int]]] = []
        for product in self.products:
            flat = product.get_values()
            found.append(list(zip(flat[::2], flat[1::2], strict=True)))
        return found

    def length_multiple(self, of_rows: bool) -> int:
        """Return a known divisor of the number of rows, or of columns."""
        is_query = of_rows != self.is_transposed
        return self.fact("q_len_multiple" if is_query else "kv_len_multiple")

    @property
    def sum_of_rows(self) -> SSAValue | None:
        """The first result whose third dimension is the rows; None if there is none."""
        pairs = zip(self.sums, self.sums_, strict=True)
        return next((r for attr, r in pairs if attr.sum_kind in OF_ROWS), None)

    @property
    def first_index(self) -> int:
        """The index of b among the arguments of `pairs`; h, q_idx, kv_idx follow."""
        values = len(self.row_values) + len(self.column_values)
        return len(self.products) + 1 + values

    def pairs_args(self) -> list[Attribute]:
        """Return the types of the arguments of `pairs`."""
        values = [*self.row_values, *self.column_values]
        return [
            *[self.score_type] * (len(self.products) + 1),
            *(element_type(v) for v in values),
            *INDEX_ARGS,
            *self.capture_types(),
        ]

    def verify_(self) -> None:
        for name, rank in RANKED.items():
            for operand in getattr(self, name):
                verify_rank(name, operand.type, rank)
        if not self.rows or len(self.tile_origin) not in (0, 1, 3):
            raise VerifyException(
                "expects rows, and tile_origin of none, one or three values"
            )
        super().verify_()
        for flat in self.products:
            if len(flat) % 2:
                raise VerifyException(
                    f"products expects pairs [row, column], got {flat}"
                )
        for product in self.product_list():
            for row, column in product:
                self.verify_product(row, column)
        last = self.pairs.block.last_op
        count = 0 if last is None else len(last.operands)
        verify_scalar_region(
            "pairs", self.pairs, self.pairs_args(), [self.score_type] * count
        )
        if len(self.sums) != len(self.sums_):
            raise VerifyException(
                f"sums expects {len(self.sums_)} entries, one for each result, got "
                f"{len(self.sums)}"
            )
        for attr, result in zip(self.sums, self.sums_, strict=True):
            self.verify_sum(attr, result, count)
        kinds = {attr.sum_kind for attr in self.sums}
        if self.per_query_head is not None:
            self.verify_per_query_head(kinds)
        by_column = self.is_transposed and SumKind.COLUMN_MATRIX in kinds
        if self.ordered is not None and not by_column:
            raise VerifyException("ordered expects rows of keys, and a sum by column")
        if self.ordered is not None and self.shares_rows:
            raise VerifyException(
                "ordered expects paired_heads or per_query_head: a program has one "
                "query head"
            )

    def verify_per_query_head(self, kinds: Container[SumKind]) -> None:
        is_whole = self.is_transposed and not self.tile_origin
        if not is_whole or SumKind.MATRIX not in kinds:
            raise VerifyException(
                "per_query_head expects rows of keys, all of them, and a matrix sum"
            )
        for attr, result in zip(self.sums, self.sums_, strict=True):
            element = element_type(result)
            if attr.sum_kind == SumKind.MATRIX and element != self.score_type:
                raise VerifyException(
                    f"per_query_head expects sums of {self.score_type}, got {element}"
                )

    def verify_product(self, row: int, column: int) -> None:
        if not (0 <= row < len(self.rows) and 0 <= column < len(self.columns)):
            raise VerifyException(
                f"products names operands that do not exist: [{row}, {column}]"
            )
        dims = tensor_shape(self.rows[row])[3], tensor_shape(self.columns[column])[3]
        if dims[0] != dims[1]:
            raise VerifyException(
                f"product [{row}, {column}] expects equal head dims, got {dims}"
            )

    def verify_sum(self, attr: SumAttr, result: SSAValue, values: int) -> None:
        kind = attr.sum_kind
        verify_rank(f"{kind} sum", result.type, rank_of(kind, self.is_transposed))
        if attr.scaled and kind not in MATRICES:
            raise VerifyException(f"{attr} is scaled, but is no sum of a matrix")
        if kind in (SumKind.DIAGONAL, SumKind.PAIRS) and len(attr.terms) != 1:
            raise VerifyException(f"{attr} expects one value, got {len(attr.terms)}")
        for term in attr.term_list():
            if len(term) != 1 + (kind in MATRICES) or not 0 <= term[0] < values:
                raise VerifyException(
                    f"{attr} has a term that is no index of {values} values"
                )
            if kind in MATRICES:
                self.verify_matrix(attr, term[1], result)
        if kind == SumKind.COLUMN_MATRIX:
            self.verify_column_matrix(attr, result)

    def verify_matrix(self, attr: SumAttr, number: int, result: SSAValue) -> None:
        """Check that a matrix of a sum exists and is as wide as the result."""
        matrices = self.matrices_of(attr)
        if not 0 <= number < len(matrices):
            raise VerifyException(
                f"{attr} has a term that is no index of {len(matrices)} matrices"
            )
        dim = tensor_shape(matrices[number])[3]
        if dim != tensor_shape(result)[-1]:
            raise VerifyException(f"{attr} expects head dim {dim}, got {result.type}")

    def verify_column_matrix(self, attr: SumAttr, result: SSAValue) -> None:
        if len(self.tile_origin) > 1:
            raise VerifyException(f"{attr} expects rows of all heads")
        if self.tile_origin and self.sum_of_rows is None:
            raise VerifyException(
                "tile_origin expects a result with a dimension of rows"
            )
        if element_type(result) != self.score_type:
            raise VerifyException(
                f"{attr} expects sums of {self.score_type}, got {result.type}"
            )

    def matrices_of(self, attr: SumAttr) -> Sequence[SSAValue]:
        """Return the matrices that the terms of a sum index."""
        return self.rows if attr.sum_kind == SumKind.COLUMN_MATRIX else self.columns


@irdl_op_definition
class PairSumsOp(PairSumsLike, MaskedOp):
    """Sums over all pairs that count: pairs that `mask_mod` and `tables` keep.

    `tables` list blocks of columns for each block of rows, and `sparse_block` is the
    rows and columns of their blocks. For a transposed op they are torch's q_num_blocks
    and q_indices; otherwise they are as in `flex.attention`.
    """

    name = "flex.pair_sums"

    assembly_format = PAIR_SUMS_FORMAT + " `mask_mod` custom<ScalarRegion>($mask_mod)"


def is_float_tensor(type_: Attribute) -> bool:
    """Return True for the type of a tensor of floats: such a tensor has a gradient."""
    return isa(type_, TensorType[Attribute]) and isinstance(
        type_.element_type, AnyFloat
    )
