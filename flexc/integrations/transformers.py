"""Attention of Hugging Face models: `attn_implementation="flexc"`.

transformers describes a mask by a function of positions, which is a mask_mod, so that
no tensor of size queries x keys is made. Offsets and lengths of caches are numbers that
the mask captures, so that nothing is compiled as a cache grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sliding_window_causal_mask_function,
    sliding_window_overlay,
)
from transformers.utils.import_utils import is_tracing

from flexc.errors import OptionError, ShapeError
from flexc.runtime.interface import MaskMod, ScoreMod, flex_attention


def register(name: str = "flexc") -> None:
    """Let models have `attn_implementation=name`. A second call changes nothing."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, make_mask)


class FunctionMask(BlockMask):
    """A mask that is a function of positions.

    Models and `generate` let it pass, because it is a BlockMask and has what they ask
    of a tensor of shape (batch, 1, queries, keys). It has no tables of blocks.
    """

    ndim = 4

    def __init__(self, mask_mod: MaskMod, batch: int, lengths: tuple[int, int]):
        self.mask_mod = mask_mod
        self.seq_lengths = lengths
        self.batch = batch

    def __repr__(self) -> str:
        return f"FunctionMask(shape={self.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, 1, *self.seq_lengths)

    def contiguous(self) -> FunctionMask:
        return self

    def to(self, device: Any, *_: Any, **__: Any) -> FunctionMask:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the mask. What it captures is where the model's inputs are."""
        return self


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = bidirectional_mask_function,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> FunctionMask | None:
    """Return the mask of some of a model's layers, None if it keeps all pairs.

    Args:
        batch_size: the number of sequences.
        q_length: the number of queries.
        kv_length: the number of keys. The last ones may be empty slots of a cache.
        q_offset: the position of the first query, which a static cache has as a tensor.
        kv_offset: the position of the first key.
        mask_function: a function that returns True for a live pair of positions.
        attention_mask: a tensor (batch, positions) that is False for padding. Positions
            beyond it are padding too.
    """
    mask = None if mask_function is bidirectional_mask_function else mask_function
    last_key = kv_offset + kv_length - 1
    is_last = q_length == 1 and not isinstance(q_offset, Tensor)
    is_last = is_last and q_offset >= last_key
    if is_last and q_offset - kv_offset < window_of(mask_function):
        mask = None  # A causal mask keeps all keys of the last position.
    if isinstance(q_offset, Tensor) and mask is not None:
        # The cache adds to its tensor before attention reads it.
        mask = shifted(mask, q_offset.to(torch.int32, copy=True), kv_offset)
    elif mask is not None and (q_offset != 0 or kv_offset != 0):
        mask = shifted(mask, q_offset, kv_offset)
    if attention_mask is not None:
        mask = without_padding(mask, attention_mask, kv_offset, kv_length)
    if mask is None:
        return None
    return FunctionMask(mask, batch_size, (q_length, kv_length))


CAUSAL_WINDOW = sliding_window_causal_mask_function(1).__code__
WINDOW = sliding_window_overlay(1).__code__
"""The code of transformers' causal masks within a window, and of their windows."""


def window_of(mask_function: Any) -> float:
    """Return the number of keys that a causal mask of transformers keeps for a query.

    Return 0 for other masks.
    """
    if mask_function is causal_mask_function:
        return math.inf
    if getattr(mask_function, "__code__", None) is not CAUSAL_WINDOW:
        return 0
    (masks,) = (cell.cell_contents for cell in mask_function.__closure__)
    windows = [m for m in masks if getattr(m, "__code__", None) is WINDOW]
    if len(windows) != 1 or set(masks) != {*windows, causal_mask_function}:
        return 0
    (window,) = (cell.cell_contents for cell in windows[0].__closure__)
    return window


def without_padding(
    mask: MaskMod | None, attention_mask: Tensor, first: int, length: int
) -> MaskMod | None:
    """Return a mask without the padding among `length` keys.

    `first` is the position of the first key. Positions beyond those of `attention_mask`
    are padding.
    """
    given = attention_mask.size(1) - first
    is_traced = is_tracing(attention_mask)
    if is_traced or not attention_mask.all():
        padding, size = attention_mask[:, first:], length
        if not is_traced:
            # Reads of a power of two elements are proved once for many lengths.
            size = 1 << (length - 1).bit_length()
            padding = padding[:, :size].contiguous()
        if (more := size - padding.size(1)) > 0:
            padding = nn.functional.pad(padding, (0, more))
        return both(mask, lambda b, h, q_idx, kv_idx: padding[b, kv_idx])
    if given < length:
        return both(mask, lambda b, h, q_idx, kv_idx: kv_idx < given)
    return mask


def both(first: MaskMod | None, second: MaskMod) -> MaskMod:
    """Return the mask of the pairs that two masks keep."""
    if first is None:
        return second
    return lambda b, h, q_idx, kv_idx: (
        first(b, h, q_idx, kv_idx) & second(b, h, q_idx, kv_idx)
    )


