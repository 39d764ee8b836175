"""Attention over a sequence whose parts are on the ranks of a mesh dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.distributed.device_mesh import DeviceMesh

from flexc.distributed.ranks import (
    Parts,
    Summed,
    agree,
    gather,
    group_of,
    has_gradient,
    to_heads,
    to_tokens,
)
from flexc.distributed.ring import Live, Ring, RingAttention
from flexc.errors import (
    DeviceError,
    GradientError,
    OptionError,
    ShapeError,
    did_you_mean,
)
from flexc.frontend.closures import Mod, read_mods
from flexc.frontend.signatures import check_arity
from flexc.runtime.attention.call import Attention, read_signature
from flexc.runtime.explain import stand_ins
from flexc.runtime.explain.blocks import DEAD, find_blocks
from flexc.runtime.explain.subject import Subject
from flexc.runtime.inputs.arguments import read_scale
from flexc.runtime.inputs.notes import Capture, are_still
from flexc.runtime.inputs.options import NO_CHOICES
from flexc.runtime.interface import (
    OUTPUTS,
    MaskMod,
    Preparation,
    ScoreMod,
    flex_attention,
)
from flexc.runtime.process.recent import Recent

__all__ = ["context_parallel_attention"]

Method = Literal["auto", "all-gather", "ring", "all-to-all"]

METHODS = ("auto", "all-gather", "ring", "all-to-all")

MAX_GATHERED = 1 << 28
"""The most bytes of keys and values that "auto" gathers on each rank."""


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
    layout: Literal["contiguous"] = "contiguous",
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
            heads. "auto" gathers keys and values of up to 256 MiB, else it is a ring.
        layout: "contiguous": rank r has the r-th part of the sequence.
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
            not fit; on all ranks. With `lengths`, ranks whose later calls differ wait
            for each other until the group's timeout.
        FlexcError: as `flexc.flex_attention`.
    """
    _check_choice("method", method, METHODS)
    _check_choice("layout", layout, ("contiguous",))
    group = group_of(mesh, mesh_dim)
    mods = _Mods(score_mod, mask_mod)
    options = {
        "method": method,
        "scale": repr(scale),
        "enable_gqa": bool(enable_gqa),
        "reduce_captured": bool(reduce_captured),
    }
    found = _local_call((query, key, value), mods, enable_gqa, scale, mesh)
    call, parts = agree(group, found, options, lengths)
    query, key, value = call.query, call.key, call.value
    rest = _rest(enable_gqa, call.scale)
    if reduce_captured and torch.is_grad_enabled():
        mods = mods.reduced(group, call)
    if method == "auto":
        of_each = sum(t[:, :, :1].numel() * t.element_size() for t in (key, value))
        gathers = of_each * sum(parts.keys) <= MAX_GATHERED
        method = "all-gather" if gathers else "ring"
    compute = {"ring": _ring, "all-gather": _gathered, "all-to-all": _by_heads}[method]
    out, lse = compute(parts, mods, (query, key, value), rest)
    return (out, lse) if return_lse else out


@dataclass(frozen=True)
class _Mods:
    """The user's mods, for positions in the whole sequence."""

    score: Mod | None
    mask: Mod | None

    def shifted(
        self, query: int = 0, key: int = 0, head: int = 0
    ) -> tuple[Mod | None, None, Mod | None]:
        """Return mods for positions and heads that count from these places.

        The places are captured numbers: one kernel serves all ranks and steps.
        """
        score, mask = self.score, self.mask

        def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
            assert score is not None
            return score(s, b, h + head, q + query, k + key)

        def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
            assert mask is not None
            return mask(b, h + head, q + query, k + key)

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
        return _Mods(*copies)


Operands = tuple[Tensor, Tensor, Tensor]


def _rest(enable_gqa: bool, scale: float | None) -> Any:
    """Return the options of a `Preparation`."""
    return enable_gqa, scale, OUTPUTS[True, False], NO_CHOICES, False


def _local_call(
    operands: Operands,
    mods: _Mods,
    enable_gqa: bool,
    scale: float | None,
    mesh: DeviceMesh,
) -> Attention | Exception:
    """Return the checked and traced call of a rank's own part, or what is wrong."""
    try:
        check_arity("score_mod", mods.score)
        check_arity("mask_mod", mods.mask)
        rest = _rest(enable_gqa, read_scale(scale))
        call = Preparation(mods.shifted(), rest)(operands)
        if call.query.device.type != mesh.device_type:
            raise DeviceError(
                f"query, key and value expect the mesh's device type "
                f"{mesh.device_type}, got {call.query.device}"
            )
        return call.with_traced()
    except Exception as error:
        return error


