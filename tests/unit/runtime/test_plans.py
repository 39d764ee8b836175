"""Plans of calls: equal facts replay a tape, other facts are looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import flexc
from flexc.runtime.attention.call import Attention
from flexc.runtime.replay.equal_facts import FactsCache
from flexc.runtime.replay.repeats import TapedWork
from flexc.runtime.tapes.recorder import Recorder
from flexc.runtime.tapes.tape import Tape
from tests.support.reference import attention
from tests.unit.runtime.repeated import attend, causal, qkv, same

pytestmark = pytest.mark.usefixtures("known")


def check(tensors: list[Tensor], score: Any = None, mask: Any = None) -> None:
    query, key, value = tensors
    out, lse = attend(query, key, value, score, mask_mod=mask, return_lse=True)
    expected = attention(query, key, value, score, mask)
    torch.testing.assert_close(out, expected.out.to(out.dtype), rtol=0, atol=2e-6)
    torch.testing.assert_close(lse, expected.lse.to(torch.float32), rtol=0, atol=1e-5)


def test_an_equal_call_is_not_looked_at(executed: list[Attention]) -> None:
    slopes = torch.randn(2)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + slopes[h] * (k - q)

    for _ in range(4):
        check(qkv(), score, causal)
        slopes = torch.randn(2)  # Another tensor of the same shape.
    assert len(executed) == 2


def test_query_that_was_the_key(executed: list[Attention]) -> None:
    query, key, value = qkv()
    for _ in range(3):
        check([query, query, value])
    for _ in range(3):
        check([query, key, value])
    assert len(executed) == 3


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("gradient", [False, True])
def test_lengths_that_grow(
    layers: int, gradient: bool, executed: list[Attention]
) -> None:
    """Calls of a new length are recorded at once if those of the last repeated."""
    for length in range(20, 24):
        tensors = [t.requires_grad_(gradient) for t in qkv(length)]
        for _ in range(layers):
            check(tensors)
    assert len(executed) == (4 if layers == 1 else 5)
    again = [t.requires_grad_(gradient) for t in qkv(23)]
    check(again)
    assert len(executed) == 5


def test_lengths_that_grow_with_reads_to_check(executed: list[Attention]) -> None:
    """The first call of a length also checks that reads are in range."""
    for length in (30, 31, 32, 33):  # Outcomes of checks are for powers of 2.
        mask = same(torch.arange(length) // 7)
        for _ in range(3):
            check(qkv(length), mask=mask)
    assert len(executed) == 5


def test_a_first_run_that_reads_on_the_host() -> None:
    """Its tape is refused. The next run, which reads no more, has a tape."""
    tensor, ran = torch.ones(2), list[Any]()

    def run() -> tuple[tuple[Tensor, ...], bool]:
        ran.append(None if ran else tensor.sum().item())
        return (tensor * 2,), True

    work = TapedWork(is_known=True)
    for _ in range(3):
        (found,) = work([tensor], torch.device("cpu"), run)
        assert found.tolist() == [2, 2]
    assert len(ran) == 2


def test_runs_that_read_on_the_host_are_refused() -> None:
    tensor = torch.ones(2)

    def run() -> tuple[tuple[Tensor, ...], bool]:
        return (tensor * tensor.sum().item(),), True

    for is_known in (False, True):
        work = TapedWork(is_known)
        for _ in range(3):
            work([tensor], torch.device("cpu"), run)
        assert work.tape is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_indices_found_once_are_no_part_of_a_tape(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tape recorded at the first run equals one recorded at the second."""
    tapes: list[Tape | None] = []
    own = Recorder.tape

    def tape(self: Recorder, *args: Any) -> Tape | None:
        tapes.append(own(self, *args))
        return tapes[-1]

    monkeypatch.setattr(Recorder, "tape", tape)
    line = torch.randn(64, dtype=dtype, requires_grad=True)
    buckets = torch.randn(2, 17, dtype=dtype, requires_grad=True)

    def call(length: int) -> None:
        def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            near = (q - k).clamp(-8, 8) + 8
            return s + buckets[h, near] + line[k + length - 32]

        query, key, value = qkv(length, dtype=dtype)
        out = attend(query, key, value, score)
        given = [line, buckets]
        found = torch.autograd.grad(out.sum(), given)
        dense = attention(query, key, value, score).out
        expected = torch.autograd.grad(dense.sum(), given)
        tolerance = 1e-4 if dtype is torch.float32 else 1e-12
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)

    for length in (32, 32, 32, 40, 40):
        call(length)
    steps = [len(tape.steps) if tape else None for tape in tapes]
    assert steps == [*steps[:2], *steps[:2]]
    assert None not in steps


