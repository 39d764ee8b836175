"""Derivatives of calls, computed by kernels (see `derivatives.Derivatives`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i64
from xdsl.ir import Attribute

from flexc.dialects import flex
from flexc.dialects.flex import SumKind
from flexc.passes.flex.flex_differentiate import Derivative, derivative_module
from flexc.passes.flex.flex_infer_facts import score_growth_is_bounded
from flexc.passes.scalar.captured_reads import CaptureIndices
from flexc.passes.targets import target_named
from flexc.passes.targets.target import WIDE, OnePass, next_power_of_2
from flexc.runtime.attention.call import LENGTH_MULTIPLE, Attention
from flexc.runtime.autograd.captured_places import Sizes
from flexc.runtime.autograd.derivatives import (
    Cotangents,
    Direction,
    Gradients,
    Tangents,
    Wanted,
)
from flexc.runtime.autograd.gradient_programs import Compile, Point, Program, expand
from flexc.runtime.inputs.options import NO_OPTIONS
from flexc.runtime.inputs.tensor_facts import (
    MAX_NARROW_OFFSET,
    MAX_TILE_STRIDE,
    is_aligned,
    largest_offset,
)
from flexc.runtime.kernels.build import Build, Roles
from flexc.runtime.kernels.driver import CompiledMods, Proved, start_kernel
from flexc.runtime.kernels.kernel import Kernel
from flexc.runtime.kernels.proofs import attention_of, numbers_of
from flexc.runtime.kernels.schedules import obstacle_to_roles
from flexc.runtime.process.recent import Background, Recent
from flexc.runtime.tapes.gpus import multiprocessors

INPUTS = ("query", "key", "value")

_programs: WeakKeyDictionary[Proved, dict[Any, Program]] = WeakKeyDictionary()
"""Programs of a compiled call under its proofs, by derivative."""

_moderate: WeakKeyDictionary[CompiledMods, Recent[bool]] = WeakKeyDictionary()
"""Results of `is_moderate` for a compiled call, by rounded sizes and by numbers."""

MAX_KNOWN = 256
"""The number of results of `is_moderate` that are cached for a compiled call."""


def start(call: Attention, wanted: Wanted) -> None:
    """Start to compile the kernels for gradients along a cotangent of out."""
    setting = DerivativeFacts(call)
    has_rest = call.outputs.lse_rest and not setting.moderate
    setting.program(setting.names(wanted), (), False, has_rest)


class DerivativeFacts:
    """The facts of a call that its derivatives depend on, known before it runs."""

    def __init__(self, call: Attention):
        self.call = call.for_derivatives()
        self.compiled = self.call.compiled()
        self.columns = self.call.tables and self.call.tables.columns
        self.captures = self.compiled.attention.arguments(call.signature.captures)
        self.moderate = is_moderate(self.call, self.compiled)
        inputs = enumerate(self.compiled.attention.inputs)
        self.captured = {f"capture {i}": g for i, g in inputs if g.slot is not None}
        """The captures that are no constants, by their names in the IR."""
        self.places = {name: i for i, name in enumerate(INPUTS)}
        """The places of inputs among `inputs_of`, by their names in the IR."""
        for name, given in self.captured.items():
            self.places[name] = len(INPUTS) + (given.slot or 0)
        self.aligned = self.compiled.build.call.alignment is not None
        proofs = self.compiled.proofs(self.call.sizes, self.captures)
        # The tiles of derivatives do not depend on the number of keys.
        self.proved = self.compiled.under(replace(proofs, few_keys=False))

    @property
    def listed(self) -> Sequence[Tensor]:
        """The tables that list the blocks of columns."""
        return () if self.columns is None else self.columns.tensors

    def names(self, wants: Sequence[bool]) -> list[str]:
        """Return the names in the IR of the wanted inputs."""
        return [name for name, place in self.places.items() if wants[place]]

    def program(
        self,
        wrt: Sequence[str],
        along: Sequence[str],
        d_lse: bool,
        has_rest: bool,
        moving: Sequence[Tensor] = (),
    ) -> Program:
        """Return the program of a derivative.

        `wrt` and `along` name inputs in the IR. `moving` are the tangents of captured
        tensors.
        """
        columns = self.columns
        derivative = Derivative(
            tuple(wrt),
            tuple(along),
            d_lse,
            has_rest,
            len(self.listed),
            None if columns is None else columns.block_size,
            tuple(self.facts([*self.listed, *moving]).items()),
        )
        for way in ways(self.call, self.proved, along):
            program = program_for(self.proved, derivative, way)
            if not program.is_refused:
                return program
        raise AssertionError("two kernels serve every derivative")

    def facts(self, read: Sequence[Tensor]) -> dict[str, Attribute]:
        """Return properties that the forward does not use, most of them facts.

        `read` are the tensors that a derivative reads and the forward does not.
        """
        query, key = self.call.query, self.call.key
        found: dict[str, Attribute] = {}
        for_gpu = self.call.computed_by.for_gpu
        if query.shape[:2] == key.shape[:2]:
            found["paired_heads"] = UnitAttr()
        elif for_gpu and has_programs_of_heads(self.call, self.proved):
            found["per_query_head"] = UnitAttr()
        if for_gpu and query.size(2) % LENGTH_MULTIPLE == 0:
            found["q_len_multiple"] = IntegerAttr(LENGTH_MULTIPLE, i64)
        if self.call.deterministic:
            found["ordered"] = UnitAttr()
        if self.moderate:
            found["score_growth_bounded"] = UnitAttr()
        if any(largest_offset(t) > MAX_NARROW_OFFSET for t in read):
            found["index_width"] = IntegerAttr(64, i64)
        return found


class DerivativeRun(DerivativeFacts):
    """The derivatives of one call at one point."""

    def __init__(self, call: Attention, out: Tensor, lse: Tensor):
        super().__init__(call)
        self.out, self.rows = out, lse
        # The rest of lse matters only if scores may exceed the dot products.
        rows = [lse] if lse.dim() == 3 else lse.unbind(1)
        self.saved = [out, *rows[: 1 if self.moderate else 2]]

    def backward(
        self, cotangents: Cotangents, wanted: Wanted, along: Direction | None
    ) -> Gradients:
        wrt, (d_out, d_lse) = self.names(wanted), cotangents
        given = [torch.zeros_like(self.out) if d_out is None else d_out]
        tangents: dict[str, Tensor] = {}
        if along is not None:
            tangents = self.tangents(along.inputs)
            t_out, t_lse = along.cotangents
            if t_out is not None:
                tangents["d_out"] = t_out
            if t_lse is not None:
                tangents["d_lse"] = self.of_lse(t_lse)
        if d_lse is not None:
            given.append(self.of_lse(d_lse))
        elif "d_lse" in tangents:
            given.append(torch.zeros_like(self.saved[1]))
        results = self.run(tuple(wrt), tangents, given)
        found = {self.places[n]: r for n, r in zip(wrt, results, strict=True)}
        return tuple(found.get(place) for place in range(len(wanted)))

    def of_lse(self, d_lse: Tensor) -> Tensor:
        """Return the cotangent of lse alone, without the cotangent of its rest."""
        return d_lse[:, 0] if self.rows.dim() > 3 else d_lse

    def jvp(self, tangents: Tangents) -> tuple[Tensor, Tensor]:
        t_out, t_lse = self.run((), self.tangents(tangents), [])
        if self.rows.dim() > 3:
            t_lse = torch.stack([t_lse, torch.zeros_like(t_lse)], 1)
        return t_out, t_lse

    def tangents(self, tangents: Tangents) -> dict[str, Tensor]:
        """Return the tangents that are not zero, by name in the IR."""
        found = ((name, tangents[place]) for name, place in self.places.items())
        return {name: tangent for name, tangent in found if tangent is not None}

    def run(
        self, wrt: tuple[str, ...], along: dict[str, Tensor], cotangents: list[Tensor]
    ) -> list[Tensor]:
        call = self.call
        moving = {n: self.placed(n, t) for n, t in along.items() if n not in READY}
        rest = len(self.saved) > 2, list(moving.values())
        asked = wrt, tuple(along), len(cotangents) > 1, *rest
        program = self.program(*asked)
        program.wait()
        if program.is_refused:
            program = self.program(*asked)
            program.wait()
        args = [call.query, call.key, call.value, call.scale, *self.captures]
        args += [*(() if call.tables is None else call.tables.tensors), *self.listed]
        args += [self.ready(t) for t in (*self.saved, *cotangents)]
        args += [moving[n] if n in moving else self.ready(t) for n, t in along.items()]
        batch, heads, q_len = call.query.shape[:3]
        sizes = Sizes(batch, heads, q_len, call.key.size(2))
        point = Point(sizes, call.deterministic, call.query, call.key)
        return program.run(args, point)

    def ready(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the layout that the IR's types require.

        The last stride is 1, rows are aligned and strides are small enough for tiles.
        The tensor is copied if needed.
        """
        moves = tensor.dim() == 4 and self.aligned and not is_aligned(tensor)
        if moves or tensor.stride(2) > MAX_TILE_STRIDE:
            return tensor.clone(memory_format=torch.contiguous_format)
        return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

    def placed(self, name: str, tangent: Tensor) -> Tensor:
        """Return a captured tensor's tangent, with strides that its type allows."""
        asks = self.captured[name].unit_stride and tangent.dim() > 0
        return tangent.contiguous() if asks and tangent.stride(-1) != 1 else tangent


