"""`PagedKV`: a cache whose keys and values lie in pages, which sequences share.

The host knows which pages each sequence has. The device has the same in a table, which
kernels read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor

from flexc.errors import CacheError, OptionError
from flexc.runtime.interface import MaskMod, ScoreMod, flex_attention
from flexc.runtime.kv_cache import (
    Cache,
    Part,
    both,
    check_sizes,
    make_storage,
    merge_attention,
    moved_score,
)


class PagedKV(Cache):
    """Keys and values in pages, which sequences share.

    `key` is (layers, pages + 1, Hkv, page size, E). Page 0 is nobody's: rows of `table`
    have it beyond their pages.
    """

    @torch.inference_mode(False)  # Later calls write outside of that mode too.
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
        shape = (layers, pages + 2, heads, page_size)  # The last is for padding.
        self._held = (slice(pages + 1),)
        self._stored = make_storage(shape, head_dim, value_dim, dtype, device)
        self.page_size = page_size
        self.table = torch.zeros(batch, each, dtype=torch.int32, device=device)
        """The pages of each sequence, on the device."""
        self._pages: list[list[int]] = [[] for _ in range(batch)]
        self._free = list(range(pages, 0, -1))
        self._users = [0] * (pages + 1)
        """The number of sequences that have each page."""
        self._place_first()

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
        self._place_first()

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
        self._place_first()

    def _check_sequence(self, sequence: int) -> None:
        if not isinstance(sequence, SupportsIndex) or not 0 <= sequence < self.batch:
            raise OptionError(
                f"a sequence is a number below {self.batch}, got {sequence!r}"
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
                    tensor[:, self._numbers(fresh).long()] = 0
            b, entry, page = self._numbers([*zip(*changed, strict=True)])  # pyright: ignore
            self.table[b.long(), entry.long()] = page

    def _indices(self, position: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
        last = self.table.size(1) - 1
        entry = (position // self.page_size).clamp(max=last).long()
        for_padding = self._stored[0].size(1) - 1
        page = torch.where(exists, self.table.gather(1, entry), for_padding)
        return page.long(), (position % self.page_size).long()

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
        if not isinstance(prefix, int):
            raise OptionError(f"prefix expects a number of tokens, got {prefix!r}")
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
        operands = rows, *self._layer(layer)
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