def test_other_facts_are_looked_at(executed: list[Attention]) -> None:
    query, key, value = qkv()
    others = [
        [query, key, value],
        qkv(41),
        [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key, value)],
        [query, key[..., :20, :], value[..., :20, :]],
    ]
    for i, tensors in enumerate(others):
        check(tensors)
        assert len(executed) == i + 1
    for window in (3, 9):
        check(others[0], None, lambda b, h, q, k, n=window: q - k <= n)
    assert len(executed) == 6


def test_what_torch_watches_is_looked_at(executed: list[Attention]) -> None:
    query, key, value = qkv()
    check([query, key, value])
    recorded = attend(query.requires_grad_(), key, value)
    assert isinstance(recorded, Tensor)
    assert recorded.requires_grad
    with torch.no_grad():
        assert not attend(query, key, value).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(query, key, value).dtype is torch.bfloat16
    check([query.detach(), key, value])  # Recorded: a second call.
    check([query.detach(), key, value])
    assert len(executed) == 5


def test_planned_masks_are_planned_anew() -> None:
    ids = torch.arange(40) // 7

    def documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ids[q] == ids[k]

    for _ in range(3):
        check(qkv(), None, documents)
        ids = torch.randint(4, (40,)).sort().values


def test_the_default_dtype_is_a_fact() -> None:
    query, key, value = qkv(dtype=torch.float64)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + (k / 3) * (q / 7)  # In the default dtype.

    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            expected = attention(query, key, value, score).out
            torch.testing.assert_close(attend(query, key, value, score), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_few_are_remembered(known: FactsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "most", 2)
    for length in (5, 6, 7):
        attend(*qkv(length))
    assert len(known) == 1


def test_compiled_functions(executed: list[Attention]) -> None:
    compiled: Any = flexc.compile(lambda q, k, v: attend(q, k, v) * 2)
    for _ in range(4):
        query, key, value = qkv()
        expected = attention(query, key, value, None, None).out * 2
        torch.testing.assert_close(
            compiled(query, key, value).double(), expected.double(), rtol=0, atol=2e-6
        )
    assert len(executed) == 2


COUNT_THREADS = """
import os
import torch
import flexc

torch.set_num_threads(2)
query, key, value = torch.randn(3, 1, 4, 512, 32).unbind()
query @ key.mT
torch.exp(torch.randn(1 << 20))
before = len(os.listdir("/proc/self/task"))
flexc.flex_attention(query, key, value)
torch.exp(torch.randn(1 << 20))
print(before, len(os.listdir("/proc/self/task")))
torch.set_num_threads(1)
flexc.flex_attention(query, key, value)
print(before, len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="asks Linux")
def test_kernels_share_the_threads_of_torch() -> None:
    result = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS],
        capture_output=True,
        text=True,
        check=True,
    )
    for line in result.stdout.splitlines():
        before, after = map(int, line.split())
        assert before == after >= 2


def test_a_scale_that_is_a_tensor_may_change() -> None:
    tensors, scale = qkv(), torch.tensor(0.5)
    attend(*tensors, scale=scale)
    scale.fill_(2.0)
    assert torch.equal(attend(*tensors, scale=scale), attend(*tensors, scale=2.0))


def test_zeros_of_both_signs_are_two_scales() -> None:
    tensors = [t.abs() for t in qkv()]

    def sign(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(torch.signbit(s), k * 1.0, 0.0)

    plus, minus = (attend(*tensors, sign, scale=z) for z in (0.0, -0.0))
    assert not torch.equal(plus, minus)


@pytest.mark.parametrize("make", [flexc.create_block_mask, create_block_mask])
def test_block_masks_of_compiled_functions(
    make: Any, executed: list[Attention], backwards: list[Any]
) -> None:
    """Their tables are operands of a graph, those for columns too."""
    mask = make(causal, None, None, 40, 40, "cpu", BLOCK_SIZE=16)
    compiled: Any = flexc.compile(lambda q, k, v: attend(q, k, v, block_mask=mask) * 2)
    for records in (False, True):
        for i in range(6):
            if i == 4:
                executed.clear()
                backwards.clear()
            tensors = [t.requires_grad_(records) for t in qkv(40)]
            expected = attention(*tensors, None, causal).out.to(torch.float32) * 2
            found = compiled(*tensors)
            torch.testing.assert_close(found, expected, rtol=0, atol=4e-6)
            if records:
                given = torch.autograd.grad(found.sum(), tensors)
                right = torch.autograd.grad(expected.sum(), tensors)
                torch.testing.assert_close(given, right, rtol=1e-4, atol=2e-5)
        assert not executed
    assert not backwards
