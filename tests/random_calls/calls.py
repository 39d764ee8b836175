"""One random call: how it is made, and what its results are held to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask

import flexc
from tests.property import gradient_tolerance, tolerance
from tests.property.cases import Case, Mods
from tests.property.gradient_cases import (
    INPUTS,
    GradientCase,
    gradients_of,
    is_float,
)
from tests.random_calls.forms import Held
from tests.support.block_tables import dense_blocks


def attend(query: Tensor, key: Tensor, value: Tensor, *args: Any, **given: Any) -> Any:
    return flexc.flex_attention(query, key, value, *args, **given)


COMPILED = flexc.compile(attend)


@dataclass(frozen=True)
class Found:
    """What a call returned."""

    out: Tensor
    lse: Tensor | None
    max_scores: Tensor | None
    gradients: dict[str, Tensor]


@dataclass(frozen=True, repr=False, eq=False)
class Stale(Case):
    """A call whose BlockMask was made before what its mask reads has changed.

    Attention visits the blocks that are listed, and masks those that are not full.
    """

    before: Case | None = None

    @cached_property
    def block_mask(self) -> BlockMask | None:
        assert self.before is not None
        return self.before.block_mask

    def mods(self, live: Any, captured: Any = None) -> Mods:
        score_mod, mask_mod = super().mods(live, captured)
        assert mask_mod is not None
        assert self.block_mask is not None
        rows, columns = self.block_mask.BLOCK_SIZE
        blocks = dense_blocks(self.block_mask)

        def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            visited, full = (t[b, h, q_idx // rows, kv_idx // columns] for t in blocks)
            return visited & (full | mask_mod(b, h, q_idx, kv_idx))

        return score_mod, mask


@dataclass(frozen=True, eq=False, kw_only=True)
class Call(GradientCase):
    """One call of a family, whose mods may have been called before."""

    held: Held
    mode: str
    """"backward", "no grad", or "plain" for neither."""
    through: str
    """"flexc", "compile" for a compiled function that calls it, or "eager"."""
    lse: bool
    max_scores: bool
    in_place: bool
    """Write to tensors that the mods have, where they fit."""

    def __repr__(self) -> str:
        names = "mode", "through", "lse", "max_scores", "in_place"
        facts = ", ".join(f"{n} {getattr(self, n)}" for n in names)
        facts += f", changed {isinstance(self.case, Stale)}"
        held = f"{self.held.form}:\n{self.held.source}"
        return f"{facts}\n{super().__repr__()}\nmods as {held}"

    @property
    def names(self) -> list[str]:
        """What requires gradients; torch adds those of half precision up in it."""
        found = super().names
        if self.through != "eager":
            return found
        captured = {n: spec.dtype for n, spec in self.case.tensors.items()}
        half = gradient_tolerance.HALF
        return [n for n in found if captured.get(n) not in half] or ["query"]

    def changed(self) -> Call:
        """Called twice, with other values in captured tensors; the first is `before`.

        A BlockMask of torch's is the one of the first call.
        """
        case = Stale(**fields_of(self.case), before=other(self.case))
        return replace(self, case=case)

    def make(self, backend: str) -> Found:
        """What flexc returns, at the second call if there are two."""
        if isinstance(self.case, Stale):
            assert self.case.before is not None
            replace(self, case=self.case.before, mode="no grad").call(backend)
        return self.call(backend)

    def call(self, backend: str) -> Found:
        leaves = self.hold()
        with self.surroundings(), GRAD_MODES[self.mode]():
            out, lse, max_scores = self.attend(leaves, backend)
            gradients: dict[str, Tensor] = {}
            if self.mode == "backward":
                assert lse is not None
                results, along = (out, lse), self.given_cotangents
                found = gradients_of(results, along, self.of(leaves))
                gradients = dict(zip(self.names, found, strict=True))
        return Found(out.detach(), lse, max_scores, gradients)

    def attend(self, leaves: dict[str, Tensor], backend: str) -> Any:
        """Out, lse and maxima; what is not asked for is None."""
        block_mask = self.block_mask
        score_mod, mask_mod = self.held.mods
        options: dict[str, Any] = {"deterministic": self.deterministic}
        given: dict[str, Any] = {"mask_mod": mask_mod}
        if block_mask is not None:
            assert mask_mod is not None
            block_mask.mask_mod = mask_mod
            given = {"block_mask": block_mask}
        elif self.tile is not None:
            options |= {"BLOCK_M": self.tile, "BLOCK_N": self.tile}
        plain = self.lse and not self.max_scores
        aux = None if plain else AuxRequest(lse=self.lse, max_scores=self.max_scores)
        result: Any = (COMPILED if self.through == "compile" else attend)(
            *(leaves[n] for n in INPUTS),
            score_mod,
            scale=self.case.scale,
            enable_gqa=True,
            return_lse=plain,
            return_aux=aux,
            kernel_options=options,
            backend="eager" if self.through == "eager" else backend,
            **given,
        )
        out, found = result
        return (out, found, None) if plain else (out, found.lse, found.max_scores)

    def hold(self) -> dict[str, Tensor]:
        """Have the mods read what the case captures; the tensors, as leaves."""
        case, held = self.case, self.held
        if self.shared_keys:
            query, key, value = case.inputs
            vars(case)["inputs"] = (query, key[:1], value[:1])
        values = {n: self.put(n, v) for n, v in case.captured_values.items()}
        held.put(values)
        vars(case)["given_mods"] = held.mods
        floats = {n: v for n, v in values.items() if is_float(v)}
        inputs = zip(INPUTS, (t.detach() for t in case.inputs), strict=True)
        leaves = dict(inputs) | floats
        for name, leaf in leaves.items():
            wanted = self.mode == "backward" and name in self.names
            leaf.requires_grad_(wanted)
        return leaves

    def put(self, name: str, value: Any) -> Any:
        """What mods read for a value: what they have, if it can be written to."""
        if not isinstance(value, Tensor):
            return value
        kept = self.held.values.get(name)
        if self.in_place and isinstance(kept, Tensor) and fits(kept, value):
            with torch.no_grad():
                return kept.copy_(value)
        if self.held.parameters and is_float(value):
            return torch.nn.Parameter(value.detach(), requires_grad=False)
        return value.detach()

    def check(self, found: Found) -> None:
        """Hold what flexc returned to dense attention in double precision."""
        case = self.case
        assert found.out.dtype == case.dtype
        assert found.out.shape == case.expected.out.shape
        assert (found.lse is not None) == self.lse
        assert (found.max_scores is not None) == self.max_scores
        lse = None if found.lse is None else found.lse.detach()
        tolerance.check(case, found.out, lse, found.max_scores)
        if found.gradients:
            bounds = gradient_tolerance.Bounds(self).gradients()
            gradient_tolerance.check("gradient", found.gradients, bounds)


GRAD_MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "backward": nullcontext,
    "plain": nullcontext,
    "no grad": torch.no_grad,
}


def fields_of(case: Case) -> dict[str, Any]:
    return {f.name: getattr(case, f.name) for f in fields(case)}


def other(case: Case) -> Case:
    """With other values in tensors of the same sizes."""
    return replace(case, seed=case.seed ^ 1)


def fits(kept: Tensor, value: Tensor) -> bool:
    """Whether a tensor can be written to, in place of one that is made."""
    like = kept.dtype == value.dtype and kept.shape == value.shape
    return like and 0 not in kept.stride()
