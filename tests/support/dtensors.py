"""Attention of DTensors, and in parallel modules, on ranks in their own processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.attention.flex_attention import flex_attention as torch_flex
from torch.nn.parallel import DistributedDataParallel

import flexc
from tests.support.context_parallel import exact

DIM = 8
LARGEST_SCORE = 64
"""A bound of the scores here, biases included."""


@dataclass(frozen=True)
class Call:
    """A call whose tensors are placed on a mesh."""

    sizes: tuple[int, int, int, int]
    """Batch, heads, key heads, length."""
    query: tuple[Placement, ...]
    key: tuple[Placement, ...]
    mask: str | None = "causal"
    bias: tuple[Placement, ...] | None = None
    """The placements of the captured bias. None for a plain tensor."""
    backend: str | None = None
    """The backend of torch.compile, None for an eager call. "flexc" gets torch's own
    attention.
    """
    second: bool = False
    """True if second derivatives are compared, too."""


def masks(length: int) -> dict[str | None, Any]:
    lengths = torch.tensor([length, length // 2, 5])
    document = torch.arange(length) // 7

    def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q >= k

    def padded(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k < lengths[b]) & (document[q] == document[k])

    def by_head(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q - k <= 4 * h + b) & (q >= k)

    return {None: None, "causal": causal, "padded": padded, "by head": by_head}


def results(call: Call, tensors: Sequence[Any], along: Sequence[Any]) -> list[Tensor]:
    """Return the results of a call and its gradients, second ones if asked for."""
    length = call.sizes[3]
    *inputs, bias = tensors
    mask, block_mask = masks(length).get(call.mask), None
    if call.mask == "blocks":
        sizes = (*call.sizes[:2], length, length)
        mask_mod, device = masks(length)["by head"], torch.get_default_device()
        least = 16 if device.type == "cuda" else 8
        block_mask = flexc.create_block_mask(mask_mod, *sizes, device, BLOCK_SIZE=least)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + bias[h, q - k + length] * (b + 1)

    options: dict[str, Any] = {"enable_gqa": True, "return_lse": True}
    if not isinstance(inputs[0], DTensor):
        options["backend"] = "eager"

    flex: Any = flexc.flex_attention
    if isinstance(inputs[0], DTensor) and call.backend == "flexc":
        flex = torch_flex
    else:
        options["mask_mod"] = mask

    def attend(query: Any, key: Any, value: Any) -> Any:
        return flex(query, key, value, score, block_mask, **options)

    if call.backend is not None and isinstance(inputs[0], DTensor):
        torch._dynamo.reset()
        attend = torch.compile(attend, backend=call.backend, fullgraph=True)
    out, lse = attend(*inputs)
    second = call.second
    found = torch.autograd.grad((out, lse), tensors, along, create_graph=second)
    found = [out, lse, *found]
    if second:
        found += torch.autograd.grad(found[2].square().sum(), tensors)
    return [*map(_full, found)]


def place(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> Any:
    """Return a DTensor of equal tensors."""
    known = [Replicate() if p.is_partial() else p for p in placements]
    found = distribute_tensor(tensor, mesh, known)
    summands = [mesh.size(i) for i, p in enumerate(placements) if p.is_partial()]
    local = found.to_local() / math.prod(summands)
    sizes = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(local, mesh, placements, **sizes)


def error_of(call: Call, mesh: DeviceMesh) -> float:
    """Return the largest difference from one process, in units of the allowed one.

    A sum of n terms in another order differs by n ulps of its terms' sizes, and an
    exponential by its score's size in ulps.
    """
    torch.manual_seed(0)
    batch, heads, kv_heads, length = call.sizes
    shapes: list[tuple[int, ...]] = [
        (batch, h, length, DIM) for h in (heads, kv_heads, kv_heads)
    ]
    shapes.append((heads, 2 * length))
    plain = [torch.randn(s, dtype=exact(), requires_grad=True) for s in shapes]
    rows = shapes[0][:3]
    along = [torch.randn(s, dtype=exact()) for s in (shapes[0], rows)]
    with torch.no_grad():
        placements = (call.query, call.key, call.key, call.bias)
        placed = [
            (t.clone() if p is None else place(t, mesh, p)).requires_grad_()
            for t, p in zip(plain, placements, strict=True)
        ]
        whole = [Replicate()] * mesh.ndim
        placed_along = [distribute_tensor(t, mesh, whole) for t in along]
    found, expected = (
        results(*given)
        for given in ((call, placed, placed_along), (call, plain, along))
    )
    return max(map(difference, found, expected))


def difference(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    live = expected.isfinite()
    assert found.isfinite().equal(live)
    unit = expected.size(-1) * LARGEST_SCORE * torch.finfo(exact()).eps
    error = (found - expected).detach()[live].abs().max() / expected[live].abs().max()
    return float(error) / unit


R, B, H, Q = Replicate(), Shard(0), Shard(1), Shard(2)

TWO = [
    Call((2, 4, 2, 24), (B,), (B,), "by head"),
    Call((2, 4, 2, 24), (H,), (H,), "padded", (R,)),
    Call((3, 4, 1, 24), (H,), (R,), "by head", (H,)),
    Call((3, 4, 2, 19), (B,), (B,), "by head", (R,)),
    Call((2, 4, 2, 23), (Q,), (Q,), "by head", (R,)),
    Call((2, 4, 2, 24), (R,), (H,), "by head"),
    Call((2, 4, 2, 24), (Shard(3),), (Partial(),), "by head"),
    Call((2, 4, 2, 24), (H,), (H,), "blocks", (R,)),
    Call((2, 4, 2, 24), (H,), (H,), "by head", (R,), "aot_eager"),
    Call((2, 4, 4, 24), (Q,), (Q,), "by head", None, "aot_eager"),
    Call((2, 4, 2, 24), (H,), (H,), "blocks", (R,), "flexc"),
    Call((2, 6, 3, 24), (H,), (H,), "by head"),
    Call((3, 4, 4, 24), (B,), (B,), "blocks", None, "flexc"),
]

FOUR = [
    Call((1, 4, 4, 24), (R, H), (R, H), None),
    Call((2, 4, 2, 24), (B, R), (B, R), "blocks"),
    Call((2, 4, 2, 24), (B, H), (B, H), "padded", (R, R), second=True),
    Call((3, 4, 4, 24), (H, H), (H, H), "by head", (R, H)),
    Call((2, 4, 4, 22), (H, Q), (H, Q), "by head"),
    Call((3, 4, 4, 24), (B, R), (B, Partial()), "causal", (R, R)),
    Call((2, 4, 2, 24), (B, H), (B, H), "blocks", (R, R)),
    Call((2, 4, 4, 24), (B, H), (B, H), "padded", (R, R), "inductor"),
    Call((2, 4, 4, 24), (H, Q), (H, Q), "by head", None, "inductor"),
]


LENGTHS = {"heads": H, "rows": Q}
"""Placements of calls of several lengths, compiled once for all of them but the first.

