"""Attention over a sequence whose parts are on the ranks of a mesh dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.distributed.device_mesh import DeviceMesh

from flexc.distributed.layouts import Layout, Span, overlap, union
from flexc.distributed.plans import (
    METHODS,
    Estimate,
    Machine,
    Plan,
    Problem,
    Route,
    cheapest,
    compare,
    find_route,
    plan,
)
from flexc.distributed.ranks import (
    Parts,
    Regathered,
    Sharded,
    Summed,
    Whole,
    agree,
    group_of,
    has_gradient,
)
from flexc.distributed.ring import Ring, RingAttention
from flexc.distributed.shared_memory import way
from flexc.distributed.transfers import (
    PendingTransfer,
    Pieces,
    finish,
    gather,
    join,
    pieces_of,
    to_heads,
    to_tokens,
)
from flexc.errors import (
    BlockMaskError,
    DeviceError,
    DtypeError,
    FlexcError,
    GradientError,
    OptionError,
    ShapeError,
    did_you_mean,
)
from flexc.frontend.closures import Mod, read_mods
from flexc.frontend.signatures import check_arity
from flexc.runtime.attention.call import Attention
from flexc.runtime.inputs.arguments import Results, read_scale
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.interception import Scope, activate, call_within, current_scope
from flexc.runtime.interface import (
    OUTPUTS,
    MaskMod,
    Preparation,
    ScoreMod,
    flex_attention,
)

__all__ = [
    "Layout",
    "Machine",
    "Plan",
    "context_parallel",
    "context_parallel_attention",
    "plan",
]

Method = Literal["auto", "all-gather", "ring", "all-to-all"]

MAX_GATHERED = 1 << 28
"""The most bytes of other ranks' tokens that "auto" brings to each rank at a time. A
ring holds two parts.
"""


@_disable_dynamo
def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    *,
    mask_mod: MaskMod | None = None,
    mesh: DeviceMesh,
    mesh_dim: str = "cp",
    method: Method = "auto",
    layout: Literal["contiguous", "zig-zag"] | Layout = "contiguous",
    lengths: Sequence[int] | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    reduce_captured: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention over the sequence of all ranks of a mesh dimension.

    Each rank gives its own part of query, key and value, and gets its own part of the
    results. Mods see positions in the whole sequence. All ranks make the same calls,
    and the same backward passes, in the same order.

    Args:
        query: (B, Hq, Sq, E), the rank's part. Lengths may differ among ranks.
        key: (B or 1, Hkv, Skv, E), the rank's part.
        value: (B or 1, Hkv, Skv, Ev), the rank's part.
        score_mod: as for `flexc.flex_attention`. Tensors that it captures, and their
            values, are the same on all ranks.
        mask_mod: as for `flexc.flex_attention`.
        mesh: the mesh of all ranks. Its device type is that of the tensors.
        mesh_dim: the name of the dimension along which the sequence is split.
        method: "all-gather" brings all keys and values to each rank; in a "ring", one
            part at a time visits it; "all-to-all" gives each rank all tokens of some
            heads. "auto" takes what a model of costs says (`plan` prints it), of those
            that bring up to 256 MiB to a rank at a time, or a ring.
        layout: which positions the ranks have. "contiguous": rank r has the r-th part
            of the sequence. "zig-zag", for causal masks: rank r of n has the r-th and
            the r-th last of 2n parts (`Layout.zig_zag`). Or a `Layout`.
        lengths: the length of the part of each rank, of queries and keys alike. With
            it, ranks compare their calls at the first call of a kind; without it, at
            each call.
        scale: the factor on scores, 1 / sqrt(E) by default.
        enable_gqa: let Hq be a multiple of Hkv.
        return_lse: also return the log-sum-exp of each row's scores.
        reduce_captured: add up the gradients of captured tensors over the ranks. With
            False each rank gets its own summand, for parameters that are reduced with
            the rest of a model.

    Returns:
        The rank's part of the output, with `return_lse` a pair (output, lse).

    Raises:
        DistributedError: if there is no process group, or if the calls of the ranks do
            not fit; on all ranks. With `lengths`, ranks whose later calls differ raise
            it after the group's timeout. Also if a rank has ended.
        FlexcError: as `flexc.flex_attention`.
    """
    group = group_of(mesh, mesh_dim)
    mods = _Mods(score_mod, mask_mod)
    options = {
        "method": method,
        "layout": str(layout.ranks if isinstance(layout, Layout) else layout),
        "scale": repr(scale),
        "enable_gqa": bool(enable_gqa),
        "reduce_captured": bool(reduce_captured),
    }
    given = None
    try:
        _check_options(method, layout, ("contiguous", "zig-zag"))
        given = _read_lengths(lengths)
        found = _local_call((query, key, value), mods, enable_gqa, scale, mesh)
    except Exception as error:
        found = error
    call, of_ranks = agree(group, found, options, given)
    parts = Parts.of(group, layout, of_ranks)
    if reduce_captured and torch.is_grad_enabled():
        mods = mods.reduced(group, call)
    out, lse = _compute(method, parts, mods, call, enable_gqa)
    return (out, lse) if return_lse else out


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    mesh_dim: str = "cp",
    *,
    method: Method = "auto",
    layout: Literal["auto", "contiguous", "zig-zag"] | Layout = "auto",
    reduce_captured: bool = True,
) -> Iterator[None]:
    """Let the ranks of a mesh dimension share attention to whole sequences.

    Within the block, `flex_attention`, flexc's or torch's, takes tensors that are whole
    and equal on all ranks. Each rank computes a part, and all get the whole output, and
    in the backward the whole gradients.

    Args:
        mesh: the mesh of all ranks.
        mesh_dim: the name of the dimension whose ranks share.
        method: as for `context_parallel_attention`; `plan` compares what they cost.
        layout: as there; "auto" takes the one that costs least for each mask.
        reduce_captured: as there.
    """
    group = group_of(mesh, mesh_dim)
    _check_options(method, layout, ("auto", "contiguous", "zig-zag"))

    def run(call: Attention) -> Results:
        if call.outputs.max_scores:
            raise OptionError("context_parallel expects no max_scores in return_aux")
        if call.tables is not None and call.tables.origin is None:
            raise BlockMaskError(
                "context_parallel expects a BlockMask of flexc.create_block_mask, or "
                "mask_mod="
            )
        if call.choices != NO_CHOICES:
            raise OptionError("context_parallel expects no kernel_options, no backend")
        score, mask = call.signature.mods
        queries, keys, name = _layouts(call, group, method, layout)
        operands = (queries, call.query), (keys, call.key), (keys, call.value)
        given = {
            "mask_mod": mask, "mesh": mesh, "mesh_dim": mesh_dim, "method": method,
            "layout": name, "scale": call.scale, "enable_gqa": True,
            "return_lse": True, "reduce_captured": reduce_captured,
        }  # fmt: skip
        args = [*(Sharded.apply(group, x, t) for x, t in operands), score]
        here = Scope(NO_CHOICES)
        out, lse = call_within(here, context_parallel_attention, args, given)
        lse: Any = Whole.apply(group, queries, lse[..., None])
        return Whole.apply(group, queries, out), lse[..., 0], None  # pyright: ignore

    def describe(call: Attention) -> str:
        queries, keys, _ = _layouts(call, group, method, layout)
        parts = Parts(group, dist.get_rank(group), queries, keys)
        e = _estimate(method, parts, call.signature.mods[1], Problem.of(call))
        return (
            f"{parts.queries.size} of {mesh_dim!r}, layout {queries.name}, method "
            f"{e.method}{', keys gathered again' if e.regathers else ''}, imbalance "
            f"{e.imbalance:.2f}, rows {way(group, call.query.device, e.method)}"
        )

    with activate(Scope(NO_CHOICES, run, ranks=describe)):
        yield


