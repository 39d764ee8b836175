"""`flex.attention`: attention with a score and a mask region."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    Float8E4M3FNType,
    Float8E5M2Type,
    TensorType,
    UnitAttr,
    f32,
    i8,
    i32,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedResultSegments,
    IRDLOperation,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.flex.facts import (
    PAIRS_FORMAT,
    SCORED_FORMAT,
    MaskedOp,
    ScoredOp,
    element_type,
    tensor_shape,
    verify_head_dim,
    verify_rank,
)
from flexc.dialects.mod_region import operand_groups

NARROW: tuple[Attribute, ...] = (i8, Float8E4M3FNType(), Float8E5M2Type())
"""The types of elements of keys and values that are narrower than queries.

Queries' types hold all their numbers.
"""

RESULTS = ("out", "lse", "max_scores", "row_shift", "log_sum", "lse_rest")

ATTENTION_FORMAT = (
    SCORED_FORMAT
    + PAIRS_FORMAT
    + operand_groups("page_table", "key_scale", "value_scale", "splits")
    + " `->` `out` `(` type($out) `)`"
    + "".join(f" (`{name}` `(` type(${name})^ `)`)?" for name in RESULTS[1:])
    + " attr-dict `score_mod` custom<ScalarRegion>($score_mod)"
)
"""The assembly format of attention, without its last region."""


class TrailingOperands(IRDLOperation):
    """The optional operands of attention that follow all others, in this order."""

    page_table = opt_operand_def(TensorType[Attribute])
    """The pages of each sequence, (B, pages), as i32, if keys and values lie in pages.
    """
    key_scale = opt_operand_def(TensorType[Attribute])
    """The factor of each head's keys, (B, Hkv), or of each key, (B, Hkv, Skv)."""
    value_scale = opt_operand_def(TensorType[Attribute])
    """The factor of each head's values, (B, Hkv), or of each value, (B, Hkv, Skv)."""
    splits = opt_operand_def(i32)
    """The number of splits: results have as many batches for each batch of operands."""


