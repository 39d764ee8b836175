"""What operands and results of a derivative belong to, and so what they are like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import DYNAMIC_INDEX, AnyFloat, TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.flex.facts import (
    score_type,
    tensor_shape,
    verify_block,
    verify_rank,
)

if TYPE_CHECKING:
    from flexc.dialects.flex.derivatives import DerivativeOp

CAPTURE = "capture "


def named_value(op: DerivativeOp, name: str) -> SSAValue:
    """The operand of this name, or what is like it: out and lse of their cotangents."""
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
    """Check that a tensor has the element type of another, and may have its shape."""
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
    """Check that blocks are listed for rows and, if `both`, for columns as well."""
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
    """Check tangents of what has some of these names, or of captures."""
    verify_named(op, "along", op.moved, names, op.tangents)


def verify_named(
    op: DerivativeOp,
    what: str,
    given: Sequence[str],
    names: Sequence[str],
    values: Sequence[SSAValue],
) -> None:
    """Check names of values: that they are known, there once, and like the values."""
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
    """Names of the captures that have derivatives: tensors of floats."""
    return [
        f"{CAPTURE}{i}"
        for i, c in enumerate(op.captures)
        if isa(c.type, TensorType[Attribute])
        and isinstance(c.type.element_type, AnyFloat)
    ]
