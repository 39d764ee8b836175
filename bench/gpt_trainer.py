"""A GPT in training, by one system; as a whole it may be a CUDA graph."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from bench.gpt import GPT, Batch
from bench.gpt_systems import SYSTEMS
from bench.timing import wait

PLAIN, TREES, WHOLE = "off", "trees", "whole"
"""CUDA graphs: none, those of `mode="reduce-overhead"`, and one of a whole step."""

TABLES = tuple(
    f"{full}{rows}_{what}"
    for full in ("", "full_")
    for rows in ("kv", "q")
    for what in ("num_blocks", "indices")
)
"""The tensors of a BlockMask."""


@dataclass
class Trainer:
    """A system's model in training."""

    name: str
    options: argparse.Namespace
    batches: list[Batch]
    """With this system's BlockMasks."""
    losses: list[Tensor] = field(default_factory=list[Tensor])
    wall: list[float] = field(default_factory=list[float])
    host: list[float] = field(default_factory=list[float])
    """Seconds of a step: until the device was done, and until the host was."""

    def __post_init__(self) -> None:
        options, whole = self.options, self.options.cuda_graphs == WHOLE
        torch.manual_seed(0)
        model = GPT(options.sizes, SYSTEMS[self.name].attend).to(options.device)
        self.model = model.bfloat16() if options.precision == "bf16" else model
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True, capturable=whole
        )
        autocast = torch.autocast(options.device, torch.bfloat16)
        self.cast = autocast if options.precision == "autocast" else nullcontext()
        self.loss_of: Callable[..., Tensor] = torch.compile(
            with_own_code(loss, self.name),
            backend=options.backend,
            mode="reduce-overhead" if options.cuda_graphs == TREES else None,
            dynamic=False,
            fullgraph=True,
        )
        self.graph = WholeStep(self) if whole else None
        self.count = 0

    def step(self) -> None:
        """Learn from the next batch."""
        batch = self.batches[self.count % len(self.batches)]
        self.count += 1
        if self.options.plan:
            batch.block_mask = SYSTEMS[self.name].block_mask(batch, compiled=True)
        learn = self.learn if self.graph is None else self.graph.learn
        self.losses.append(learn(batch).clone())

    def learn(self, batch: Batch) -> Tensor:
        """Forward, backward, optimizer; the loss before."""
        torch.compiler.cudagraph_mark_step_begin()
        with self.cast:
            loss = self.loss_of(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def turn(self, steps: int) -> None:
        """So many steps, timed until the device has done them all."""
        wait(self.options.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        queued = time.perf_counter()
        wait(self.options.device)
        self.host.append((queued - start) / steps)
        self.wall.append((time.perf_counter() - start) / steps)


def loss(model: GPT, batch: Batch) -> Tensor:
    """What is compiled."""
    return model(batch.tokens, batch.following, batch.documents, batch.block_mask)


def with_own_code(function: Any, name: str) -> Any:
    """Another function with the same code: Dynamo keeps what it compiled by code, and
    would look through all systems' at each step."""
    code = function.__code__.replace(co_name=f"loss_{name}".replace("-", "_"))
    return FunctionType(code, function.__globals__, code.co_name)


class WholeStep:
    """A trainer's step as one CUDA graph, captured after a few that are not."""

    UNCAPTURED = 3

    def __init__(self, trainer: Trainer):
        self.trainer, self.steps = trainer, 0
        first = trainer.batches[0]
        self.batch = first.to(trainer.options.device, copy=True)
        self.batch.block_mask = SYSTEMS[trainer.name].block_mask(self.batch)
        self.graph, self.stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def learn(self, batch: Batch) -> Tensor:
        """What `Trainer.learn` does, of a copy of the batch."""
        self.load(batch)
        self.steps += 1
        if self.steps <= self.UNCAPTURED:
            return self.aside()
        if self.steps == self.UNCAPTURED + 1:
            with torch.cuda.graph(self.graph):
                self.loss = self.trainer.learn(self.batch)
        self.graph.replay()
        return self.loss

    def aside(self) -> Tensor:
        """Not on the default stream, which no graph can be captured of."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = self.trainer.learn(self.batch)
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def load(self, batch: Batch) -> None:
        """Copy a batch to the tensors that the graph reads."""
        own, mask, given = self.batch, self.batch.block_mask, batch.block_mask
        tables = TABLES if mask is not None else ()
        pairs = [(getattr(mask, name), getattr(given, name)) for name in tables]
        tokens = (own.tokens, batch.tokens), (own.following, batch.following)
        for to, source in (*tokens, (own.documents, batch.documents), *pairs):
            if to is not None:
                to.copy_(source)
