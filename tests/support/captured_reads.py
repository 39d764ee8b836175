"""Reads of captured tensors: imported from Python, and looked at pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from xdsl.context import Context

from flexc.dialects import flex
from flexc.dialects.flex import Coordinates
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes import pipelines
from flexc.passes.scalar.captured_reads import (
    CapturedRead,
    CaptureIndices,
)
from flexc.passes.scalar.copier import sliced
from flexc.runtime.autograd.captured_places import Chunk, Sizes
from flexc.runtime.interpreters import run_region
from flexc.runtime.kernels.proofs import attention_of

Mod = Callable[..., Any]

LENGTH = 1 << 20


@dataclass(frozen=True)
class Reads:
    """The captured reads of a score mod."""

    op: flex.AttentionOp
    indices: CaptureIndices
    captures: list[Any]

    @classmethod
    def of(cls, score_mod: Mod, simplified: bool = True, length: int = LENGTH) -> Reads:
        """Import a mod, and bring it to its simplest form if asked to."""
        signature = read_mods(score_mod, None)
        mods = capture_mods(signature)
        call = AttentionCall(torch.float32, 16, 16, max_length=length)
        built = build_attention_module(mods.score, None, call)
        if simplified:
            pipelines.run(pipelines.to_simple_flex(), Context(), built.module)
        built.module.verify()
        op = attention_of(built.module)
        captures = built.arguments(signature.captures)
        return cls(op, CaptureIndices(op.score_mod, length), captures)

    def loads(self, tensor: Tensor) -> list[flex.LoadCaptureOp]:
        """The reads of one tensor."""
        place = [c is tensor for c in self.captures].index(True)
        arg = self.op.score_mod.block.args[5 + place]
        return [load for load in self.indices.loads() if load.tensor is arg]

    def read(self, tensor: Tensor) -> CapturedRead:
        """The only read of a tensor."""
        (load,) = self.loads(tensor)
        return self.indices.read(load)

    def evaluate(self, load: flex.LoadCaptureOp, sizes: Sizes) -> list[Tensor]:
        """A read's indices at all pairs: (B, Hq, Sq, Skv) each, as int64."""
        region = sliced(self.op.score_mod, load.indices)
        shape = (sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)
        at = torch.meshgrid(
            *(torch.arange(n, dtype=torch.int32) for n in shape), indexing="ij"
        )
        found = run_region(region, [*at, *self.captures])
        return [index.to(torch.int64).expand(shape) for index in found]


def dense_gradient(tensor: Tensor, indices: list[Tensor], adjoints: Tensor) -> Tensor:
    """Adjoints of all pairs added where they read, nothing out of range."""
    gradient = torch.zeros(tensor.shape, dtype=torch.float64)
    inside = torch.ones(adjoints.shape, dtype=torch.bool)
    for index, size in zip(indices, tensor.shape, strict=True):
        inside &= (index >= 0) & (index < size)
    places = tuple(index[inside] for index in indices)
    if not indices:
        return adjoints.double().sum()
    return gradient.index_put_(places, adjoints[inside].double(), accumulate=True)


def summed(kind: Coordinates, adjoints: Tensor) -> Tensor:
    """What a kernel makes of the adjoints of all pairs, (B, Hq, Sq, Skv)."""
    match kind:
        case Coordinates.HEAD:
            return adjoints.sum((2, 3))
        case Coordinates.ROW:
            return adjoints.sum(3)
        case Coordinates.COLUMN:
            return adjoints.sum(2)
        case Coordinates.DISTANCE:
            return diagonals(adjoints)
        case _:
            return adjoints


def diagonals(adjoints: Tensor) -> Tensor:
    """Entry d + Skv - 1 is the sum over pairs of q - kv = d."""
    q_len, kv_len = adjoints.shape[2:]
    found = adjoints.new_zeros((*adjoints.shape[:2], q_len + kv_len - 1))
    distance = torch.arange(q_len)[:, None] - torch.arange(kv_len) + kv_len - 1
    return found.index_add_(2, distance.flatten(), adjoints.flatten(2))


def of_chunk(adjoints: Tensor, chunk: Chunk) -> Tensor:
    """The adjoints of a chunk's pairs."""
    b, h, q = (slice(r.start, r.stop) for r in (chunk.batch, chunk.heads, chunk.rows))
    return adjoints[b, h, q]


def is_constant(kind: Coordinates, index: Tensor) -> bool:
    """Whether an index is the same along all that its class is summed over."""
    match kind:
        case Coordinates.HEAD:
            return bool((index == index[:, :, :1, :1]).all())
        case Coordinates.ROW:
            return bool((index == index[:, :, :, :1]).all())
        case Coordinates.COLUMN:
            return bool((index == index[:, :, :1]).all())
        case Coordinates.DISTANCE:
            return bool((index[:, :, 1:, 1:] == index[:, :, :-1, :-1]).all())
        case _:
            return True
