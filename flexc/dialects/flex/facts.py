"""Bases of ops over pairs of positions: captures, tables, facts, scores, masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from xdsl.dialects.builtin import (
    I64,
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    Float64Type,
    FloatData,
    IntAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.ir import Attribute, ParametrizedAttribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_attr_definition,
    operand_def,
    opt_prop_def,
    region_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.mod_region import (
    MASK_RESULT,
    ScalarRegion,
    is_capture,
    mod_args,
    operand_groups,
    verify_scalar_region,
)

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
    "has_pairs",
    "paired_heads",
    "score_growth_bounded",
    "rows_never_empty",
    "sequences",
    "long_sequences",
    "few_keys",
)
"""Properties that state proved facts about a call; every lowering keeps them."""


LONG_SEQUENCE = 1024
"""The mean numbers of queries and keys from which packed sequences are long."""

POSITIVE = ("q_len_multiple", "kv_len_multiple", "alignment", "max_length")
"""Integer facts that must be at least 1."""


def score_type(query: Attribute) -> AnyFloat:
    """Return the type of scores: fp64 for fp64 queries, fp32 for all others."""
    assert isa(query, TensorType[Attribute])
    return f64 if isinstance(query.element_type, Float64Type) else f32


PAIRS_FORMAT = " `scale` `(` $scale `:` type($scale) `)`" + operand_groups(
    "captures", "tables"
)
"""The assembly format of the operands of all ops over pairs."""

SCORED_FORMAT = (
    "$query `,` $key `,` $value `:` type($query) `,` type($key) `,` type($value)"
)
"""The assembly format of the first operands of all ops over scores."""

KEY_RANGES = ("live", "dead", "growth", "moving", "remainders")

WORDS = {
    "growth": ("none", "positive", "negative"),
    "moving": ("all", "some", "none"),
    "along": ("rows", "columns", "both"),
}


def verify_word(name: str, found: StringAttr) -> None:
    """Check that a parameter is one of its `WORDS`."""
    if found.data not in WORDS[name]:
        words = ", ".join(WORDS[name])
        raise VerifyException(f"{name} expects one of {words}, got {found.data}")


@irdl_attr_definition
class RemainderAttr(ParametrizedAttribute):
    """A test of a remainder, which bounds no columns: `kv_idx % 3 == 0`.

    Among any `period` neighbours along "rows", "columns" or "both", one position passes
    the test and one fails it.
    """

    name = "flex.remainder"

    test: StringAttr
    period: IntAttr
    along: StringAttr

    def verify(self) -> None:
        verify_word("along", self.along)

    def varies_in_blocks(self, rows: int, columns: int) -> bool:
        """Return True if every block of a size has pairs that pass and that fail."""
        spans = {"rows": rows, "columns": columns, "both": max(rows, columns)}
        return self.period.data <= spans[self.along.data]


@irdl_attr_definition
class KeyRangesAttr(ParametrizedAttribute):
    """The columns that a block of rows may see, in closed form.

    ```mlir
    #flex.key_ranges<live "kv_idx in [max(0, q_first - 64), q_last]",
        dead "kv_idx in [0, q_last - 65] or [q_first + 1, kv_len - 1]",
        growth "none", moving "all", remainders []>
    ```

    Columns outside of `live` are dead for the whole block. Columns outside of `dead`
    are live for the whole block. The tests of `remainders` bound neither. `q_first` and
    `q_last` are the first and last row of the block; both ends of a range are included.
    If rows are keys, columns are queries.
    """

    name = "flex.key_ranges"

    live: StringAttr
    dead: StringAttr
    growth: StringAttr
    """The sign of the change of the number of live columns from row to row."""
    moving: StringAttr
    """The live ranges of which both ends move with the rows: all, some or none."""
    remainders: ArrayAttr[RemainderAttr]

    def verify(self) -> None:
        verify_word("growth", self.growth)
        verify_word("moving", self.moving)

    @property
    def is_everything(self) -> bool:
        """True if every row sees every column."""
        return (self.live.data, self.dead.data) == ("all", "none")

    @property
    def has_band(self) -> bool:
        """True if some live range moves with the rows."""
        return self.moving.data != "none"

    @property
    def is_band(self) -> bool:
        """True if all live ranges move with the rows without growing."""
        return (self.growth.data, self.moving.data) == ("none", "all")

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            for i, name in enumerate(KEY_RANGES):
                printer.print_string(f"{', ' * bool(i)}{name} ")
                printer.print_attribute(getattr(self, name))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        found: list[Attribute] = []
        with parser.in_angle_brackets():
            for i, name in enumerate(KEY_RANGES):
                if i:
                    parser.parse_punctuation(",")
                parser.parse_keyword(name)
                found.append(parser.parse_attribute())
        return found


@irdl_attr_definition
class FloatRangeAttr(ParametrizedAttribute):
    """The finite bounds of numbers: `#flex.float_range<-20.0, 20.0>`."""

    name = "flex.float_range"

    lo: FloatData
    hi: FloatData

    @classmethod
    def of(cls, lo: float, hi: float) -> FloatRangeAttr:
        return cls(FloatData(lo), FloatData(hi))

    @property
    def bounds(self) -> tuple[float, float]:
        return self.lo.data, self.hi.data

    def verify(self) -> None:
        lo, hi = self.bounds
        if not -inf < lo <= hi < inf:
            raise VerifyException(
                "float_range expects finite bounds, the lower one first, got "
                f"{lo} and {hi}"
            )

    def print_parameters(self, printer: Printer) -> None:
        """Print the bounds in decimal digits that give the same numbers when read."""
        with printer.in_angle_brackets():
            # A float without a point, such as 1e+22, would be read as an integer.
            texts = (repr(bound) for bound in self.bounds)
            digits = (t if "." in t else t.replace("e", ".0e") for t in texts)
            printer.print_string(", ".join(digits))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            lo = parser.parse_number()
            parser.parse_punctuation(",")
            hi = parser.parse_number()
        try:
            return cls.of(float(lo), float(hi)).parameters
        except OverflowError:
            parser.raise_error("expected bounds that a double can hold")


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

    score_range = opt_prop_def(FloatRangeAttr)
    """The bounds [lo, hi] of the scores after `score_mod`, of all pairs that count.

    A score may also be -inf, if the mod masks the pair, or NaN.
    """
    scores_finite = opt_prop_def(UnitAttr)
    """True if no pair that counts has an infinite score after `score_mod`."""
    has_pairs = opt_prop_def(UnitAttr)
    """True if Sq and Skv are known to be above 0."""
    paired_heads = opt_prop_def(UnitAttr)
    """True if query and key have equal numbers of batches and of heads."""
    score_growth_bounded = opt_prop_def(UnitAttr)
    """True if `score_mod` makes scores larger by a small factor at most.

    Masked scores, which are -inf, do not count.
    """
    rows_never_empty = opt_prop_def(UnitAttr)
    """True if there are keys, and every row has a key that no mask hides."""
    sequences = opt_prop_def(DenseArrayBase.constr(i64))
    """The numbers of four captures that say which positions belong to which sequence.

    They are tensors of i32: the number of the sequence of each query and of each key,
    and the first query and the first key of each sequence, followed by the numbers of
    queries and of keys. Sequences are in order, and hold all positions. The mask keeps
    pairs of one sequence only.
    """
    long_sequences = opt_prop_def(UnitAttr)
    """True if packed sequences have `LONG_SEQUENCE` queries and keys on average."""
    few_keys = opt_prop_def(UnitAttr)
    """True if rows see so few keys that small programs are faster."""
    key_ranges = opt_prop_def(KeyRangesAttr)
    """The columns that a block of rows may see, if they have a closed form."""
    no_key_ranges = opt_prop_def(StringAttr)
    """The reason why the columns have no closed form."""

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    custom_directives = (ScalarRegion,)

    def __init__(
        self,
        operands: Mapping[str, SSAValue | Sequence[SSAValue]],
        result_types: Sequence[Sequence[Attribute]],
        regions: Sequence[Region],
        properties: Mapping[str, Attribute],
    ):
        """Create the op from operand groups by name; groups not given are empty."""
        definition = self.get_irdl_definition()
        super().__init__(
            operands=[operands.get(name, []) for name, _ in definition.operands],
            result_types=result_types,
            regions=regions,
            properties=properties,
        )

    def operand_groups(self) -> dict[str, SSAValue | Sequence[SSAValue]]:
        """Return the operands by the names of their groups; omit empty ones."""
        names = (name for name, _ in self.get_irdl_definition().operands)
        return {name: group for name in names if (group := getattr(self, name))}

    @property
    def score_type(self) -> AnyFloat:
        """The type of scores: f64 for queries of f64, f32 for all others."""
        raise NotImplementedError

    def capture_types(self) -> list[Attribute]:
        return [capture.type for capture in self.captures]

    def facts(self) -> dict[str, Attribute]:
        """Return the facts that hold; a lowering copies them."""
        return {k: v for k, v in self.properties.items() if k in FACTS}

    def fact(self, name: str, default: int = 1) -> int:
        """Return the value of an integer fact, or `default` if the fact is absent."""
        attr = self.properties.get(name)
        return attr.value.data if isinstance(attr, IntegerAttr) else default

    def verify_(self) -> None:
        self.verify_positive(*POSITIVE)
        if self.fact("index_width", 32) not in (32, 64):
            raise VerifyException(
                f"index_width expects 32 or 64, got {self.fact('index_width')}"
            )
        if self.scale.type != self.score_type:
            raise VerifyException(
                f"scale expects type {self.score_type}, got {self.scale.type}"
            )
        for type_ in self.capture_types():
            if not is_capture(type_):
                raise VerifyException(
                    f"captures expects scalars and tensors, got {type_}"
                )
        if self.sequences is not None:
            self.verify_sequences(self.sequences.get_values())

    def verify_sequences(self, places: Sequence[int]) -> None:
        """Check that `sequences` are four captured tensors of i32."""
        types = self.capture_types()
        if len(places) != 4 or not all(0 <= i < len(types) for i in places):
            raise VerifyException(
                f"sequences expects the numbers of four captures, got {list(places)}"
            )
        for type_ in (types[i] for i in places):
            is_tensor = isa(type_, TensorType[Attribute])
            if not is_tensor or (type_.get_num_dims(), type_.element_type) != (1, i32):
                raise VerifyException(
                    f"sequences expects tensors of i32 of one dimension, got {type_}"
                )

    def verify_positive(self, *names: str) -> None:
        """Check that integer properties are above 0 if present."""
        for name in names:
            if self.fact(name) < 1:
                raise VerifyException(
                    f"{name} expects a positive number, got {self.fact(name)}"
                )


class ScoredOp(PairsOp):
    """An op over scores: products of queries and keys after `score_mod`.

    `query` is (B, Hq, Sq, E), `key` (B, Hkv, Skv, E) and `value` (B, Hkv, Skv, Ev).
    Query head h reads key head h // (Hq / Hkv). `scale` multiplies the scores before
    `score_mod` receives them.
    """

    query = operand_def(TensorType[Attribute])
    key = operand_def(TensorType[Attribute])
    value = operand_def(TensorType[Attribute])
    score_mod = region_def("single_block")

    @property
    def score_type(self) -> AnyFloat:
        return score_type(self.query.type)

    def verify_(self) -> None:
        for name in ("query", "key", "value"):
            verify_rank(name, getattr(self, name).type, 4)
        verify_head_dim("key", self.key, "the query has", self.query)
        super().verify_()
        verify_scalar_region(
            "score_mod",
            self.score_mod,
            mod_args(self.score_type, self.capture_types()),
            [self.score_type],
        )


class MaskedOp(PairsOp):
    """An op over all pairs that count: pairs that `mask_mod` and `tables` keep.

    `tables`, if given, are the tensors of torch's BlockMask: kv_num_blocks
    (B, Hq, Q blocks) and kv_indices (B, Hq, Q blocks, KV blocks), optionally followed
    by the same two tensors for full blocks. They are expanded to the batch and the
    heads of the call. `sparse_block` is BLOCK_SIZE of the BlockMask. Pairs in blocks
    that no table lists are masked. Pairs in full blocks are not.
    """

    sparse_block = opt_prop_def(DenseArrayBase.constr(i64))
    mask_mod = region_def("single_block")

    def verify_(self) -> None:
        super().verify_()
        verify_scalar_region(
            "mask_mod",
            self.mask_mod,
            mod_args(None, self.capture_types()),
            MASK_RESULT,
        )
        if len(self.tables) not in (0, 2, 4):
            raise VerifyException(
                "tables expects kv_num_blocks and kv_indices, with or without their "
                f"full counterparts, got {len(self.tables)} tensors"
            )
        verify_block("sparse_block", self.sparse_block, "tables", self.tables)


def tensor_shape(value: SSAValue) -> tuple[int, ...]:
    """Return the shape of a tensor value; DYNAMIC_INDEX for a dynamic dimension."""
    assert isa(value.type, TensorType[Attribute])
    return value.type.get_shape()


def element_type(value: SSAValue) -> Attribute:
    """Return the type of the elements of a tensor value."""
    assert isa(value.type, TensorType[Attribute])
    return value.type.element_type


def verify_rank(name: str, type_: Attribute, rank: int) -> None:
    assert isa(type_, TensorType[Attribute])
    if type_.get_num_dims() != rank:
        raise VerifyException(f"{name} expects {rank} dimensions, got {type_}")


def verify_head_dim(name: str, value: SSAValue, other: str, model: SSAValue) -> None:
    """Check that two tensors have equal last dimensions.

    `other` says for error messages which tensor determines the dimension.
    """
    got, expected = tensor_shape(value)[-1], tensor_shape(model)[-1]
    if got != expected:
        raise VerifyException(
            f"{name} expects head dim {expected} as {other}, got {got}"
        )


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