class AttentionLike(ScoredOp, TrailingOperands):
    """Operands, results and facts of the attention ops of two dialects.

    `out` is (B, Hq, Sq, Ev). All other results are optional and (B, Hq, Sq):

    - `lse`: log-sum-exp of the row's scores, in natural units, and -inf for a row
      without live pairs. The `out` of such a row is 0.
    - `max_scores`: the largest score of the row, in natural units, or -inf.
    - `lse_rest`: the rounding error of `lse`, 0 where `lse` is infinite. Derivatives of
      large scores need it. It requires `lse`.
    - `row_shift` and `log_sum`: two parts whose sum is the log-sum-exp. `row_shift` is
      a number near the row's largest score; `log_sum` is the logarithm of the sum of
      exp(score - row_shift).

    With `splits` n, results have B * n batches. Batch b * n + s holds split s of batch
    b: attention over some of the keys that its rows see. Each key is in exactly one
    split; the lowering chooses which. `out` then has the element type of the scores,
    `row_shift` and `log_sum` are required, and no other result is allowed.
    `flex.combine_splits` combines the splits to attention over all keys.

    With a `page_table`, `key` is (pages, Hkv, page size, E) and `value` likewise, of
    one static page size. Key n of sequence b is row n % size of page
    page_table[b, n // size]. A number that is no page counts as the nearest page. Mods,
    masks, tables and Skv, which is the size of a row of the table times the page size,
    know of positions only, not of pages.

    With `values_in_keys`, the first numbers of each key are its value: `value` is a
    view of the memory of `key`.

    Keys and values may have narrow elements (`NARROW`) that the type of queries holds
    exactly. The numbers that count are their products with `key_scale` and
    `value_scale`, of f32, which know of positions only too.
    """

    out = result_def(TensorType[Attribute])
    lse = opt_result_def(TensorType[Attribute])
    max_scores = opt_result_def(TensorType[Attribute])
    row_shift = opt_result_def(TensorType[Attribute])
    log_sum = opt_result_def(TensorType[Attribute])
    lse_rest = opt_result_def(TensorType[Attribute])

    values_in_keys = opt_prop_def(UnitAttr)
    """True if `value` is known to be a view of the first columns of `key`.

    `blocksparse.attention` has this property only if its kernel reads values from keys.
    """

    irdl_options = (AttrSizedResultSegments(as_property=True),)

    def result_groups(self) -> list[Sequence[Attribute]]:
        """Return the types of all `RESULTS`; an empty list for each absent result."""
        results = (getattr(self, name) for name in RESULTS)
        return [[] if r is None else [r.type] for r in results]

    def verify_(self) -> None:
        super().verify_()
        verify_rank("out", self.out.type, 4)
        verify_head_dim("out", self.out, "the value has", self.value)
        if self.lse_rest is not None and self.lse is None:
            raise VerifyException("lse_rest expects lse among results")
        if self.splits is not None:
            self.verify_splits()
        if self.page_table is not None:
            self.verify_pages(self.page_table)
        for name in ("key", "value"):
            self.verify_stored(name)
        if self.values_in_keys is not None:
            self.verify_values_in_keys()

    def verify_stored(self, name: str) -> None:
        """Check the elements of keys or values, and their scale."""
        stored, scale = getattr(self, name), getattr(self, f"{name}_scale")
        expected, got = (element_type(v) for v in (self.query, stored))
        if got != expected and got not in NARROW:
            raise VerifyException(f"{name} expects elements of {expected}, got {got}")
        if scale is None:
            return
        if len(tensor_shape(scale)) not in (2, 3) or element_type(scale) != f32:
            raise VerifyException(
                f"{name}_scale expects f32 of 2 or 3 dimensions, got {scale.type}"
            )

    def verify_values_in_keys(self) -> None:
        (*of_key, key_dim), (*of_value, value_dim) = (
            tensor_shape(v) for v in (self.key, self.value)
        )
        same = element_type(self.key) == element_type(self.value)
        if not same or of_key != of_value or key_dim < value_dim:
            raise VerifyException(
                "values_in_keys expects values of the type of keys, with no more "
                f"columns, got {self.value.type} and {self.key.type}"
            )

    @property
    def page_size(self) -> int | None:
        """The number of keys of a page, or None if keys lie in no pages."""
        return None if self.page_table is None else tensor_shape(self.key)[2]

    def verify_pages(self, table: SSAValue) -> None:
        assert isa(table.type, TensorType[Attribute])
        verify_rank("page_table", table.type, 2)
        if table.type.element_type != i32:
            raise VerifyException(f"page_table expects i32, got {table.type}")
        sizes = [tensor_shape(t)[2] for t in (self.key, self.value)]
        if sizes[0] != sizes[1] or sizes[0] < 1:
            raise VerifyException(
                f"page_table expects pages of one static size, got {self.key.type} and "
                f"{self.value.type}"
            )

    def verify_splits(self) -> None:
        assert isa(self.out.type, TensorType[Attribute])
        element = self.out.type.element_type
        if element != self.score_type:
            raise VerifyException(
                f"out expects elements of {self.score_type} with splits, got {element}"
            )
        if self.row_shift is None or self.log_sum is None:
            raise VerifyException("splits expects row_shift and log_sum among results")
        for name in ("lse", "max_scores", "lse_rest"):
            if getattr(self, name) is not None:
                raise VerifyException(f"splits expects no {name} among results")


@irdl_op_definition
class AttentionOp(AttentionLike, MaskedOp):
    """Attention with a score and a mask region, over all pairs of positions.

    The score of a pair is `score_mod(scale * dot(q, k), b, h, q_idx, kv_idx)` if
    `mask_mod(b, h, q_idx, kv_idx)` is true and the tables keep the pair, else -inf.
    """

    name = "flex.attention"

    assembly_format = ATTENTION_FORMAT + " `mask_mod` custom<ScalarRegion>($mask_mod)"
