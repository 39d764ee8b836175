"""`flex_attention_varlen`: each sequence as alone, whatever is packed with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import flexc
from flexc.errors import (
    DeviceError,
    DtypeError,
    FlexcError,
    ShapeError,
    TracingError,
)
from flexc.runtime import varlen as varlen_module
from flexc.runtime.inputs.options import NO_OPTIONS
from flexc.runtime.kernels.build import NO_CALL, Build
from flexc.runtime.kernels.driver import counters
from flexc.runtime.kernels.proofs import Prover
from tests.support import reference
from tests.support.seen import Seen
from tests.unit.frontend.evaluate import import_mods

Mod = Callable[..., Any]

attend: Any = flexc.flex_attention_varlen

WINDOWS = torch.tensor([3, 70, 0, 9, 200, 1, 7, 30])
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])

MASKS: dict[str, Mod | None] = {
    "none": None,
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < WINDOWS[b]),
    "prefix": lambda b, h, q, k: (q >= k) | (k < WINDOWS[b]),
    "unbounded": lambda b, h, q, k: (WINDOWS[q % 7] + k) % 5 != 0,
}

SCORES: dict[str, Mod | None] = {
    "none": None,
    "alibi": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
    "by_sequence": lambda s, b, h, q, k: s * (WINDOWS[b] % 3),
}


MODS = [
    ("none", "none"),
    ("alibi", "causal"),
    ("none", "window"),
    ("by_sequence", "prefix"),
    ("none", "unbounded"),
]


def cu_seqlens(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def operands(q_lens: Sequence[int], k_lens: Sequence[int], grad: bool = True) -> Any:
    generator = torch.Generator().manual_seed(sum(q_lens) + 7)
    shapes = (sum(q_lens), 4, 16), (sum(k_lens), 2, 16), (sum(k_lens), 2, 8)
    return tuple(
        torch.randn(s, generator=generator, requires_grad=grad) for s in shapes
    )


def alone(
    given: Sequence[Tensor], q_lens: Sequence[int], k_lens: Sequence[int], *mods: Any
) -> tuple[Tensor, Tensor]:
    """Dense attention of each sequence, in double precision."""
    query, key, value = (t.double().transpose(0, 1)[None] for t in given)
    ends = [list(pairwise([0, *accumulate(n)])) for n in (q_lens, k_lens)]
    out, lse = [query.new_zeros(0, 4, 8)], [query.new_zeros(4, 0)]
    for n, ((a, b), (c, d)) in enumerate(zip(*ends, strict=True)):
        score, mask = (of_batch(mod, n, kind) for kind, mod in enumerate(mods))
        found = reference.attention(
            query[:, :, a:b], key[:, :, c:d], value[:, :, c:d], score, mask,
            enable_gqa=True,
        )  # fmt: skip
        out.append(found.out[0].transpose(0, 1))
        lse.append(found.lse[0])
    return torch.cat(out), torch.cat(lse, 1)


def of_batch(mod: Mod | None, n: int, kind: int) -> Mod | None:
    """A mod whose batch is n."""
    if mod is None:
        return None
    if kind == 0:
        return lambda s, b, h, q, k: mod(s, torch.tensor(n), h, q, k)
    return lambda b, h, q, k: mod(torch.tensor(n), h, q, k)


lists = st.lists(st.integers(0, 70) | st.sampled_from([0, 1, 64]), max_size=8)


@st.composite
def packings(draw: Any) -> tuple[list[int], list[int] | None]:
    q_lens = draw(lists)
    if draw(st.booleans()):
        return q_lens, None
    n = len(q_lens)
    return q_lens, draw(st.lists(st.integers(0, 70), min_size=n, max_size=n))


@settings(max_examples=15)
@given(packings(), st.sampled_from(MODS))
def test_equals_each_sequence_alone(
    packing: tuple[list[int], list[int] | None], names: tuple[str, str]
) -> None:
    q_lens, others = packing
    score, mask = names
    k_lens = q_lens if others is None else others
    mods = SCORES[score], MASKS[mask]
    given = operands(q_lens, k_lens)
    cu_k = None if others is None else cu_seqlens(others)
    out, lse = attend(
        *given, cu_seqlens(q_lens), cu_k, score_mod=mods[0], mask_mod=mods[1],
        return_lse=True,
    )  # fmt: skip
    exact, exact_lse = alone(given, q_lens, k_lens, *mods)
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-5, rtol=1e-5)
    d_out = torch.randn(out.shape)
    found = torch.autograd.grad(out, given, d_out)
    exact = exact + 0 * sum(t.sum() for t in given)
    wanted = torch.autograd.grad(exact, given, d_out.double())
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=5e-5, rtol=1e-4)


Q_LENS, K_LENS = [30, 0, 1, 100, 17], [5, 20, 0, 130, 17]


def varlen(*given: Any, mask: str = "causal", **more: Any) -> Any:
    cu: Any = cu_seqlens(Q_LENS), cu_seqlens(K_LENS)
    return attend(*given, *cu, mask_mod=MASKS[mask], **more)


def test_forward_mode_and_second_order() -> None:
    given = tuple(t.detach().double() for t in operands(Q_LENS, K_LENS))
    moved = tuple(map(torch.randn_like, given))

    def dense(*given: Tensor) -> Tensor:
        return alone(given, Q_LENS, K_LENS, None, MASKS["causal"])[0]

    found = torch.func.jvp(varlen, given, moved)
    torch.testing.assert_close(found, torch.func.jvp(dense, given, moved))

    def penalty(compute: Callable[..., Tensor]) -> Tensor:
        inputs = [t.clone().requires_grad_() for t in given]
        first = torch.autograd.grad(
            compute(*inputs).square().sum(), inputs, create_graph=True
        )
        total = torch.stack([g.square().sum() for g in first]).sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, inputs)])

    torch.testing.assert_close(penalty(varlen), penalty(dense))


def test_gradients_of_captured_tensors() -> None:
    slopes, by_sequence = (torch.rand(n, requires_grad=True) for n in (4, len(Q_LENS)))
    bias = torch.rand(200, requires_grad=True)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s * by_sequence[b] + slopes[h] * q + bias[(q - k).abs()]

    given = operands(Q_LENS, K_LENS)
    out = varlen(*given, score_mod=score)
    exact, _ = alone(given, Q_LENS, K_LENS, score, MASKS["causal"])
    d_out, learned = torch.randn(out.shape), (slopes, by_sequence, bias)
    found = torch.autograd.grad(out, learned, d_out)
    wanted = torch.autograd.grad(exact, learned, d_out.double())
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


def test_results_of_whole_captured_tensors() -> None:
    table = torch.rand(len(Q_LENS), 200, requires_grad=True)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + table.softmax(-1)[b, k] * 100

    given = operands(Q_LENS, K_LENS, grad=False)
    out = varlen(*given, score_mod=score)
    exact, _ = alone(given, Q_LENS, K_LENS, score, MASKS["causal"])
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=1e-5)
    d_out = torch.randn(out.shape)
    (found,) = torch.autograd.grad(out, table, d_out)
    (wanted,) = torch.autograd.grad(exact, table, d_out.double())
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_a_sequence_has_the_bits_that_it_has_beside_others() -> None:
    given = operands([64, 30], [64, 30], grad=False)
    both = attend(*given, cu_seqlens([64, 30]))
    few: Any = (t[:64] for t in given)
    first = attend(*few, cu_seqlens([64]))
    torch.testing.assert_close(both[:64], first)


def test_strided_operands_and_wide_numbers() -> None:
    given = operands(Q_LENS, K_LENS, grad=False)
    other: Any = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in given]
    cu = cu_seqlens(Q_LENS).long(), cu_seqlens(K_LENS).long()
    found = attend(*other, *cu, mask_mod=MASKS["causal"])
    assert torch.equal(found, varlen(*given))


def test_gradients_are_not_copied() -> None:
    given, cu = operands([20, 30], [20, 30]), cu_seqlens([20, 30])
    seen = Seen()
    for _ in range(3):  # Later calls are one operator each way.
        seen.names.clear()
        with seen:
            out = attend(*given, cu, mask_mod=MASKS["causal"])
            torch.autograd.grad(out, given, out.detach())
    assert "flexc.attention_backward.default" in seen.names
    copies = "select_backward", "zero", "copy", "clone", "contiguous"
    assert not [n for n in seen.names if any(c in n for c in copies)]


def test_longest_lengths_are_accepted() -> None:
    given, cu = operands([20, 30], [20, 30], grad=False), cu_seqlens([20, 30])
    assert torch.equal(attend(*given, cu, cu, 30, 30), attend(*given, cu))


def test_lengths_compile_nothing() -> None:
    for i, n in enumerate((70, 13, 200)):  # Up to 32 rows may have a kernel.
        given = operands([n, 20], [n, 20], grad=False)
        before = counters.total()
        attend(*given, cu_seqlens([n, 20]))
        assert i == 0 or counters.total() == before


@pytest.mark.parametrize(
    ("lengths", "long"),
    [
        ([4096], True),
        ([1, 2047], True),
        ([700, 700], False),
        ([0, 1023, 1025], False),
        ([2] * 999, False),
    ],
)
def test_sequences_are_long_by_their_mean(lengths: list[int], long: bool) -> None:
    total = sum(lengths)
    starts, of = varlen_module._placed("cu_seqlens", cu_seqlens(lengths), total)
    mods = varlen_module.packed_mods(
        None, None, varlen_module.Sequences(of, of, starts, starts)
    )
    built, captures = import_mods(*mods)
    prover = Prover(built.module, Build(NO_CALL, "triton", "cuda", NO_OPTIONS))
    found = prover((1, 1, total, total), captures)
    assert found.long_sequences == long


def test_written_numbers_are_read_again() -> None:
    given = operands([50], [50], grad=False)
    cu = cu_seqlens([20, 30])
    attend(*given, cu)
    cu[1] = 45
    found = attend(*given, cu)
    assert torch.equal(found, attend(*given, cu_seqlens([45, 5])))


def test_writes_that_torch_does_not_count_are_read() -> None:
    given = operands([50], [50], grad=False)
    cu = cu_seqlens([20, 30])
    for i, write in enumerate((cu.data, cu.numpy())):
        attend(*given, cu)
        write[1] = 40 + i
        assert torch.equal(
            attend(*given, cu), attend(*given, cu_seqlens([40 + i, 10 - i]))
        )


def test_equal_numbers_are_read_once() -> None:
    query, cu = torch.randn(50, 1, 8), cu_seqlens([20, 30])
    first = varlen_module._sequences((cu, cu), (50, 50), query)
    wide = cu.long()
    assert varlen_module._sequences((wide, wide), (50, 50), query) is first


def test_compiled_functions_run_it() -> None:
    given = operands(Q_LENS, K_LENS)
    found = flexc.compile(lambda *x: varlen(*x) * 2)(*given)
    assert torch.equal(found, varlen(*given) * 2)
    torch.autograd.grad(found.sum(), given)


class _Done:
    """An event of a GPU that has passed."""

    def query(self) -> bool:
        return True


def test_threads_find_late_errors_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = varlen_module._Test(torch.tensor(False), _Done(), ShapeError("bad"))  # pyright: ignore
    monkeypatch.setattr(varlen_module, "_tests", [failed] * 100)

    def find(_: int) -> int:
        found = 0
        for _ in range(50):
            try:
                varlen_module._raise_late()
            except ShapeError:
                found += 1
        return found

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(find, range(8))) == 100


@pytest.mark.parametrize("mode", ["fake", "real"])
def test_tracers_are_told_that_numbers_are_read(mode: Any) -> None:
    given = operands([8], [8], grad=False)
    with pytest.raises(TracingError, match="can be read now"):
        make_fx(lambda *x: attend(*x, CU), tracing_mode=mode)(*given)


def test_numbers_of_a_batch_of_vmap_cannot_be_read() -> None:
    given = operands([8], [8], grad=False)
    cu = torch.stack([CU, CU])
    for fn in (
        lambda c: attend(*given, c),
        lambda c: attend(*given, CU, c),
        lambda c: grad(lambda q: attend(q, *given[1:], c).sum())(given[0]),
    ):
        with pytest.raises(TracingError, match="got a batch of vmap"):
            vmap(fn)(cu)


def test_numbers_first_seen_in_inference_mode() -> None:
    given, cu = operands([20, 30], [20, 30]), cu_seqlens([20, 30])
    with torch.inference_mode():
        alone_first = attend(*given, cu)
        assert torch.equal(attend(*given, cu + 0), alone_first)
    out = attend(*given, cu)
    torch.autograd.grad(out.sum(), given)
    assert torch.equal(out, alone_first)


@pytest.mark.parametrize("heads_first", [False, True])
def test_nested(heads_first: bool) -> None:
    lengths = [30, 1, 100]
    given = operands(lengths, lengths)
    offsets = cu_seqlens(lengths).long()
    nested: Any = [torch.nested.nested_tensor_from_jagged(t, offsets) for t in given]
    if heads_first:
        nested = [t.transpose(1, 2) for t in nested]
    out: Any = attend(*nested, mask_mod=MASKS["causal"])
    assert out.is_nested
    assert out.shape[:3] == nested[0].shape[:3]
    values = (out.transpose(1, 2) if heads_first else out).values()
    plain: Any = attend(*given, offsets, mask_mod=MASKS["causal"])
    assert torch.equal(values, plain)
    found, wanted = (
        torch.autograd.grad(t.square().sum(), given) for t in (values, plain)
    )
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


def test_compiled_code_calls_it() -> None:
    given = operands(Q_LENS, K_LENS, grad=False)
    compiled: Any = torch.compile(lambda *x: varlen(*x) * 2, backend="eager")
    assert torch.equal(compiled(*given), varlen(*given) * 2)


CU = cu_seqlens([3, 5])
Q = torch.randn(8, 4, 16)
NESTED = torch.nested.nested_tensor_from_jagged(Q, CU.long())
PADDED = torch.nested.narrow(
    torch.randn(2, 6, 4, 16), 1, torch.zeros(2).long(), CU[1:], torch.jagged
)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ((Q, Q, Q), ShapeError, "cu_seqlens_q expects the first query"),
        ((Q[None], Q, Q, CU), ShapeError, "query expects 3 dimensions"),
        ((Q, Q, Q, [0, 8]), DtypeError, "cu_seqlens_q expects a tensor of int32"),
        ((Q, Q, Q, CU.float()), DtypeError, "got torch.float32"),
        ((Q, Q, Q, CU[:0]), ShapeError, "n . 1 numbers for n sequences"),
        ((Q, Q, Q, CU[None]), ShapeError, "n . 1 numbers for n sequences"),
        ((Q, Q, Q, CU, CU[1:]), ShapeError, "cu_seqlens_k expects 3 numbers"),
        ((Q, Q, Q, CU.to("meta")), DeviceError, "the query's device cpu, got meta"),
        ((Q, Q, Q, CU[:1]), ShapeError, "expects sequences of 8 positions, got none"),
        ((Q, Q, Q, CU + 1), ShapeError, "from 0 to the 8 positions"),
        ((Q, Q, Q, CU[:2]), ShapeError, "from 0 to the 8 positions"),
        ((Q, Q, Q, CU[[0, 2, 1, 2]]), ShapeError, "numbers in order"),
        ((Q, Q, Q[:, :3], CU), ShapeError, "value expects batch, heads"),
        ((Q, Q[:, :3], Q[:, :3], CU), ShapeError, "multiple"),
        ((NESTED, Q, Q), ShapeError, "key expects a jagged nested tensor"),
        ((NESTED, NESTED, NESTED, CU), ShapeError, "give no cu_seqlens"),
        ((PADDED, PADDED, PADDED), ShapeError, "without holes"),
    ],
)
def test_mistakes(given: Any, error: type[FlexcError], says: str) -> None:
    with pytest.raises(error, match=says):
        attend(*given)


def test_no_sequences_and_no_positions() -> None:
    none = torch.randn(0, 4, 16)
    for cu in (cu_seqlens([]), cu_seqlens([0, 0])):
        found: Any = attend(none, none, none, cu)
        assert found.shape == (0, 4, 16)
    out, lse = attend(Q, none, none, CU, cu_seqlens([0, 0]), return_lse=True)
    assert not out.any()
    assert (lse == -torch.inf).all()