READY = (*INPUTS, "d_out", "d_lse")
"""Names of tensors that are laid out as a query or its rows."""


KEYS_OF_PROGRAM = 128
"""The keys of a program, in most tiles."""

LEAST_WORK = 1 << 34
"""The multiplications of a product of all pairs below which programs end early anyway.

To fill sums with zeros, and to round them, takes the host longer than they run.
"""

LEAST_BUSY = 0.8
"""The share of the time in which a multiprocessor should run a program."""


def has_programs_of_heads(call: Attention, proved: Proved) -> bool:
    """Return True if gradients of keys that heads share have programs of each head.

    Programs that add to the query's gradient in a fixed order wait for each other, so
    they should be short.
    """
    return call.deterministic or has_few_programs(call.query, call.key, proved)


def has_few_programs(query: Tensor, key: Tensor, proved: Proved) -> bool:
    """Return True if too few programs own keys, and sums of all heads that read them.

    Programs of one query head are more and shorter. They add to sums in memory.
    """
    batch, heads, kv_len = key.shape[:3]
    if query.numel() * kv_len < LEAST_WORK:
        return False
    programs = batch * heads * -(-kv_len // KEYS_OF_PROGRAM)
    available = multiprocessors(query.device)
    ranges = proved.simple.key_ranges
    if ranges is not None and ranges.growth.data == "none":
        longest = -(-programs // available)  # All programs are equally long.
    else:
        # Causal masks and most tables: programs are half as long as the longest.
        longest = 2
    return programs < LEAST_BUSY * available * longest


def is_moderate(call: Attention, compiled: CompiledMods) -> bool:
    """Return True if a call's scores are proved to be bounded by its dot products.

    The result is False except for a GPU and 16-bit inputs, whose rounding error exceeds
    the error of dropping the rest of lse.
    """
    if not call.computed_by.for_gpu or call.query.element_size() > 2:
        return False
    captures = compiled.attention.arguments(call.signature.captures)
    key = tuple(map(next_power_of_2, call.sizes)), numbers_of(captures)

    def is_bounded() -> bool:
        return score_growth_is_bounded(attention_of(compiled.attention.module), *key)

    return _moderate.setdefault(compiled, Recent(MAX_KNOWN)).get(key, is_bounded)


def program_for(proved: Proved, derivative: Derivative, one_pass: OnePass) -> Program:
    """Return the program of a derivative, made once. Its kernels start to compile."""
    programs = _programs.setdefault(proved, {})
    key = (derivative, one_pass)
    if key not in programs:
        expanded = derivative_module(proved.module, derivative)
        expand(expanded, one_pass)
        roles = may_have_roles(proved, derivative.along)
        program = Program(expanded, compiler_for(proved.build, roles))
        program.start()
        programs[key] = program
    return programs[key]


def compiler_for(build: Build, roles: bool) -> Compile:
    """Return a function that compiles a derivative's kernel in the background.

    With `roles`, schedules with roles are tried for sums over pairs.
    """
    build = replace(build, tiles=NO_OPTIONS, derivative=True, program_rows=None)

    def compile(module: ModuleOp) -> Background[Kernel]:
        sums = (op for op in module.walk() if isinstance(op, flex.PairSumsOp))
        found = next((roles_of(op) for op in sums), "cannot") if roles else "cannot"
        return start_kernel(module, replace(build, roles=found))

    return compile


def roles_of(op: flex.PairSumsOp) -> Roles:
    """Return whether warps have roles: a schedule multiplies and adds matrices only."""
    kinds = {attr.sum_kind for attr in op.sums}
    if SumKind.COLUMN_MATRIX in kinds:
        return "must"
    is_plain = kinds == {SumKind.MATRIX} and len(op.products) <= 2
    return "may" if is_plain else "cannot"


def ways(call: Attention, proved: Proved, along: Sequence[str]) -> list[OnePass]:
    """Return which kernels may compute a derivative, the preferred ones first.

    A GPU needs a schedule with roles to add to sums by column, and registers that hold
    two sums of rows that are not wide. Tables may list blocks in any order, so programs
    cannot add to these sums in a fixed order.
    """
    build = proved.build
    if not build.for_gpu:
        return [target_named(build.target).one_pass]
    if build.call.widest > WIDE or (call.deterministic and call.tables is not None):
        return ["none"]
    return ["keys", "none"] if may_have_roles(proved, along) else ["none"]


def may_have_roles(proved: Proved, along: Sequence[str]) -> bool:
    """Return True if kernels of a derivative may have a schedule with roles.

    None has registers for indices that are computed for each pair, and to find that out
    takes a compiler up to half a minute.
    """
    build = replace(proved.build, tiles=NO_OPTIONS, derivative=True, roles="must")
    if along or not build.for_gpu or obstacle_to_roles(build) is not None:
        return False
    return not CaptureIndices(proved.simple.score_mod).are_computed_for_pairs()
