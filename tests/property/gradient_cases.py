"""A generated call and a derivative of it: how it is asked for, and what is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.autograd.forward_ad as fw
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask

import flexc
from flexc.runtime.kernels import proofs
from tests.property.cases import Case, with_layout
from tests.property.mod_derivatives import ModPoints
from tests.support.block_tables import dense_blocks
from tests.support.dense_gradients import Results, attention
from tests.support.filled_memory import poisoned

INPUTS = ("query", "key", "value")


@dataclass(frozen=True, eq=False)
class GradientCase:
    """A call of attention that is differentiated."""

    case: Case
    tables: str
    """Which BlockMask a case that has blocks is given: torch's, one without tables of
    q, or without full blocks, or flexc's."""
    shared_keys: bool
    """Key and value have one batch, which all batches of the query read."""
    results: tuple[bool, bool]
    """Whether out, and whether lse, is differentiated."""
    wanted: int
    """Bits say which tensors require gradients."""
    layouts: tuple[str, str]
    """How the cotangent of out, or the tangents of the inputs, lie in memory."""
    tile: int | None
    deterministic: bool
    nan: bool
    """Whether cotangents of lse are NaN in rows that see nothing."""
    plans: bool
    """Whether blocks are planned, however short the call is."""

    def __repr__(self) -> str:
        facts = f"tables {self.tables}, shared keys {self.shared_keys}, "
        facts += f"out and lse {self.results}, of {', '.join(self.names)}, "
        facts += f"layouts {self.layouts}, tile {self.tile}, "
        facts += f"deterministic {self.deterministic}, plans {self.plans}, "
        facts += f"nan {self.nan}"
        return f"{facts}\n{self.case!r}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"\n{self!r}")

    @property
    def names(self) -> list[str]:
        """The tensors that require gradients: those of a mask never have one."""
        score = self.case.score_mod
        text = "" if score is None else score.text("score_mod")
        named = [*INPUTS, *(n for n in self.floats if n in text)]
        found = [n for i, n in enumerate(named) if self.wanted >> i & 1]
        return found or named[:1]

    @cached_property
    def floats(self) -> dict[str, Tensor]:
        """Captured tensors that have gradients, if anything reads them."""
        values = self.case.captured_values
        return {n: values[n] for n in self.case.tensors if is_float(values[n])}

    @cached_property
    def given(self) -> dict[str, Tensor]:
        """Query, key, value and captured tensors, as they lie in memory."""
        query, key, value = self.case.inputs
        if self.shared_keys:
            key, value = key[:1], value[:1]
        return {"query": query, "key": key, "value": value} | self.floats

    def random(self, like: Tensor, number: int) -> Tensor:
        """Normal numbers of a tensor's shape and type, always the same."""
        generator = torch.Generator().manual_seed(self.case.seed + 7 + number)
        values = torch.randn(like.shape, generator=generator, dtype=torch.float64)
        layout = self.layouts[number % 2] if like.dim() > 2 else "contiguous"
        values = values[:1] if layout == "expanded" else values
        return with_layout(values, like.shape, layout, like.dtype)

    @cached_property
    def cotangents(self) -> tuple[Tensor | None, Tensor | None]:
        """Of out and of lse."""
        out, lse = self.exact
        given = (out.to(self.case.dtype), lse.to(self.score_dtype))
        pairs = zip(given, self.results, strict=True)
        d_out, d_lse = (
            self.random(t, i) if r else None for i, (t, r) in enumerate(pairs)
        )
        return d_out, d_lse

    @property
    def given_cotangents(self) -> tuple[Tensor | None, Tensor | None]:
        """With NaN, if it is asked for, for lse in rows that see nothing: what torch
        makes of a loss in which `where` hides them."""
        d_out, d_lse = self.cotangents
        if self.nan and d_lse is not None:
            d_lse = d_lse.masked_fill(self.exact.lse == -torch.inf, torch.nan)
        return d_out, d_lse

    @cached_property
    def tangents(self) -> dict[str, Tensor]:
        return {n: self.random(self.given[n], i) for i, n in enumerate(self.names)}

    @property
    def has_floats32(self) -> bool:
        """Whether the mod computes with numbers of single precision, or of half."""
        types = {t.dtype for t in self.floats.values()}
        return bool(types - {torch.float64}) or "torch.float32" in self.case.source

    @property
    def score_dtype(self) -> torch.dtype:
        return torch.promote_types(self.case.dtype, torch.float32)

    # Exactly

    @cached_property
    def points(self) -> ModPoints:
        return ModPoints(self.case)

    @cached_property
    def leaves(self) -> dict[str, Tensor]:
        """All tensors in double precision."""
        given = {n: self.given[n].detach().double().requires_grad_() for n in INPUTS}
        return given | self.points.leaves

    @cached_property
    def exact(self) -> Results:
        """Out and lse, as autograd recorded them."""
        query, key, value = (self.leaves[n] for n in INPUTS)
        score_mod, mask_mod = self.points.mods
        return attention(query, key, value, score_mod, mask_mod, scale=self.case.scale)

    # By flexc

    @property
    def block_mask(self) -> BlockMask | None:
        torchs = self.case.block_mask
        if torchs is None or self.tables == "torch":
            return torchs
        s = self.case.sizes
        _, mask = self.case.given_mods
        assert mask is not None
        if self.tables == "flexc":
            sizes = s.batch, s.heads, s.q_len, s.kv_len
            device, block_size = self.case.device, torchs.BLOCK_SIZE
            return flexc.create_block_mask(mask, *sizes, device, block_size)
        partial = torchs.kv_num_blocks, torchs.kv_indices
        full = torchs.full_kv_num_blocks, torchs.full_kv_indices
        if self.tables == "partial":
            live, _ = dense_blocks(torchs)
            order = live.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
            partial, full = (live.sum(-1).int(), order.int()), (None, None)
        return BlockMask.from_kv_blocks(
            *partial,
            *full,
            BLOCK_SIZE=torchs.BLOCK_SIZE,
            mask_mod=mask,
            seq_lengths=(s.q_len, s.kv_len),
            compute_q_blocks=self.tables == "partial",
        )

    def require_gradients(self) -> dict[str, Tensor]:
        """The tensors as leaves, in the same memory, and mods that read them."""
        leaves = {n: t.detach() for n, t in self.given.items()}
        return {n: t.requires_grad_(n in self.names) for n, t in leaves.items()}

    def run(self, leaves: dict[str, Tensor], backend: str) -> tuple[Tensor, Tensor]:
        """Out and lse of flexc for some tensors in place of the case's."""
        query, key, value = (leaves[n] for n in INPUTS)
        case = self.case
        captured = {n: v for n, v in leaves.items() if n not in INPUTS}
        score_mod, mask_mod = case.mods(
            lambda index, size: index, case.captured_values | captured
        )
        options: dict[str, Any] = {"deterministic": self.deterministic}
        block_mask = self.block_mask
        if block_mask is None and self.tile is not None:
            options |= {"BLOCK_M": self.tile, "BLOCK_N": self.tile}
        result: Any = flexc.flex_attention(
            query,
            key,
            value,
            score_mod,
            block_mask=block_mask,
            mask_mod=None if block_mask is not None else mask_mod,
            scale=case.scale,
            enable_gqa=True,
            kernel_options=options,
            return_aux=AuxRequest(lse=True),
            backend=backend,
        )
        out, aux = result
        return out, aux.lse

    def gradients(self, backend: str) -> dict[str, Tensor]:
        """Gradients by flexc, in memory that shows what was not written."""
        leaves = self.require_gradients()
        with self.surroundings():
            results = self.run(leaves, backend)
            found = gradients_of(results, self.given_cotangents, self.of(leaves))
        return dict(zip(self.names, found, strict=True))

    def jvp(self, backend: str) -> tuple[Tensor, Tensor]:
        """The tangents of out and lse by flexc; none where nothing moves."""
        # Torch makes no dual tensor whose elements share memory.
        given = {
            n: t.detach() if 0 not in t.stride() else t.detach().clone()
            for n, t in self.given.items()
        }
        with self.surroundings(), fw.dual_level(), torch.no_grad():
            duals = {n: fw.make_dual(given[n], t) for n, t in self.tangents.items()}
            results = self.run(given | duals, backend)
            found = [(r, fw.unpack_dual(r).tangent) for r in results]
        out, lse = (torch.zeros_like(r) if t is None else t for r, t in found)
        return out, lse

    def second(self, run: Run, leaves: dict[str, Tensor]) -> list[Tensor]:
        """Derivatives of the gradients' product with the tangents.

        They are those by the cotangents, and by all that varies.
        """
        results = run(leaves)
        cotangents = [
            None if c is None else c.detach().to(r.dtype).requires_grad_()
            for c, r in zip(self.cotangents, results, strict=True)
        ]
        varying = self.of(leaves)
        first = gradients_of(results, cotangents, varying, create_graph=True)
        products = [
            (g * self.tangents[n].to(g.dtype)).sum()
            for n, g in zip(self.names, first, strict=True)
        ]
        total = torch.stack(products).sum()
        inputs = [*(c for c in cotangents if c is not None), *varying]
        if not total.requires_grad:
            return [torch.zeros_like(t) for t in inputs]
        return list(
            torch.autograd.grad(
                total, inputs, allow_unused=True, materialize_grads=True
            )
        )

    def second_by_flexc(self, backend: str) -> list[Tensor]:
        with self.surroundings():
            return self.second(
                lambda leaves: self.run(leaves, backend), self.require_gradients()
            )

    def exact_second(self) -> list[Tensor]:
        return self.second(lambda leaves: self.exact, self.leaves)

    def of(self, leaves: dict[str, Tensor]) -> list[Tensor]:
        return [leaves[n] for n in self.names]

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Memory that shows what was not written, and blocks planned or not."""
        before = proofs.MIN_PLANNED_PAIRS
        proofs.MIN_PLANNED_PAIRS = 1 if self.plans else before
        try:
            with poisoned():
                yield
        finally:
            proofs.MIN_PLANNED_PAIRS = before


Run = Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]]


def gradients_of(
    results: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Gradients along those cotangents that there are."""
    chosen = [p for p in zip(results, cotangents, strict=True) if p[1] is not None]
    outputs, along = zip(*chosen, strict=True)
    return torch.autograd.grad(
        outputs,
        inputs,
        along,
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
