"""Caches of keys and values that grow, attention over them, and `KVCache`.

Lengths are tensors on the device that masks capture. They bound the loops of kernels,
so that nothing is compiled, planned or waited for as a cache grows, and a CUDA graph of
`write` and `attend` serves all steps. The host counts along, and never reads a device.

Query i of a sequence is at the position of the i-th token of the last `extend`. Mods
receive positions within the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flexc.errors import CacheError, DtypeError, OptionError, ShapeError
from flexc.runtime.inputs.arguments import DTYPES, NARROW, check_dense, check_rank
from flexc.runtime.interface import MaskMod, ScoreMod, flex_attention


def causal_lower_right(q_len: int, kv_len: int | Tensor) -> MaskMod:
    """Return the causal mask in which the last query sees all keys.

    `kv_len` is the number of keys, a tensor for one of each sequence. Queries are the
    last tokens, as in decoding and in a prompt that is read in parts.
    """
    _check_count("q_len", q_len, (0,))
    _check_count("kv_len", kv_len, (0, 1))
    if isinstance(kv_len, Tensor) and kv_len.dim() == 1:
        return lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + kv_len[b] - q_len
    return lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + kv_len - q_len


def _check_count(name: str, count: Any, dims: tuple[int, ...]) -> None:
    """Check a number of tokens, or a tensor of one for each sequence."""
    if isinstance(count, Tensor):
        check_dense(name, count)
        if count.dim() in dims and count.dtype in (torch.int32, torch.int64):
            return
        got = f"{count.dtype} of shape {tuple(count.shape)}"
    elif isinstance(count, int | torch.SymInt):
        return
    else:
        got = repr(count)
    each = " or an int32 tensor with one for each sequence" if 1 in dims else ""
    raise OptionError(f"{name} expects a number of tokens{each}, got {got}")


class Part(NamedTuple):
    """Attention over some of the keys."""

    out: Tensor
    """(B, H, S, Ev)."""
    lse: Tensor
    """(B, H, S), the log-sum-exp of the scores of these keys."""


def merge_attention(*parts: tuple[Tensor, Tensor]) -> Part:
    """Return attention over all keys, from pairs (out, lse) over parts of the keys.

    No two parts have a key in common. A row without keys is 0. Parts with lse +inf
    outweigh all others, as a score of +inf does; attention gives them NaN as output.
    """
    _check_parts(parts)
    lses = torch.stack([lse for _, lse in parts])
    peak = lses.detach().amax(0)
    # The difference of equal infinities is no number.
    weights = torch.exp((lses - peak).masked_fill(lses.isinf() & (lses == peak), 0.0))
    weights = weights.masked_fill(lses == -torch.inf, 0.0)
    total = weights.sum(0)
    some = torch.where(total == 0, 1.0, total)
    outs = torch.stack([out for out, _ in parts])
    mean = (weights[..., None] * outs).sum(0) / some[..., None]
    return Part(mean.to(parts[0][0].dtype), peak + torch.log(some))


def _check_parts(parts: Sequence[Any]) -> None:
    pairs = [p for p in parts if isinstance(p, tuple | list) and len(p) == 2]
    tensors = all(isinstance(t, Tensor) for pair in pairs for t in pair)
    if not parts or len(pairs) != len(parts) or not tensors:
        raise OptionError(
            "merge_attention expects pairs of tensors (out, lse), each one argument"
        )
    for out, lse in parts:
        check_dense("merge_attention", out)
        check_dense("merge_attention", lse)
    (first, lse), *others = parts
    if lse.dtype not in (torch.float32, torch.float64):
        raise DtypeError(f"merge_attention expects lse in float32, got {lse.dtype}")
    if first.shape[:-1] != lse.shape or not first.dim():
        raise ShapeError(
            "merge_attention expects out (B, H, S, Ev) and lse (B, H, S), got "
            f"{tuple(first.shape)} and {tuple(lse.shape)}"
        )
    for part in others:
        for name, own, other in zip(("out", "lse"), (first, lse), part, strict=True):
            facts = [(tuple(t.shape), t.dtype, t.device) for t in (own, other)]
            if facts[0] != facts[1]:
                text = " and ".join(f"{s} {d} on {where}" for s, d, where in facts)
                raise ShapeError(
                    f"merge_attention expects parts that agree in {name}, got {text}"
                )


def moved_score(score_mod: ScoreMod | None, starts: Tensor) -> ScoreMod | None:
    """Return a score_mod of positions, as one of numbers of queries."""
    if score_mod is None:
        return None
    return lambda s, b, h, q_idx, kv_idx: score_mod(s, b, h, q_idx + starts[b], kv_idx)


def moved_mask(mask_mod: MaskMod, starts: Tensor) -> MaskMod:
    """Return a mask of positions, as one of numbers of queries."""
    return lambda b, h, q_idx, kv_idx: mask_mod(b, h, q_idx + starts[b], kv_idx)


def both(first: MaskMod, second: MaskMod) -> MaskMod:
    """Return the mask of the pairs that two masks keep."""
    return lambda *at: first(*at) & second(*at)


class Cache:
    """Lengths of sequences, and masks and attention over what they hold."""

    _stored: tuple[Tensor, Tensor]
    """Memory of keys and of values. Views of it are made when they are read, since
    pickle would copy them apart from it.
    """
    _held: tuple[slice, ...]
    """The index of a layer's memory without the places for padding."""

    def __init__(self, batch: int, capacity: int, device: torch.device):
        self.capacity = capacity
        """The most tokens of a sequence."""
        options: Any = {"dtype": torch.int32, "device": device}
        self.lengths = torch.zeros(batch, **options)
        """The number of tokens of each sequence, on the device."""
        self.starts = torch.zeros(batch, **options)
        """The position of each sequence's first token of the last `extend`."""
        places = torch.zeros(2, batch, 1, dtype=torch.int64, device=device)
        self._first = places.unbind()
        """The indices in memory of the first tokens of the last `extend`.

        All layers share them, and CUDA graphs of `write` read them.
        """
        self._known = [0] * batch
        """The lengths as the host counts them."""
        self._last = [0] * batch
        """The numbers of tokens of the last `extend`."""

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return len(self._known)

    @property
    def key(self) -> Tensor:
        """The keys of all layers."""
        return self._stored[0][:, *self._held]

    @property
    def value(self) -> Tensor:
        """The values of all layers."""
        return self._stored[1][:, *self._held]

    def known_lengths(self) -> tuple[int, ...]:
        """Return the lengths without waiting for the device."""
        return tuple(self._known)

    def extend(self, counts: int | Sequence[int] = 1) -> None:
        """Make room for more tokens, whose keys `write` then stores.

        `counts` are the numbers of tokens, one for all sequences or one for each.
        """
        each = self._counts(counts)
        for b, (length, count) in enumerate(zip(self._known, each, strict=True)):
            if length + count > self.capacity:
                raise CacheError(
                    f"sequence {b} of {length} tokens has no room for {count} more: "
                    f"its most are {self.capacity}; free it, or make a larger cache"
                )
        self._make_room(each)
        self.starts.copy_(self.lengths)
        is_one = len({*each}) == 1
        self.lengths.add_(each[0] if is_one else self._numbers(each))
        self._known = [n + c for n, c in zip(self._known, each, strict=True)]
        self._last = each
        self._place_first()

    def _counts(self, counts: int | Sequence[int]) -> list[int]:
        """Return the number of tokens of each sequence, checked."""
        given: Any = counts
        try:
            each = [index(given)] * self.batch
        except TypeError:
            try:
                each = [index(n) for n in given]
            except TypeError:
                each = []
        if len(each) != self.batch or any(n < 0 for n in each):
            raise OptionError(
                f"extend expects a number of tokens, 0 or more, for each of "
                f"{self.batch} sequences, got {counts!r}"
            )
        return each

    def _numbers(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.lengths.device)

    def _make_room(self, counts: Sequence[int]) -> None:
        """Prepare for more tokens, or raise CacheError and change nothing."""

    def write(self, key: Tensor, value: Tensor, layer: int = 0) -> None:
        """Store keys and values (B, Hkv, S, E) of the tokens of the last `extend`.

        Sequences with fewer than S new tokens have padding at the end, which is not
        stored.
        """
        self._check_new(key, value, max(self._last, default=0))
        self._check_layer(layer)
        self._write(key, value, layer)

    def _write(self, key: Tensor, value: Tensor, layer: int) -> None:
        count = key.size(2)
        if count == 0:
            return
        with torch.no_grad():
            places = self._first if count == 1 else self._places(count)
            for tensor, new in zip(self._stored, (key, value), strict=True):
                tensor[layer].transpose(1, 2)[places] = new.transpose(1, 2)

    def _places(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the indices in memory of `count` new tokens of each sequence."""
        step = torch.arange(count, dtype=torch.int32, device=self.starts.device)
        position = self.starts[:, None] + step
        return self._indices(position, position < self.lengths[:, None])

    def _place_first(self) -> None:
        with torch.no_grad():
            for kept, found in zip(self._first, self._places(1), strict=True):
                kept.copy_(found)

    def _check_new(self, key: Tensor, value: Tensor, most: int) -> None:
        """Check keys and values of up to `most` new tokens of each sequence."""
        names = ("key", "value")
        for name, new, held in zip(names, (key, value), self._stored, strict=True):
            expected = (self.batch, held.size(2), most, held.size(4))
            check_rank(name, new)
            if tuple(new.shape) != expected:
                raise ShapeError(
                    f"{name} expects shape {expected} (sequences, heads, the most new "
                    f"tokens of a sequence, head dim), got {tuple(new.shape)}"
                )
            if new.dtype != held.dtype or new.device != held.device:
                raise DtypeError(
                    f"{name} expects {held.dtype} on {held.device} as the cache has, "
                    f"got {new.dtype} on {new.device}"
                )
            if new.requires_grad and torch.is_grad_enabled():
                raise OptionError(
                    f"{name} expects no gradient, which a cache does not pass on: call "
                    "within torch.no_grad(), or detach() it"
                )

    def _check_layer(self, layer: int) -> None:
        layers = self._stored[0].size(0)
        if not isinstance(layer, int) or not 0 <= layer < layers:
            raise OptionError(f"layer expects a number below {layers}, got {layer!r}")

    def _indices(self, position: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of positions (B, S) in dimensions 0 and 2 of a layer.

        Positions that do not exist have a place that no sequence reads.
        """
        raise NotImplementedError

    def append(
        self, key: Tensor, value: Tensor, counts: int | Sequence[int] | None = None
    ) -> None:
        """Extend by new tokens, all S of (B, Hkv, S, E) by default, and write them.

        A call that raises an error changes nothing.
        """
        check_rank("key", key)
        counts = key.size(2) if counts is None else counts
        self._check_new(key, value, max(self._counts(counts), default=0))
        self.extend(counts)
        self._write(key, value, 0)

    def mask(self, mask_mod: MaskMod | None = None, causal: bool = True) -> MaskMod:
        """Return the mask of the keys that a query sees, of a call's own indices.

        `mask_mod` is a mask of positions within the sequence.
        """
        lengths, starts = self.lengths, self.starts

        # Each call reads the mask, and one function is read faster than two.
        def causal_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (kv_idx < lengths[b]) & (kv_idx <= q_idx + starts[b])

        def any_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return kv_idx < lengths[b]

        found = causal_mask if causal else any_mask
        return found if mask_mod is None else both(found, moved_mask(mask_mod, starts))

    def attend(
        self,
        query: Tensor,
        score_mod: ScoreMod | None = None,
        mask_mod: MaskMod | None = None,
        *,
        causal: bool = True,
        layer: int = 0,
        **options: Any,
    ) -> Any:
        """Return attention of queries (B, Hq, S, E), those of the last `extend`.

        Mods receive positions within the sequence. With `causal`, a query sees keys up
        to its own position, else all keys. `options` are those of `flex_attention`.
        """
        self._check_query(query, causal)
        self._check_layer(layer)
        if taken := options.keys() & {"page_table", "block_mask"}:
            raise OptionError(
                f"attend expects no {min(taken)}: the cache knows where keys lie and "
                "how many there are; pass mask_mod for other masks"
            )
        return self._attend(
            query,
            layer,
            moved_score(score_mod, self.starts),
            self.mask(mask_mod, causal),
            options,
        )

    def _check_query(self, query: Tensor, causal: bool) -> None:
        check_rank("query", query)
        most = max(self._last, default=0)
        if query.size(0) != self.batch:
            raise ShapeError(
                f"query expects {self.batch} sequences, got shape {tuple(query.shape)}"
            )
        if causal and query.size(2) != most:
            raise ShapeError(
                f"query expects the {most} tokens of the last extend (the most of a "
                f"sequence), got {query.size(2)}; pass causal=False for queries "
                "without positions"
            )

    def _attend(
        self,
        query: Tensor,
        layer: int,
        score_mod: ScoreMod | None,
        mask_mod: MaskMod,
        options: dict[str, Any],
    ) -> Any:
        options.setdefault("enable_gqa", True)
        operands = query, *self._layer(layer)
        return flex_attention(*operands, score_mod, mask_mod=mask_mod, **options)

    def _layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer."""
        key, value = (t[layer, *self._held] for t in self._stored)
        return key, value


class KVCache(Cache):
    """Keys and values of sequences, each in memory for its most tokens.

    `key` is (layers, B, Hkv, capacity, E).
    """

    @torch.inference_mode(False)  # Later calls write outside of that mode too.
    def __init__(
        self,
        batch: int,
        heads: int,
        capacity: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        layers: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        check_sizes(batch=batch, heads=heads, capacity=capacity, layers=layers)
        super().__init__(batch, capacity, torch.device(device))
        shape = (layers, batch, heads, capacity + 1)  # The last is for padding.
        self._held = slice(None), slice(None), slice(capacity)
        self._stored = make_storage(shape, head_dim, value_dim, dtype, device)
        self._place_first()

    def reset(self) -> None:
        """Forget all tokens."""
        with torch.no_grad():
            for tensor in self._stored:
                # Whatever it held before, even NaN, must not reach new tokens.
                tensor.zero_()
        self.lengths.zero_()
        self.starts.zero_()
        self._known, self._last = [0] * self.batch, [0] * self.batch
        self._place_first()

    def _indices(self, position: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
        b = torch.arange(self.batch, device=position.device)[:, None]
        return b, torch.where(exists, position, self.capacity).long()


def check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise OptionError(f"{name} expects a number of 1 or more, got {size!r}")


def make_storage(
    shape: tuple[int, ...],
    head_dim: int,
    value_dim: int | None,
    dtype: torch.dtype,
    device: torch.device | str,
) -> tuple[Tensor, Tensor]:
    """Return memory for keys and for values."""
    value_dim = head_dim if value_dim is None else value_dim
    check_sizes(head_dim=head_dim, value_dim=value_dim)
    if dtype not in (*DTYPES["cpu"], *NARROW):
        raise DtypeError(f"a cache expects a dtype that attention takes, got {dtype}")
    key, value = (
        torch.zeros(*shape, dim, dtype=dtype, device=device)
        for dim in (head_dim, value_dim)
    )
    return key, value
