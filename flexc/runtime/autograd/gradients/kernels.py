"""The derivatives of a call by kernels (see `derivatives.Derivatives`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.ir import Attribute

from flexc.passes.flex.derivatives.build import Derivative, derivative_module
from flexc.passes.flex.derivatives.score_growth import scores_stay_moderate
from flexc.runtime.attention.call import LENGTH_MULTIPLE, Attention
from flexc.runtime.autograd.captured_gradients import Sizes
from flexc.runtime.autograd.derivatives import (
    Gradients,
    Tangents,
    Wanted,
)
from flexc.runtime.autograd.gradients.launch import Compile, Point
from flexc.runtime.autograd.gradients.program import Program, expand
from flexc.runtime.inputs.arguments import Tables
from flexc.runtime.inputs.options import NO_OPTIONS
from flexc.runtime.inputs.tensor_facts import (
    MAX_NARROW_OFFSET,
    MAX_TILE_STRIDE,
    is_aligned,
    largest_offset,
)
from flexc.runtime.kernels.build import Build
from flexc.runtime.kernels.driver import Compiled, start_kernel
from flexc.runtime.kernels.proofs import Proofs, attention_of

INPUTS = ("query", "key", "value")

_programs: WeakKeyDictionary[Compiled, dict[Any, Program]] = WeakKeyDictionary()
_moderate: WeakKeyDictionary[Compiled, dict[Any, bool]] = WeakKeyDictionary()

MAX_KNOWN = 256
"""Classes of calls whose scores were judged that are remembered."""
"""Programs of a compiled call, by what was proved and which derivative."""


@dataclass(frozen=True)
class Blocks:
    """A call with the blocks that its mask leaves, seen from rows and from keys."""

    call: Attention
    compiled: Compiled
    columns: Tables | None


def backward(
    call: Attention,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    wanted: Wanted,
) -> Gradients:
    """The gradients along cotangents."""
    run = Run(call, out, lse)
    return run.backward(d_out, d_lse, wanted, None, None, None)


def jvp(
    call: Attention, out: Tensor, lse: Tensor, tangents: Tangents
) -> tuple[Tensor, Tensor]:
    """The tangents of out and lse."""
    return Run(call, out, lse).jvp(tangents)


def backward_jvp(
    call: Attention,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor | None,
    d_lse: Tensor | None,
    tangents: Tangents,
    t_d_out: Tensor | None,
    t_d_lse: Tensor | None,
    wanted: Wanted,
) -> Gradients:
    """The tangents of the gradients."""
    run = Run(call, out, lse)
    return run.backward(d_out, d_lse, wanted, tangents, t_d_out, t_d_lse)


def start(call: Attention, wanted: Wanted) -> None:
    """Start to compile what gradients take along a cotangent of out."""
    setting = Setting(call)
    has_rest = call.outputs.lse_rest and not setting.moderate
    setting.program(setting.names(wanted.flat), (), False, has_rest)


class Setting:
    """What a call says of its derivatives, before it has run."""

    def __init__(self, call: Attention):
        self.blocks = blocks_of(call)
        self.call, self.compiled = self.blocks.call, self.blocks.compiled
        self.captures = self.compiled.attention.arguments(call.signature.captures)
        self.moderate = is_moderate(self.call, self.compiled)
        self.slots = [i.slot for i in self.compiled.attention.inputs]
        self.aligned = self.compiled.build.call.alignment is not None

    @property
    def listed(self) -> Sequence[Tensor]:
        """Tables that list the blocks of columns."""
        columns = self.blocks.columns
        return () if columns is None else columns.tensors

    def names(self, wants: Sequence[bool]) -> list[str]:
        """What the IR calls the inputs that are asked for."""
        found = [n for n, want in zip(INPUTS, wants, strict=False) if want]
        captures = wants[len(INPUTS) :]
        return found + [
            f"capture {i}"
            for i, slot in enumerate(self.slots)
            if slot is not None and captures[slot]
        ]

    def program(
        self,
        wrt: Sequence[str],
        along: Sequence[str],
        d_lse: bool,
        has_rest: bool,
        moving: Sequence[Tensor] = (),
    ) -> Program:
        """What computes a derivative, given the tangents that move captured tensors."""
        columns = self.blocks.columns
        derivative = Derivative(
            tuple(wrt),
            tuple(along),
            d_lse,
            has_rest,
            len(self.listed),
            None if columns is None else columns.block_size,
            tuple(self.facts([*self.listed, *moving]).items()),
        )
        call = self.call
        proofs = self.compiled.proofs(call.query, call.key, self.captures)
        return program_for(self.compiled, proofs, derivative)

    def facts(self, read: Sequence[Tensor]) -> dict[str, Attribute]:
        """Facts that a forward makes no use of, given what it does not read."""
        query, key = self.call.query, self.call.key
        found: dict[str, Attribute] = {}
        if query.shape[:2] == key.shape[:2]:
            found["paired_heads"] = UnitAttr()
        whole = query.size(2) % LENGTH_MULTIPLE == 0
        if whole and self.call.backend == "triton":
            found["q_len_multiple"] = IntegerAttr(LENGTH_MULTIPLE, i64)
        if self.moderate:
            found["scores_moderate"] = UnitAttr()
        if any(largest_offset(t) > MAX_NARROW_OFFSET for t in read):
            found["index_width"] = IntegerAttr(64, i64)
        return found


class Run(Setting):
    """The derivatives of one call at one point."""

    def __init__(self, call: Attention, out: Tensor, lse: Tensor):
        super().__init__(call)
        self.out, self.rows = out, lse
        # What is lost of moderate scores is too little to matter.
        rows = [lse] if lse.dim() == 3 else lse.unbind(1)
        self.saved = [out, *rows[: 1 if self.moderate else 2]]

    def backward(
        self,
        d_out: Tensor | None,
        d_lse: Tensor | None,
        wanted: Wanted,
        tangents: Tangents | None,
        t_d_out: Tensor | None,
        t_d_lse: Tensor | None,
    ) -> Gradients:
        wrt = self.names(wanted.flat)
        d_lse, t_d_lse = (self.of_lse(d) for d in (d_lse, t_d_lse))
        if d_out is None:
            d_out = torch.zeros_like(self.out)
        along = {} if tangents is None else self.tangents(tangents)
        if tangents is not None and t_d_out is not None:
            along["d_out"] = t_d_out
        if tangents is not None and t_d_lse is not None:
            along["d_lse"] = t_d_lse
            d_lse = torch.zeros_like(self.saved[1]) if d_lse is None else d_lse
        cotangents = [d_out, *([] if d_lse is None else [d_lse])]
        results = self.run(tuple(wrt), along, cotangents)
        return self.gradients(wrt, results, wanted)

    def of_lse(self, d_lse: Tensor | None) -> Tensor | None:
        """The cotangent of lse, given that of lse and its rest."""
        return d_lse[:, 0] if d_lse is not None and self.rows.dim() > 3 else d_lse

    def jvp(self, tangents: Tangents) -> tuple[Tensor, Tensor]:
        t_out, t_lse = self.run((), self.tangents(tangents), [])
        if self.rows.dim() > 3:
            t_lse = torch.stack([t_lse, torch.zeros_like(t_lse)], 1)
        return t_out, t_lse

    def tangents(self, tangents: Tangents) -> dict[str, Tensor]:
        """Tangents that are not zero, by name."""
        flat = tangents.flat
        present = [t is not None for t in flat]
        by_name = {n: i for i, n in enumerate(INPUTS)}
        found: dict[str, Tensor] = {}
        for name in self.names(present):
            if name in by_name:
                tangent = flat[by_name[name]]
            else:
                slot = self.slots[int(name.removeprefix("capture "))]
                assert slot is not None
                tangent = flat[len(INPUTS) + slot]
            assert tangent is not None
            found[name] = tangent
        return found

    def gradients(
        self, names: Sequence[str], results: Sequence[Tensor], wanted: Wanted
    ) -> Gradients:
        """Results by name in their places; None where nothing was wanted."""
        flat: list[Tensor | None] = [None] * len(wanted.flat)
        for name, result in zip(names, results, strict=True):
            if name in INPUTS:
                flat[INPUTS.index(name)] = result
            else:
                slot = self.slots[int(name.removeprefix("capture "))]
                assert slot is not None
                flat[len(INPUTS) + slot] = result
        return Gradients.of(flat)

    def run(
        self, wrt: tuple[str, ...], along: dict[str, Tensor], cotangents: list[Tensor]
    ) -> list[Tensor]:
        call = self.call
        moving = {n: self.placed(n, t) for n, t in along.items() if n not in READY}
        rest = len(self.saved) > 2, list(moving.values())
        program = self.program(wrt, tuple(along), len(cotangents) > 1, *rest)
        program.wait()
        args = [call.query, call.key, call.value, call.scale, *self.captures]
        args += [*(() if call.tables is None else call.tables.tensors), *self.listed]
        args += [self.ready(t) for t in (*self.saved, *cotangents)]
        args += [moving[n] if n in moving else self.ready(t) for n, t in along.items()]
        batch, heads, q_len = call.query.shape[:3]
        sizes = Sizes(batch, heads, q_len, call.key.size(2))
        point = Point(sizes, call.deterministic, call.query.device)
        return program.run(args, point)

    def ready(self, tensor: Tensor) -> Tensor:
        """A tensor as the IR's types promise it: rows of adjacent elements, aligned."""
        moves = tensor.dim() == 4 and self.aligned and not is_aligned(tensor)
        if moves or tensor.stride(2) > MAX_TILE_STRIDE:
            return tensor.clone(memory_format=torch.contiguous_format)
        return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

    def placed(self, name: str, tangent: Tensor) -> Tensor:
        """The tangent of a captured tensor, with strides that its type allows."""
        given = self.compiled.attention.inputs[int(name.removeprefix("capture "))]
        if given.unit_stride and tangent.dim() and tangent.stride(-1) != 1:
            return tangent.contiguous()
        return tangent