def _ring(
    parts: Parts, mods: _Mods, operands: Operands, rest: Any
) -> tuple[Tensor, Tensor]:
    """Let keys and values visit the ranks that need them."""

    def prepare(source: int, *operands: Tensor) -> Attention:
        first_key = sum(parts.keys[:source])
        shifted = mods.shifted(parts.first_query, first_key)
        return Preparation(shifted, rest)(operands).with_traced()  # pyright: ignore

    own = prepare(parts.rank, *operands)
    captured = [c for c in own.signature.captures if isinstance(c, Tensor)]
    ring = Ring(parts.group, parts.keys, _live(parts, mods, own))
    found: Any = RingAttention.apply(ring, prepare, *operands, *captured)
    return found


def _gathered(
    parts: Parts, mods: _Mods, operands: Operands, rest: Any
) -> tuple[Tensor, Tensor]:
    """Compute with the keys and values of all ranks."""
    query, *own = operands
    key, value = (gather(parts.group, parts.keys, t) for t in own)
    return _attend((query, key, value), mods.shifted(parts.first_query), rest)


def _by_heads(
    parts: Parts, mods: _Mods, operands: Operands, rest: Any
) -> tuple[Tensor, Tensor]:
    """Compute all tokens of the rank's share of the heads."""
    size, group = len(parts.queries), parts.group
    query, key, _ = operands
    for name, heads in (("query", query.size(1)), ("key", key.size(1))):
        if heads % size:
            raise ShapeError(
                f'method="all-to-all" shares out heads, so that the {heads} heads of '
                f"the {name} expect a number of ranks that divides them, got {size}; "
                'take method="ring" or "all-gather"'
            )
    lengths = (parts.queries, parts.keys, parts.keys)
    found = [to_heads(group, n, t) for n, t in zip(lengths, operands, strict=True)]
    shifted = mods.shifted(head=parts.rank * (query.size(1) // size))
    out, lse = _attend(found, shifted, rest)  # pyright: ignore[reportArgumentType]
    out, lse = (to_tokens(group, parts.queries, t) for t in (out, lse[..., None]))
    return out, lse[..., 0]


def _attend(operands: Operands, mods: Any, rest: Any) -> tuple[Tensor, Tensor]:
    score_mod, _, mask_mod = mods
    found: Any = flex_attention(
        *operands, score_mod, mask_mod=mask_mod, enable_gqa=rest[0], scale=rest[1],
        return_lse=True,
    )  # fmt: skip
    return found


def _check_choice(name: str, got: object, known: Sequence[str]) -> None:
    if got not in known:
        raise OptionError(
            f"{name} expects one of {', '.join(known)}, got {got!r}"
            f"{did_you_mean(got, known)}"
        )


_known: Recent[tuple[tuple[Capture, ...], Live]] = Recent(16)
"""By a mask's key and lengths: captures, and which parts are live for them."""


def _live(parts: Parts, mods: _Mods, own: Attention) -> Live:
    """Return which parts of the keys may be live for which parts of the queries.

    All ranks find the same, from bounds of the mask or from blocks planned for it.
    """
    every = [[bool(q and k) for k in parts.keys] for q in parts.queries]
    batch, heads, _, dim = own.query.shape
    sizes = (batch, heads, sum(parts.queries), sum(parts.keys))
    if mods.mask is None or 0 in sizes:
        return every
    signature = read_signature(None, mods.mask, own.query.device)
    captures = signature.captures
    key = (signature.key, sizes, parts.queries, parts.keys)
    if signature.cacheable:
        kept = _known.find(key, lambda found: are_still(found[0], captures))
        if kept is not None:
            return kept[1]
    query, dims = own.query, (dim, own.value.size(3))
    with torch.no_grad():
        call = Attention(
            *stand_ins(sizes, dims, query.dtype, query.device),
            scale=1.0,
            tables=None,
            signature=signature,
            outputs=OUTPUTS[False, False],
            backend=own.backend,
        )
        size = _block(parts.queries), _block(parts.keys)
        blocks = find_blocks(Subject.of(call), size)
    alive = (blocks.classes != DEAD).flatten(0, 1).any(0)
    rows, columns = (
        list(map(partial(_blocks, m), _starts(n), n))
        for n, m in zip((parts.queries, parts.keys), blocks.size, strict=True)
    )
    found = [[bool(alive[r, c].any()) for c in columns] for r in rows]
    if signature.cacheable:
        _known.add(key, (tuple(map(Capture.of, captures)), found))
    return found


def _block(lengths: Sequence[int]) -> int:
    """Return a size of blocks: that of a part, or a fraction if they differ."""
    longest = max(lengths)
    return longest if min(lengths) == longest else -(-longest // 16)


def _starts(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths))]


def _blocks(size: int, start: int, length: int) -> slice:
    """Return the blocks that some positions are in."""
    return slice(start // size, -(-(start + length) // size) if length else 0)
