"""`flex_attention_varlen`: attention within each of several packed sequences.

A call is `flex_attention` of one batch. Its mods see positions in the packed tensors,
find the sequence of each, and give the user's mods that sequence's number as the batch,
and positions within it. What they read is made once for given `cu_seqlens`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from flexc.errors import DeviceError, DtypeError, ShapeError, TracingError
from flexc.frontend.code_facts import PACKED_MASKS
from flexc.runtime.inputs.arguments import check_dense
from flexc.runtime.inputs.notes import Capture, are_still
from flexc.runtime.inputs.wrappers import (
    is_batched,
    plain,
    tracing,
    without_modes,
    wrapper,
)
from flexc.runtime.interception import check_not_captured
from flexc.runtime.interface import MaskMod, ScoreMod, flex_attention
from flexc.runtime.process.recent import Recent, turn
from flexc.runtime.tapes.gpus import is_capturing

MAX_KEPT = 64
"""The number of pairs of `cu_seqlens` whose sequences are kept."""


@_disable_dynamo
def flex_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: object = None,
    max_seqlen_k: object = None,
    *,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention within each of several sequences, packed one after the other.

    Mods get the number of the sequence as b, and positions within the sequence. Nothing
    is padded, and pairs of two sequences are not visited. Nothing waits for a GPU.

    Args:
        query: (total of all lengths, Hq, E), or a jagged nested tensor of shape
            (n, length, Hq, E) or (n, Hq, length, E).
        key: (total, Hkv, E), or nested. Hq may be a multiple of Hkv.
        value: (total, Hkv, Ev), or nested.
        cu_seqlens_q: (n + 1,), int32 or int64: the first query of each of n sequences,
            followed by the total. Nested tensors have their own. On a GPU a call reads
            them again after a write that torch counts, so after one by a kernel of
            yours, or through `.data`, pass another view, `cu_seqlens[:]`.
        cu_seqlens_k: the same for keys and values, `cu_seqlens_q` by default.
        max_seqlen_q: ignored, like `max_seqlen_k`: kernels need no longest lengths. For
            calls that are written for other libraries.
        max_seqlen_k: see `max_seqlen_q`.
        score_mod: as for `flex_attention`.
        mask_mod: as for `flex_attention`.
        scale: the factor on scores, 1 / sqrt(E) by default.
        return_lse: also return the log-sum-exp of each row's scores, (Hq, total).
        kernel_options: as for `flex_attention`.
        backend: as for `flex_attention`.

    Returns:
        The output, (total, Hq, Ev), nested as the query is; with `return_lse` a pair
        (output, lse).

    Raises:
        FlexcError: a class of `flexc.errors`. Numbers in `cu_seqlens` that are out of
            order, or do not end in the total, raise ShapeError: at the call on a CPU;
            on a GPU, at the first later call that finds the test complete.
    """
    check_not_captured("cu_seqlens")
    if any(isinstance(t, Tensor) and t.is_nested for t in (query, key, value)):
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            raise ShapeError("nested tensors have offsets; give no cu_seqlens")
        query, cu_seqlens_q, like = _jagged("query", query)
        key, cu_seqlens_k, _ = _jagged("key", key)
        value, cu_seqlens_v, _ = _jagged("value", value)
        _check_equal_offsets(cu_seqlens_k, cu_seqlens_v)
    else:
        like = None
        if cu_seqlens_q is None:
            raise ShapeError(
                "cu_seqlens_q expects the first query of each sequence, followed by "
                "their total, got None"
            )
        if cu_seqlens_k is None:
            cu_seqlens_k = cu_seqlens_q
    query, key, value = (_heads_first(n, t) for n, t in _named(query, key, value))
    lengths = query.size(2), key.size(2)
    given = _sequences((cu_seqlens_q, cu_seqlens_k), lengths, query)
    score_mod, mask_mod = packed_mods(score_mod, mask_mod, given)
    found: Any = flex_attention(
        query, key, value, score_mod, mask_mod=mask_mod, scale=scale, enable_gqa=True,
        return_lse=return_lse, kernel_options=kernel_options, backend=backend,
    )  # fmt: skip
    out, lse = found if return_lse else (found, None)
    # The derivative of `out[0]` would fill a tensor with zeros and copy to it.
    out = out.squeeze(0).transpose(0, 1)
    out = out if like is None else like(out)
    return out if lse is None else (out, lse.squeeze(0))