def shifted(mask: MaskMod, q_offset: int | Tensor, kv_offset: int) -> MaskMod:
    """Return a mask of queries and keys whose positions begin at offsets."""
    return lambda b, h, q_idx, kv_idx: mask(b, h, q_idx + q_offset, kv_idx + kv_offset)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    kernel_options: dict[str, Any] | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the output of a layer's attention, (batch, queries, heads, head dim).

    Args:
        module: the layer.
        query: (batch, heads, queries, head dim).
        key: (batch, heads of keys, keys, head dim).
        value: (batch, heads of keys, keys, head dim).
        attention_mask: what `make_mask` returns, any BlockMask, or a tensor that
            broadcasts to (batch, heads, queries, keys), of bools or added to scores.
        scaling: the factor on scores, 1 / sqrt(head dim) by default.
        dropout: 0, as dropout of attention is not supported.
        softcap: the limit that scores approach.
        s_aux: a logit for each head that takes part in softmax and has no value.
        position_bias: a tensor, broadcast as a mask is, that is added to scores.
        kernel_options: as for `flexc.flex_attention`.
        is_causal: whether a query sees keys up to its own position only, if there is no
            mask. A single query is the last position, which sees all keys.
    """
    if dropout:
        raise OptionError(
            f"attention expects no dropout, got {dropout}; set the dropout of "
            "attention to 0 in the config, or call model.eval()"
        )
    block_mask = None
    is_causal = is_causal and attention_mask is None and query.size(2) > 1
    mask_mod = causal if is_causal else None
    added = [] if position_bias is None else [broadcast(position_bias)]
    if isinstance(attention_mask, FunctionMask):
        mask_mod = attention_mask.mask_mod
    elif isinstance(attention_mask, BlockMask):
        block_mask = attention_mask
    elif attention_mask is not None and attention_mask.dtype is torch.bool:
        mask_mod = broadcast(attention_mask)
    elif attention_mask is not None:
        added.append(broadcast(attention_mask))
    score_mod = None if softcap is None else soft_cap(softcap)
    found: Any = flex_attention(
        query,
        key,
        value,
        score_mod=with_added(score_mod, added) if added else score_mod,
        block_mask=block_mask,
        scale=scaling,
        enable_gqa=query.size(1) != key.size(1),
        kernel_options=kernel_options,
        return_aux=None if s_aux is None else AuxRequest(lse=True),
        mask_mod=mask_mod,
    )
    if s_aux is not None:
        found, aux = found
        share = torch.sigmoid(aux.lse - s_aux[:, None])
        found = (found * share[..., None]).to(query.dtype)
    return found.transpose(1, 2).contiguous(), None


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    """Return True for keys up to the query's own position."""
    return q_idx >= kv_idx


def soft_cap(limit: float) -> ScoreMod:
    """Return the score_mod that keeps scores within a limit."""
    return lambda score, b, h, q_idx, kv_idx: torch.tanh(score / limit) * limit


def with_added(score_mod: ScoreMod | None, added: list[MaskMod]) -> ScoreMod:
    """Return a score_mod whose scores have one or more numbers added to them."""
    *rest, last = added
    before = with_added(score_mod, rest) if rest else score_mod
    if before is None:
        return lambda score, *at: score + last(*at)
    return lambda score, *at: before(score, *at) + last(*at)


READERS: dict[str, Callable[[Tensor], MaskMod]] = {
    "": lambda t: lambda b, h, q, k: t,
    "b": lambda t: lambda b, h, q, k: t[b],
    "h": lambda t: lambda b, h, q, k: t[h],
    "q": lambda t: lambda b, h, q, k: t[q],
    "k": lambda t: lambda b, h, q, k: t[k],
    "bh": lambda t: lambda b, h, q, k: t[b, h],
    "bq": lambda t: lambda b, h, q, k: t[b, q],
    "bk": lambda t: lambda b, h, q, k: t[b, k],
    "hq": lambda t: lambda b, h, q, k: t[h, q],
    "hk": lambda t: lambda b, h, q, k: t[h, k],
    "qk": lambda t: lambda b, h, q, k: t[q, k],
    "bhq": lambda t: lambda b, h, q, k: t[b, h, q],
    "bhk": lambda t: lambda b, h, q, k: t[b, h, k],
    "bqk": lambda t: lambda b, h, q, k: t[b, q, k],
    "hqk": lambda t: lambda b, h, q, k: t[h, q, k],
    "bhqk": lambda t: lambda b, h, q, k: t[b, h, q, k],
}
"""Functions of positions that read a tensor, by its dimensions.

A function for all of them would read indices that it captures, and each call would read
the function for longer.
"""


def broadcast(table: Tensor) -> Callable[..., Tensor]:
    """Return a function of positions that reads a tensor, broadcast to all of them.

    As in torch, the last dimension is that of keys.
    """
    if table.dim() > 4:
        raise ShapeError(
            "a mask or bias expects up to 4 dimensions (batch, heads, queries, keys), "
            f"got {tuple(table.shape)}"
        )
    # A model that permutes its table, as T5 does, leaves the keys of a row apart.
    if table.dim() > 1 and table.size(-2) > 1 and table.stride(-1) > 1:
        table = table.contiguous()
    return _reader(table.shape)(table.squeeze())


@lru_cache(1024)
def _reader(shape: torch.Size) -> Callable[[Tensor], MaskMod]:
    """Return the maker of functions that read a tensor of a shape, squeezed."""
    names = "bhqk"[4 - len(shape) :]
    return READERS["".join(n for n, s in zip(names, shape, strict=True) if s != 1)]
