"""What `flexc.explain` says of a call's gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import flexc
from flexc.cli import main
from flexc.runtime.explain.gradients import QUERIES, VARY, GradientFacts
from flexc.runtime.inputs.options import is_interpreting

N = 600
WINDOW, SINKS = 70, 4
doc = torch.arange(N) // 173
table = torch.rand(N, N) < 0.3
hops = torch.randint(0, 6, (N, N))

slopes = torch.rand(2, requires_grad=True)
rows = torch.randn(2, N, requires_grad=True)
columns = torch.randn(N, requires_grad=True)
bias = torch.randn(2, 2 * N, requires_grad=True)
pairs = torch.randn(2, N, N, requires_grad=True)
by_hops = torch.randn(6, requires_grad=True)
fixed = torch.randn(2, N)
gate = torch.randn(2, requires_grad=True)

explain: Any = flexc.explain


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window_and_sinks(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & ((q_idx - kv_idx <= WINDOW) | (kv_idx < SINKS))


def documents(b, h, q_idx, kv_idx):
    return (doc[q_idx] == doc[kv_idx]) & (q_idx >= kv_idx)


def from_table(b, h, q_idx, kv_idx):
    return table[q_idx, kv_idx]


def many(score, b, h, q_idx, kv_idx):
    score = slopes[h] * score + rows[h, q_idx] + columns[kv_idx]
    score = score + bias[h, q_idx - kv_idx + N] + pairs[h, q_idx, kv_idx]
    score = score + fixed[h, q_idx] * by_hops[hops[q_idx, kv_idx]] + by_hops[0]
    return torch.where(gate[h] > 0, score, -score)


def at_score(score, b, h, q_idx, kv_idx):
    return score + slopes[(score > 0).int()]


def gradients(mask: Any, score_mod: Any = many, **options: Any) -> GradientFacts:
    given: Any = {"device": "cpu", "score_mod": score_mod} | options
    found = explain(mask, 2, 2, N, N, **given).gradients
    assert isinstance(found, GradientFacts)
    return found


def test_how_each_tensor_is_summed() -> None:
    found = {c.name: c for c in gradients(causal).captured}
    by = {name: [r.by for r in c.reads] for name, c in found.items()}
    assert by == {
        "slopes": ["head"],
        "rows": ["row"],
        "columns": ["column"],
        "bias": ["distance"],
        "pairs": ["pair"],
        "fixed": ["row"],
        "by_hops": ["pair", "head"],
        "gate": [],
    }
    assert {name for name, c in found.items() if not c.wanted} == {"fixed"}
    assert str(found["bias"]) == "by distance: bias[h, (q_idx - kv_idx) + N]"
    assert str(found["pairs"]) == "by pair: pairs[h, q_idx, kv_idx]"
    assert "hops[q_idx, kv_idx] is not known to be a func" in str(found["by_hops"])
    assert str(found["gate"]) == "zero: no score depends on it"
    assert str(found["fixed"]).endswith("(not asked for now)")


def test_a_gpu_adds_pairs_by_atomics(monkeypatch: pytest.MonkeyPatch) -> None:
    if is_interpreting():
        pytest.skip("Triton runs on the CPU")
    if torch.cuda.is_available():
        pytest.skip("captured tensors would have to be on the GPU")
    found = gradients(causal, device="cuda")
    atomics = {c.name for c in found.captured for r in c.reads if r.atomics}
    assert atomics == {"by_hops"}
    assert not found.deterministic
    assert found.heading == VARY
    torch.use_deterministic_algorithms(True)
    try:
        assert gradients(causal, device="cuda").deterministic
    finally:
        torch.use_deterministic_algorithms(False)
    assert gradients(causal).deterministic


def test_only_what_is_asked_for_varies() -> None:
    kept = by_hops.detach()

    def of_constant(score, b, h, q_idx, kv_idx):
        return score + kept[hops[q_idx, kv_idx]] + slopes[h]

    if not torch.cuda.is_available() and not is_interpreting():
        assert gradients(causal, of_constant, device="cuda").deterministic


BLOCKS: list[tuple[Any, str, str]] = [
    (None, "no mask", "every block is visited"),
    (causal, "bounds", "may be live: q_idx in [kv_first, q_len - 1]"),
    (
        window_and_sinks,
        "bounds",
        "may be live: q_idx in [kv_first, kv_last + WINDOW] or [kv_first, q_len - 1] "
        "if kv_first <= SINKS - 1",
    ),
    (documents, "tables", "all blocks are planned for keys too"),
    (from_table, "every pair", "no block is skipped"),
]


@pytest.mark.parametrize(("mask", "way", "why"), BLOCKS)
def test_blocks_as_keys_see_them(mask: Any, way: str, why: str) -> None:
    found = gradients(mask)
    assert (found.way, found.why) == (way, why)


def test_blocks_of_a_block_mask() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    mask = create_block_mask(causal, None, None, 300, 300, device="cpu")
    q = torch.randn(1, 2, 300, 16, requires_grad=True)
    (found,) = flexc.explain(flexc.flex_attention, q, q, q, block_mask=mask)
    assert found.gradients is not None
    assert found.gradients.way == "tables"
    assert found.gradients.captured == ()


def test_refusals_are_told() -> None:
    (found,) = gradients(causal, at_score).captured
    assert found.refusal is not None
    assert str(found).startswith("refused: ")
    assert "depends on the score" in str(found)


def test_calls_that_nothing_differentiates_say_nothing() -> None:
    q = torch.randn(1, 2, 64, 16, requires_grad=True)

    def both() -> None:
        flexc.flex_attention(q, q, q)
        with torch.no_grad():
            flexc.flex_attention(q, q, q)

    first, second = flexc.explain(both)
    assert first.gradients is not None
    assert second.gradients is None
    assert "gradients" not in str(second)
    assert explain(causal, 2, 2, N, N, device="cpu").gradients is None


def test_eager_attention_is_differentiated_by_torch() -> None:
    q = torch.randn(1, 2, 64, 16, requires_grad=True)
    (found,) = flexc.explain(flexc.flex_attention, q, q, q, backend="eager")
    assert found.gradients is not None
    assert "by torch" in found.gradients.why
    assert found.gradients.heading == VARY


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = str(explain(causal, 2, 2, N, N, score_mod=many, device="cpu")).splitlines()
    first = said.index("gradients  equal bits at every run")
    last = said.index("", first)
    names = [line[2:].split("  ")[0] for line in said[first + 1 : last]]
    assert [n for n in names if n] == [
        *("slopes", "rows", "columns", "bias", "pairs", "fixed", "by_hops", "gate"),
        QUERIES,
    ]
    assert max(map(len, said)) <= 100
    path = tmp_path / "mods.py"
    path.write_text(
        "import torch\nslopes = torch.rand(8, requires_grad=True)\n"
        "def alibi(score, b, h, q_idx, kv_idx):\n"
        "    return score + slopes[h] * (kv_idx - q_idx)\n"
    )
    given = ["--score-mod", f"{path}:alibi", "--q-len", "64", "--heads", "8"]
    assert main(["explain", "-", *given]) == 0
    assert "  slopes             by head: slopes[h]\n" in capsys.readouterr().out
