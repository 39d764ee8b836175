"""The `flex` dialect: *what* is computed.

`flex.attention` is torch's FlexAttention higher-order operator: attention over
query, key and value, whose scores pass through a `score_mod` region and a
`mask_mod` region. Which blocks are visited, in what order and on which machine
is still open. Nothing here is specific to a variant of attention.

```mlir
%out, %lse = flex.attention %q, %k, %v : tensor<?x?x?x64xf32>,
    tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32> scale(%scale : f32)
    captures(%slopes : tensor<?xf32>)
    -> out : tensor<?x?x?x64xf32>, lse : tensor<?x?x?xf32>
    score_mod(%s : f32, %b : i32, %h : i32, %qi : i32, %ki : i32,
              %slopes_ : tensor<?xf32>) {
  %m = flex.load_capture %slopes_[%h] : tensor<?xf32>, i32
  %d = arith.subi %ki, %qi : i32
  %f = arith.sitofp %d : i32 to f32
  %p = arith.mulf %m, %f : f32
  %r = arith.addf %s, %p : f32
  flex.yield %r : f32
} mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : tensor<?xf32>) {
  %c = arith.cmpi sge, %qi, %ki : i32
  flex.yield %c : i1
}
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar

from xdsl.dialects.builtin import (
    I32,
    AnyFloat,
    AnyFloatConstr,
    DenseArrayBase,
    Float64Type,
    IntegerAttr,
    IntegerType,
    TensorType,
    UnitAttr,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    AttrSizedResultSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    IsolatedFromAbove,
    IsTerminator,
    Pure,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.mod_region import (
    MASK_RESULT,
    is_capture,
    mod_args,
    parse_operand_group,
    parse_properties,
    parse_region_with_args,
    print_operand_group,
    print_properties,
    print_region_with_args,
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
    "has_keys",
    "rows_never_empty",
)
"""Properties that say what is known about a call, kept by every lowering."""


POSITIVE = ("q_len_multiple", "kv_len_multiple", "alignment", "max_length")
"""Facts that are numbers of something."""


def score_type(query: Attribute) -> AnyFloat:
    """Scores of fp64 inputs are fp64, of all others fp32."""
    assert isa(query, TensorType[Attribute])
    return f64 if isinstance(query.element_type, Float64Type) else f32


class AttentionLike(IRDLOperation):
    """Operands, results and facts shared by the attention ops of two dialects.

    `query` is (B, Hq, Sq, E), `key` (B, Hkv, Skv, E) and `value` (B, Hkv, Skv,
    Ev); query head h reads key head h // (Hq / Hkv). `scale` multiplies the
    scores before `score_mod` sees them. `out` is (B, Hq, Sq, Ev); `lse` and
    `max_scores`, where asked for, are (B, Hq, Sq), in natural units, -inf for a
    row with nothing to attend to, whose `out` is 0.
    """

    query = operand_def(TensorType[Attribute])
    key = operand_def(TensorType[Attribute])
    value = operand_def(TensorType[Attribute])
    scale = operand_def(AnyFloat)
    captures = var_operand_def()
    tables = var_operand_def(TensorType[Attribute])

    out = result_def(TensorType[Attribute])
    lse = opt_result_def(TensorType[Attribute])
    max_scores = opt_result_def(TensorType[Attribute])

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
    rows_never_empty = opt_prop_def(UnitAttr)
    """There are keys, and every row has one at least that no mask hides."""

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (
        AttrSizedOperandSegments(as_property=True),
        AttrSizedResultSegments(as_property=True),
        ParsePropInAttrDict(),
    )

    def facts(self) -> dict[str, Attribute]:
        """The facts that hold, to be copied by a lowering."""
        return {k: v for k, v in self.properties.items() if k in FACTS}

    def fact(self, name: str, default: int = 1) -> int:
        """The value of an integer fact."""
        attr = self.properties.get(name)
        return attr.value.data if isinstance(attr, IntegerAttr) else default

    @property
    def score_type(self) -> AnyFloat:
        return score_type(self.query.type)

    def result_groups(self) -> list[list[Attribute]]:
        """Types of the results, an empty list for one that is not asked for."""
        results = (getattr(self, name) for name in RESULTS)
        return [[] if r is None else [r.type] for r in results]

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

    def verify_operands(self) -> None:
        for name in ("query", "key", "value", "out"):
            _verify_rank(name, getattr(self, name).type, 4)
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
        if self.scale.type != self.score_type:
            raise VerifyException(
                f"scale expects type {self.score_type}, got {self.scale.type}"
            )
        for capture in self.captures:
            if not is_capture(capture.type):
                raise VerifyException(
                    f"captures expects scalars and tensors, got {capture.type}"
                )
        if self.score_range is not None:
            _verify_range(self.score_range.get_values())
        verify_scalar_region(
            "score_mod",
            self.regions[0],
            mod_args(self.score_type, [c.type for c in self.captures]),
            [self.score_type],
        )

    def print_head(self, printer: Printer) -> None:
        """Print the operands and the result types, up to the first region."""
        printer.print_string(" ")
        printer.print_list((self.query, self.key, self.value), printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_list(
            (self.query.type, self.key.type, self.value.type), printer.print_attribute
        )
        print_operand_group(printer, "scale", [self.scale])
        print_operand_group(printer, "captures", self.captures)
        print_operand_group(printer, "tables", self.tables)
        printer.print_string(" -> ")
        printer.print_list(
            [(n, r) for n in RESULTS if (r := getattr(self, n)) is not None],
            lambda named: _print_named_type(printer, *named),
        )

    @classmethod
    def parse_head(
        cls, parser: Parser
    ) -> tuple[list[Sequence[SSAValue]], list[list[Attribute]]]:
        """Parse what `print_head` prints: operand groups and result types."""
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
            for group in ("scale", "captures", "tables")
        ]
        parser.parse_punctuation("->")
        named = dict(
            parser.parse_comma_separated_list(
                parser.Delimiter.NONE, lambda: _parse_named_type(parser)
            )
        )
        return operands, [[named[n]] if n in named else [] for n in RESULTS]


RESULTS = ("out", "lse", "max_scores")


def _print_named_type(printer: Printer, name: str, value: SSAValue) -> None:
    printer.print_string(f"{name} : ")
    printer.print_attribute(value.type)


def _parse_named_type(parser: Parser) -> tuple[str, Attribute]:
    name = parser.parse_keyword_in(RESULTS)
    parser.parse_punctuation(":")
    return name, parser.parse_type()


def tensor_shape(value: SSAValue) -> tuple[int, ...]:
    """The static shape of a tensor value; DYNAMIC_INDEX where it is dynamic."""
    assert isa(value.type, TensorType[Attribute])
    return value.type.get_shape()


def _verify_rank(name: str, type_: Attribute, rank: int) -> None:
    assert isa(type_, TensorType[Attribute])
    if type_.get_num_dims() != rank:
        raise VerifyException(f"{name} expects {rank} dimensions, got {type_}")


def _verify_range(bounds: Sequence[float]) -> None:
    ordered = len(bounds) == 2 and -inf < bounds[0] <= bounds[1] < inf
    if not ordered:
        raise VerifyException(
            f"score_range expects a lower and an upper bound, got {list(bounds)}"
        )


@irdl_op_definition
class AttentionOp(AttentionLike):
    """Attention with a score and a mask region, over all pairs of positions.

    `tables`, where given, are the tensors of torch's BlockMask: kv_num_blocks
    (B, Hq, Q blocks), kv_indices (B, Hq, Q blocks, KV blocks) and, optionally,
    the same for full blocks, expanded to the call's batch and heads;
    `sparse_block` is its BLOCK_SIZE. A pair in a block
    that no table lists is masked; a pair in a full block is not.

    Score of a pair: `score_mod(scale * dot(q, k), b, h, q_idx, kv_idx)` where
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
            operands=operands,
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
        if bool(self.tables) != (self.sparse_block is not None):
            raise VerifyException("sparse_block expects tables, and tables expect it")

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


