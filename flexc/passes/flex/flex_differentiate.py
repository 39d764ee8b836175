"""`flex-differentiate`: replace a function's attention by a derivative of it.

`@attention` becomes `@attention_backward` with respect to the names in `wrt`, or
`@attention_jvp` along the names in `along`. With both, it becomes a backward whose
results are the tangents of the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
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
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.flex import CAPTURE, score_type, tensor_shape
from flexc.errors import OptionError, refuse
from flexc.passes.flex.derivative_kernels import fresh


@dataclass(frozen=True)
class Derivative:
    """A derivative of attention: reverse mode by `wrt`, or forward mode along `along`.

    With both, the derivative is the tangents of the gradients. Names are those of
    `dialects.flex.derivatives`.
    """

    wrt: tuple[str, ...] = ()
    along: tuple[str, ...] = ()
    d_lse: bool = False
    """True if lse has a cotangent."""
    lse_rest: bool = False
    """True if the rounding error of lse is an operand."""
    column_tables: int = 0
    """The number of tables that list blocks of queries: 0, 2 or 4."""
    column_block: tuple[int, int] | None = None
    """The size of the blocks in column tables: keys, queries."""
    facts: tuple[tuple[str, Attribute], ...] = ()
    """Properties that the attention op does not state: facts, and how to compute."""

    @property
    def name(self) -> str:
        """The name of the derivative's function."""
        return "attention_backward" if self.wrt else "attention_jvp"


def derivative_module(module: ModuleOp, derivative: Derivative) -> ModuleOp:
    """Return a module whose function computes a derivative of a module's attention.

    The arguments are those of the attention's function, then the column tables, out,
    lse, the rounding error of lse, the cotangents of out and lse, and the tangents.
    Arguments that the derivative does not have are left out.
    """
    return ModuleOp([_function(only_attention(module), derivative)])


def only_attention(module: ModuleOp) -> flex.AttentionOp:
    """Return the only attention op of a module; refuse a module without exactly one."""
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
    op = kind(operands, [results], regions, properties)
    op.attributes |= attention.attributes
    return op


def like(value: SSAValue) -> TensorType[Attribute]:
    """Return the type of a tensor of the same shape with a last stride of 1."""
    assert isa(value.type, TensorType[Attribute])
    dim = tensor_shape(value)[3]
    return fresh([None, None, None, dim], value.type.element_type)


@dataclass(frozen=True)
class FlexDifferentiatePass(ModulePass):
    """A pass that replaces attention by a derivative of it."""

    name = "flex-differentiate"

    wrt: tuple[str, ...] = ("query", "key", "value")
    along: tuple[str, ...] = ()
    d_lse: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        wrt = tuple(n for n in self.wrt if n != "nothing")
        new = derivative_module(op, Derivative(wrt, self.along, self.d_lse))
        try:
            new.verify()
        except VerifyException as error:
            raise OptionError(f"{self.spec()} is no derivative: {error}") from error
        block = op.body.block
        for old in list(block.ops):
            old.detach()
            old.erase(safe_erase=False)
        for function in list(new.ops):
            function.detach()
            block.add_op(function)
