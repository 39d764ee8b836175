"""The contestants, and the ways to call them.

A system is a function from a problem to attention of (query, key, value). BlockMasks
are made before the calls, except by `torch-flex-planned`. flexc is given the mask
itself, but a BlockMask of documents; of `document-mask-mod` it plans each call.
SDPA has none of the mods: its call is causal where there is a mask or a mod, and says
what a call of torch's own costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

import flexc
from bench.host.cells import COMPILED, FORWARD, GRAPH, RECORDED, Problem

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
System = Callable[[Problem], Attention | None]
Call = Callable[[], object]

UNCAPTURED = 3
"""Calls before a graph is captured."""


def by_flexc(problem: Problem) -> Attention:
    score_mod, mask_mod = problem.mods
    mask: dict[str, Any] = {"mask_mod": mask_mod}
    if problem.cell.variant == "document":
        mask = {"block_mask": problem.block_mask(flexc.create_block_mask)}

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flexc.flex_attention(query, key, value, score_mod, **mask)

    return attend


def by_tables(problem: Problem) -> Attention:
    """flexc, given torch's BlockMask."""
    score_mod, made = problem.mods[0], problem.block_mask(torch_flex.create_block_mask)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flexc.flex_attention(query, key, value, score_mod, block_mask=made)

    return attend


def by_flexc_compile(problem: Problem) -> Attention | None:
    """A function of one's own that calls flexc, through `flexc.compile`."""
    if problem.cell.mode == COMPILED:
        return None
    return flexc.compile(by_flexc(problem))


def by_torch(problem: Problem) -> Attention:
    flex_attention: Any = torch_flex.flex_attention
    if problem.cell.mode != COMPILED:
        flex_attention = torch.compile(flex_attention, dynamic=False)
    score_mod, made = problem.mods[0], problem.block_mask(torch_flex.create_block_mask)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, score_mod, block_mask=made)

    return attend


def by_planning_torch(problem: Problem) -> Attention | None:
    """torch's flex attention, which makes its BlockMask at each call."""
    score_mod, mask_mod = problem.mods
    if mask_mod is None:
        return None
    flex_attention: Any = torch_flex.flex_attention
    make: Any = torch_flex.create_block_mask
    if problem.cell.mode != COMPILED:
        flex_attention = torch.compile(flex_attention, dynamic=False)
        make = torch.compile(make, dynamic=False)
    seq, device = problem.cell.shape.seq, problem.device

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        made = make(mask_mod, None, None, seq, seq, device=device)
        return flex_attention(query, key, value, score_mod, block_mask=made)

    return attend


def by_sdpa(problem: Problem) -> Attention:
    is_causal = problem.mods != (None, None)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal)

    return attend


SYSTEMS: dict[str, System] = {
    "flexc": by_flexc,
    "flexc-tables": by_tables,
    "flexc-compile": by_flexc_compile,
    "torch-flex": by_torch,
    "torch-flex-planned": by_planning_torch,
    "sdpa": by_sdpa,
}

DEFAULT = ("flexc", "torch-flex", "sdpa")


def call_of(problem: Problem, system: str) -> Call | None:
    """What is timed, run before: nothing of it is compiled later.

    None where a system is not to be called that way.
    """
    attend = SYSTEMS[system](problem)
    if attend is None:
        return None
    if problem.cell.mode == COMPILED:
        attend = torch.compile(attend, fullgraph=True, dynamic=False)
    call = call_in(problem, attend)
    for _ in range(UNCAPTURED):
        call()
    return captured(call) if problem.cell.mode == GRAPH else call


def call_in(problem: Problem, attend: Attention) -> Call:
    """Attention of a problem in the pass that is asked for."""
    inputs, d_out, kind = problem.inputs, problem.d_out, problem.cell.kind
    if kind in (FORWARD, RECORDED):
        return lambda: attend(*inputs)
    return lambda: torch.autograd.grad(attend(*inputs), inputs, d_out)


def captured(call: Call) -> Call:
    """Replays of a graph of a call."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        kept = call()

    def replay(kept: object = kept) -> object:
        graph.replay()
        return kept

    return replay