def _layouts(
    call: Attention, group: dist.ProcessGroup, method: str, layout: Any
) -> tuple[Layout, Layout, Any]:
    """Return the layouts of queries and of keys, and the name that says both."""
    ranks, lengths = dist.get_world_size(group), (call.query.size(2), call.key.size(2))
    if layout == "auto" and 0 < lengths[0] == lengths[1]:
        found = compare(call.signature.mods[1], Problem.of(call), lengths[0], ranks)
        layouts = (e.layout for e in found if method in ("auto", e.method))
        layout = next(layouts, "contiguous")  # A method that the heads rule out.
    if isinstance(layout, Layout):
        return layout, layout, layout
    if layout == "zig-zag":
        return *(Layout.zig_zag(n, ranks) for n in lengths), layout  # pyright: ignore
    parts = (Layout.of_owners(n, range(ranks), ranks) for n in lengths)
    return *parts, "contiguous"  # pyright: ignore


def _compute(
    method: Method, parts: Parts, mods: _Mods, call: Attention, enable_gqa: bool
) -> tuple[Tensor, Tensor]:
    operands = call.query, call.key, call.value
    rest, problem = _rest(enable_gqa, call.scale), Problem.of(call)
    chosen: str = method
    if method == "auto":
        chosen = _estimate(method, parts, mods.mask, problem).method
    if chosen == "all-to-all":
        return _by_heads(parts, mods, operands, rest)
    route = find_route(parts, mods.mask, problem)
    given = route, parts, mods, operands, rest
    if chosen == "ring":
        return _ring(*given)
    return _gathered(*given, route.work.regathers(parts.keys, problem))


