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
    UnitAttr,
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
    ordered = opt_prop_def(UnitAttr)
    """True if gradients have equal bits at every run."""
    per_query_head = opt_prop_def(UnitAttr)
    """True if each query head has programs of its own for gradients of keys.

    They add to memory in any order, so gradients that are `ordered` may ignore this.
    """

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
        self.verify_saved()
        self.verify_along(NAMES)

    def named_value(self, name: str) -> SSAValue:
        """Return the value whose type a derivative of this name must have.

        This is the operand with this name; for the cotangents `d_out` and `d_lse` it is
        the saved `out` or `lse`.
        """
        match name.removeprefix("d_"):
            case "out":
                return self.saved[0]
            case "lse":
                return self.saved[1]
            case "query" | "key" | "value" as own:
                return {"query": self.query, "key": self.key, "value": self.value}[own]
            case _:
                return self.captures[int(name.removeprefix(CAPTURE))]

    def verify_saved(self) -> None:
        if len(self.saved) not in (2, 3):
            raise VerifyException(
                "saved expects out, lse and optionally lse_rest, got "
                f"{len(self.saved)} values"
            )
        out, *rows = self.saved
        verify_rank("out", out.type, 4)
        verify_head_dim("out", out, "the value has", self.value)
        for name, value in zip(("lse", "lse_rest"), rows, strict=False):
            verify_rank(name, value.type, 3)
            assert isa(value.type, TensorType[Attribute])
            if value.type.element_type != self.score_type:
                expected = self.score_type
                raise VerifyException(f"{name} expects {expected}, got {value.type}")

    def verify_tables(self, both: bool) -> None:
        """Check block tables; with `both`, those of rows require those of columns."""
        counts = len(self.tables), len(self.column_tables)
        if counts[1] not in (0, counts[0]):
            raise VerifyException(
                f"column_tables expects none or {counts[0]} tensors as there are "
                f"tables, got {counts[1]}"
            )
        if both and counts[0] != counts[1]:
            raise VerifyException(
                "tables expect column_tables, which list the same blocks"
            )
        size, tables = self.column_block, self.column_tables
        verify_block("column_block", size, "column_tables", tables)

    def verify_cotangents(self) -> None:
        if len(self.cotangents) not in (1, 2):
            raise VerifyException(
                "cotangents expects those of out and optionally of lse, got "
                f"{len(self.cotangents)}"
            )
        for name, value in zip(("d_out", "d_lse"), self.cotangents, strict=False):
            verify_like(name, value, self.named_value(name))

    def verify_along(self, names: Sequence[str]) -> None:
        """Check that `along` has captures or values in `names`, and tangents fit."""
        self.verify_named("along", self.tangent_names, names, self.tangents)

    def verify_named(
        self,
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
        known = [*names, *self._differentiable_captures()]
        for name, value in zip(given, values, strict=True):
            if name not in known:
                raise VerifyException(
                    f"{what} expects names among {', '.join(known)}, got {name!r}"
                )
            if given.count(name) > 1:
                raise VerifyException(
                    f"{what} expects each name once, got {name!r} again"
                )
            verify_like(f"{what} {name!r}", value, self.named_value(name))

    def _differentiable_captures(self) -> list[str]:
        """Return the names of the captures that have derivatives: tensors of floats."""
        return [
            f"{CAPTURE}{i}"
            for i, c in enumerate(self.captures)
            if isa(c.type, TensorType[Attribute])
            and isinstance(c.type.element_type, AnyFloat)
        ]


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
        self.verify_tables(both=True)
        self.verify_cotangents()
        self.verify_named("wrt", self.wanted(), INPUTS, self.derivatives)


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
        self.verify_tables(both=False)
        self.verify_along(INPUTS)
        for name, result in zip(("out", "lse"), self.derivatives, strict=True):
            verify_like(f"the tangent of {name}", result, self.named_value(name))