def _named(*operands: Tensor) -> zip[tuple[str, Tensor]]:
    return zip(("query", "key", "value"), operands, strict=True)


def _heads_first(name: str, tensor: Tensor) -> Tensor:
    """Return a packed tensor as one batch, (1, heads, total, head dim)."""
    if not isinstance(tensor, Tensor):
        raise ShapeError(f"{name} expects a tensor, got {type(tensor).__name__}")
    if tensor.dim() != 3:
        raise ShapeError(
            f"{name} expects 3 dimensions (total of all lengths, heads, head dim), got "
            f"shape {tuple(tensor.shape)}"
        )
    return tensor.transpose(0, 1)[None]


class _Nesting(NamedTuple):
    """The nesting of a jagged tensor, which its values may have again."""

    offsets: Tensor
    heads_first: bool

    def __call__(self, values: Tensor) -> Tensor:
        nested = torch.nested.nested_tensor_from_jagged(values, self.offsets)
        return nested.transpose(1, 2) if self.heads_first else nested


def _jagged(name: str, tensor: Tensor) -> tuple[Tensor, Tensor, _Nesting]:
    """Return the values, (total, heads, dim), of a nested tensor, and its nesting."""
    is_jagged = isinstance(tensor, Tensor) and tensor.is_nested
    if not is_jagged or tensor.layout is not torch.jagged or tensor.dim() != 4:
        raise ShapeError(
            f"{name} expects a jagged nested tensor of 4 dimensions, as the others are"
        )
    ragged: Any = tensor
    heads_first = ragged._ragged_idx == 2
    if heads_first:
        ragged = ragged.transpose(1, 2)
    if ragged._ragged_idx != 1 or ragged.lengths() is not None:
        raise ShapeError(
            f"{name} expects sequences without holes, with a length for dimension 1 or "
            "2; call contiguous()"
        )
    offsets = ragged.offsets()
    return ragged.values(), offsets, _Nesting(offsets, heads_first)


def _check_equal_offsets(keys: Tensor, values: Tensor) -> None:
    if keys is values or (keys.is_cpu and torch.equal(keys, values)):
        return
    raise ShapeError(
        "value expects the offsets of the key; make it with "
        "torch.nested.nested_tensor_from_jagged(values, key.offsets())"
    )


_known: Recent[tuple[tuple[Capture, ...], Sequences]] = Recent(MAX_KEPT)
"""The sequences of `cu_seqlens`, by their numbers on a CPU, by identities on a GPU."""

Lengths = tuple[int, int]


def _sequences(
    given: tuple[Tensor, Tensor], lengths: Lengths, query: Tensor
) -> Sequences:
    """Return the sequences of `cu_seqlens`, made at the first use of their numbers."""
    captured = is_capturing(query)  # A graph may run with other numbers.
    if not captured:
        _raise_late()
    names = ("cu_seqlens_q", "cu_seqlens_k")
    for name, tensor in zip(names, given, strict=True):
        _check_kind(name, tensor, query)
    if given[0].size(0) != given[1].size(0):
        raise ShapeError(
            f"cu_seqlens_k expects {given[0].size(0)} numbers as cu_seqlens_q has, got "
            f"{given[1].size(0)}"
        )
    is_self = given[0] is given[1] and lengths[0] == lengths[1]
    if query.is_cpu:  # Versions do not count writes by NumPy, or through `.data`.
        what, counted = tuple(tuple(t.tolist()) for t in given), ()
    else:
        what, counted = tuple(map(id, given)), given
    key = lengths, is_self, what
    kept = None
    if not captured:
        kept = _known.find(key, lambda found: are_still(found[0], counted))
    if kept is not None:
        return kept[1]
    # Later calls may be recorded, and outside of this one's transforms.
    with torch.inference_mode(False), torch.no_grad(), without_modes():
        query_starts, of_query = _placed(names[0], plain(given[0]), lengths[0])
        key_starts, of_key = query_starts, of_query
        if not is_self:
            key_starts, of_key = _placed(names[1], plain(given[1]), lengths[1])
    found = Sequences(of_query, of_key, query_starts, key_starts)
    if not captured:
        _known.add(key, (tuple(map(Capture.of, counted)), found))
    return found


