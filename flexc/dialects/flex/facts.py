"""What ops over pairs of positions share: captures, tables, facts about a call."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from xdsl.dialects.builtin import (
    I64,
    AnyFloat,
    DenseArrayBase,
    Float64Type,
    IntegerAttr,
    TensorType,
    UnitAttr,
    f32,
    f64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    operand_def,
    opt_prop_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.mod_region import is_capture

FACTS = (
    "scale_positive",
    "q_len_multiple",
    "kv_len_multiple",
    "alignment",
    "index_width",
    "max_length",
    "captures_inside",
    "indices_fit",
    "score_range",
    "scores_finite",
    "has_keys",
    "paired_heads",
    "scores_moderate",
    "rows_never_empty",
)
"""Properties that say what is known about a call, kept by every lowering."""


POSITIVE = ("q_len_multiple", "kv_len_multiple", "alignment", "max_length")
"""Facts that are numbers of something."""


def score_type(query: Attribute) -> AnyFloat:
    """Scores of fp64 inputs are fp64, of all others fp32."""
    assert isa(query, TensorType[Attribute])
    return f64 if isinstance(query.element_type, Float64Type) else f32


class PairsOp(IRDLOperation):
    """An op over all pairs of a query and a key position, and what is known of it.

    `scale` multiplies dot products of queries and keys. `captures` are what mods
    read besides, `tables` what says which blocks of pairs count.
    """

    scale = operand_def(AnyFloat)
    captures = var_operand_def()
    tables = var_operand_def(TensorType[Attribute])

    scale_positive = opt_prop_def(UnitAttr)
    """The scale is known to be positive, neither tiny nor huge: it moves past the
    running maximum, and things may be divided by it."""
    q_len_multiple = opt_prop_def(IntegerAttr)
    """Sq is known to be a multiple of this."""
    kv_len_multiple = opt_prop_def(IntegerAttr)
    """Skv is known to be a multiple of this."""
    alignment = opt_prop_def(IntegerAttr)
    """Base addresses of query, key, value and out, and their strides but the
    last, are multiples of this many bytes."""
    index_width = opt_prop_def(IntegerAttr)
    """Bits that hold every offset within a captured tensor (32 or 64)."""
    max_length = opt_prop_def(IntegerAttr)
    """Sq and Skv are known to be at most this."""
    captures_inside = opt_prop_def(UnitAttr)
    """Captured loads are known to be in range at all pairs of positions, also the
    masked ones, before negative indices are wrapped."""
    indices_fit = opt_prop_def(UnitAttr)
    """At this call's lengths and captured integers, no arithmetic on positions
    overflows its type."""

    score_range = opt_prop_def(DenseArrayBase.constr(f64))
    """[lo, hi]: scores after `score_mod`, of all pairs that count, are within, are
    -inf (a mod that masks), or are NaN, which stays NaN as it would without."""
    scores_finite = opt_prop_def(UnitAttr)
    """No score after `score_mod` is infinite, of any pair that counts."""
    has_keys = opt_prop_def(UnitAttr)
    """Skv is known not to be 0."""
    paired_heads = opt_prop_def(UnitAttr)
    """Query and key have the same batches and heads."""
    scores_moderate = opt_prop_def(UnitAttr)
    """Scores after `score_mod` are hardly larger than those before it, -inf aside."""
    rows_never_empty = opt_prop_def(UnitAttr)
    """There are keys, and every row has one at least that no mask hides."""

    def facts(self) -> dict[str, Attribute]:
        """The facts that hold, to be copied by a lowering."""
        return {k: v for k, v in self.properties.items() if k in FACTS}

    def fact(self, name: str, default: int = 1) -> int:
        """The value of an integer fact."""
        attr = self.properties.get(name)
        return attr.value.data if isinstance(attr, IntegerAttr) else default

    def verify_facts(self, *sizes: str) -> None:
        """Check that facts, and other sizes of these names, are numbers above 0."""
        for name in (*POSITIVE, *sizes):
            attr = self.properties.get(name)
            if isinstance(attr, IntegerAttr) and attr.value.data < 1:
                raise VerifyException(
                    f"{name} expects a positive number, got {attr.value.data}"
                )
        if self.fact("index_width", 32) not in (32, 64):
            raise VerifyException(
                f"index_width expects 32 or 64, got {self.fact('index_width')}"
            )

    def verify_scale_and_captures(self, score: AnyFloat) -> None:
        """Check the type of the scale, and that captures can be read."""
        if self.scale.type != score:
            raise VerifyException(f"scale expects type {score}, got {self.scale.type}")
        for capture in self.captures:
            if not is_capture(capture.type):
                raise VerifyException(
                    f"captures expects scalars and tensors, got {capture.type}"
                )
        if self.score_range is not None:
            _verify_range(self.score_range.get_values())


def tensor_shape(value: SSAValue) -> tuple[int, ...]:
    """The static shape of a tensor value; DYNAMIC_INDEX where it is dynamic."""
    assert isa(value.type, TensorType[Attribute])
    return value.type.get_shape()


def verify_rank(name: str, type_: Attribute, rank: int) -> None:
    assert isa(type_, TensorType[Attribute])
    if type_.get_num_dims() != rank:
        raise VerifyException(f"{name} expects {rank} dimensions, got {type_}")


def verify_block(
    name: str,
    block: DenseArrayBase[I64] | None,
    tables_name: str,
    tables: Sequence[SSAValue],
) -> None:
    """Check that tables come with a size of their blocks: rows and columns."""
    if bool(tables) != (block is not None):
        raise VerifyException(
            f"{name} expects {tables_name}, and {tables_name} expect it"
        )
    size = (1, 1) if block is None else tuple(block.get_values())
    if len(size) != 2 or min(size) < 1:
        raise VerifyException(f"{name} expects two positive numbers, got {block}")


def _verify_range(bounds: Sequence[float]) -> None:
    ordered = len(bounds) == 2 and -inf < bounds[0] <= bounds[1] < inf
    if not ordered:
        raise VerifyException(
            f"score_range expects a lower and an upper bound, got {list(bounds)}"
        )
