"""The operators for DTensors: ranks share batches, heads and queries.

Each rank computes with its own part, and mods see places in the whole tensors: those
at which a part begins are captured numbers, so one kernel serves all ranks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from flexc.errors import ShapeError
from flexc.runtime.inputs.wrappers import tracing
from flexc.runtime.torch_compile.mod_graphs import (
    GraphSignature,
    ModGraphs,
    Slots,
    placeholders,
)
from flexc.runtime.torch_compile.operators.handles import lookup
from flexc.runtime.torch_compile.operators.library import LIBRARY, NAMES
from flexc.runtime.torch_compile.operators.planning import with_planned
from flexc.runtime.torch_compile.operators.traced import (
    ARGUMENTS,
    TracedAttention,
    captures_of,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

    Placements = tuple[Placement, ...]

BATCH, HEADS, ROWS = AXES = range(3)
"""The dimensions of the query along which ranks share work."""


def is_distributed(cls: type) -> bool:
    """Return True for classes of DTensors."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and issubclass(cls, module.DTensor)


class Extent(NamedTuple):
    """A part of an axis. Its numbers may be symbols, which a `range` would fix."""

    start: int
    length: int


@dataclass(frozen=True)
class Sharing:
    """The parts of a call that the ranks of a mesh compute."""

    mesh: DeviceMesh
    axes: tuple[int | None, ...]
    """For each dimension of the mesh, the axis that its ranks share, if any."""
    extents: tuple[Extent, ...]
    """This rank's part of each axis."""
    replicated: frozenset[int]
    """The axes along which all ranks have all keys."""

    @classmethod
    def of(cls, query: Any, key: Any, value: Any, has_tables: bool) -> Sharing:
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if not is_distributed(type(tensor)):
                raise ShapeError(
                    "query, key and value expect to be DTensors together, but the "
                    f"{name} is a {type(tensor).__name__}; call distribute_tensor or "
                    "DTensor.from_local"
                )
            _check_mesh(f"the {name}", tensor, query.device_mesh)
        mesh: DeviceMesh = query.device_mesh
        axes = [*map(_axis, query.placements, key.placements)]
        ranks = math.prod(mesh.size(i) for i, axis in enumerate(axes) if axis == HEADS)
        heads, kv_heads = query.size(HEADS), key.size(HEADS)
        if kv_heads not in (1, heads) and kv_heads % ranks:
            # A rank's heads would need keys of another's: all compute all of them.
            axes = [None if axis == HEADS else axis for axis in axes]
        if ROWS in axes and has_tables:
            raise ShapeError(
                "a query that is sharded along the sequence expects mask_mod= in place "
                "of a block_mask; or give whole tensors to flex_attention within "
                "flexc.distributed.context_parallel"
            )
        extents = tuple(_extent(query.size(axis), mesh, axes, axis) for axis in AXES)
        replicated = {ROWS, *(a for a in (BATCH, HEADS) if key.size(a) == 1)}
        return cls(mesh, tuple(axes), extents, frozenset(replicated))

    def rows(self, extra: int = 0) -> Placements:
        """Return the placements of the query, and of a result or its derivative, which
        may have further dimensions after the batch.
        """
        from torch.distributed.tensor import Replicate, Shard

        return tuple(
            Replicate() if axis is None else Shard(axis + extra if axis else axis)
            for axis in self.axes
        )

    def inputs(self, captures: int, sums: bool = False) -> list[Placements]:
        """Return the placements of query, key, value and captures.

        With `sums`, those of their gradients: ranks add up those of what they share.
        """
        from torch.distributed.tensor import Partial, Replicate

        rows, other = self.rows(), Partial() if sums else Replicate()
        keys, whole = (
            tuple(
                p if axis is None else other if axis in without else p
                for axis, p in zip(self.axes, rows, strict=True)
            )
            for without in (self.replicated, AXES)
        )
        return [rows, keys, keys, *[whole] * captures]

    def local(self, tensor: Any, placements: Placements) -> Any:
        """Return the rank's part of a tensor. A plain one is equal on all ranks."""
        from torch.distributed.tensor import DTensor, Replicate

        if tensor is None:
            return None
        if not is_distributed(type(tensor)):
            whole = [Replicate()] * self.mesh.ndim
            if list(placements) == whole:
                return tensor
            tensor = DTensor.from_local(tensor, self.mesh, whole)
        _check_mesh("a captured tensor", tensor, self.mesh)
        # torch 2.11 has no rule for detaching the result of a leaf in place.
        return tensor.detach().redistribute(placements=placements).to_local()

    def table(self, place: int, table: Tensor) -> Tensor:
        """Return the part of a table of blocks that the rank's heads need."""
        table = self.local(table, self.inputs(1)[-1])
        first = table.dim() - (4 if place % 2 else 3)
        for axis in (BATCH, HEADS):
            if first + axis >= 0 and table.size(first + axis) > 1:
                table = table.narrow(first + axis, *self.extents[axis])
        return table

    def joined(self, local: Tensor, placements: Placements, like: Any) -> Tensor:
        """Return the tensor of which this rank has a part, or a summand.

        `like` is a tensor of its shape, or the shape of a DTensor.
        """
        from torch.distributed.tensor import DTensor

        is_plain = isinstance(like, Tensor) and not is_distributed(type(like))
        shape = like.shape if isinstance(like, Tensor) else like
        stride, at = [0] * len(shape), 1
        for dim in sorted(range(len(shape)), key=lambda d: (local.stride(d), -d)):
            stride[dim], at = at, at * max(shape[dim], 1)
        made = DTensor.from_local(
            local, self.mesh, placements, shape=torch.Size(shape), stride=tuple(stride)
        )
        return made.full_tensor() if is_plain else made


