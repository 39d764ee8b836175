"""Checks of the arguments of `flex_attention`. Error messages say how to fix a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn.attention.flex_attention import BlockMask, noop_mask

from flexc.errors import (
    BlockMaskError,
    DeviceError,
    DtypeError,
    OptionError,
    ShapeError,
)
from flexc.frontend.signatures import described
from flexc.runtime.inputs.notes import MaskOrigin, Notes, origin_of

MAX_HEAD_DIM = 1024

NO_BLOCKS = 1 << 30
"""The BLOCK_SIZE of the empty BlockMask that torch makes for calls without one."""

DTYPES = {
    "cpu": (torch.float32, torch.bfloat16, torch.float16, torch.float64),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}


NARROW = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
"""The dtypes of keys and values that are narrower than queries."""


Results = tuple[Tensor, Tensor | None, Tensor | None]
"""The output of a call, its log-sum-exp and its largest scores. The last two are None
unless the call asks for them.
"""


class Outputs(NamedTuple):
    """The results that a call asks for, besides the output."""

    lse: bool = False
    max_scores: bool = False
    lse_rest: bool = False
    """True if lse is followed by its rest, the part lost to rounding. Derivatives need
    the rest if scores are large. The shape of both is (B, 2, Hq, Sq).
    """


@dataclass(frozen=True, eq=False)
class Packed:
    """Tables in one tensor."""

    tensor: Tensor
    unpack: Callable[[Tensor], Tables]
    """A function that returns views of such a tensor as tables."""


@dataclass(frozen=True)
class Tables:
    """The tables of a BlockMask, broadcast to the call's batch and query heads.

    They list blocks of columns for each block of rows. Rows are queries and columns are
    keys. In the tables that `column_tables` makes, rows are keys and columns are
    queries.
    """

    tensors: tuple[Tensor, ...]
    block_size: tuple[int, int]
    """The numbers of rows and columns of a block."""
    origin: MaskOrigin | None = None
    """The mask whose blocks flexc listed in these tables. None for other tables.

    Blocks found from the mask may replace the tables.
    """
    notes: Notes | None = None
    """The notes of the BlockMask that the tables were read from."""
    columns: Tables | None = None
    """The same blocks, listed for each block of keys, if both were planned together."""
    derivative: Tables | None = None
    """The tables for derivatives, with columns, if these have blocks of another size.
    """
    packed: Packed | None = None
    """The one tensor that holds all tables, if they were planned."""

    @property
    def serve_derivatives(self) -> bool:
        """True if there are tables of columns, which derivatives need."""
        return self.columns is not None or self.derivative is not None

    @property
    def all_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that hold all tables."""
        if self.packed is not None:
            return (self.packed.tensor,)
        assert self.derivative is None, "planned tables are packed"
        return self.tensors + (() if self.columns is None else self.columns.tensors)

    @property
    def bare(self) -> Tables:
        """The tables without a reference to the BlockMask, as kept for later calls."""
        columns = self.columns and Tables(self.columns.tensors, self.columns.block_size)
        return replace(self, origin=None, notes=None, columns=columns)


DENSE = "a tensor with its elements in memory"


def is_lazy(tensor: Tensor) -> bool:
    """Return True if memory does not hold a tensor's elements at its strides.

    While Dynamo traces, negated tensors and zeros count as others: it cannot ask.
    """
    strided = tensor.layout is torch.strided and not tensor.is_nested
    strided &= not tensor.is_quantized
    if is_dynamo_compiling():
        return not strided
    return not strided or tensor.is_neg() or tensor._is_zerotensor()


def describe(tensor: Tensor) -> str:
    """Return a description of a lazy tensor, with advice, for an error message."""
    if tensor.is_nested:
        return "a nested one; flexc.flex_attention_varlen takes nested queries and keys"
    if tensor.layout is not torch.strided:
        return f"one of layout {tensor.layout}; make it dense with to_dense()"
    if tensor.is_quantized:
        return "a quantized one; make it one of floats with dequantize()"
    if tensor.is_neg():
        return "one that is negated when it is read; call resolve_neg()"
    return "zeros that have no memory; call clone()"