def _check_kind(name: str, given: Tensor, query: Tensor) -> None:
    if not isinstance(given, Tensor) or given.dtype not in (torch.int32, torch.int64):
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise DtypeError(f"{name} expects a tensor of int32 or int64, got {kind}")
    check_dense(name, given)
    if given.dim() != 1 or not given.size(0):
        raise ShapeError(
            f"{name} expects n + 1 numbers for n sequences, got shape "
            f"{tuple(given.shape)}"
        )
    if given.device != query.device:
        raise DeviceError(
            f"{name} expects the query's device {query.device}, got {given.device}"
        )
    got = tracing(query) or wrapper(given)
    if got is not None or is_batched(given):
        raise TracingError(
            f"{name} expects numbers that can be read now, got "
            f"{got or 'a batch of vmap'}; call flex_attention_varlen outside of it"
        )


def _placed(name: str, given: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return where sequences start, and the number of the sequence of each position.

    The numbers are in order and in range, whatever is given, so that kernels read no
    memory outside of tensors.
    """
    if given.size(0) == 1 and total:
        raise ShapeError(f"{name} expects sequences of {total} positions, got none")
    starts = torch.cummax(given.clamp(0, total), 0).values.to(torch.int32)
    # An assignment would copy a number of the host, which a CUDA graph refuses.
    starts[:1].fill_(0)
    starts[-1:].fill_(total)
    _check_later(name, (starts == given).all(), total)
    positions = torch.arange(total, dtype=torch.int32, device=given.device)
    return starts, torch.searchsorted(starts[1:], positions, right=True, out_int32=True)


class _Test(NamedTuple):
    """A test of `cu_seqlens` whose result is on its way from a GPU."""

    result: Tensor
    done: torch.cuda.Event
    error: ShapeError


_tests: list[_Test] = []


def _check_later(name: str, result: Tensor, total: int) -> None:
    """Raise an error if a test fails; on a GPU, let a later call do so."""
    error = ShapeError(
        f"{name} expects numbers in order, from 0 to the {total} positions of all "
        "sequences"
    )
    if result.is_cpu:
        if not result:
            raise error
    elif result.is_cuda and not is_capturing(result):
        copy = torch.empty((), dtype=torch.bool, pin_memory=True)
        copy.copy_(result, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(result.device))
        _tests.append(_Test(copy, done, error))


def _raise_late() -> None:
    """Raise the error of an earlier call whose test failed on a GPU."""
    if not _tests:
        return
    with turn(_raise_late):  # Threads share the list.
        for test in [t for t in _tests if t.done.query()]:
            _tests.remove(test)
            if not test.result:
                raise ShapeError(f"an earlier call's {test.error}")


class Sequences(NamedTuple):
    """Tensors that say which positions belong to which of n sequences, all int32."""

    of_query: Tensor
    """The number of the sequence of each query."""
    of_key: Tensor
    """The number of the sequence of each key."""
    query_starts: Tensor
    """The first query of each sequence, followed by the number of queries; n + 1
    numbers in order, the first of which is 0.
    """
    key_starts: Tensor
    """The same of the keys."""


def packed_mods(
    score: Callable[..., Any] | None, mask: Callable[..., Any] | None, given: Sequences
) -> tuple[Callable[..., Any] | None, Callable[..., Any]]:
    """Return mods of packed positions. A key is live for queries of its sequence only.

    The mask reads all tensors of `given`, so that kernels have them.
    """
    of_query, of_key, query_starts, key_starts = given

    def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
        assert score is not None
        n = of_query[q].long()
        return score(s, n, h, q - query_starts[n], k - key_starts[of_key[k]])

    def any_pair(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
        n, m = of_query[q].long(), of_key[k]
        return (n == m) & (q >= query_starts[n]) & (k >= key_starts[m])

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Any:
        assert mask is not None
        n, m = of_query[q].long(), of_key[k]
        q, k = q - query_starts[n], k - key_starts[m]
        return (n == m) & (q >= 0) & (k >= 0) & mask(n, h, q, k)

    return score and score_mod, any_pair if mask is None else mask_mod


def _register() -> None:
    """Let the frontend know the code of the masks of `packed_mods`."""
    for mask in (None, len):
        made: Any = packed_mods(None, mask, Sequences(*[None] * 4))[1]  # pyright: ignore
        PACKED_MASKS[made.__code__] = Sequences._fields


_register()
