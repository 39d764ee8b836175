"""Backward: the gradients alone, of inputs and of captured tensors that are learned.

What is timed is `torch.autograd.grad(out, inputs, d_out, retain_graph=True)` of an
output that was computed before; what is counted, 2.5 times the forward's products.
Errors are of a smaller problem, relative to the largest element of each gradient,
against dense attention in float64; the input whose error is worst beside torch's is
shown. torch's may be absent (on a CPU, say): then unfused attention is beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

import flexc
from bench.gpu_table import Result, Run, Setup, Table
from bench.learned import Learned
from bench.variants import Anchor
from tests.corpus import Mods
from tests.reference import attention, visible_pairs

OWN = ("flexc", "mask_mod")

TABLE = Table((*OWN, "torch", "cudnn"), "torch's")

INPUTS = ("query", "key", "value", "captured")

SMALL_HEADS, SMALL_SEQ = 2, 1024
"""Of the problem that errors are measured on."""

Forwards = dict[str, Callable[[], Tensor]]


@dataclass(frozen=True)
class Problem:
    """What gradients are taken of."""

    inputs: tuple[Tensor, ...]
    """Query, key, value, and what is learned."""
    d_out: Tensor
    mods_of: Callable[..., Mods]
    """The mods of what is learned."""
    sdpa: dict[str, Any] | None
    """Arguments with which torch's SDPA computes the same, if it can."""

    @classmethod
    def of(cls, variant: Anchor | Learned, setup: Setup) -> Problem:
        given, d_out = setup.inputs(), setup.draw()
        lengths, where = (setup.heads, setup.seq), (setup.dtype, setup.device)
        if isinstance(variant, Learned):
            learned = variant.draw(*lengths, *where)
            return cls(leaves(*given, learned), d_out, variant.mods, None)
        mods = variant.build(setup.batch, *lengths, *where)
        return cls(leaves(*given), d_out, lambda: mods, variant.sdpa)

    @property
    def mods(self) -> Mods:
        return self.mods_of(*self.inputs[3:])

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, *_ = self.inputs
        return query, key, value

    @property
    def lengths(self) -> tuple[int, int]:
        return self.inputs[0].size(2), self.inputs[1].size(2)

    def gradients(self, out: Tensor) -> tuple[Tensor, ...]:
        """What is timed."""
        d_out = self.d_out.to(out.dtype)
        return torch.autograd.grad(out, self.inputs, d_out, retain_graph=True)

    def exact(self) -> tuple[Tensor, ...]:
        """The gradients of dense attention in float64."""
        wide = replace(self, inputs=leaves(*(t.double() for t in self.inputs)))
        return wide.gradients(attention(*wide.qkv, *wide.mods).out)

    def unfused(self) -> tuple[Tensor, ...]:
        """Those of dense attention with products of the inputs' precision."""
        out = attention(*self.qkv, *self.mods, precision=self.d_out.dtype).out
        return self.gradients(out)


def leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The values of tensors, of which gradients are taken."""
    return tuple(t.detach().requires_grad_() for t in tensors)


def forwards(problem: Problem) -> Forwards:
    """Attention by each contestant."""
    (query, key, value), (score_mod, mask_mod) = problem.qkv, problem.mods
    given: dict[str, Any] = {"device": query.device.type}
    torch_mask = mask_mod and torch_flex.create_block_mask(
        mask_mod, None, None, *problem.lengths, **given
    )
    own_mask = mask_mod and flexc.create_block_mask(
        mask_mod, None, None, *problem.lengths, **given
    )
    compiled: Any = torch.compile(torch_flex.flex_attention, dynamic=False)

    def by_flexc(**mask: Any) -> Tensor:
        out: Any = flexc.flex_attention(query, key, value, score_mod=score_mod, **mask)
        return out

    def by_cudnn() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            arguments = problem.sdpa or {}
            return scaled_dot_product_attention(query, key, value, **arguments)

    found: Forwards = {"flexc": lambda: by_flexc(block_mask=own_mask)}
    if mask_mod is not None:
        found["mask_mod"] = lambda: by_flexc(mask_mod=mask_mod)
    found["torch"] = lambda: compiled(
        query, key, value, score_mod=score_mod, block_mask=torch_mask
    )
    if problem.sdpa is not None and query.size(3) <= 256:
        found["cudnn"] = by_cudnn
    return found


def runs_of(problem: Problem) -> tuple[dict[str, Run], str]:
    """The backward of each contestant that has one, run once; why others have none."""
    runs: dict[str, Run] = {}
    failures: list[str] = []
    for name, forward in forwards(problem).items():
        try:
            # Else torch drops what a second backward would need.
            with functorch_config.patch(donated_buffer=False):
                out = forward()
                problem.gradients(out)
        except Exception as error:  # the others' limits are part of the result
            if name in OWN:
                raise
            reason = (str(error).strip() or "?").splitlines()[0]
            failures.append(f"\n  {name}: {type(error).__name__}: {reason[:160]}")
        else:
            runs[name] = lambda out=out: problem.gradients(out)
    return runs, "".join(failures)


def errors(problem: Problem) -> dict[str, tuple[float, float]]:
    """For each input the relative errors of its gradient: flexc's and torch's."""
    runs, _ = runs_of(problem)
    exact = problem.exact()
    found = [errors_of(runs[name](), exact) for name in OWN if name in runs]
    own = [max(of_input) for of_input in zip(*found, strict=True)]
    peer = errors_of(runs["torch"]() if "torch" in runs else problem.unfused(), exact)
    pairs = zip(own, peer, strict=True)
    return dict(zip(INPUTS, pairs, strict=False))


def errors_of(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """The largest error of each, relative to the largest element."""
    pairs = zip(found, exact, strict=True)
    return [((f - e).abs().max() / e.abs().max()).item() for f, e in pairs]


def worst_error(problem: Problem) -> tuple[str, float, float]:
    """The input whose error is largest beside torch's, and both."""
    found = errors(problem)
    name = max(found, key=lambda n: found[n][0] / max(found[n][1], 1e-12))
    return name, *found[name]


def measure(variant: Anchor | Learned, setup: Setup) -> Result:
    """Check one variant, then let all take turns."""
    torch._dynamo.reset()
    small = replace(setup, heads=SMALL_HEADS, seq=min(setup.seq, SMALL_SEQ))
    name, error, peer = worst_error(Problem.of(variant, small))
    problem = Problem.of(variant, setup)
    runs, failures = runs_of(problem)
    medians = setup.medians(runs)
    pairs = visible_pairs(problem.mods[1], 0, *problem.lengths, setup.device)
    flops = 10 * setup.batch * setup.heads * setup.head_dim * pairs
    return Result(
        variant.name,
        {name: flops / seconds / 1e12 for name, seconds in medians.items()},
        error,
        peer,
        slack=torch.finfo(setup.dtype).eps / 4,
        note=f"  {name}{failures}",
    )