def _axis(query: Any, key: Any) -> int | None:
    """Return the axis that a dimension of the mesh shares, given placements there.

    Others are brought together first.
    """
    from torch.distributed.tensor import Shard

    if type(query) is Shard and query.dim in AXES:
        return query.dim
    if query.is_replicate() and type(key) is Shard and key.dim in (BATCH, HEADS):
        return key.dim
    return None


def _check_mesh(what: str, tensor: Any, mesh: DeviceMesh) -> None:
    if tensor.device_mesh != mesh:
        raise ShapeError(
            f"{what} expects the query's mesh {mesh}, got {tensor.device_mesh}; call "
            "redistribute, or full_tensor() for a captured tensor"
        )


def _extent(
    size: int, mesh: DeviceMesh, axes: Sequence[int | None], axis: int
) -> Extent:
    """Return a rank's part of an axis, which torch cuts in chunks."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    start: Any = 0
    length: Any = size
    for i, at in enumerate(coordinate):
        if axes[i] == axis:
            chunk = -(-length // mesh.size(i))
            skipped = torch.sym_min(chunk * at, length)
            start, length = start + skipped, torch.sym_min(chunk, length - skipped)
    return Extent(start, length)


@lru_cache(256)
def _moved(handle: str, axes: tuple[int, ...]) -> tuple[ModGraphs, tuple[int, ...]]:
    """Return the mods of parts, and those of the axes that they read.

    The starts of the parts along these axes are captured after all others.
    """
    constants = lookup(handle)
    mods, count = constants.mods, len(constants.captures)
    firsts = (1, 0)
    read = tuple(
        axis
        for axis in axes
        if any(
            gm is not None and placeholders(gm)[first + axis].users
            for gm, first in zip(mods.graphs, firsts, strict=True)
        )
    )
    if not read:
        return mods, ()
    graphs = [
        gm and _add_starts(gm, [first + axis for axis in read])
        for gm, first in zip(mods.graphs, firsts, strict=True)
    ]
    starts = tuple(range(count, count + len(read)))
    slots: Slots = tuple(  # pyright: ignore
        (*own, *starts) if gm else own
        for own, gm in zip(mods.slots, mods.graphs, strict=True)
    )
    return ModGraphs.of((graphs[0], graphs[1]), slots), read


def _add_starts(gm: GraphModule, places: Sequence[int]) -> GraphModule:
    """Return a graph whose arguments at these places count from further arguments."""
    graph = deepcopy(gm.graph)
    arguments = graph.find_nodes(op="placeholder")
    last = arguments[-1]
    for place in places:
        with graph.inserting_after(last):
            last = graph.placeholder(f"start_{place}")
        argument = arguments[place]
        readers = list(argument.users)
        with graph.inserting_after(last):
            moved = graph.call_function(torch.ops.aten.add.Tensor, (argument, last))
        for reader in readers:
            reader.replace_input_with(argument, moved)
    return GraphModule(gm, graph)


def _part(given: dict[str, Any], sharing: Sharing) -> tuple[TracedAttention, int]:
    """Return the rank's part of a call, and the number of captures that it adds."""
    captures, tables = given["captures"], given["tables"]
    tensors = (given["query"], given["key"], given["value"], *captures)
    placed = sharing.inputs(len(captures))
    operands = [*map(sharing.local, tensors, placed)]
    own = TracedAttention.bind(
        (
            *operands[:3],
            operands[3:],
            [sharing.table(i, table) for i, table in enumerate(tables)],
            given["sizes"],
            given["scale"],
            given["handle"],
        )
    )
    shared = {axis for axis in sharing.axes if axis is not None}
    mods, axes = _moved(given["handle"], tuple(sorted(shared)))
    values = *own.signature.captures, *(sharing.extents[a].start for a in axes)
    signature = GraphSignature(mods.graphs, (), values, True, False, mods.slots)
    own = replace(own, signature=signature, mods=mods)
    return (with_planned(own) if tracing(own.query) else own), len(axes)


