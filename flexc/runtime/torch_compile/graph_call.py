"""A call whose mods are FX graphs, separate from its operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import guard_int

from flexc.frontend.code_facts import number_key
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.autograd.functions import Results, run_attention
from flexc.runtime.call_plans import attend, is_plain
from flexc.runtime.inputs.arguments import (
    NO_BLOCKS,
    Tables,
    cast_and_check,
    check_lengths,
    given_columns,
    make_tables,
)
from flexc.runtime.inputs.listed_blocks import check_listed
from flexc.runtime.inputs.options import (
    INTERNAL_OPTIONS,
    Choices,
    read_choices,
    resolve_backend,
)
from flexc.runtime.inputs.tensor_facts import check_captures
from flexc.runtime.torch_compile.mod_graphs import FunctionMods, ModGraphs

BACKEND_OPTION = "FLEXC_BACKEND"
"""The kernel option that carries a call's own backend."""


class Operands(NamedTuple):
    """The operands that a graph passes to a call."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float | None
    tables: Sequence[Tensor]
    """Tables of a BlockMask: of partial blocks, and of full blocks if it has any."""
    lengths: tuple[int, int]
    """The lengths that the BlockMask was made for."""
    block: tuple[int, int]
    captures: Sequence[Any]
    columns: Sequence[Tensor] = ()
    """Tables of the blocks of keys, if the BlockMask has them."""

    @property
    def factor(self) -> float:
        """The scale, which may be symbolic."""
        if self.scale is None:
            return 1.0 / math.sqrt(int(self.query.size(3)))
        return self.scale

    def checked(self, enable_gqa: bool) -> Operands:
        """Return the operands, checked, cast and broadcast for attention."""
        tensors = (self.query, self.key, self.value)
        query, key, value = cast_and_check(*tensors, enable_gqa)
        if self.tables:
            device = self.tables[0].device
            check_lengths(self.lengths, device, query, key)
        return self._replace(query=query, key=key, value=value)

    def make_tables(self, expand: bool = True) -> Tables | None:
        """Return the tables that a call reads, None if there are none.

        With `expand`, they have the call's batch and heads.
        """
        if not self.tables:
            return None
        made = make_tables(self.tables, self.block, self.query, expand=expand)
        kv_len, (q_block, kv_block) = self.key.size(2), self.block
        listed = given_columns(self.columns, self.tables, -(-kv_len // kv_block))
        if listed is None:
            return made
        block = (kv_block, q_block)
        columns = make_tables(listed, block, self.query, kv_len, expand=expand)
        return replace(made, columns=columns)


def operands_of_mask(block_mask: tuple[Any, ...], captures: Any) -> tuple[Any, ...]:
    """Return the operands after the scale, given the operand of torch's operator.

    That operand has lengths, tables of rows and columns, block size and mask.
    """
    block = tuple(block_mask[-3:-1])
    is_empty = isinstance(block[0], int) and min(block) >= NO_BLOCKS
    rows, columns = (
        () if is_empty else tuple(t for t in side if t is not None)
        for side in (block_mask[2:6], block_mask[6:10])
    )
    # Lengths only serve to check tables. Without tables, no node must compute them.
    lengths = tuple(block_mask[:2]) if rows else (0, 0)
    return rows, lengths, block, captures, columns


@dataclass(frozen=True, eq=False)
class GraphCall:
    """The constant part of the calls of a graph."""

    mods: ModGraphs | FunctionMods
    outputs: Outputs
    choices: Choices
    enable_gqa: bool = True

    def run(self, operands: Operands) -> Results:
        """Return the results for operands that have data."""
        query, key, value, scale, *_ = operands
        if not is_plain(query):
            return run_attention(self.prepare(operands))
        signature = self.mods.signature(operands.captures)
        factor = None if scale is None else float(scale)
        facts = (self.choices, self.outputs, number_key(factor), self.enable_gqa)
        prepare = GraphPreparation(self, operands[3:])
        mods = signature.key if signature.cacheable else None
        given = query, key, value
        if not operands.tables:
            return attend(given, mods, signature.captures, facts, prepare)
        check_lengths(operands.lengths, operands.tables[0].device, query, key)
        if not torch.is_grad_enabled():
            operands = operands._replace(columns=())
        tables = operands.make_tables()
        assert tables is not None
        check_listed(tables.tensors, -(-key.size(2) // operands.block[1]))
        facts = (*facts, operands.block)
        return attend(given, mods, signature.captures, facts, prepare, tables=tables)

    def prepare(self, operands: Operands) -> Attention:
        """Return the call of operands that have data, checked and ready to run."""
        operands = operands.checked(self.enable_gqa)
        query, key, value, *_ = operands
        signature = self.mods.signature(operands.captures)
        check_captures(signature.captures, query.device)
        call = Attention(
            query,
            key,
            value,
            float(operands.factor),
            operands.make_tables(),
            signature,
            self.outputs,
            resolve_backend(self.choices.backend, query.device),
            self.choices,
        )
        call.check_memory()
        return call


class GraphPreparation(NamedTuple):
    """A function that prepares a call of a graph, given query, key and value."""

    call: GraphCall
    rest: tuple[Any, ...]

    def __call__(self, operands: tuple[Tensor, Tensor, Tensor]) -> Attention:
        """Return the call of these tensors, checked and ready to run."""
        return self.call.prepare(Operands(*operands, *self.rest))

    def frozen(self) -> None:
        """Return None: graphs are not stored, as their names hold in one process."""


def read_graph_options(options: Mapping[str, Any]) -> Choices:
    """Return the choices of a call whose operator has these options.

    torch has checked the options of its own operator and has added some.
    """
    own = {k: _constant(v) for k, v in options.items() if not k.startswith("FLEXC_")}
    if BACKEND_OPTION not in options:
        own = {k: v for k, v in own.items() if k not in INTERNAL_OPTIONS}
        if own.get("BACKEND") == "AUTO":
            del own["BACKEND"]
    return read_choices(options.get(BACKEND_OPTION, "auto"), own)


def _constant(value: Any) -> Any:
    """Return an option's Python number, with a guard if Dynamo made it an input."""
    if isinstance(value, Node):
        value = value.meta["example_value"]
    return guard_int(value) if isinstance(value, torch.SymInt) else value