def _estimate(
    method: str, parts: Parts, mask: Mod | None, problem: Problem
) -> Estimate:
    """Return what a method costs, or the one that "auto" takes."""
    work = find_route(parts, mask, problem).work
    if method == "auto":
        return cheapest(parts, work, problem, MAX_GATHERED)
    machine = Machine.usual(problem.device)
    return Estimate.of(method, parts.keys, work, problem, machine)


@dataclass(frozen=True)
class _Mods:
    """The user's mods, for positions in the whole sequence."""

    score: Mod | None
    mask: Mod | None

    def moved(
        self, query: int | Tensor = 0, key: int | Tensor = 0, head: int = 0
    ) -> tuple[Mod | None, None, Mod | None]:
        """Return mods for positions and heads that count from these places, or that
        are listed in these tensors.

        The places are captured: one kernel serves all ranks and steps.
        """
        score, mask = self.score, self.mask
        at_query, at_key = _place(query), _place(key)

        def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
            assert score is not None
            return score(s, b, h + head, at_query(q), at_key(k))

        def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
            assert mask is not None
            return mask(b, h + head, at_query(q), at_key(k))

        return score and score_mod, None, mask and mask_mod

    def reduced(self, group: dist.ProcessGroup, call: Attention) -> _Mods:
        """Return copies whose captured tensors get the gradients of all ranks."""
        signature = read_mods(self.score, self.mask)
        captures = list(signature.captures)
        slots = [i for i, c in enumerate(captures) if has_gradient(c)]
        known = {id(captures[i]) for i in slots}
        read = filter(has_gradient, call.signature.captures)
        hidden = any(id(c) not in known for c in read)
        if not slots and not hidden:
            return self
        summed = Summed.apply(group, *(captures[i] for i in slots))
        for slot, tensor in zip(slots, summed, strict=True):  # pyright: ignore
            captures[slot] = tensor
        copies, codes = signature.rebuild(captures)
        if not codes or hidden:
            raise GradientError(
                "flexc cannot add up the gradients of what these mods capture; give "
                "reduce_captured=False and add them up after the backward"
            )
        return _Mods(copies[0], self.mask)


Operands = tuple[Tensor, Tensor, Tensor]


def _place(place: int | Tensor) -> Callable[[Tensor], Tensor]:
    """Return the position of a token, given its place on its rank."""
    if isinstance(place, Tensor):
        return lambda at: place[at]
    return lambda at: at + place


def _rest(enable_gqa: bool, scale: float | None) -> Any:
    """Return the options of a `Preparation`."""
    return enable_gqa, scale, OUTPUTS[True, False], NO_CHOICES


def _local_call(
    operands: Operands,
    mods: _Mods,
    enable_gqa: bool,
    scale: float | None,
    mesh: DeviceMesh,
) -> Attention:
    """Return the checked and traced call of a rank's own part."""
    check_arity("score_mod", mods.score)
    check_arity("mask_mod", mods.mask)
    rest = _rest(enable_gqa, read_scale(scale))
    call = Preparation(mods.moved(), rest)(operands)
    if call.query.device.type != mesh.device_type:
        raise DeviceError(
            f"query, key and value expect the mesh's device type "
            f"{mesh.device_type}, got {call.query.device}"
        )
    if call.query.is_cuda and call.query.get_device() != (
        current := torch.cuda.current_device()
    ):
        raise DeviceError(
            "context_parallel_attention expects tensors on the current device, "
            f"cuda:{current}, got {call.query.device}; call torch.cuda.set_device"
        )
    if call.is_narrow:
        raise DtypeError(
            "context_parallel_attention expects keys and values of the query's "
            f"dtype, got {call.key.dtype} and {call.value.dtype}; convert them"
        )
    try:
        return call.with_traced()
    except FlexcError:
        # The user's own mods raise the same, and name their lines.
        Preparation((mods.score, None, mods.mask), rest)(operands).with_traced()
        raise