def _run(_: Any, func: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Run an operator whose arguments are DTensors."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=True))
    inputs = query, key, value = given["query"], given["key"], given["value"]
    sharing = Sharing.of(query, key, value, bool(given["tables"]))
    captures = captures_of(args[:ARGUMENTS])
    with torch.no_grad():
        own, added = _part(given, sharing)
        rest: list[Any] = []
        for name in names[ARGUMENTS:]:
            here = given[name]
            if name in ("given", "wanted"):
                here = [*here, *[False] * added]
            elif name == "tangents":
                placed = zip(sharing.inputs(len(captures)), given["given"], strict=True)
                here = [*map(sharing.local, here, [p for p, has in placed if has])]
            elif here is not None:
                extra = here.dim() - 3 if "lse" in name else 0
                here = sharing.local(here, sharing.rows(extra))
            rest.append(here)
        found = func(*own.arguments(), *rest)
        if "wanted" not in given:
            made = (_result(sharing, query, *each) for each in enumerate(found))
            return type(found)(made)
        sums = sharing.inputs(len(captures), sums=True)
        pairs = zip((*inputs, *captures), sums, given["wanted"], strict=True)
        wanted = [(tensor, placed) for tensor, placed, wants in pairs if wants]
        return [
            sharing.joined(gradient, placed, tensor)
            for gradient, (tensor, placed) in zip(found, wanted, strict=True)
        ]


def _result(sharing: Sharing, query: Tensor, place: int, local: Tensor) -> Tensor:
    """Return a result, of which out is the first."""
    extra = local.dim() - 3 if place else 0
    shape = list(local.shape)
    shape[0], shape[1 + extra], shape[2 + extra] = query.shape[:3]
    return sharing.joined(local, sharing.rows(extra), shape)


@cache
def teach_distributed() -> None:
    """Let DTensors run the operators."""
    from torch.distributed.tensor import DTensor

    for name in NAMES:
        torch.library.register_torch_dispatch(
            f"flexc::{name}", DTensor, _run, lib=LIBRARY
        )
