"""The derivatives of a `flex.attention`, as modules of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import func
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    ModuleOp,
    StringAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.flex import CAPTURE, score_type, tensor_shape
from flexc.errors import OptionError
from flexc.passes.flex.derivatives.kernels import fresh
from flexc.passes.refusal import refuse


@dataclass(frozen=True)
class Derivative:
    """Which derivative: of `wrt` in reverse mode, or along `along` in forward mode.

    With both, the tangents of the gradients. Names are those of the dialect.
    """

    wrt: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    d_lse: bool = False
    """There is a cotangent of lse."""
    lse_rest: bool = False
    """What lse lost when it was rounded is given too."""
    column_tables: int = 0
    """Tables that list blocks of queries: none, 2 or 4."""
    column_block: tuple[int, int] | None = None
    """Keys and queries of a block of theirs."""
    facts: tuple[tuple[str, Attribute], ...] = ()
    """Facts besides those of the attention op."""

    @property
    def name(self) -> str:
        """What its function is called."""
        return "attention_backward" if self.wrt else "attention_jvp"


def derivative_module(module: ModuleOp, derivative: Derivative) -> ModuleOp:
    """A module whose function computes a derivative of a module's attention.

    Its arguments are those of the attention's function, the column tables, out, lse
    and what is left of it, the cotangents of out and, if there is one, of lse, and the
    tangents.
    """
    return ModuleOp([_function(attention_of(module), derivative)])


def attention_of(module: ModuleOp) -> flex.AttentionOp:
    """The attention of a module that has one."""
    found = [op for op in module.walk() if isinstance(op, flex.AttentionOp)]
    if len(found) != 1:
        refuse(module, f"a derivative expects one flex.attention, got {len(found)}")
    return found[0]


def _function(attention: flex.AttentionOp, d: Derivative) -> func.FuncOp:
    given = list(attention.operands)
    out_type = like(attention.out)
    row_type = fresh([None] * 3, score_type(attention.query.type))
    named: list[tuple[str, Attribute]] = [
        *(
            (f"q_table_{i}", fresh([None] * (3 + i % 2), i32))
            for i in range(d.column_tables)
        ),
        *(("out", out_type), ("lse", row_type)),
        *([("lse_rest", row_type)] if d.lse_rest else []),
        *([("d_out", out_type)] if d.wrt else []),
        *([("d_lse", row_type)] if d.d_lse else []),
    ]
    types: dict[str, Attribute] = {
        "query": like(attention.query),
        "key": like(attention.key),
        "value": like(attention.value),
        **dict.fromkeys(("out", "d_out"), out_type),
        **dict.fromkeys(("lse", "d_lse"), row_type),
        **{f"{CAPTURE}{i}": c.type for i, c in enumerate(attention.captures)},
    }
    if unknown := {*d.wrt, *d.along} - types.keys():
        raise OptionError(
            f"wrt and along expect names among {', '.join(types)}, got {min(unknown)!r}"
        )
    named += [(f"t_{n.replace(' ', '_')}", types[n]) for n in d.along]
    block = Block(arg_types=[*(v.type for v in given), *(t for _, t in named)])
    hints = [*(v.name_hint for v in given), *(n for n, _ in named)]
    for arg, hint in zip(block.args, hints, strict=True):
        arg.name_hint = hint
    results = [types[name] for name in d.wrt] if d.wrt else [out_type, row_type]
    op = _op(attention, d, list(block.args), results)
    block.add_ops([op, func.ReturnOp(*op.results)])
    signature = list(block.arg_types), results
    return func.FuncOp(d.name, signature, Region(block))


def _op(
    attention: flex.AttentionOp,
    d: Derivative,
    args: list[SSAValue],
    results: Sequence[Attribute],
) -> flex.DerivativeOp:
    mapped = dict(zip(attention.operands, args, strict=False))
    rest = args[len(attention.operands) :]

    def take(count: int) -> list[SSAValue]:
        taken, rest[:] = rest[:count], rest[count:]
        return taken

    operands: dict[str, SSAValue | Sequence[SSAValue]] = {
        "query": mapped[attention.query],
        "key": mapped[attention.key],
        "value": mapped[attention.value],
        "scale": mapped[attention.scale],
        "captures": [mapped[v] for v in attention.captures],
        "tables": [mapped[v] for v in attention.tables],
        "column_tables": take(d.column_tables),
        "saved": take(2 + d.lse_rest),
        "cotangents": take(bool(d.wrt) + d.d_lse),
        "tangents": take(len(d.along)),
    }
    properties = attention.facts() | dict(d.facts)
    if attention.sparse_block is not None:
        properties["sparse_block"] = attention.sparse_block
    if d.column_block is not None:
        properties["column_block"] = DenseArrayBase.from_list(i64, d.column_block)
    if d.along:
        properties["along"] = ArrayAttr([StringAttr(n) for n in d.along])
    kind = flex.AttentionJvpOp
    if d.wrt:
        properties["wrt"] = ArrayAttr([StringAttr(n) for n in d.wrt])
        kind = flex.AttentionBackwardOp
    regions = attention.score_mod.clone(), attention.mask_mod.clone()
    op = kind(operands, results, *regions, properties)
    op.attributes |= attention.attributes
    return op


def like(value: SSAValue) -> TensorType[Attribute]:
    """The type of a tensor of the same shape, with a last stride of 1."""
    assert isa(value.type, TensorType[Attribute])
    dim = tensor_shape(value)[3]
    return fresh([None, None, None, dim], value.type.element_type)