@irdl_op_definition
class LoadCaptureOp(IRDLOperation):
    """One element of a captured tensor; 0 where an index is out of range.

    Indices are not wrapped: the frontend spells torch's negative indices out.
    `inside` says that they are known to be in range: no test is needed.

    ```mlir
    %m = flex.load_capture %slopes[%h] : tensor<?xf32>, i32
    ```
    """

    name = "flex.load_capture"

    tensor = operand_def(TensorType[Attribute])
    indices = var_operand_def(IntegerType)
    inside = opt_prop_def(UnitAttr)
    result = result_def()

    traits = traits_def(Pure())

    def __init__(
        self, tensor: SSAValue, indices: Sequence[SSAValue], inside: bool = False
    ):
        assert isa(tensor.type, TensorType[Attribute])
        super().__init__(
            operands=[tensor, indices],
            properties={"inside": UnitAttr() if inside else None},
            result_types=[tensor.type.element_type],
        )

    def verify_(self) -> None:
        assert isa(self.tensor.type, TensorType[Attribute])
        _verify_rank("tensor", self.tensor.type, len(self.indices))
        if self.result.type != self.tensor.type.element_type:
            raise VerifyException(
                f"result expects type {self.tensor.type.element_type}, "
                f"got {self.result.type}"
            )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_indexed(printer, self.tensor, self.indices)
        if self.inside is not None:
            printer.print_string(" inside")
        printer.print_string(" : ")
        printer.print_list(self.operand_types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> LoadCaptureOp:
        pos = parser.pos
        names = [parser.parse_unresolved_operand()]
        names += parser.parse_comma_separated_list(
            parser.Delimiter.SQUARE, parser.parse_unresolved_operand
        )
        inside = parser.parse_optional_keyword("inside") is not None
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        tensor, *indices = parser.resolve_operands(names, types, pos)
        return cls(tensor, indices, inside)


def print_indexed(
    printer: Printer, tensor: SSAValue, indices: Sequence[SSAValue]
) -> None:
    """Print `%tensor[%i, %j]`."""
    printer.print_ssa_value(tensor)
    with printer.in_square_brackets():
        printer.print_list(indices, printer.print_ssa_value)


@irdl_op_definition
class DimOp(IRDLOperation):
    """The size of one dimension of a captured tensor.

    ```mlir
    %n = flex.dim %table, 0 : tensor<?x?xbf16> -> i32
    ```
    """

    name = "flex.dim"

    tensor = operand_def(TensorType[Attribute])
    dim = prop_def(IntegerAttr[I32])
    result = result_def(IntegerType)

    traits = traits_def(Pure())
    assembly_format = "$tensor `,` $dim attr-dict `:` type($tensor) `->` type($result)"

    def __init__(self, tensor: SSAValue, dim: int, type_: IntegerType = i32):
        super().__init__(
            operands=[tensor],
            properties={"dim": IntegerAttr(dim, i32)},
            result_types=[type_],
        )


@irdl_op_definition
class FmodOp(IRDLOperation):
    """C's fmod: the remainder of x / y rounded towards zero, exact.

    `arith.remf` does not exist in xDSL 0.74.
    """

    name = "flex.fmod"

    T: ClassVar = VarConstraint("T", AnyFloatConstr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)

    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($result)"

    def __init__(self, lhs: SSAValue, rhs: SSAValue):
        super().__init__(operands=[lhs, rhs], result_types=[lhs.type])


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends every region of scalar code."""

    name = "flex.yield"

    values = var_operand_def()

    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, *values: SSAValue | Operation):
        super().__init__(operands=[list(values)])


Flex = Dialect("flex", [AttentionOp, LoadCaptureOp, DimOp, FmodOp, YieldOp], [])
