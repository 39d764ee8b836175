"""`flex_attention`: results at the edges, and every refusal with what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,
)

import flexc
from flexc import errors
from tests.support import reference
from tests.support.corpus_masks import causal_mask

Triple = tuple[Tensor, Tensor, Tensor]


def triple(
    heads: int = 2,
    kv_heads: int = 2,
    q_len: int = 16,
    kv_len: int = 16,
    dim: int = 8,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Triple:
    query = torch.randn(batch, heads, q_len, dim, dtype=dtype)
    key = torch.randn(batch, kv_heads, kv_len, dim, dtype=dtype)
    return query, key, torch.randn_like(key)


def block_mask(length: int, batch: int | None = None) -> BlockMask:
    return create_block_mask(causal_mask, batch, None, length, length, device="cpu")


def run(*args: Any, **kwargs: Any) -> Any:
    return flexc.flex_attention(*args, **kwargs)


def swapped(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.transpose(1, 2) for t in tensors]


Q, K, V = triple()
META = torch.ones(3, device="meta")
NEGATED = torch.randn(8, dtype=torch.complex64).conj().imag
SPARSE = torch.eye(3).to_sparse()
ZEROS = torch._efficientzerotensor(3)  # pyright: ignore
LONG = torch.ones(3).expand(2**32 + 8, 3)  # As i32, the length is 8.
OTHER = torch.randn(2, 2, 16, 9)

REFUSED: dict[str, tuple[type[Exception], str, Any, dict[str, Any]]] = {
    "no-tensor": (
        errors.ShapeError,
        "query expects a tensor, got list",
        ([], K, V),
        {},
    ),
    "rank": (
        errors.ShapeError,
        r"key expects 4 dimensions .* got shape \(2, 16, 8\)",
        (Q, K[0], V),
        {},
    ),
    "nested": (
        errors.ShapeError,
        "value expects a tensor .* got a nested one; flexc.flex_attention_varlen takes",
        (Q, K, torch.nested.nested_tensor([V[0, 0]], layout=torch.jagged)),
        {},
    ),
    "dtypes": (
        errors.DtypeError,
        "expect one dtype, got torch.float32, torch.int64 and torch.float32; cast",
        (Q, K.long(), V),
        {},
    ),
    "integers": (
        errors.DtypeError,
        "on cpu expect one of float32, bfloat16, float16, float64, got torch.int64",
        (Q.long(), K.long(), V.long()),
        {},
    ),
    "devices": (
        errors.DeviceError,
        "expect one device, got cpu, meta and cpu",
        (Q, K.to("meta"), V),
        {},
    ),
    "meta": (
        errors.DeviceError,
        "backends for cpu and cuda tensors, got meta",
        (Q.to("meta"), K.to("meta"), V.to("meta")),
        {},
    ),
    "option-bool": (
        errors.OptionError,
        "kernel option BLOCK_N expects an integer of 1 to 1048576, got True",
        (Q, K, V),
        {"kernel_options": {"BLOCK_N": True}},
    ),
    "option-huge": (
        errors.OptionError,
        "kernel option BLOCK_N expects an integer of 1 to 1048576, got 1099511627776",
        (Q, K, V),
        {"kernel_options": {"BLOCK_N": 2**40}},
    ),
    "rows-of-blocks": (
        errors.BlockMaskError,
        "expects 3 rows of blocks of 128 for 300 queries, got 2; make one for this",
        triple(q_len=300, kv_len=300),
        {"block_mask": block_mask(256)._adjust(300, 300)},
    ),
    "sparse": (
        errors.ShapeError,
        "key expects a tensor with its elements in memory, got one of layout torch.sp",
        (Q, K.to_sparse(), V),
        {},
    ),
    "negated": (
        errors.ShapeError,
        r"value expects .* got one that is negated when it is read; call resolve_neg",
        (Q, K, NEGATED.expand_as(V)),
        {},
    ),
    "captured-negated": (
        errors.ShapeError,
        r"a captured tensor of shape \(8,\) expects .* call resolve_neg\(\)",
        (Q, K, V, lambda s, b, h, q, k, t=NEGATED: s + t[h]),
        {},
    ),
    "captured-sparse": (
        errors.ShapeError,
        r"a captured tensor of shape \(3, 3\) expects .* make it dense with to_dense",
        (Q, K, V, lambda s, b, h, q, k, t=SPARSE: s + t[h, h]),
        {},
    ),
    "captured-zeros": (
        errors.ShapeError,
        r"a captured tensor of shape \(3,\) .* is zeros that have no memory; call cl",
        (Q, K, V, lambda s, b, h, q, k, t=ZEROS: s + t[h]),
        {},
    ),
    "captured-long": (
        errors.ShapeError,
        r"a captured tensor expects .* up to 2147483647 elements, .* \(4294967304, 3\)",
        (Q, K, V, lambda s, b, h, q, k, t=LONG: s + t[q, h]),
        {},
    ),
    "captured-device": (
        errors.DeviceError,
        r"captured tensors expect the query's device cpu, got one of shape \(3,\)",
        (Q, K, V, lambda s, b, h, q, k, t=META: s + t[h]),
        {},
    ),
    "triton-on-cpu": (
        errors.DeviceError,
        'backend "triton" expects cuda tensors, got cpu',
        (Q, K, V),
        {"backend": "triton"},
    ),
    "head-dim": (
        errors.ShapeError,
        "key expects head dim 8 as the query has, got 9",
        (Q, OTHER, OTHER),
        {},
    ),
    "value-length": (
        errors.ShapeError,
        r"value expects batch, heads and length \(2, 2, 16\) .* got \(2, 2, 15\)",
        (Q, K, V[:, :, 1:]),
        {},
    ),
    "head-dim-0": (
        errors.ShapeError,
        "query expects a head dim of 1 to 1024, got 0",
        (Q[..., :0], K[..., :0], V),
        {},
    ),
    "head-dim-1025": (
        errors.ShapeError,
        "query expects a head dim of 1 to 1024, got 1025",
        [torch.empty(1, 1, 2, 1025)] * 3,
        {},
    ),
    "value-dim-1025": (
        errors.ShapeError,
        "value expects a head dim of 1 to 1024, got 1025",
        (Q, K, torch.empty(2, 2, 16, 1025)),
        {},
    ),
    "batch": (
        errors.ShapeError,
        "key expects batch 3 or 1, got 2",
        (torch.randn(3, 2, 16, 8), K, V),
        {},
    ),
    "batch-1": (
        errors.ShapeError,
        "key expects batch 1 as the query has, got 2",
        (Q[:1], K, V),
        {},
    ),
    "heads": (
        errors.ShapeError,
        "key expects 4 heads as the query has, got 2; pass enable_gqa=True",
        triple(heads=4),
        {},
    ),
    "heads-multiple": (
        errors.ShapeError,
        "query expects a multiple of the key's 2 heads, got 3 heads",
        triple(heads=3),
        {"enable_gqa": True},
    ),
    "swapped-layout": (
        errors.ShapeError,
        r"has, got 24; expected \(B, H, S, E\): did you pass query, key and value as",
        swapped(triple(kv_len=24)),
        {},
    ),
    "swapped-decoding": (
        errors.ShapeError,
        "key expects 1 heads as the query has, got 24; expected .*query, key and value",
        swapped(triple(q_len=1, kv_len=24)),
        {},
    ),
    "swapped-keys": (
        errors.ShapeError,
        "got 24; expected .* did you pass key and value as .* transpose",
        (Q, *swapped(triple(kv_len=24)[1:])),
        {},
    ),
    "swapped-value": (
        errors.ShapeError,
        r"got \(2, 24, 2\); expected .* did you pass value as",
        (*triple(kv_len=24)[:2], *swapped(triple(kv_len=24)[2:])),
        {},
    ),
    "swapped-block-mask": (
        errors.BlockMaskError,
        r"\(16, 16\), got tensors with \(2, 2\); expected .* query, key and value",
        swapped((Q, K, V)),
        {"block_mask": block_mask(16)},
    ),
    "heads-not-swapped": (
        errors.ShapeError,
        "query expects a multiple of the key's 3 heads, got 4 heads$",
        triple(heads=4, kv_heads=3, q_len=33, kv_len=33),
        {"enable_gqa": True},
    ),
    "dense-mask": (
        errors.BlockMaskError,
        r"got a tensor of shape \(2, 16\): pass mask_mod=lambda .*: mask\[b, kv_idx\]",
        (Q, K, V),
        {"block_mask": torch.ones(2, 16, dtype=torch.bool)},
    ),
    "dense-mask-mod": (
        errors.ModSignatureError,
        r"pass mask_mod=lambda .*: mask\[q_idx, kv_idx\]",
        (Q, K, V),
        {"mask_mod": torch.ones(16, 16, dtype=torch.bool)},
    ),
    "dense-bias": (
        errors.ModSignatureError,
        r"pass score_mod=lambda .*: score \+ bias\[q_idx, kv_idx\]",
        (Q, K, V, torch.zeros(16, 16)),
        {},
    ),
    "block-mask-as-score-mod": (
        errors.ModSignatureError,
        "got a BlockMask: pass it as block_mask=",
        (Q, K, V, block_mask(16)),
        {},
    ),
    "mask-as-score-mod": (
        errors.ModSignatureError,
        "these are the arguments of a mask_mod, pass it as mask_mod=",
        (Q, K, V, causal_mask),
        {},
    ),
    "scale": (
        errors.OptionError,
        r"scale expects a number, got a tensor of shape \(2,\)",
        (Q, K, V),
        {"scale": torch.ones(2)},
    ),
    "learned-scale": (
        errors.OptionError,
        "got a tensor that requires a gradient.*; multiply the query by it instead",
        (Q, K, V),
        {"scale": torch.ones((), requires_grad=True)},
    ),
    "scale-of-many-digits": (
        errors.OptionError,
        "scale expects a number that a float can hold",
        (Q, K, V),
        {"scale": 10**400},
    ),
    "options-as-a-list": (
        errors.OptionError,
        "kernel_options expects a dict, got list",
        (Q, K, V),
        {"kernel_options": []},
    ),
    "aux": (
        errors.OptionError,
        "return_aux expects an AuxRequest, got True",
        (Q, K, V),
        {"return_aux": True},
    ),
    "backend": (
        errors.OptionError,
        "backend expects one of auto, triton, cpp, eager, got 'cuda'",
        (Q, K, V),
        {"backend": "cuda"},
    ),
    "kernel-option": (
        errors.OptionError,
        "kernel_options has no key 'BLOCK_K'; did you mean .* The keys are ",
        (Q, K, V),
        {"kernel_options": {"BLOCK_K": 32}},
    ),
    "kernel-option-value": (
        errors.OptionError,
        "kernel option BLOCK_M expects an integer of 1 to 1048576, got 0",
        (Q, K, V),
        {"kernel_options": {"BLOCK_M": 0}},
    ),
    "lse-and-aux": (
        errors.OptionError,
        "give return_lse or return_aux, not both",
        (Q, K, V),
        {"return_lse": True, "return_aux": AuxRequest(lse=True)},
    ),
    "two-masks": (
        errors.OptionError,
        "give block_mask or mask_mod, not both",
        (Q, K, V),
        {"block_mask": block_mask(16), "mask_mod": causal_mask},
    ),
    "function-as-block-mask": (
        errors.BlockMaskError,
        "block_mask expects .*BlockMask, got function; pass a function as mask_mod=",
        (Q, K, V),
        {"block_mask": causal_mask},
    ),
    "block-mask-length": (
        errors.BlockMaskError,
        r"made for \(q_len, kv_len\) = \(32, 32\), got tensors with \(16, 16\)",
        (Q, K, V),
        {"block_mask": block_mask(32)},
    ),
    "block-mask-batch": (
        errors.BlockMaskError,
        "made for B=3, got a query with 2",
        (Q, K, V),
        {"block_mask": block_mask(16, batch=3)},
    ),
    "block-mask-sliced": (
        errors.BlockMaskError,
        "block_mask was sliced, which drops its mask_mod",
        (Q, K, V),
        {"block_mask": block_mask(16, batch=2)[0]},
    ),
    "score-arity": (
        errors.ModSignatureError,
        r"test_interface.py:\d+: a score_mod is called with \(score, b, h, q_idx",
        (Q, K, V, lambda s, b: s),
        {},
    ),
    "mask-result": (
        errors.ModSignatureError,
        "a mask_mod returns a boolean scalar, got torch.int64: compare it",
        (Q, K, V),
        {"mask_mod": lambda b, h, q, k: q - k},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    error, message, args, kwargs = REFUSED[case]
    with pytest.raises(error, match=message) as caught:
        run(*args, **kwargs)
    assert isinstance(caught.value, errors.FlexcError)


def test_no_grad_records_nothing() -> None:
    query, key, value = triple()
    query.requires_grad_()
    with torch.no_grad():
        assert not run(query, key, value).requires_grad


@pytest.mark.parametrize(
    ("batch", "q_len", "kv_len"),
    [(0, 4, 4), (2, 0, 4), (2, 4, 0)],
    ids=["no-batch", "no-queries", "no-keys"],
)
def test_empty_inputs(batch: int, q_len: int, kv_len: int) -> None:
    tensors = triple(batch=batch, q_len=q_len, kv_len=kv_len)
    aux_request = AuxRequest(lse=True, max_scores=True)
    out, aux = run(*tensors, return_aux=aux_request)
    assert out.shape == (batch, 2, q_len, 8)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(aux.lse, torch.full((batch, 2, q_len), -torch.inf))
    assert torch.equal(aux.max_scores, aux.lse)


def test_results_and_aux() -> None:
    tensors = triple(q_len=20, kv_len=16)
    expected = reference.attention(*tensors, mask_mod=causal_mask)
    plain = run(*tensors, mask_mod=causal_mask)
    out, lse = run(*tensors, mask_mod=causal_mask, return_lse=True)
    both, aux = run(
        *tensors, mask_mod=causal_mask, return_aux=AuxRequest(lse=True, max_scores=True)
    )
    assert isinstance(aux, AuxOutput)
    for got in (plain, out, both):
        torch.testing.assert_close(got, expected.out.float())
    for got in (lse, aux.lse):
        torch.testing.assert_close(got, expected.lse.float())
    torch.testing.assert_close(aux.max_scores, expected.max_scores.float())
    only = run(*tensors, mask_mod=causal_mask, return_aux=AuxRequest(lse=True))[1]
    assert only.max_scores is None


def test_broadcast_batch_and_shared_heads() -> None:
    query = torch.randn(3, 4, 16, 8)
    key, value = torch.randn(2, 1, 2, 16, 8)
    expected = reference.attention(
        query,
        key.expand(3, -1, -1, -1),
        value.expand(3, -1, -1, -1),
        mask_mod=causal_mask,
        enable_gqa=True,
    )
    got = run(query, key, value, mask_mod=causal_mask, enable_gqa=True)
    torch.testing.assert_close(got, expected.out.float())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16])
def test_tables_of_other_integers(dtype: torch.dtype) -> None:
    query, key, value = triple(q_len=48, kv_len=48)
    made = create_block_mask(
        causal_mask, None, None, 48, 48, device="cpu", BLOCK_SIZE=16
    )
    tables = (
        made.kv_num_blocks,
        made.kv_indices,
        made.full_kv_num_blocks,
        made.full_kv_indices,
    )
    mask = BlockMask.from_kv_blocks(
        *(t if t is None else t.to(dtype) for t in tables),  # pyright: ignore
        BLOCK_SIZE=16,
        mask_mod=causal_mask,
        seq_lengths=(48, 48),
        compute_q_blocks=False,
    )
    out = run(query, key, value, block_mask=mask)
    expected = reference.attention(query, key, value, mask_mod=causal_mask)
    torch.testing.assert_close(out, expected.out.float())


def test_block_mask_of_other_sizes_without_blocks() -> None:
    """A BlockMask that torch makes where there is none has no tables to check."""
    tensors = triple()
    got = run(*tensors, block_mask=block_mask(16))
    torch.testing.assert_close(got, run(*tensors, mask_mod=causal_mask))


def test_autocast() -> None:
    tensors = triple()
    with torch.autocast("cpu", torch.bfloat16):
        got = run(*tensors)
    assert got.dtype is torch.bfloat16
    query, key, value = (t.bfloat16() for t in tensors)
    expected = reference.attention(query, key, value)
    torch.testing.assert_close(got.double(), expected.out, atol=2e-2, rtol=2e-2)


def test_rescaling_over_many_blocks_does_not_drift() -> None:
    """A large maximum that never changes leaves what was summed as it is."""
    query, key = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 8192, 8)
    value = torch.randn(1, 1, 8192, 8)
    value[:, :, :4096] += 1
    out = flexc.flex_attention(
        query, key, value, lambda s, b, h, q_idx, kv_idx: s + 100.7
    )
    assert isinstance(out, Tensor)
    expected = value.double().mean(2, keepdim=True).expand(out.shape)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=5e-6)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_captured_tensor_of_compressed_rows_is_refused() -> None:
    rows = torch.eye(4).to_sparse_csr()
    with pytest.raises(errors.ShapeError, match="make it dense with to_dense"):
        flexc.flex_attention(Q, K, V, lambda s, b, h, q, k: s + rows[q, k])


def test_eager_takes_tensors_without_data() -> None:
    query = torch.empty(1, 2, 30, 16, device="meta")
    out: Any = flexc.flex_attention(query, query, query, backend="eager")
    assert out.is_meta


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.bfloat16, torch.float16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float32, torch.float64, torch.float32),
    ],
)
def test_key_and_value_have_the_dtype_of_the_query(dtypes: tuple[torch.dtype]) -> None:
    """Gradients have the dtypes of the tensors; a replayed call is cast, too."""
    for _ in range(3):
        given: Any = [torch.randn(1, 2, 9, 8).to(d).requires_grad_() for d in dtypes]
        found: Any = flexc.flex_attention(*given)
        cast = [t.to(dtypes[0]) for t in given]
        expected: Any = flexc.flex_attention(*cast)
        assert found.dtype is dtypes[0]
        assert torch.equal(found, expected)
        gradients = [torch.autograd.grad(o.sum(), given) for o in (found, expected)]
        assert all(map(torch.equal, *gradients))


def test_a_compiled_mod_is_refused() -> None:
    mod: Any = torch.compile(lambda s, b, h, q, k: s * (1 + h), backend="eager")
    with pytest.raises(errors.ModSignatureError, match="pass the function itself"):
        flexc.flex_attention(Q, K, V, mod)
