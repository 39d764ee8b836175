"""The ranks of a call: their parts, their agreement on it, and tensors of them all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from flexc.distributed.layouts import Layout
from flexc.distributed.shared_memory import connect, exchange
from flexc.distributed.transfers import gather
from flexc.errors import DistributedError, GradientError, did_you_mean
from flexc.runtime.attention.call import Attention
from flexc.runtime.inputs.tensor_facts import sum_dtype
from flexc.runtime.inputs.wrappers import plain
from flexc.runtime.process.recent import Recent
from flexc.runtime.replay.stable_text import UnstableError, stable_text


@dataclass(frozen=True)
class Parts:
    """The parts of a sequence that the ranks of a group have."""

    group: dist.ProcessGroup
    rank: int
    queries: Layout
    keys: Layout

    @classmethod
    def of(
        cls,
        group: dist.ProcessGroup,
        layout: Layout | str,
        lengths: Sequence[tuple[int, int]],
    ) -> Parts:
        """Return the parts of a layout, given each rank's queries and keys."""
        found: list[Layout] = []
        for what, given in zip(
            ("queries", "keys"), zip(*lengths, strict=True), strict=True
        ):
            match layout:
                case Layout():
                    expected = layout
                case "zig-zag":
                    expected = Layout.zig_zag(sum(given), len(given))
                case _:
                    expected = Layout.contiguous(given)
            if expected.lengths != given:
                raise DistributedError(
                    f"the layout {expected.name!r} expects parts of {expected.lengths} "
                    f"{what}, got {given}"
                )
            found.append(expected)
        return cls(group, dist.get_rank(group), *found)


def group_of(mesh: DeviceMesh, mesh_dim: str) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise DistributedError(
            "context_parallel_attention expects a process group, and there is none; "
            "torch.distributed.device_mesh.init_device_mesh makes one"
        )
    if not isinstance(mesh, DeviceMesh):
        raise DistributedError(
            f"mesh expects a torch DeviceMesh, got {type(mesh).__name__}"
        )
    names = mesh.mesh_dim_names or ()
    if mesh_dim not in names:
        raise DistributedError(
            f"mesh_dim expects a dimension of the mesh, which has {names or 'no names'}"
            f", got {mesh_dim!r}{did_you_mean(mesh_dim, names)}"
        )
    if mesh.get_coordinate() is None:
        raise DistributedError(
            f"mesh expects ranks that call it, and rank {dist.get_rank()} is not in "
            f"{mesh.mesh.tolist()}"
        )
    return mesh.get_group(mesh_dim)


_agreed: WeakKeyDictionary[dist.ProcessGroup, Recent[bool]] = WeakKeyDictionary()
"""By a group, and a call's description: True if the ranks have compared it."""


def agree(
    group: dist.ProcessGroup,
    call: Attention | Exception,
    options: dict[str, Any],
    lengths: Sequence[int] | None,
) -> tuple[Attention, list[tuple[int, int]]]:
    """Compare the calls of all ranks. Return this rank's, and the numbers of queries
    and keys of all.

    Raise an error on all ranks if one has failed so far, or if their calls do not fit.
    Elements of captured tensors are compared at the first call of a kind.
    """
    known = _agreed.setdefault(group, Recent(64))
    if isinstance(call, Exception):
        if known.find(lengths):
            raise call  # The others, most likely, compare nothing now.
        own: dict[str, Any] = {"fault": f"{type(call).__name__}: {call}"[:500]}
        kind = None
    else:
        kind = _kind(call, options, lengths)
        is_known = known.find(kind)
        if is_known and lengths is not None:
            return call, [(n, n) for n in lengths]
        own = _description(call) | options
        own["lengths"] = None if lengths is None else list(lengths)
        own["parts"] = [call.query.size(2), call.key.size(2)]
        if not is_known:
            own["elements of captured tensors"] = _digest(call.signature.captures)
    calls: list[dict[str, Any]] = [{}] * dist.get_world_size(group)
    try:
        with exchange(group):
            dist.all_gather_object(calls, own, group=group)
    except DistributedError as error:
        if isinstance(call, Exception):
            raise call from error  # It is why the others are lost.
        raise
    if isinstance(call, Exception):
        raise call
    _compare(calls)
    found = [(queries, keys) for queries, keys in (given["parts"] for given in calls)]
    if lengths is not None:
        if found != [(n, n) for n in lengths]:
            queries, keys = zip(*found, strict=True)
            raise DistributedError(
                f"lengths expects those of all ranks, got {tuple(lengths)}; they have "
                f"{queries} queries and {keys} keys"
            )
        known.get(lengths, lambda: True)
    connect(group, call.query.device)
    known.get(kind, lambda: True)
    return call, found


def _compare(calls: Sequence[dict[str, Any]]) -> None:
    """Raise DistributedError if the descriptions of calls do not fit."""
    for rank, given in enumerate(calls):
        if "fault" in given:
            raise DistributedError(f"rank {rank} raised {given['fault']}")
    for (rank, given), name in product(enumerate(calls), calls[0]):
        if name != "parts" and given.get(name, calls[0][name]) != calls[0][name]:
            raise DistributedError(
                f"ranks expect the same {name}: rank 0 has {calls[0][name]}, rank "
                f"{rank} has {given[name]}"
            )


