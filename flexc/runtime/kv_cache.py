"""Caches of keys and values that grow: `KVCache`, `PagedKV`, and attention over them.

Lengths are tensors on the device that masks capture. They bound the loops of kernels,
so that nothing is compiled, planned or waited for as a cache grows, and a CUDA graph of
`write` and `attend` serves all steps. The host counts along, and never reads a device.

Query i of a sequence is at the position of the i-th token of the last `extend`. Mods
receive positions within the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from flexc.errors import CacheError, DtypeError, OptionError, ShapeError
from flexc.runtime.inputs.arguments import DTYPES, NARROW, check_rank
from flexc.runtime.interface import MaskMod, ScoreMod, flex_attention


def causal_lower_right(q_len: int, kv_len: int | Tensor) -> MaskMod:
    """Return the causal mask in which the last query sees all keys.

    `kv_len` is the number of keys, a tensor for one of each sequence. Queries are the
    last tokens, as in decoding and in a prompt that is read in parts.
    """
    if isinstance(kv_len, Tensor) and kv_len.dim() == 1:
        return lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + kv_len[b] - q_len
    return lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + kv_len - q_len


class Part(NamedTuple):
    """Attention over some of the keys."""

    out: Tensor
    """(B, H, S, Ev)."""
    lse: Tensor
    """(B, H, S), the log-sum-exp of the scores of these keys."""


def merge_attention(*parts: tuple[Tensor, Tensor]) -> Part:
    """Return attention over all keys, from pairs (out, lse) over parts of the keys.

    No two parts have a key in common. A row without keys is 0.
    """
    if not parts:
        raise OptionError("merge_attention expects pairs (out, lse), got none")
    lses = torch.stack([lse for _, lse in parts])
    peak = lses.amax(0).clamp(min=torch.finfo(lses.dtype).min)
    weights = torch.exp(lses - peak)
    total = weights.sum(0)
    outs = torch.stack([out for out, _ in parts])
    mean = (weights[..., None] * outs).sum(0) / torch.where(total > 0, total, 1.0)[
        ..., None
    ]
    return Part(mean.to(parts[0][0].dtype), peak + torch.log(total))


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

    def __init__(self, batch: int, capacity: int, device: torch.device):
        self.capacity = capacity
        """The most tokens of a sequence."""
        options: Any = {"dtype": torch.int32, "device": device}
        self.lengths = torch.zeros(batch, **options)
        """The number of tokens of each sequence, on the device."""
        self.starts = torch.zeros(batch, **options)
        """The position of each sequence's first token of the last `extend`."""
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
        return self._stored[0][:, :, :, : self.capacity]

    @property
    def value(self) -> Tensor:
        """The values of all layers."""
        return self._stored[1][:, :, :, : self.capacity]

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
        if isinstance(counts, int):
            self.lengths.add_(counts)
        else:
            self.lengths.add_(self._numbers(each))
        self._known = [n + c for n, c in zip(self._known, each, strict=True)]
        self._last = each

    def _counts(self, counts: int | Sequence[int]) -> list[int]:
        """Return the number of tokens of each sequence, checked."""
        try:
            is_one = isinstance(counts, int)
            each = [index(n) for n in ([counts] * self.batch if is_one else counts)]
        except TypeError:
            each = []
        if len(each) != self.batch or any(n < 0 for n in each):
            raise OptionError(
                f"extend expects a number of tokens, 0 or more, for each of "
                f"{self.batch} sequences, got {counts!r}"
            )
        return each

    def _numbers(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32).to(self.lengths.device)

    def _make_room(self, counts: Sequence[int]) -> None:
        """Prepare for more tokens, or raise CacheError and change nothing."""

    def write(self, key: Tensor, value: Tensor, layer: int = 0) -> None:
        """Store keys and values (B, Hkv, S, E) of the tokens of the last `extend`.

        Sequences with fewer than S new tokens have padding at the end, which is not
        stored.
        """
        for name, new, held in (("key", key, self.key), ("value", value, self.value)):
            most = max(self._last, default=0)
            expected = (self.batch, held.size(2), most, held.size(4))
            check_rank(name, new)
            if tuple(new.shape) != expected:
                raise ShapeError(
                    f"{name} expects shape {expected} (sequences, heads, tokens of the "
                    f"last extend, head dim), got {tuple(new.shape)}"
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
        if key.size(2) == 0:
            return
        self._check_layer(layer)
        with torch.no_grad():
            step = torch.arange(key.size(2), dtype=torch.int32, device=key.device)
            position = self.starts[:, None] + step
            exists = position < self.lengths[:, None]
            self._store(layer, (key, value), position, exists)

    def _check_layer(self, layer: int) -> None:
        if not isinstance(layer, int) or not 0 <= layer < len(self.key):
            raise OptionError(
                f"layer expects a number below {len(self.key)}, got {layer!r}"
            )

    def _store(
        self, layer: int, new: tuple[Tensor, Tensor], position: Tensor, exists: Tensor
    ) -> None:
        """Write keys and values at positions (B, S), where they exist."""
        raise NotImplementedError

    def append(
        self, key: Tensor, value: Tensor, counts: int | Sequence[int] | None = None
    ) -> None:
        """Extend by new tokens, all S of (B, Hkv, S, E) by default, and write them."""
        self.extend(key.size(2) if counts is None else counts)
        self.write(key, value)

    def mask(self, mask_mod: MaskMod | None = None, causal: bool = True) -> MaskMod:
        """Return the mask of the keys that a query sees, of a call's own indices.

        `mask_mod` is a mask of positions within the sequence.
        """
        lengths, starts = self.lengths, self.starts
        found: MaskMod = lambda b, h, q_idx, kv_idx: kv_idx < lengths[b]  # noqa: E731
        if causal:
            found = both(found, lambda b, h, i, j: j <= i + starts[b])
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
                f"query expects the {most} tokens of the last extend, got "
                f"{query.size(2)}; pass causal=False for queries without positions"
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
        operands = query, self.key[layer], self.value[layer]
        return flex_attention(*operands, score_mod, mask_mod=mask_mod, **options)


class KVCache(Cache):
    """Keys and values of sequences, each in memory for its most tokens.

    `key` is (layers, B, Hkv, capacity, E).
    """

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
        self._stored = make_storage(shape, head_dim, value_dim, dtype, device)

    def reset(self) -> None:
        """Forget all tokens."""
        self.lengths.zero_()
        self.starts.zero_()
        self._known, self._last = [0] * self.batch, [0] * self.batch

    def _store(
        self, layer: int, new: tuple[Tensor, Tensor], position: Tensor, exists: Tensor
    ) -> None:
        place = torch.where(exists, position, self.capacity).long()
        b = torch.arange(self.batch, device=place.device)[:, None]
        for tensor, added in zip(self._stored, new, strict=True):
            tensor[layer].transpose(1, 2)[b, place] = added.transpose(1, 2)


class PagedKV(Cache):
    """Keys and values in pages, which sequences share.

    `key` is (layers, pages + 1, Hkv, page size, E). Page 0 is nobody's: rows of `table`
    have it beyond their pages.
    """

    def __init__(
        self,
        batch: int,
        heads: int,
        pages: int,
        page_size: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        capacity: int | None = None,
        layers: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        """Make an empty cache; `capacity` is the most tokens of a sequence."""
        check_sizes(
            batch=batch, heads=heads, pages=pages, page_size=page_size, layers=layers
        )
        capacity = pages * page_size if capacity is None else capacity
        check_sizes(capacity=capacity)
        each = -(-capacity // page_size)
        super().__init__(batch, each * page_size, torch.device(device))
        shape = (layers, pages + 1, heads, page_size)
        self._stored = make_storage(shape, head_dim, value_dim, dtype, device)
        self.page_size = page_size
        self.table = torch.zeros(batch, each, dtype=torch.int32, device=device)
        """The pages of each sequence, on the device."""
        self._pages: list[list[int]] = [[] for _ in range(batch)]
        self._free = list(range(pages, 0, -1))
        self._users = [0] * (pages + 1)
        """The number of sequences that have each page."""

    @property
    def free_pages(self) -> int:
        """The number of pages that no sequence has."""
        return len(self._free)

    def free(self, sequence: int) -> None:
        """Forget a sequence's tokens; pages that no other sequence has are free."""
        self._check_sequence(sequence)
        for page in reversed(self._pages[sequence]):
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)
        self._pages[sequence] = []
        self._known[sequence] = self._last[sequence] = 0
        self.table[sequence].zero_()
        self.lengths[sequence].zero_()
        self.starts[sequence].zero_()

    def fork(self, source: int, target: int) -> None:
        """Let an empty sequence begin as another one is; they share its pages.

        A page that is not full is copied when one of them gets a token there.
        """
        self._check_sequence(source)
        self._check_sequence(target)
        if self._known[target]:
            raise CacheError(
                f"fork expects an empty sequence as its target, but {target} has "
                f"{self._known[target]} tokens; free it first"
            )
        self._pages[target] = list(self._pages[source])
        for page in self._pages[target]:
            self._users[page] += 1
        self._known[target], self._last[target] = self._known[source], 0
        self.table[target].copy_(self.table[source])
        self.lengths[target].copy_(self.lengths[source])
        self.starts[target].copy_(self.lengths[source])

    def _check_sequence(self, sequence: int) -> None:
        if not 0 <= sequence < self.batch:
            raise OptionError(
                f"a sequence is a number below {self.batch}, got {sequence}"
            )

    def _make_room(self, counts: Sequence[int]) -> None:
        """Give pages to sequences, and copy shared pages that get tokens."""
        growth = [self._growth(b, n) for b, n in enumerate(counts)]
        shared = self._shared_and_written(counts)
        needed = sum(growth) + len(shared)
        if needed > len(self._free):
            raise CacheError(
                f"{needed} more pages of {self.page_size} tokens are needed, but of "
                f"{len(self._users) - 1} pages {len(self._free)} are free; free a "
                "sequence, or make a cache with more pages"
            )
        changed: list[tuple[int, int, int]] = []
        copies: list[tuple[int, int]] = []
        for b in shared:
            old, new = self._pages[b][-1], self._take()
            self._users[old] -= 1
            self._pages[b][-1] = new
            copies.append((old, new))
            changed.append((b, len(self._pages[b]) - 1, new))
        fresh = [(b, self._take()) for b, n in enumerate(growth) for _ in range(n)]
        for b, page in fresh:
            changed.append((b, len(self._pages[b]), page))
            self._pages[b].append(page)
        self._apply(copies, [page for _, page in fresh], changed)

    def _growth(self, b: int, count: int) -> int:
        """Return the number of pages that a sequence lacks for more tokens."""
        return -(-(self._known[b] + count) // self.page_size) - len(self._pages[b])

    def _shared_and_written(self, counts: Sequence[int]) -> list[int]:
        """Return the sequences that write to a page that another keeps."""
        users: dict[int, int] = {}
        found: list[int] = []
        for b, count in enumerate(counts):
            if not count or self._known[b] % self.page_size == 0:
                continue
            page = self._pages[b][-1]
            left = users.setdefault(page, self._users[page])
            if left > 1:
                users[page] = left - 1
                found.append(b)
        return found

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _apply(
        self,
        copies: Sequence[tuple[int, int]],
        fresh: Sequence[int],
        changed: Sequence[tuple[int, int, int]],
    ) -> None:
        """Copy pages, clear new ones, and write the entries of the table."""
        if not changed:
            return
        with torch.no_grad():
            for tensor in (self.key, self.value):
                if copies:
                    old, new = self._numbers([*zip(*copies, strict=True)]).long()  # pyright: ignore
                    tensor[:, new] = tensor[:, old]
                if fresh:
                    # Whatever a page held before, even NaN, must not reach others.
                    tensor.index_fill_(1, self._numbers(fresh).long(), 0)
            b, entry, page = self._numbers([*zip(*changed, strict=True)])  # pyright: ignore
            self.table[b.long(), entry.long()] = page

    def _store(
        self, layer: int, new: tuple[Tensor, Tensor], position: Tensor, exists: Tensor
    ) -> None:
        last = self.table.size(1) - 1
        entry = (position // self.page_size).clamp(max=last).long()
        page = torch.where(exists, self.table.gather(1, entry), 0).long()
        element = (position % self.page_size).long()
        for tensor, added in zip((self.key, self.value), new, strict=True):
            rows = torch.where(exists[..., None, None], added.transpose(1, 2), 0)
            tensor[layer].transpose(1, 2)[page, element] = rows

    def attend(
        self,
        query: Tensor,
        score_mod: ScoreMod | None = None,
        mask_mod: MaskMod | None = None,
        *,
        causal: bool = True,
        layer: int = 0,
        prefix: int = 0,
        **options: Any,
    ) -> Any:
        """Return attention as `Cache.attend` does.

        The first `prefix` tokens, in pages that all sequences share, are read once for
        the whole batch.
        """
        if not prefix:
            return super().attend(
                query, score_mod, mask_mod, causal=causal, layer=layer, **options
            )
        self._check_query(query, causal)
        self._check_layer(layer)
        self._check_prefix(prefix)
        if unknown := options.keys() - {"scale", "kernel_options", "return_lse"}:
            raise OptionError(f"prefix expects no option {sorted(unknown)[0]}")
        wants_lse = options.pop("return_lse", False)
        first = self._attend_prefix(query, score_mod, mask_mod, layer, prefix, options)
        mask = both(self.mask(mask_mod, causal), lambda b, h, i, j: j >= prefix)
        score = moved_score(score_mod, self.starts)
        rest = self._attend(query, layer, score, mask, {**options, "return_lse": True})
        merged = merge_attention(first, rest)
        return tuple(merged) if wants_lse else merged.out

    def _check_prefix(self, prefix: int) -> None:
        count = prefix // self.page_size
        first = self._pages[0][:count]
        is_shared = all(p[:count] == first for p in self._pages)
        before = min(n - c for n, c in zip(self._known, self._last, strict=True))
        if prefix % self.page_size or prefix < 0 or len(first) < count:
            raise OptionError(
                f"prefix expects a number of tokens of whole pages of {self.page_size} "
                f"that all sequences have, got {prefix}"
            )
        if not is_shared or prefix > before:
            raise OptionError(
                f"prefix expects {prefix} tokens that all sequences share and that "
                "come before their last tokens; fork them from one sequence"
            )

    def _attend_prefix(
        self,
        query: Tensor,
        score_mod: ScoreMod | None,
        mask_mod: MaskMod | None,
        layer: int,
        prefix: int,
        options: dict[str, Any],
    ) -> Part:
        """Attend to the first tokens, with the queries of all sequences as one's."""
        batch, _, count, _ = query.shape
        starts = self.starts
        rows = query.transpose(0, 1).flatten(1, 2)[None]

        def place(i: Any) -> tuple[Any, Any]:
            return i // count, i % count + starts[i // count]

        score: Any = score_mod and (
            lambda s, b, h, i, j: score_mod(s, place(i)[0], h, place(i)[1], j)
        )
        mask: Any = mask_mod and (
            lambda b, h, i, j: mask_mod(place(i)[0], h, place(i)[1], j)
        )
        table = self.table[:1, : prefix // self.page_size]
        operands = rows, self.key[layer], self.value[layer]
        options = {"enable_gqa": True, **options, "return_lse": True}
        found: Any = flex_attention(
            *operands, score, mask_mod=mask, page_table=table, **options
        )
        out, lse = (
            t[0].unflatten(1, (batch, count)).transpose(0, 1)
            for t in cast("Any", found)
        )
        return Part(out, lse)

    def _attend(
        self,
        query: Tensor,
        layer: int,
        score_mod: ScoreMod | None,
        mask_mod: MaskMod,
        options: dict[str, Any],
    ) -> Any:
        return super()._attend(
            query, layer, score_mod, mask_mod, {**options, "page_table": self.table}
        )


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
