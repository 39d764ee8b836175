"""Derivatives of attention as single ops.

The ops are `flex.attention_backward` and `flex.attention_jvp`;
`flex-expand-derivatives` expands them. Results and tangents have names: "query", "key",
"value", or "capture 0" for the first captured value. The operands of a backward op also
include "d_out" and "d_lse".

```mlir
%dq, %dk, %db = flex.attention_backward %q, %k, %v : ... scale(%scale : f32)
    captures(%bias : tensor<?xf32>) saved(%out, %lse : ...) cotangents(%do : ...)
    -> tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?xf32>
    {wrt = ["query", "key", "capture 0"]}
    score_mod(...) {...} mask_mod(...) {...}
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
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

if TYPE_CHECKING:
    from flexc.dialects.flex.derivatives import DerivativeOp


CAPTURE = "capture "


def named_value(op: DerivativeOp, name: str) -> SSAValue:
    """Return the value whose type a derivative of this name must have.

    This is the operand of the name; for the cotangents `d_out` and `d_lse` it is the
    saved `out` or `lse`.
    """
    match name.removeprefix("d_"):
        case "out":
            return op.saved[0]
        case "lse":
            return op.saved[1]
        case "query" | "key" | "value" as own:
            return {"query": op.query, "key": op.key, "value": op.value}[own]
        case _:
            return op.captures[int(name.removeprefix(CAPTURE))]


def verify_like(what: str, value: SSAValue, model: SSAValue) -> None:
    """Check that a tensor has the element type of `model`, and perhaps its shape."""
    got, expected = value.type, model.type
    if not (isa(got, TensorType[Attribute]) and isa(expected, TensorType[Attribute])):
        fits = False
    else:
        fits = got.element_type == expected.element_type and _may_be_equal(
            got.get_shape(), expected.get_shape()
        )
    if not fits:
        raise VerifyException(f"{what} expects a tensor like {expected}, got {got}")


def _may_be_equal(left: Sequence[int], right: Sequence[int]) -> bool:
    return len(left) == len(right) and all(
        a == b or DYNAMIC_INDEX in (a, b) for a, b in zip(left, right, strict=True)
    )


def verify_saved(op: DerivativeOp) -> None:
    if len(op.saved) not in (2, 3):
        raise VerifyException(
            f"saved expects out, lse and, perhaps, lse_rest, got {len(op.saved)} values"
        )
    out, *rows = op.saved
    verify_rank("out", out.type, 4)
    dims = tensor_shape(op.value)[3], tensor_shape(out)[3]
    if dims[0] != dims[1]:
        raise VerifyException(
            f"out expects head dim {dims[0]} as the value has, got {dims[1]}"
        )
    score = score_type(op.query.type)
    for name, value in zip(("lse", "lse_rest"), rows, strict=False):
        verify_rank(name, value.type, 3)
        assert isa(value.type, TensorType[Attribute])
        if value.type.element_type != score:
            raise VerifyException(f"{name} expects {score}, got {value.type}")


def verify_tables(op: DerivativeOp, both: bool) -> None:
    """Check block tables; with `both`, tables for rows require tables for columns."""
    counts = len(op.tables), len(op.column_tables)
    if counts[0] not in (0, 2, 4) or counts[1] not in (0, counts[0]):
        raise VerifyException(
            "tables and column_tables expect none, two or four tensors, and as many "
            f"of the one as of the other, got {counts[0]} and {counts[1]}"
        )
    if both and counts[0] != counts[1]:
        raise VerifyException("tables expect column_tables, which list the same blocks")
    verify_block("sparse_block", op.sparse_block, "tables", op.tables)
    verify_block("column_block", op.column_block, "column_tables", op.column_tables)


def verify_cotangents(op: DerivativeOp) -> None:
    if len(op.cotangents) not in (1, 2):
        raise VerifyException(
            "cotangents expects those of out and, perhaps, of lse, got "
            f"{len(op.cotangents)}"
        )
    for name, value in zip(("d_out", "d_lse"), op.cotangents, strict=False):
        verify_like(name, value, named_value(op, name))


def verify_along(op: DerivativeOp, names: Sequence[str]) -> None:
    """Check that `along` names captures or values in `names`, and that tangents fit."""
    verify_named(op, "along", op.moved, names, op.tangents)


def verify_named(
    op: DerivativeOp,
    what: str,
    given: Sequence[str],
    names: Sequence[str],
    values: Sequence[SSAValue],
) -> None:
    """Check that names are known and unique, and that each value fits its name."""
    if len(given) != len(values):
        kind = "results" if what == "wrt" else "tangents"
        raise VerifyException(
            f"{what} expects {len(values)} names as there are {kind}, got {len(given)}"
        )
    known = [*names, *_captures(op)]
    for name, value in zip(given, values, strict=True):
        if name not in known:
            raise VerifyException(
                f"{what} expects names among {', '.join(known)}, got {name!r}"
            )
        if given.count(name) > 1:
            raise VerifyException(f"{what} expects each name once, got {name!r} again")
        verify_like(f"{what} {name!r}", value, named_value(op, name))


def _captures(op: DerivativeOp) -> list[str]:
    """Return the names of the captures that have derivatives: tensors of floats."""
    return [
        f"{CAPTURE}{i}"
        for i, c in enumerate(op.captures)
        if isa(c.type, TensorType[Attribute])
        and isinstance(c.type.element_type, AnyFloat)
    ]


INPUTS = ("query", "key", "value")
NAMES = (*INPUTS, "d_out", "d_lse")

OWN_GROUPS = ("saved", "cotangents", "tangents")
GROUPS = (*OWN_GROUPS, "scale", "captures", "tables", "column_tables")


class DerivativeOp(PairsOp):
    """Operands and regions of the derivatives of a `flex.attention`.

    `query` to `tables` are the operands of the attention op. `column_tables` list
    blocks of queries for each block of keys, as torch's q_num_blocks and q_indices do.
    `saved` holds `out`, `lse` and, if scores may be large, `lse_rest` of the attention
    op. `along` names the values that `tangents` belong to; all other values have zero
    tangents.
    """

    saved = var_operand_def(TensorType[Attribute])
    cotangents = var_operand_def(TensorType[Attribute])
    tangents = var_operand_def(TensorType[Attribute])
    column_tables = var_operand_def(TensorType[Attribute])
    query = operand_def(TensorType[Attribute])
    key = operand_def(TensorType[Attribute])
    value = operand_def(TensorType[Attribute])

    derivatives = var_result_def(TensorType[Attribute])

    along = opt_prop_def(ArrayAttr[StringAttr])
    sparse_block = opt_prop_def(DenseArrayBase.constr(i64))
    column_block = opt_prop_def(DenseArrayBase.constr(i64))

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())

    def __init__(
        self,
        operands: Mapping[str, SSAValue | Sequence[SSAValue]],
        result_types: Sequence[Attribute],
        score_mod: Region,
        mask_mod: Region,
        properties: Mapping[str, Attribute],
    ):
        """Create the op from operand groups by name; groups not given are empty."""
        names = [name for name, _ in self.get_irdl_definition().operands]
        super().__init__(
            operands=[operands.get(name, []) for name in names],
            result_types=[result_types],
            regions=[score_mod, mask_mod],
            properties=dict(properties),
        )

    @property
    def score_mod(self) -> Region:
        return self.regions[0]

    @property
    def mask_mod(self) -> Region:
        return self.regions[1]

    @property
    def moved(self) -> list[str]:
        """The names of the values that have tangents."""
        return [] if self.along is None else [a.data for a in self.along]

    def tangent_of(self, name: str) -> SSAValue | None:
        """Return the tangent of the value of this name; None if the tangent is zero."""
        named = self.moved
        return self.tangents[named.index(name)] if name in named else None

    def verify_(self) -> None:
        for name in INPUTS:
            verify_rank(name, getattr(self, name).type, 4)
        dims = tensor_shape(self.query)[3], tensor_shape(self.key)[3]
        if dims[0] != dims[1]:
            raise VerifyException(
                f"key expects head dim {dims[0]} as the query has, got {dims[1]}"
            )
        score = score_type(self.query.type)
        self.verify_scale_and_captures(score)
        self.verify_facts()
        captures = [c.type for c in self.captures]
        verify_scalar_region(
            "score_mod", self.score_mod, mod_args(score, captures), [score]
        )
        verify_scalar_region(
            "mask_mod", self.mask_mod, mod_args(None, captures), MASK_RESULT
        )
        verify_saved(self)
        verify_along(self, NAMES)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        inputs = (self.query, self.key, self.value)
        printer.print_list(inputs, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_list([v.type for v in inputs], printer.print_attribute)
        for name in GROUPS:
            group = [self.scale] if name == "scale" else getattr(self, name)
            print_operand_group(printer, name, group)
        printer.print_string(" -> ")
        printer.print_list(self.result_types, printer.print_attribute)
        print_properties(printer, self)
        print_region_with_args(printer, "score_mod", self.score_mod)
        print_region_with_args(printer, "mask_mod", self.mask_mod)

    @classmethod
    def parse(cls, parser: Parser) -> DerivativeOp:
        pos = parser.pos
        names = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_unresolved_operand
        )
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        query, key, value = parser.resolve_operands(names, types, pos)
        operands: dict[str, SSAValue | Sequence[SSAValue]] = {
            "query": query,
            "key": key,
            "value": value,
        }
        operands |= {name: parse_operand_group(parser, name) for name in GROUPS}
        parser.parse_punctuation("->")
        results = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        properties, attributes = parse_properties(parser, cls)
        score_mod = parse_region_with_args(parser, "score_mod")
        mask_mod = parse_region_with_args(parser, "mask_mod")
        op = cls(operands, results, score_mod, mask_mod, properties)
        op.attributes = attributes
        return op


@irdl_op_definition
class AttentionBackwardOp(DerivativeOp):
    """The gradients of attention by the values that `wrt` names, in that order.

    `cotangents` are those of `out` and, if given, of `lse`. A gradient has the shape of
    the value that it belongs to. With `tangents`, the results are the tangents of the
    gradients: the change of the gradients as the operands and the cotangents change
    along the tangents. `out` and `lse` change with the operands.
    """

    name = "flex.attention_backward"

    wrt = prop_def(ArrayAttr[StringAttr])
    score_mod_ = region_def("single_block")
    mask_mod_ = region_def("single_block")

    def wanted(self) -> list[str]:
        return [name.data for name in self.wrt]

    def verify_(self) -> None:
        super().verify_()
        verify_tables(self, both=True)
        verify_cotangents(self)
        verify_named(self, "wrt", self.wanted(), INPUTS, self.derivatives)


@irdl_op_definition
class AttentionJvpOp(DerivativeOp):
    """The tangents of `out` and of `lse` along `tangents`."""

    name = "flex.attention_jvp"

    score_mod_ = region_def("single_block")
    mask_mod_ = region_def("single_block")

    def verify_(self) -> None:
        super().verify_()
        if len(self.derivatives) != 2 or self.cotangents:
            raise VerifyException("expects tangents of out and lse, and no cotangents")
        verify_tables(self, both=False)
        verify_along(self, INPUTS)
        for name, result in zip(("out", "lse"), self.derivatives, strict=True):
            verify_like(f"the tangent of {name}", result, named_value(self, name))