Lengths of which a rank has equally many share a graph: torch does not tell them apart.
"""


def error_of_lengths(placement: Placement, mesh: DeviceMesh) -> float:
    """Return the largest difference of calls of several lengths by one function."""
    torch._dynamo.reset()
    causal, found = masks(1)["causal"], [0.0]

    @torch.compile(backend="aot_eager", fullgraph=True)
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flexc.flex_attention(query, key, value, mask_mod=causal)

    for length in (24, 30, 31, 27):
        torch.manual_seed(length)
        shape = (2, 4, length, DIM)
        plain = [torch.randn(shape, dtype=exact()) for _ in range(3)]
        placed = [distribute_tensor(t, mesh, [placement]) for t in plain]
        pairs: list[list[Tensor]] = []
        for run, given in ((flexc.flex_attention, plain), (attend, placed)):
            tensors = [t.requires_grad_() for t in given]
            options = {"mask_mod": causal} if given is plain else {}
            out: Any = run(*tensors, **options)  # pyright: ignore
            whole = _full(out)
            grads: Any = torch.autograd.grad(whole.sin().sum(), tensors)
            pairs.append([whole, *map(_full, grads)])
        found += map(difference, *reversed(pairs))
    return max(found)


def _full(tensor: Any) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


Wrap = Callable[[Any, DeviceMesh], Any]


class Block(nn.Module):
    """Attention with a bias of each head."""

    def __init__(self, kv_heads: int = 2):
        super().__init__()
        self.to_q = nn.Linear(16, 4 * DIM)
        self.to_k = nn.Linear(
            16, kv_heads * DIM, bias=False
        )  # It would have no effect.
        self.to_v = nn.Linear(16, kv_heads * DIM)
        self.to_out = nn.Linear(4 * DIM, 16)
        self.slope = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        slope = self.slope

        def alibi(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return s - slope[h] * (q - k)

        parts = (self.to_q, self.to_k, self.to_v)
        rows = x.size(0), x.size(1)
        q, k, v = (p(x).view(*rows, -1, DIM).transpose(1, 2) for p in parts)
        mask = masks(x.size(1))["causal"]
        out: Any = flexc.flex_attention(q, k, v, alibi, mask_mod=mask, enable_gqa=True)
        return self.to_out(out.transpose(1, 2).flatten(2))


def tensor_parallel(block: Any, mesh: DeviceMesh) -> Any:
    columns = ColwiseParallel(use_local_output=False)
    names = ("to_q", "to_k", "to_v")
    plan: Any = {**dict.fromkeys(names, columns), "to_out": RowwiseParallel()}
    block.slope = nn.Parameter(distribute_tensor(block.slope, mesh, [Replicate()]))
    return parallelize_module(block, mesh, plan)


def data_parallel(block: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(block, process_group=mesh.get_group())


def fully_sharded(block: nn.Module, mesh: DeviceMesh) -> Any:
    return fully_shard(block, mesh=mesh)


def compiled(parallel: Wrap) -> Wrap:
    def wrapped(block: nn.Module, mesh: DeviceMesh) -> Any:
        torch._dynamo.reset()
        return torch.compile(parallel(block, mesh), backend="aot_eager")

    return wrapped


def sharded_both_ways(block: nn.Module, mesh: DeviceMesh) -> Any:
    return fully_shard(tensor_parallel(block, mesh["tp"]), mesh=mesh["dp"])


def error_of_training(parallel: Wrap, mesh: DeviceMesh) -> float:
    """Return the largest difference of gradients from those of one process."""
    torch.manual_seed(0)
    alone, block = Block().to(exact()), Block().to(exact())
    block.load_state_dict(alone.state_dict())
    batch = torch.randn(4, 12, 16, dtype=exact())
    names = mesh.mesh_dim_names or ()
    sharded = {fully_sharded, data_parallel}
    at, ranks = 0, 1
    if parallel in sharded:
        at, ranks = mesh.get_local_rank(), mesh.size()
    if "dp" in names:
        at, ranks = mesh.get_local_rank("dp"), mesh["dp"].size()
    model = parallel(block, mesh)
    for _ in range(2):
        alone.zero_grad()
        model.zero_grad()
        alone(batch).square().mean().backward()
        model(batch.chunk(ranks)[at]).square().mean().backward()
    grads = [p.grad for p in block.parameters()]
    found = [*map(_full, grads)]
    expected = [p.grad for p in alone.parameters()]
    return max(map(difference, found, expected))  # pyright: ignore


MODULES: dict[str, Wrap] = {
    "tensor parallel": tensor_parallel,
    "tensor parallel, compiled": compiled(tensor_parallel),
    "fully sharded": fully_sharded,
    "data parallel": data_parallel,
}


OF_TWO: list[Any] = [*TWO, *LENGTHS, *MODULES]
"""The cases of two ranks: calls, and names of other cases."""


def two_ranks(mesh: DeviceMesh, cases: Sequence[Any]) -> dict[Any, float]:
    def error(case: Any) -> float:
        if case in MODULES:
            return error_of_training(MODULES[case], mesh)
        if case in LENGTHS:
            return error_of_lengths(LENGTHS[case], mesh)
        return error_of(case, mesh)

    return {case: error(case) for case in cases}


def four_ranks(_: DeviceMesh) -> dict[Any, float]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found: dict[Any, float] = {call: error_of(call, mesh) for call in FOUR}
    return found | {"both": error_of_training(sharded_both_ways, mesh)}