def _ring(
    route: Route, parts: Parts, mods: _Mods, operands: Operands, rest: Any
) -> tuple[Tensor, Tensor]:
    """Let keys and values visit the ranks that need them."""

    def prepare(queries: Span, keys: Span, *operands: Tensor) -> Attention:
        moved = mods.moved(queries.origin, keys.origin)
        query, key, value = operands
        given = queries.of(query), keys.of(key), keys.of(value)
        return Preparation(moved, rest)(given).with_traced()  # pyright: ignore

    device = operands[0].device
    queries, keys = (
        layout.spans(layout.ranks[parts.rank], what, device)[0]
        for layout, what in ((parts.queries, "queries"), (parts.keys, "keys"))
    )
    own = prepare(queries, keys, *operands)
    captured = [c for c in own.signature.captures if isinstance(c, Tensor)]
    listed = next((i for i, c in enumerate(captured) if c is keys.origin), None)
    ring = Ring(parts.group, route, listed)
    found: Any = RingAttention.apply(ring, prepare, *operands, *captured)
    return found


def _gathered(
    route: Route,
    parts: Parts,
    mods: _Mods,
    operands: Operands,
    rest: Any,
    regathers: bool,
) -> tuple[Tensor, Tensor]:
    """Compute with the keys and values that the rank needs, from first to last."""
    query, *own = operands
    bring = partial(gather, parts.group, parts.keys, needs=route.needs)
    key, value = bring(own)
    needed = union(
        r for x in parts.keys.ranks for r in overlap(x, route.needs[parts.rank])
    )
    first = needed[0].start if needed else 0
    runs = parts.queries.ranks[parts.rank]
    kept: Any = nullcontext()
    if regathers and not _has_hooks():
        kept = Regathered(bring, own).within([key, value])
    with kept:
        found = [
            _attend((span.of(query), key, value), mods.moved(span.origin, first), rest)
            for span in parts.queries.spans(runs, "queries", query.device)
        ]
    if len(found) == 1:
        return found[0]
    out, lse = (torch.cat(each, 2) for each in zip(*found, strict=True))
    return out, lse


def _has_hooks() -> bool:
    """Return True if others, as checkpoints, decide on what autograd keeps."""
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    return autograd._top_saved_tensors_default_hooks(True) is not None


def _by_heads(
    parts: Parts, mods: _Mods, operands: Operands, rest: Any
) -> tuple[Tensor, Tensor]:
    """Compute all tokens of the rank's share of the heads."""
    size, group = parts.queries.size, parts.group
    query, key, _ = operands
    for name, heads in (("query", query.size(1)), ("key", key.size(1))):
        if heads % size:
            raise ShapeError(
                f'method="all-to-all" shares out heads, so that the {heads} heads of '
                f"the {name} expect a number of ranks that divides them, got {size}; "
                'take method="ring" or "all-gather"'
            )
    layouts = (parts.queries, parts.keys, parts.keys)
    heads = query.size(1) // size
    pieces = pieces_of(group, layouts, operands, key.size(1) // size)
    shares = [t.unflatten(1, (size, -1)) for t in operands]
    wholes = Pieces(pieces), Pieces(pieces)
    leaving: list[PendingTransfer] = []
    for i, pending in enumerate(to_heads(group, layouts, shares, pieces)):
        first = parts.rank * heads + i * heads // pieces
        found: Any = finish(pending)
        out, lse = _attend(found, mods.moved(head=first), rest)
        leaving += to_tokens(group, parts.queries, (out, lse[..., None]), wholes, i)
    results = finish(leaving)
    out, lse = (join(x).flatten(1, 2) for x in (results[::2], results[1::2]))
    return out, lse[..., 0]


def _attend(operands: Operands, mods: Any, rest: Any) -> tuple[Tensor, Tensor]:
    score_mod, _, mask_mod = mods
    args = *operands, score_mod
    given: Any = {
        "mask_mod": mask_mod, "enable_gqa": rest[0], "scale": rest[1],
        "return_lse": True,
    }  # fmt: skip
    scope = current_scope()
    if scope is not None and scope.ranks is not None:
        # A rank's own call is not shared again by a `context_parallel` around it.
        own = replace(scope, run=None, ranks=None)
        return call_within(own, flex_attention, args, given)
    found: Any = flex_attention(*args, **given)
    return found


def _read_lengths(lengths: Any) -> tuple[int, ...] | None:
    if lengths is None:
        return None
    try:
        return tuple(map(index, lengths))
    except TypeError as error:
        raise OptionError(
            f"lengths expects the number of tokens of each rank, got {lengths!r}"
        ) from error


def _check_options(method: object, layout: object, layouts: Sequence[str]) -> None:
    _check_choice("method", method, ("auto", *METHODS))
    if not isinstance(layout, Layout):
        _check_choice("layout", layout, layouts)


def _check_choice(name: str, got: object, known: Sequence[str]) -> None:
    if got not in known:
        raise OptionError(
            f"{name} expects one of {', '.join(known)}, got {got!r}"
            f"{did_you_mean(got, known)}"
        )
