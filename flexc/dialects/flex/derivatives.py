"""Derivatives of attention as single ops.

The ops are `flex.attention_backward` and `flex.attention_jvp`;
`flex-expand-derivatives` expands them. Results and tangents have names: "query", "key",
"value", or "capture 0" for the first captured value. Tangents of a backward op may
also be named "d_out" and "d_lse", for its cotangents.

```mlir
%dq, %dk, %db = flex.attention_backward %q, %k, %v : ... scale(%scale : f32)
    captures(%bias : tensor<?xf32>) saved(%out, %lse : ...) cotangents(%do : ...)
    -> tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?xf32>
    {wrt = ["query", "key", "capture 0"]}
    score_mod(...) {...} mask_mod(...) {...}
```
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.flex.facts import (
    PAIRS_FORMAT,
    SCORED_FORMAT,
    MaskedOp,
    ScoredOp,
    verify_block,
    verify_head_dim,
    verify_rank,
)
from flexc.dialects.mod_region import operand_groups

CAPTURE = "capture "


def named_value(op: DerivativeOp, name: str) -> SSAValue:
    """Return the value whose type a derivative of this name must have.

    This is the operand with this name; for the cotangents `d_out` and `d_lse` it is the
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
    """Check that a tensor has the element type of `model`, and a shape that fits."""
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
            "saved expects out, lse and optionally lse_rest, got "
            f"{len(op.saved)} values"
        )
    out, *rows = op.saved
    verify_rank("out", out.type, 4)
    verify_head_dim("out", out, "the value has", op.value)
    for name, value in zip(("lse", "lse_rest"), rows, strict=False):
        verify_rank(name, value.type, 3)
        assert isa(value.type, TensorType[Attribute])
        if value.type.element_type != op.score_type:
            raise VerifyException(f"{name} expects {op.score_type}, got {value.type}")


def verify_tables(op: DerivativeOp, both: bool) -> None:
    """Check block tables; with `both`, tables for rows require tables for columns."""
    counts = len(op.tables), len(op.column_tables)
    if counts[1] not in (0, counts[0]):
        raise VerifyException(
            f"column_tables expects none or {counts[0]} tensors as there are tables, "
            f"got {counts[1]}"
        )
    if both and counts[0] != counts[1]:
        raise VerifyException("tables expect column_tables, which list the same blocks")
    verify_block("column_block", op.column_block, "column_tables", op.column_tables)


def verify_cotangents(op: DerivativeOp) -> None:
    if len(op.cotangents) not in (1, 2):
        raise VerifyException(
            "cotangents expects those of out and optionally of lse, got "
            f"{len(op.cotangents)}"
        )
    for name, value in zip(("d_out", "d_lse"), op.cotangents, strict=False):
        verify_like(name, value, named_value(op, name))


def verify_along(op: DerivativeOp, names: Sequence[str]) -> None:
    """Check that `along` names captures or values in `names`, and that tangents fit."""
    verify_named(op, "along", op.tangent_names, names, op.tangents)


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
            f"{what} expects {len(values)} names, one for each of the {kind}, got "
            f"{len(given)}"
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


class DerivativeOp(ScoredOp, MaskedOp):
    """Operands and regions of the derivatives of a `flex.attention`.

    `query`, `key`, `value`, `scale`, `captures` and `tables` are those of attention.
    `column_tables` list blocks of queries for each block of keys, as torch's
    q_num_blocks and q_indices do. `saved` holds `out`, `lse` and, if scores may be
    large, `lse_rest` of the attention op. `along` names the values that `tangents`
    belong to; all other values have zero tangents.
    """

    saved = var_operand_def(TensorType[Attribute])
    cotangents = var_operand_def(TensorType[Attribute])
    tangents = var_operand_def(TensorType[Attribute])
    column_tables = var_operand_def(TensorType[Attribute])

    derivatives = var_result_def(TensorType[Attribute])

    along = opt_prop_def(ArrayAttr[StringAttr])
    column_block = opt_prop_def(DenseArrayBase.constr(i64))

    assembly_format = (
        SCORED_FORMAT
        + operand_groups("saved", "cotangents", "tangents")
        + PAIRS_FORMAT
        + operand_groups("column_tables")
        + " `->` type($derivatives) attr-dict "
        "`score_mod` custom<ScalarRegion>($score_mod) "
        "`mask_mod` custom<ScalarRegion>($mask_mod)"
    )

    @property
    def tangent_names(self) -> list[str]:
        """The names of the values that have tangents."""
        return [] if self.along is None else [a.data for a in self.along]

    def tangent_of(self, name: str) -> SSAValue | None:
        """Return the tangent of the value of this name; None if the tangent is zero."""
        named = self.tangent_names
        return self.tangents[named.index(name)] if name in named else None

    def verify_(self) -> None:
        super().verify_()
        verify_saved(self)
        verify_along(self, NAMES)


@irdl_op_definition
class AttentionBackwardOp(DerivativeOp):
    """The gradients of attention with respect to the values in `wrt`, in its order.

    `cotangents` are those of `out` and, if given, of `lse`. A gradient has the shape of
    the value that it belongs to. With `tangents`, the results are the tangents of the
    gradients: the change of the gradients as the operands and the cotangents change
    along the tangents. `out` and `lse` change with the operands.
    """

    name = "flex.attention_backward"

    wrt = prop_def(ArrayAttr[StringAttr])

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

    def verify_(self) -> None:
        super().verify_()
        if len(self.derivatives) != 2 or self.cotangents:
            raise VerifyException(
                "expects two results, the tangents of out and lse, and no cotangents"
            )
        verify_tables(self, both=False)
        verify_along(self, INPUTS)
        for name, result in zip(("out", "lse"), self.derivatives, strict=True):
            verify_like(f"the tangent of {name}", result, named_value(self, name))
