"""The base of ops over pairs of positions: captures, tables, facts about a call."""

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
    "score_growth_bounded",
    "rows_never_empty",
)
"""Properties that state proved facts about a call; every lowering keeps them."""


POSITIVE = ("q_len_multiple", "kv_len_multiple", "alignment", "max_length")
"""Integer facts that must be at least 1."""


def score_type(query: Attribute) -> AnyFloat:
    """Return the type of scores: fp64 for fp64 queries, fp32 for all others."""
    assert isa(query, TensorType[Attribute])
    return f64 if isinstance(query.element_type, Float64Type) else f32


class PairsOp(IRDLOperation):
    """An op over all pairs of a query and a key position, with facts about the call.

    `scale` multiplies the dot products of queries and keys. `captures` are the values
    that mods read in addition to their arguments. `tables` list the blocks of pairs
    that count.
    """

    scale = operand_def(AnyFloat)
    captures = var_operand_def()
    tables = var_operand_def(TensorType[Attribute])

    scale_positive = opt_prop_def(UnitAttr)
    """True if the scale is known to be positive and neither tiny nor huge.

    The scale may then be applied after the running maximum, and values may be divided
    by the scale.
    """
    q_len_multiple = opt_prop_def(IntegerAttr)
    """A known divisor of Sq."""
    kv_len_multiple = opt_prop_def(IntegerAttr)
    """A known divisor of Skv."""
    alignment = opt_prop_def(IntegerAttr)
    """The alignment of query, key, value and out, in bytes.

    The number divides the base addresses and all strides except the last.
    """
    index_width = opt_prop_def(IntegerAttr)
    """The number of bits that hold every offset within a captured tensor: 32 or 64."""
    max_length = opt_prop_def(IntegerAttr)
    """A known upper bound of Sq and Skv."""
    captures_inside = opt_prop_def(UnitAttr)
    """True if captured loads are known to be in range at all pairs of positions.

    This includes masked pairs, and holds without the wrapping of negative indices.
    """
    indices_fit = opt_prop_def(UnitAttr)
    """True if no arithmetic on positions overflows its type.

    This holds for the lengths and the captured integers of this call.
    """

    score_range = opt_prop_def(DenseArrayBase.constr(f64))
    """The bounds [lo, hi] of the scores after `score_mod`, of all pairs that count.

    A score may also be -inf, if the mod masks the pair, or NaN.
    """
    scores_finite = opt_prop_def(UnitAttr)
    """True if no pair that counts has an infinite score after `score_mod`."""
    has_keys = opt_prop_def(UnitAttr)
    """True if Skv is known to be above 0."""
    paired_heads = opt_prop_def(UnitAttr)
    """True if query and key have equal numbers of batches and of heads."""
    score_growth_bounded = opt_prop_def(UnitAttr)
    """True if `score_mod` makes scores larger by a small factor at most.

    Masked scores, which are -inf, do not count.
    """
    rows_never_empty = opt_prop_def(UnitAttr)
    """True if there are keys, and every row has a key that no mask hides."""

    def facts(self) -> dict[str, Attribute]:
        """Return the facts that hold; a lowering copies them."""
        return {k: v for k, v in self.properties.items() if k in FACTS}

    def fact(self, name: str, default: int = 1) -> int:
        """Return the value of an integer fact, or `default` if the fact is absent."""
        attr = self.properties.get(name)
        return attr.value.data if isinstance(attr, IntegerAttr) else default

    def verify_facts(self, *sizes: str) -> None:
        """Check that integer facts and properties in `sizes` are above 0 if present."""
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
        """Check the type of the scale, the types of captures, and the score range."""
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
    """Return the shape of a tensor value; DYNAMIC_INDEX for a dynamic dimension."""
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
    """Check that tables and their block size (rows, columns) come together."""
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