def check_ranks(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that query, key and value are dense tensors of four dimensions."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_rank(name, tensor)


def check_dense(name: str, tensor: Any) -> None:
    """Check that an argument is a tensor whose elements are in memory."""
    if not isinstance(tensor, Tensor):
        raise ShapeError(f"{name} expects a tensor, got {type(tensor).__name__}")
    if is_lazy(tensor):
        raise ShapeError(f"{name} expects {DENSE}, got {describe(tensor)}")


def check_rank(name: str, tensor: Tensor) -> None:
    check_dense(name, tensor)
    if tensor.dim() != 4:
        raise ShapeError(
            f"{name} expects 4 dimensions (batch, heads, length, head dim), got "
            f"shape {tuple(tensor.shape)}"
        )


def cast_and_check(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value, cast as autocast asks and checked.

    Key and value are cast to the query's dtype, as torch's eager attention does, and
    expanded to its batch.
    """
    check_ranks(query, key, value)
    query, key, value = autocast((query, key, value))
    check_dtypes(query, key, value)
    kept = (query.dtype, *NARROW)
    key, value = (t if t.dtype in kept else t.to(query.dtype) for t in (key, value))
    check_shapes(query, key, value, enable_gqa)
    if key.size(0) != query.size(0):
        key, value = (t.expand(query.size(0), -1, -1, -1) for t in (key, value))
    return query, key, value


class Pages(NamedTuple):
    """Keys and values of shape (pages, heads, page size, head dim), and a page table.

    Key n of sequence b is row n % size of page table[b, n // size].
    """

    key: Tensor
    value: Tensor
    table: Tensor

    @property
    def size(self) -> int:
        """The number of keys of a page."""
        return self.key.size(2)

    def in_sequence(self) -> tuple[Tensor, Tensor]:
        """Return tensors with the shapes of all sequences' keys and values.

        They stand for the shapes: they have no memory of their own, and are not read.
        """
        batch, pages = self.table.shape
        found: list[Tensor] = []
        for tensor in (self.key, self.value):
            first = tensor[:1, :, :1].expand(batch, -1, pages * self.size, -1)
            found.append(first)
        return found[0], found[1]


def pages_of_torch(paged: Any, key: Tensor, value: Tensor) -> Pages:
    """Return what torch's `PagedAttention` holds, for `flex_attention`.

    `key` and `value` are the caches (1, H, pages * page size, E) that it writes to.
    Pass the fields of the result as key, value and `page_table`.
    """
    size = paged.page_size
    for name, cache in (("key", key), ("value", value)):
        if (
            cache.dim() != 4
            or cache.size(0) != 1
            or cache.size(2) != paged.n_pages * size
        ):
            raise ShapeError(
                f"{name} expects shape (1, heads, {paged.n_pages * size}, head dim), "
                f"got {tuple(cache.shape)}"
            )
    keys, values = (
        cache[0].unflatten(1, (-1, size)).transpose(0, 1) for cache in (key, value)
    )
    return Pages(keys, values, paged.page_table.clamp(min=0).int())


def read_pages(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Pages:
    """Return keys and values in pages, checked; sequences are checked as others are."""
    check_ranks(query, key, value)
    check_dense("page_table", table)
    if table.dim() != 2:
        raise ShapeError(
            "page_table expects a tensor (batch, pages of a sequence), got "
            f"{tuple(table.shape)}"
        )
    if table.dtype is not torch.int32:
        raise DtypeError(
            f"page_table expects int32, got {table.dtype}; convert it with .int()"
        )
    if table.device != query.device:
        raise DeviceError(
            f"page_table expects the query's device {query.device}, got {table.device}"
        )
    if table.size(0) != query.size(0):
        raise ShapeError(
            f"page_table expects a row for each of {query.size(0)} sequences, got "
            f"{table.size(0)}"
        )
    if table.stride(1) != 1 and table.size(1) > 1:
        raise ShapeError(
            "page_table expects entries of a row that are adjacent in memory, got "
            f"strides {table.stride()}; call contiguous()"
        )
    if key.size(0) != value.size(0) or key.size(2) != value.size(2):
        raise ShapeError(
            "key and value expect equal numbers and sizes of pages (pages, heads, page "
            f"size, head dim), got {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if key.size(0) == 0 or key.size(2) == 0:
        raise ShapeError(
            "key and value expect at least one page of at least one key, got shape "
            f"{tuple(key.shape)}"
        )
    return Pages(key, value, table)


class Scales(NamedTuple):
    """The factors of narrow keys and values, of each head or of each key.

    Their shapes are (B, Hkv), or (B, Hkv, Skv) with adjacent numbers of a head.
    """

    key: Tensor | None = None
    value: Tensor | None = None

    @property
    def given(self) -> list[Tensor]:
        return [t for t in self if t is not None]


NO_SCALES = Scales()


def read_scales(
    key_scale: Tensor | None, value_scale: Tensor | None, query: Tensor, key: Tensor
) -> Scales:
    """Return the scales of a checked call, checked and broadcast."""
    return Scales(
        read_scale_of("key", key_scale, query, key),
        read_scale_of("value", value_scale, query, key),
    )


def read_scale_of(
    name: str, scale: Tensor | None, query: Tensor, key: Tensor
) -> Tensor | None:
    """Return a scale, (B, Hkv) or (B, Hkv, Skv), checked and broadcast."""
    if scale is None:
        return None
    name = f"{name}_scale"
    batch, heads, length = query.size(0), key.size(1), key.size(2)
    check_dense(name, scale)
    if scale.dtype is not torch.float32:
        raise DtypeError(f"{name} expects float32, got {scale.dtype}; convert it")
    if scale.device != query.device:
        raise DeviceError(
            f"{name} expects the query's device {query.device}, got {scale.device}"
        )
    if scale.dim() == 3 and scale.size(2) == 1:
        scale = scale.squeeze(2)
    pairs = zip(reversed(scale.shape[:2]), (heads, batch), strict=False)
    fits = all(have in (1, want) for have, want in pairs)
    blocks = scale.size(2) if scale.dim() == 3 else 1
    divides = length % blocks == 0 if blocks else length == 0
    if not fits or scale.dim() > 3 or not divides:
        raise ShapeError(
            f"{name} expects shape ({batch} or 1, {heads} or 1), a number for each "
            f"head, or a third dimension that divides the {length} keys, got "
            f"{tuple(scale.shape)}"
        )
    if scale.dim() < 3:
        return scale.expand(batch, heads)
    if blocks != length:
        scale = scale.repeat_interleave(length // blocks, 2)
    elif scale.stride(2) != 1:
        scale = scale.contiguous()
    return scale.expand(batch, heads, length)


def check_dtypes(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.device == key.device == value.device:
        raise DeviceError(
            "query, key and value expect one device, got "
            f"{query.device}, {key.device} and {value.device}"
        )
    allowed = DTYPES.get(query.device.type, DTYPES["cpu"])
    known = (query.dtype, *NARROW, *allowed)
    if not all(t.dtype in known for t in (key, value)):
        raise DtypeError(
            "query, key and value expect one dtype, got "
            f"{query.dtype}, {key.dtype} and {value.dtype}; cast them"
        )
    if query.dtype not in allowed:
        names = ", ".join(str(d).removeprefix("torch.") for d in allowed)
        raise DtypeError(
            f"query, key and value on {query.device.type} expect one of {names}, got "
            f"{query.dtype}"
        )


Shapes = tuple[torch.Size | Sequence[int], ...]
"""The shapes of query, key and value."""


def check_shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """Check that the shapes fit together. The error names a swapped layout, if any."""
    shapes = (query.shape, key.shape, value.shape)
    fault = _shape_fault(shapes, enable_gqa)
    if fault is not None:
        raise ShapeError(fault + _layout_hint(shapes, enable_gqa))


def _shape_fault(shapes: Shapes, enable_gqa: bool) -> str | None:
    """Return the error message for shapes that do not fit together, else None."""
    (bq, hq, _, e), (bk, hkv, kv_len, ek), (bv, hv, v_len, ev) = shapes
    if e != ek:
        return f"key expects head dim {e} as the query has, got {ek}"
    if (bk, hkv, kv_len) != (bv, hv, v_len):
        return (
            f"value expects batch, heads and length {(bk, hkv, kv_len)} as the key "
            f"has, got {(bv, hv, v_len)}"
        )
    for name, dim in (("query", e), ("value", ev)):
        if not 1 <= dim <= MAX_HEAD_DIM:
            return f"{name} expects a head dim of 1 to {MAX_HEAD_DIM}, got {dim}"
    if bk not in (bq, 1):
        expected = "1 as the query has" if bq == 1 else f"{bq} or 1"
        return f"key expects batch {expected}, got {bk}"
    if hq == hkv:
        return None
    shared = hkv != 0 and hq % hkv == 0
    if not enable_gqa:
        hint = "; pass enable_gqa=True to share key heads among query heads" * shared
        return f"key expects {hq} heads as the query has, got {hkv}{hint}"
    if not shared:
        return f"query expects a multiple of the key's {hkv} heads, got {hq} heads"
    return None


NAMES = ("query", "key", "value")


def _layout_hint(shapes: Shapes, enable_gqa: bool) -> str:
    """Return advice for tensors that fit with heads and length swapped, else "".

    Other libraries use the layout with heads and length swapped.
    """
    for names in (NAMES, NAMES[1:], *((name,) for name in NAMES)):
        swaps = [name in names for name in NAMES]
        pairs = list(zip(swaps, shapes, strict=True))
        turned = tuple((s[0], s[2], s[1], s[3]) if w else s for w, s in pairs)
        # Lengths exceed the number of heads, but a query may have a single position.
        judged = pairs[1:] if names == NAMES else pairs
        many = all(s[1] > s[2] for w, s in judged if w)
        if many and _shape_fault(turned, enable_gqa) is None:
            return f"; {swapped_layout(_listed(names))}"
    return ""


def _listed(names: Sequence[str]) -> str:
    """Join names as in a sentence: "query, key and value"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def swapped_layout(what: str) -> str:
    """Return the advice for tensors given in the layout of other libraries."""
    return (
        f"expected (B, H, S, E): did you pass {what} as (B, S, H, E)? Call "
        "transpose(1, 2)"
    )


def read_scale(scale: Any) -> float | None:
    """Return the factor on scores as a number, None for torch's default.

    Raise OptionError for other values and for tensors that require a gradient.
    """
    if scale is None or isinstance(scale, torch.SymFloat):
        return scale  # pyright: ignore[reportReturnType]
    got = "a tensor that requires a gradient, which a scale does not get"
    if not (isinstance(scale, Tensor) and scale.requires_grad):
        try:
            return float(scale)
        except OverflowError:
            raise OptionError("scale expects a number that a float can hold") from None
        except (TypeError, ValueError, RuntimeError):
            got = described(scale).partition(":")[0]
    raise OptionError(
        f"scale expects a number, got {got}; multiply the query by it instead"
    )


def autocast(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Cast tensors as torch's attention does under `torch.autocast`, except float64."""
    device = tensors[0].device.type
    if device not in DTYPES or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    kept = (torch.float64, *NARROW)
    return tuple(
        t.to(dtype) if t.is_floating_point() and t.dtype not in kept else t
        for t in tensors
    )


def split_block_mask(
    block_mask: BlockMask | None,
    mask_mod: Callable[..., Any] | None,
    query: Tensor,
    key: Tensor,
) -> tuple[Callable[..., Any] | None, Tables | None]:
    """Return the mask and the tables of a call. Both may be None."""
    if isinstance(mask_mod, BlockMask):
        raise BlockMaskError(
            "mask_mod expects a function of (b, h, q_idx, kv_idx), got a BlockMask; "
            "pass it as block_mask="
        )
    if block_mask is None:
        return mask_mod, None
    if not isinstance(block_mask, BlockMask):
        got = described(block_mask, (*query.shape[:3], key.size(2)))
        hint = "; pass a function as mask_mod=" if callable(block_mask) else ""
        raise BlockMaskError(
            "block_mask expects torch.nn.attention.flex_attention.BlockMask, got "
            f"{got}{hint}"
        )
    if mask_mod is not None:
        raise OptionError(
            "give block_mask or mask_mod, not both: a BlockMask brings its own "
            "mask_mod; combine masks with torch's and_masks"
        )
    mask = mask_of(block_mask)
    if mask is not None and getattr(mask, "__name__", "") == "_sliced_mask_mod_error":
        raise BlockMaskError(
            "block_mask was sliced, which drops its mask_mod; set mask_mod on the "
            "slice, or make a BlockMask for the part"
        )
    if min(block_mask.BLOCK_SIZE) >= NO_BLOCKS:
        return mask, None
    lengths = (block_mask.seq_lengths[0], block_mask.seq_lengths[1])
    check_lengths(lengths, block_mask.kv_num_blocks.device, query, key)
    notes = Notes.of(block_mask)
    rows = [t for t in notes.tables[:4] if t is not None]
    q_block, kv_block = block_mask.BLOCK_SIZE
    tables = make_tables(rows, (q_block, kv_block), query)
    return mask, replace(tables, origin=origin_of(block_mask), notes=notes)


def mask_of(block_mask: BlockMask) -> Any:
    """Return the mask_mod, None if it keeps all pairs."""
    return None if block_mask.mask_mod is noop_mask else block_mask.mask_mod


def check_lengths(
    lengths: tuple[int, int], device: torch.device, query: Tensor, key: Tensor
) -> None:
    """Check a BlockMask's lengths and device against query and key."""
    expected = (query.size(2), key.size(2))
    if lengths != expected:
        instead = "make one for these lengths, or pass its mask_mod as mask_mod="
        if lengths == (query.size(1), key.size(1)):
            instead = swapped_layout("query, key and value")
        raise BlockMaskError(
            f"block_mask was made for (q_len, kv_len) = {lengths}, got tensors with "
            f"{expected}; {instead}"
        )
    if device != query.device:
        raise BlockMaskError(
            f"block_mask is on {device}, query on {query.device}; move it with "
            "block_mask.to(device)"
        )


def given_columns(
    given: Sequence[Tensor], rows: Sequence[Tensor], columns: int
) -> Sequence[Tensor] | None:
    """Return a BlockMask's tables for blocks of keys, None if they are incomplete.

    A mask made of tables narrower than its keys has too few rows here, and torch drops
    the blocks listed beyond them.
    """
    if len(given) != len(rows):
        return None
    short = any(t.size(-1 - i % 2) < columns for i, t in enumerate(given))
    return None if short else given


def make_tables(
    tables: Sequence[Tensor | None],
    block_size: tuple[int, int],
    query: Tensor,
    length: int | None = None,
    expand: bool = True,
) -> Tables:
    """Check that tables have a row for each block of rows, and broadcast them.

    Broadcast dimensions have stride 0. Tables are cast to int32, the type that kernels
    read. `length` is the number of rows of the mask, by default the number of queries.
    Without `expand`, tables of one batch or head keep a dimension of size 1.
    """
    length = query.size(2) if length is None else length
    rows = -(-length // block_size[0])
    for rank, table in zip((1, 2, 1, 2), tables, strict=False):
        assert table is not None
        if table.size(-rank) < rows:
            raise BlockMaskError(
                f"block_mask expects {rows} rows of blocks of {block_size[0]} for "
                f"{length} queries, got {table.size(-rank)}; make one for this "
                "length (a slice or an adjusted mask has the rows of its origin)"
            )
    return Tables(broadcast_tables(tables, query, expand), block_size)


def broadcast_tables(
    tables: Sequence[Tensor | None], query: Tensor, expand: bool = True
) -> tuple[Tensor, ...]:
    """Return tables of partial, full and further blocks with the query's batch and
    heads.
    """
    b, h = query.shape[:2]
    expanded: list[Tensor] = []
    for rank, table in zip((3, 4, 3, 4) * 2, tables, strict=False):
        assert table is not None
        if is_lazy(table):
            raise BlockMaskError(f"block_mask expects {DENSE}, got {describe(table)}")
        while table.dim() < rank:
            table = table.unsqueeze(0)
        for name, have, want in (("B", table.size(0), b), ("H", table.size(1), h)):
            if have not in (1, want):
                raise BlockMaskError(
                    f"block_mask was made for {name}={have}, got a query with {want}"
                )
        table = table.to(torch.int32)
        if table.stride(-1) != 1:
            table = table.contiguous()
        if table.size(-1) == 0:
            # No block is listed, but some kernels read an entry before the first block.
            table = table.new_zeros(*table.shape[:-1], 1)
        expanded.append(table.expand(b, h, *table.shape[2:]) if expand else table)
    return tuple(expanded)