READY = (*INPUTS, "d_out", "d_lse")
"""What has the layout of a query or of its rows."""


def is_moderate(call: Attention, compiled: Compiled) -> bool:
    """Whether a call's scores are known to be as large as its dot products at most.

    It saves a GPU a few per cent; and 16 bits are coarser than what that loses.
    """
    if call.backend != "triton" or call.query.element_size() > 2:
        return False
    captures = compiled.attention.arguments(call.signature.captures)
    numbers = tuple(c if isinstance(c, int | float) else None for c in captures)
    sizes = (*call.query.shape[:3], call.key.size(2))
    known = _moderate.setdefault(compiled, {})
    key = tuple(map(_at_most, sizes)), numbers
    if key not in known:
        if len(known) >= MAX_KNOWN:
            known.clear()
        attention = attention_of(compiled.attention.module)
        known[key] = scores_stay_moderate(attention, *key)
    return known[key]


def _at_most(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def blocks_of(call: Attention) -> Blocks:
    """The blocks that a call's mask leaves, from both sides."""
    call = call.settle(both=True)
    return Blocks(call, call.compiled(), call.tables and call.tables.columns)


def program_for(compiled: Compiled, proofs: Proofs, derivative: Derivative) -> Program:
    """The program of a derivative; made once, and its kernels soon after."""
    programs = _programs.setdefault(compiled, {})
    key = (proofs, derivative)
    if key not in programs:
        module = proofs.stated_in(compiled.attention.module)
        expanded = derivative_module(module, derivative)
        expand(expanded, compiled.build.backend == "cpp")
        program = Program(expanded, compiler_for(compiled.build))
        program.start()
        programs[key] = program
    return programs[key]


def compiler_for(build: Build) -> Compile:
    """How kernels of derivatives are compiled, several at a time."""
    build = replace(build, tiles=NO_OPTIONS, derivative=True, program_rows=None)
    return lambda module: start_kernel(module, build)