def _digest(captures: Iterable[Any]) -> str:
    """Return a digest of the elements of captured tensors."""
    found = hashlib.sha256()
    for tensor in captures:
        if type(tensor) in (Tensor, torch.nn.Parameter):
            elements = plain(tensor).detach().cpu().contiguous().reshape(-1)
            found.update(elements.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _kind(
    call: Attention, options: dict[str, Any], lengths: Sequence[int] | None
) -> Hashable:
    """Return what tells a rank's calls apart, but for elements of tensors."""
    tensors = call.query, call.key, call.value, *call.signature.captures
    facts = [
        (c.shape, c.dtype, c.device, c.requires_grad)
        if isinstance(c, Tensor)
        else repr(c)
        for c in tensors
    ]
    recorded = torch.is_grad_enabled()
    return call.signature.key, *facts, recorded, *options.items(), lengths


def _description(call: Attention) -> dict[str, Any]:
    """Return what the calls of all ranks must have in common, by name."""
    tensors = {"query": call.query, "key": call.key, "value": call.value}
    captures = [
        f"{tuple(c.shape)} {c.dtype}" if isinstance(c, Tensor) else repr(c)
        for c in call.signature.captures
    ]
    try:
        mods = hashlib.sha256(stable_text(call.signature.key).encode()).hexdigest()
    except UnstableError:
        mods = "unknown"
    recorded = torch.is_grad_enabled()
    return {
        "dtype": str(call.query.dtype),
        **{
            f"shape of the {name} (without its length)": [*t.shape[:2], t.size(3)]
            for name, t in tensors.items()
        },
        "code of the mods": mods[:16],
        "captured values": _short("; ".join(captures)),
        "gradients": "".join(
            str(int(recorded and c.requires_grad))
            for c in (*tensors.values(), *call.signature.captures)
            if isinstance(c, Tensor)
        ),
    }


def _short(text: str) -> str:
    """Return a text, or the start and a digest of a long one."""
    if len(text) <= 500:
        return text
    return f"{text[:500]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"


def has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


class Regathered:
    """Gathered tensors that autograd does not keep, but gathers again for a backward.

    Each rank's kernels read each of them at least once, and gathers are made in the
    order of the tensors, so that the ranks gather alike.
    """

    def __init__(
        self, gather: Callable[[Sequence[Tensor]], list[Tensor]], own: Sequence[Tensor]
    ):
        self._gather = gather
        self._own = [t.detach() for t in own]
        self._versions = [t._version for t in own]
        self._places: dict[tuple[int, torch.Size], int] = {}
        self._left = self._uses = 0
        self._found: list[Tensor] = []

    @contextmanager
    def within(self, gathered: Sequence[Tensor]) -> Iterator[None]:
        """Do not let autograd keep the gathered tensors within a `with` block."""
        self._places = {(t.data_ptr(), t.shape): i for i, t in enumerate(gathered)}
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield
        self._places = {}

    def _pack(self, tensor: Tensor) -> Tensor | int:
        place = self._places.get((tensor.data_ptr(), tensor.shape))
        if place is None:
            # A node that keeps its own output, grad_fn and all, would never be freed.
            return tensor.detach()
        self._uses += 1
        return place

    def _unpack(self, packed: Tensor | int) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if not self._left:
            self._left = self._uses
            self._found = self._again()
        self._left -= 1
        found = self._found[packed]
        if not self._left:
            self._found = []
        return found

    def _again(self) -> list[Tensor]:
        if [t._version for t in self._own] != self._versions:
            raise GradientError(
                "keys and values are gathered again for the backward, and have been "
                "modified by an in-place operation since the forward"
            )
        with torch.no_grad():
            return self._gather(self._own)


class Summed(torch.autograd.Function):
    """The tensors themselves; their gradients are added up over all ranks."""

    @staticmethod
    def forward(ctx: Any, group: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *Summing.apply(ctx.group, *grads)  # pyright: ignore


class Summing(torch.autograd.Function):
    """The sums of tensors over all ranks."""

    @staticmethod
    def forward(ctx: Any, group: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        found: list[Tensor] = []
        for tensor in tensors:
            wide = sum_dtype(tensor.dtype)
            total = tensor.to(wide, copy=True, memory_format=torch.contiguous_format)
            with exchange(group):
                dist.all_reduce(total, group=group)
            found.append(total.to(tensor.dtype))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *Summing.apply(ctx.group, *grads)  # pyright: ignore


class Sharded(torch.autograd.Function):
    """This rank's part of a tensor that is whole and equal on all ranks."""

    @staticmethod
    def forward(ctx: Any, group: Any, layout: Layout, whole: Tensor) -> Tensor:
        ctx.given = group, layout
        return layout.shard(whole, dist.get_rank(group)).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore
        return None, None, Whole.apply(*ctx.given, grad)


class Whole(torch.autograd.Function):
    """The whole tensor, equal on all ranks, of which each has a part."""

    @staticmethod
    def forward(ctx: Any, group: Any, layout: Layout, own: Tensor) -> Tensor:
        ctx.given = group, layout
        (whole,) = gather(group, layout, [own])
        return whole.contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore
        return None, None, Sharded.apply(*ctx.given, grad)
