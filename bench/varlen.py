"""Packed sequences: `flex_attention_varlen` beside what computes the same.

    python -m bench.varlen [--documents 12 200] [--peers]

Documents of random lengths in 32,768 tokens, causal within each: flexc's varlen, flexc
and torch flex with a BlockMask of documents, and FA4's varlen. Documents of equal
lengths also beside a batch of that length. TFLOP/s over live pairs, calls back to back.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flexc
from bench.timing import interleaved_loop_medians

TOKENS, HEADS, DIM = 32768, 16, 128
EQUAL = 16
"""Documents of equal lengths."""

System = Callable[..., Tensor]
"""From query, key and value, (tokens, heads, dim), and `cu_seqlens` to the output."""


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


def by_varlen(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
    found: Any = flexc.flex_attention_varlen(q, k, v, cu, mask_mod=causal)
    return found


def by_document(
    attend: Callable[..., Any], create: Callable[..., Any]
) -> Callable[..., Tensor]:
    @cache
    def mask_of(cu: Tensor) -> Any:
        numbers = torch.arange(len(cu) - 1, device=cu.device)
        document = numbers.repeat_interleave(cu.diff().long())

        def same(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

        return create(same, None, None, TOKENS, TOKENS, device="cuda")

    def run(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
        heads: Any = (t.transpose(0, 1)[None] for t in (q, k, v))
        return attend(*heads, block_mask=mask_of(cu)).squeeze(0).transpose(0, 1)

    return run


def by_batch(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
    n = len(cu) - 1
    batches: Any = (t.unflatten(0, (n, -1)).transpose(1, 2) for t in (q, k, v))
    out: Any = flexc.flex_attention(*batches, mask_mod=causal)
    return out.transpose(1, 2).flatten(0, 1)


def by_fa4(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
    from flash_attn.cute import flash_attn_varlen_func  # pyright: ignore

    longest = int(cu.diff().max()) if cu not in _longest else _longest[cu]
    _longest[cu] = longest
    out: Any = flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest,
        max_seqlen_k=longest, causal=True,
    )  # fmt: skip
    return out[0] if isinstance(out, tuple) else out


_longest: dict[Tensor, int] = {}


def systems(peers: bool, equal: bool) -> Iterator[tuple[str, System]]:
    yield "varlen", by_varlen
    if equal:
        yield "batch", by_batch
    yield "flexc BlockMask", by_document(flexc.flex_attention, flexc.create_block_mask)
    if peers:
        torch_flex = torch.compile(flex_attention)
        yield "torch flex", by_document(torch_flex, create_block_mask)
        yield "FA4 varlen", by_fa4


def lengths_of(count: int, equal: bool) -> list[int]:
    """Lengths of documents, of which the shortest are a few tokens."""
    if equal:
        return [TOKENS // count] * count
    generator = torch.Generator().manual_seed(count)
    cuts = torch.randperm(TOKENS - 1, generator=generator)[: count - 1] + 1
    ends = [0, *sorted(cuts.tolist()), TOKENS]
    return [b - a for a, b in pairwise(ends)]


def measure(count: int, equal: bool, peers: bool, budget: float) -> None:
    lengths = lengths_of(count, equal)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32).cuda()
    shape = (TOKENS, HEADS, DIM)
    q, k, v, d_out = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    flops = 4 * DIM * HEADS * sum(n * (n + 1) // 2 for n in lengths)
    forward: dict[str, Any] = {}
    backward: dict[str, Any] = {}
    exact: list[Tensor] = []
    for name, attend in systems(peers, equal):
        inputs: Any = [t.clone().requires_grad_() for t in (q, k, v)]
        found: list[Tensor] = []
        try:
            for _ in range(3):
                out = attend(*inputs, cu)
                found = [out, *torch.autograd.grad(out, inputs, d_out)]
        except Exception as error:
            print(f"  {name} left out: {type(error).__name__}: {str(error)[:300]}")
            continue
        exact = exact or found
        pairs = zip(found, exact, strict=True)
        worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        print(f"  {name}: {worst:.1e} from varlen", flush=True)
        out = attend(*inputs, cu)

        def step(out: Tensor = out, inputs: Any = inputs) -> object:
            return torch.autograd.grad(out, inputs, d_out, retain_graph=True)

        plain = [t.detach() for t in inputs]
        forward[name] = lambda f=attend, x=plain: f(*x, cu)
        backward[name] = step
    kind = "equal" if equal else "random"
    for what, runs, factor in (("forward", forward, 1.0), ("backward", backward, 2.5)):
        times = interleaved_loop_medians(runs, "cuda", budget=budget)
        row = ", ".join(
            f"{name} {flops * factor / t / 1e12:.0f} ({t * 1e6:.0f} us)"
            for name, t in times.items()
        )
        print(f"{count} {kind} documents, {what}: {row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, nargs="*", default=[12, 200])
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--budget", type=float, default=2.0)
    given = parser.parse_args()
    functorch_config.donated_buffer = False  # Backwards are timed alone.
    for count in given.documents:
        measure(count, False, given.peers, given.budget)
    measure(EQUAL, True, given.peers, given.budget)


if __name__ == "__main__":
    main()
