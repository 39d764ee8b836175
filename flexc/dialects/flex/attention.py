"""`flex.attention`: attention with a score and a mask region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import AnyFloat, DenseArrayBase, TensorType, i32, i64
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    AttrSizedResultSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.flex.facts import (
    PairsOp,
    score_type,
    tensor_shape,
    verify_block,
    verify_rank,
)
from flexc.dialects.mod_region import (
    MASK_RESULT,
    mod_args,
    parse_operand_group,
    parse_properties,
    parse_region_with_args,
    print_operand_group,
    print_properties,
    print_region_with_args,
    verify_scalar_region,
)


class Split(IRDLOperation):
    """An op whose rows may be split along their keys.

    `splits` has a base class of its own because it must be the last operand.
    """

    splits = opt_operand_def(i32)
    """The number of splits: results have as many batches for each batch of operands."""


class AttentionLike(PairsOp, Split):
    """Operands, results and facts of the attention ops of two dialects.

    `query` is (B, Hq, Sq, E), `key` (B, Hkv, Skv, E) and `value` (B, Hkv, Skv, Ev).
    Query head h reads key head h // (Hq / Hkv). `scale` multiplies the scores before
    `score_mod` receives them.

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
    """

    query = operand_def(TensorType[Attribute])
    key = operand_def(TensorType[Attribute])
    value = operand_def(TensorType[Attribute])

    out = result_def(TensorType[Attribute])
    lse = opt_result_def(TensorType[Attribute])
    max_scores = opt_result_def(TensorType[Attribute])
    row_shift = opt_result_def(TensorType[Attribute])
    log_sum = opt_result_def(TensorType[Attribute])
    lse_rest = opt_result_def(TensorType[Attribute])

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (
        AttrSizedOperandSegments(as_property=True),
        AttrSizedResultSegments(as_property=True),
        ParsePropInAttrDict(),
    )

    @property
    def score_type(self) -> AnyFloat:
        return score_type(self.query.type)

    @property
    def split_groups(self) -> list[SSAValue]:
        """The operand group of `splits`: empty or one value."""
        return [] if self.splits is None else [self.splits]

    def result_groups(self) -> list[list[Attribute]]:
        """Return the types of all `RESULTS`; an empty list for each absent result."""
        results = (getattr(self, name) for name in RESULTS)
        return [[] if r is None else [r.type] for r in results]

    def verify_operands(self) -> None:
        for name in ("query", "key", "value", "out"):
            verify_rank(name, getattr(self, name).type, 4)
        q, k = tensor_shape(self.query), tensor_shape(self.key)
        v, out = tensor_shape(self.value), tensor_shape(self.out)
        if q[3] != k[3]:
            raise VerifyException(
                f"key expects head dim {q[3]} as the query has, got {k[3]}"
            )
        if v[3] != out[3]:
            raise VerifyException(
                f"out expects head dim {v[3]} as the value has, got {out[3]}"
            )
        self.verify_scale_and_captures(self.score_type)
        verify_scalar_region(
            "score_mod",
            self.regions[0],
            mod_args(self.score_type, [c.type for c in self.captures]),
            [self.score_type],
        )
        if self.lse_rest is not None and self.lse is None:
            raise VerifyException("lse_rest expects lse among results")
        if self.splits is not None:
            self.verify_splits()

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

    def print_head(self, printer: Printer) -> None:
        """Print operands and result types: all that comes before the properties."""
        printer.print_string(" ")
        printer.print_list((self.query, self.key, self.value), printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_list(
            (self.query.type, self.key.type, self.value.type), printer.print_attribute
        )
        print_operand_group(printer, "scale", [self.scale])
        print_operand_group(printer, "captures", self.captures)
        print_operand_group(printer, "tables", self.tables)
        print_operand_group(printer, "splits", self.split_groups)
        printer.print_string(" -> ")
        printer.print_list(
            [(n, r) for n in RESULTS if (r := getattr(self, n)) is not None],
            lambda named: _print_named_type(printer, *named),
        )

    @classmethod
    def parse_head(
        cls, parser: Parser
    ) -> tuple[list[Sequence[SSAValue]], list[list[Attribute]]]:
        """Parse the output of `print_head`; return operand groups and result types."""
        pos = parser.pos
        names = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_unresolved_operand
        )
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        operands: list[Sequence[SSAValue]] = [
            [v] for v in parser.resolve_operands(names, types, pos)
        ]
        operands += [
            parse_operand_group(parser, group)
            for group in ("scale", "captures", "tables", "splits")
        ]
        parser.parse_punctuation("->")
        named = dict(
            parser.parse_comma_separated_list(
                parser.Delimiter.NONE, lambda: _parse_named_type(parser)
            )
        )
        return operands, [[named[n]] if n in named else [] for n in RESULTS]


GROUPS = 7
"""The number of operand groups: query, key, value, scale, captures, tables, splits."""


def operand_groups(
    operands: Sequence[SSAValue | Sequence[SSAValue]],
) -> list[SSAValue | Sequence[SSAValue]]:
    """Return all operand groups; append empty ones for those left out at the end."""
    return [*operands, *[()] * (GROUPS - len(operands))]


RESULTS = ("out", "lse", "max_scores", "row_shift", "log_sum", "lse_rest")


def _print_named_type(printer: Printer, name: str, value: SSAValue) -> None:
    printer.print_string(f"{name} : ")
    printer.print_attribute(value.type)


def _parse_named_type(parser: Parser) -> tuple[str, Attribute]:
    name = parser.parse_keyword_in(RESULTS)
    parser.parse_punctuation(":")
    return name, parser.parse_type()


@irdl_op_definition
class AttentionOp(AttentionLike):
    """Attention with a score and a mask region, over all pairs of positions.

    `tables`, if given, are the tensors of torch's BlockMask: kv_num_blocks
    (B, Hq, Q blocks) and kv_indices (B, Hq, Q blocks, KV blocks), optionally followed
    by the same two tensors for full blocks. They are expanded to the batch and the
    heads of the call. `sparse_block` is BLOCK_SIZE of the BlockMask. Pairs in blocks
    that no table lists are masked. Pairs in full blocks are not.

    The score of a pair is `score_mod(scale * dot(q, k), b, h, q_idx, kv_idx)` if
    `mask_mod(b, h, q_idx, kv_idx)` is true, else -inf.
    """

    name = "flex.attention"

    sparse_block = opt_prop_def(DenseArrayBase.constr(i64))
    score_mod = region_def("single_block")
    mask_mod = region_def("single_block")

    def __init__(
        self,
        operands: Sequence[SSAValue | Sequence[SSAValue]],
        result_types: Sequence[Sequence[Attribute]],
        score_mod: Region,
        mask_mod: Region,
        properties: Mapping[str, Attribute] | None = None,
    ):
        super().__init__(
            operands=operand_groups(operands),
            result_types=result_types,
            regions=[score_mod, mask_mod],
            properties=dict(properties or {}),
        )

    def verify_(self) -> None:
        self.verify_operands()
        self.verify_facts()
        captures = [c.type for c in self.captures]
        verify_scalar_region(
            "mask_mod", self.mask_mod, mod_args(None, captures), MASK_RESULT
        )
        if len(self.tables) not in (0, 2, 4):
            raise VerifyException(
                "tables expects kv_num_blocks and kv_indices, with or without their "
                f"full counterparts, got {len(self.tables)} tensors"
            )
        verify_block("sparse_block", self.sparse_block, "tables", self.tables)

    def print(self, printer: Printer) -> None:
        self.print_head(printer)
        print_properties(printer, self)
        print_region_with_args(printer, "score_mod", self.score_mod)
        print_region_with_args(printer, "mask_mod", self.mask_mod)

    @classmethod
    def parse(cls, parser: Parser) -> AttentionOp:
        operands, results = cls.parse_head(parser)
        properties, attributes = parse_properties(parser, cls)
        score_mod = parse_region_with_args(parser, "score_mod")
        mask_mod = parse_region_with_args(parser, "mask_mod")
        op = cls(operands, results, score_mod, mask_mod, properties)
        op.attributes = attributes
        return op
