"""`flexc.explain`: facts and why-nots, counts, pictures, functions, refusals."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import (
    BlockMask,
    create_block_mask,
    create_mask,
    flex_attention,
)

import flexc
from flexc.cli import main
from flexc.errors import (
    BlockMaskError,
    DtypeError,
    FlexcError,
    ModSignatureError,
    OptionError,
    ShapeError,
)
from flexc.passes.targets.cpp import MACHINES
from flexc.runtime.explain import Explanation, report
from flexc.runtime.kernels.cpp_compiler import host_machine

MACHINE = MACHINES[host_machine()]
PANEL = MACHINE.panel(32)
TILE = PANEL * (1 if MACHINE.wide_rows is None else 2), 96
SIZE = f"blocks of {TILE[0]} x {TILE[1]}"
N = 600
WINDOW, SINKS, SIDE, RADIUS = 70, 4, 20, 3
heads = torch.tensor([9, 200], dtype=torch.int32)
doc = torch.arange(N) // 173
prefix = torch.tensor([77, 400])
table = torch.rand(N, N) < 0.3
bias = torch.randn(2, 100)
cap = 50.0


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window_and_sinks(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & ((q_idx - kv_idx <= WINDOW) | (kv_idx < SINKS))


def window_per_head(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx).abs() <= heads[h]


def prefix_lm(b, h, q_idx, kv_idx):
    return (kv_idx < prefix[b]) | (q_idx >= kv_idx)


def documents(b, h, q_idx, kv_idx):
    return (doc[q_idx] == doc[kv_idx]) & (q_idx >= kv_idx)


def squares(b, h, q_idx, kv_idx):
    return q_idx * q_idx >= kv_idx


def neighbours(b, h, q_idx, kv_idx):
    x, y = q_idx % SIDE, q_idx // SIDE
    return ((kv_idx % SIDE - x).abs() <= RADIUS) & (
        (kv_idx // SIDE - y).abs() <= RADIUS
    )


def hashed(b, h, q_idx, kv_idx):
    return ((q_idx * 7919) ^ (kv_idx * 104729)) % 13 == 0


def from_table(b, h, q_idx, kv_idx):
    return table[q_idx, kv_idx]


def dilated(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & ((q_idx - kv_idx) % 3 == 0)


def upwards(b, h, q_idx, kv_idx):
    return q_idx <= kv_idx


def soft_cap(score, b, h, q_idx, kv_idx):
    return 30 * torch.tanh(score / 30)


def captured_cap(score, b, h, q_idx, kv_idx):
    return cap * torch.tanh(score / cap)


def biased(score, b, h, q_idx, kv_idx):
    return score + bias[h, kv_idx - q_idx + 50]


MASKS = {
    f.__name__: f
    for f in (
        causal,
        window_and_sinks,
        window_per_head,
        prefix_lm,
        documents,
        squares,
        neighbours,
        hashed,
        from_table,
        dilated,
        upwards,
    )
}


explain: Any = flexc.explain


def explained(
    mask: Any, q_len: int = N, kv_len: int = N, **options: Any
) -> Explanation:
    return explain(
        mask, 2, 2, q_len, kv_len, device="cpu", dtype=torch.float32, **options
    )


def brute_force(mask: Callable[..., Any], found: Explanation) -> tuple[Tensor, Tensor]:
    """Which blocks have a live pair, and which no dead one."""
    (m, n), (rows, columns) = found.block_size, found.classes.shape[2:]
    live = create_mask(mask, 2, 2, N, N, device="cpu")
    some = torch.zeros((2, 2, rows * m, columns * n), dtype=torch.bool)
    some[:, :, :N, :N] = live
    every = some.clone()
    every[:, :, N:] = True
    blocked = (2, 2, rows, m, columns, n)
    has_live = some.view(blocked).any(5).any(3)
    return has_live, has_live & every.view(blocked).all(5).all(3)


@pytest.mark.parametrize("name", MASKS)
def test_counts_are_those_of_all_pairs(name: str) -> None:
    mask = MASKS[name]
    found = explained(mask)
    classes, counts = found.classes, found.counts
    has_live, has_none_dead = brute_force(mask, found)
    assert classes.dtype == torch.int8
    assert not (has_live & (classes == 0)).any()
    assert not (~has_none_dead & (classes == 2)).any()
    kinds = [int((classes == kind).sum()) for kind in (2, 1, 0)]
    assert [counts.full, counts.partial, counts.skipped] == kinds
    assert counts.pairs == 4 * N * N
    assert counts.live_pairs == int(create_mask(mask, 2, 2, N, N, device="cpu").sum())
    assert counts.partial_pairs is not None
    dead = int((~has_live & (classes == 1)).sum())
    full = int((has_none_dead & (classes == 1)).sum())
    assert counts.partial_pairs.dead_blocks == dead
    assert counts.partial_pairs.full_blocks == full
    pixels = classes.repeat_interleave(found.block_size[0], 2)
    pixels = pixels.repeat_interleave(found.block_size[1], 3)[:, :, :N, :N]
    assert counts.computed_pairs == int((pixels != 0).sum())
    assert counts.computed == counts.computed_pairs / counts.pairs


@pytest.mark.parametrize("name", MASKS)
def test_the_text_is_short(name: str) -> None:
    lines = str(explained(MASKS[name])).splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 100


def test_intervals_are_the_classes() -> None:
    found = explained(window_per_head)
    (m, n), classes = found.block_size, found.classes
    for h in (0, 1):
        drawn = torch.zeros_like(classes[0, 0])
        for row in found.intervals(1, h):
            for run in row.runs:
                columns = slice(run.begin // n, -(-run.end // n))
                drawn[row.begin // m, columns] = 2 if run.kind == "full" else 1
        assert torch.equal(drawn, classes[1, h])
    last = found.intervals()[-1]
    assert last.end == N
    assert last.runs[-1].end == N


@pytest.mark.parametrize(
    ("mask", "way"),
    [
        (None, "no mask"),
        (causal, "bounds"),
        (window_per_head, "bounds"),
        (documents, "planned"),
        (from_table, "every pair"),
    ],
)
def test_how_blocks_are_found(mask: Any, way: str) -> None:
    assert explained(mask).way == way


def test_small_masks_are_not_planned() -> None:
    found = explained(documents, 300, 300)
    assert found.way == "every pair"
    assert "1,048,576 pairs" in found.why
    assert found.fact("classified").proven


PROVED: list[tuple[Any, dict[str, Any], str, str]] = [
    (causal, {}, "bounds", "may be live: kv_idx in [0, q_last]\n"
        "may be dead: kv_idx in [q_first + 1, kv_len - 1]"),
    (window_and_sinks, {}, "bounds", "may be live: kv_idx in [max(0, q_first - "
        "WINDOW), q_last] or [0, min(q_last, SINKS - 1)]"),
    (window_per_head, {}, "bounds",
        "may be live: kv_idx in [max(0, q_first - heads[h]), q_last + heads[h]]"),
    (prefix_lm, {}, "bounds", "[0, prefix[b] - 1] or [0, q_last]"),
    (dilated, {}, "bounds", "may be dead: all"),
    (None, {}, "bounds", "there is no mask"),
    (documents, {}, "classified", "greatest doc[q_idx] of each block of rows"),
    (causal, {}, "order", "the last start first"),
    (upwards, {}, "order", "the first start first"),
    (causal, {}, "same_for_heads", "does not read h"),
    (causal, {}, "rows_never_empty", "each row has a live key"),
    (causal, {}, "indices_fit", "whatever the lengths"),
    (squares, {}, "indices_fit", "at these lengths"),
    (documents, {}, "captures_inside", "all indices of doc"),
    (causal, {}, "captures_inside", "nothing is loaded"),
    (causal, {"score_mod": soft_cap}, "score_range", "scores are in [-30, 30]"),
]  # fmt: skip


@pytest.mark.parametrize(("mask", "options", "name", "text"), PROVED)
def test_what_is_proved(mask: Any, options: Any, name: str, text: str) -> None:
    fact = explained(mask, **options).fact(name)
    assert fact.proven
    assert text in fact.text
    assert str(fact).startswith(f"{fact.title}: proved: ")


NOT_PROVED: list[tuple[Any, dict[str, Any], str, str]] = [
    (documents, {}, "bounds", "from doc[q_idx] == doc[kv_idx]"),
    (hashed, {}, "bounds", "((q_idx * 7919) ^ (kv_idx * 104729)) % 13 == 0"),
    (neighbours, {}, "bounds", "SIDE"),
    (from_table, {}, "classified", "table[q_idx, kv_idx]: differs from pair to pair"),
    (from_table, {}, "rows_never_empty", ""),
    (from_table, {}, "order", "all rows visit all keys"),
    (window_per_head, {}, "same_for_heads", "abs(q_idx - kv_idx) <= heads[h] reads h"),
    (prefix_lm, {}, "same_for_batches", "kv_idx < prefix[b] reads b"),
    (window_per_head, {}, "order", "does not grow or shrink"),
    (causal, {}, "score_range", "nothing bounds the product of query and key"),
    (None, {"score_mod": captured_cap}, "score_range", "in [-50, 50] with the numbers"),
    (causal, {"score_mod": biased}, "captures_inside",
        "index (kv_idx - q_idx) + 50 of bias[h, (kv_idx - q_idx) + 50] may be -549 to "
        "649, and the size there is 100"),
]  # fmt: skip


@pytest.mark.parametrize(("mask", "options", "name", "text"), NOT_PROVED)
def test_why_not(mask: Any, options: Any, name: str, text: str) -> None:
    fact = explained(mask, **options).fact(name)
    assert not fact.proven
    assert text in fact.text


def test_wide_indices_at_great_length() -> None:
    found = explained(squares, 100_000, 100_000, BLOCK_SIZE=2048)
    fact = found.fact("indices_fit")
    assert not fact.proven
    assert "q_idx * q_idx may be 0 to 9,999,800,001" in fact.text
    assert found.classes.shape == (2, 2, 49, 49)
    assert found.classes[0, 0, 1:].eq(2).all(1)[:-1].sum() == 0  # The last sticks out.
    assert found.classes[0, 0, 1:, :-1].eq(2).all()


def test_memory_grows_with_blocks_at_most() -> None:
    """A million tokens: fewer, larger blocks, and batches that share them."""
    found = explained(causal, 1 << 20, 1 << 20)
    rows, columns = found.block_size
    assert found.tile == TILE
    assert rows // TILE[0] == columns // TILE[1] > 1
    assert found.classes.stride()[:2] == (0, 0)
    assert found.counts.live_pairs is None
    first = range(0, 1 << 20, rows)
    assert found.counts.full == 4 * sum((row + 1) // columns for row in first)
    assert len(str(found).splitlines()) < 60
    assert len(found.to_svg()) < 100_000


def test_a_gpu_that_is_not_here() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    few = flexc.explain(causal, 1, 1, 4096, device="cuda", head_dim=128)
    short = flexc.explain(causal, 1, 32, 1024, device="cuda", head_dim=128)
    found = flexc.explain(causal, 1, 32, 4096, device="cuda", head_dim=128)
    assert (few.tile, short.tile) == ((64, 128), (64, 64))
    assert found.tile == (128, 128)
    assert "few keys" in str(short)
    assert "few keys" not in str(found)
    assert found.title.endswith("bfloat16, head dim 128, triton")


def test_mods_without_names_are_named_by_kind() -> None:
    options: Any = {"device": "cpu", "score_mod": lambda s, b, h, i, j: s + j}
    found = flexc.explain(causal, 1, 1, 40, 40, **options)
    assert found.title.startswith("causal with score: 40 queries")


def test_sizes_by_position_and_by_name() -> None:
    options: Any = {"device": "cpu", "dtype": torch.float32}
    by_place = flexc.explain(causal, None, 3, 200, 100, **options)
    assert by_place.classes.shape == (1, 3, -(-200 // TILE[0]), 2)
    assert str(by_place) == str(
        flexc.explain(causal, H=3, Q_LEN=200, KV_LEN=100, **options)
    )
    assert explain(causal, KV_LEN=100, **options).intervals()[-1].end == 100


def test_the_usual_dtype_is_that_of_the_device() -> None:
    on_cpu = flexc.explain(causal, 1, 1, 40, device="cpu")
    assert "float32, head dim 64, cpp" in on_cpu.title
    on_gpu = flexc.explain(causal, 1, 1, 40, device="cuda")
    assert "bfloat16, head dim 64, triton" in on_gpu.title


def svg_of(found: Explanation, path: Path, **place: int) -> ET.Element:
    found.save(path, **place)
    text = path.read_text()
    assert len(text) < 20_000
    return ET.fromstring(text)


def test_svg(tmp_path: Path) -> None:
    def less_than(b, h, q_idx, kv_idx):
        return q_idx < kv_idx

    less_than.__name__ = "a < b & c"
    found = explained(less_than)
    root = svg_of(found, tmp_path / "mask.svg")
    space = "{http://www.w3.org/2000/svg}"
    texts = [t.text for t in root.iter(f"{space}text")]
    assert {"a < b & c", "keys", "queries", f"{SIZE}, b = 0, h = 0"} <= {*texts}
    assert any(t and t.startswith("full ") for t in texts)
    assert not list(root.iter(f"{space}clipPath"))  # Ids would meet in a notebook.
    assert found._repr_svg_() == (tmp_path / "mask.svg").read_text()


@pytest.mark.parametrize("name", MASKS)
def test_rectangles_cover_the_classes(name: str) -> None:
    from flexc.runtime.explain.picture import rectangles

    classes = explained(MASKS[name]).classes[1, 1]
    for kind in (1, 2):
        drawn = torch.zeros_like(classes)
        for x, y, width, height in rectangles(classes, kind):
            drawn[y : y + height, x : x + width] += 1
        assert torch.equal(drawn, (classes == kind).to(torch.int8))


def test_pictures_of_other_heads_differ(tmp_path: Path) -> None:
    found = explained(window_per_head)
    assert found.to_svg(h=0) != found.to_svg(h=1)
    assert "b = 0, h = 1" in found.to_svg(h=1)


def test_neighbours_are_drawn_as_one() -> None:
    from flexc.runtime.explain.picture import coarser

    classes = torch.tensor([[2, 2, 0], [2, 2, 0], [1, 0, 0]], dtype=torch.int8)
    assert coarser(classes, 2).tolist() == [[2, 0], [1, 0]]


def test_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = explained(causal)
    for name in ("matplotlib", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(OptionError, match=r"install it .* or save a \.svg"):
        found.save(tmp_path / "mask.png")
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    found.save(tmp_path / "mask.png")
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


class Layer(nn.Module):
    """torch's attention with torch's BlockMask, twice."""

    def __init__(self, mask: BlockMask):
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        attend: Any = flex_attention
        for _ in range(2):
            parts = self.project(x).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in parts)
            x = attend(q, k, v, block_mask=self.mask).transpose(1, 2).flatten(2)
        return x


def test_a_module() -> None:
    mask = create_block_mask(causal, None, None, 300, 300, device="cpu", BLOCK_SIZE=64)
    (found,) = flexc.explain(Layer(mask), torch.randn(1, 300, 16))
    assert found.times == 2
    assert found.way == "tables"
    assert found.block_size == (64, 64)
    assert "as mask_mod=" in found.why
    assert found.classes.shape == (1, 2, 5, 5)
    # torch takes the rows that stick out as dead ones.
    assert found.counts.full == 2 * (0 + 1 + 2 + 3)
    assert found.counts.live_pairs == 2 * 300 * 301 // 2
    assert ", called 2 times" in str(found)


def test_tables_of_flexc_give_way_to_bounds() -> None:
    mask = flexc.create_block_mask(causal, None, None, 300, 300, device="cpu")
    (found,) = flexc.explain(Layer(mask), torch.randn(1, 300, 16))
    assert found.way == "bounds"


def test_calls_that_differ() -> None:
    q = torch.randn(1, 2, 64, 8)

    def calls() -> None:
        for window in (3, 3, 5):
            flexc.flex_attention(
                q, q, q, mask_mod=lambda b, h, i, j, w=window: i - j < w
            )
        flexc.flex_attention(q, q[:, :1], q[:, :1], enable_gqa=True)
        flexc.flex_attention(q, q, q, mask_mod=causal, backend="eager")

    found = flexc.explain(calls)
    assert [e.times for e in found] == [2, 1, 1, 1]
    assert [e.way for e in found] == ["bounds", "bounds", "no mask", "every pair"]
    assert found[3].counts.computed == 1.0
    assert str(found).startswith("[0] mask: 64 queries")
    assert "\n\n[3] causal: " in str(found)


def test_attention_itself() -> None:
    q = torch.randn(1, 2, 64, 8)
    (found,) = flexc.explain(flex_attention, q, q, q)
    assert found.way == "no mask"


@pytest.mark.parametrize(
    ("error", "message", "args", "options"),
    [
        (OptionError, "missing a required argument: 'b'", (causal,), {}),
        (OptionError, "called no flex_attention", (lambda x: x, 1), {}),
        (OptionError, "expects a function, got int", (3,), {}),
        (OptionError, "expects Q_LEN and KV_LEN", (None,), {}),
        (
            OptionError,
            "expects options B, H, .*got 'Q'",
            (causal,),
            {"Q_LEN": 1, "Q": 1},
        ),
        (ShapeError, "Q_LEN expects an integer of 1 to", (causal,), {"Q_LEN": 0}),
        (ShapeError, "B expects", (causal, "two"), {"Q_LEN": 5}),
        (DtypeError, "dtype expects one of", (causal,), {"Q_LEN": 5, "dtype": int}),
        (OptionError, "head_dim expects", (causal,), {"Q_LEN": 5, "head_dim": 0}),
        (OptionError, "BLOCK_SIZE expects", (causal,), {"Q_LEN": 5, "BLOCK_SIZE": 0}),
        (ModSignatureError, "mask_mod expects a function", (3,), {"Q_LEN": 5}),
        (ModSignatureError, "a mask_mod is called with", (soft_cap,), {"Q_LEN": 5}),
    ],
)
def test_refusals(
    error: type[FlexcError], message: str, args: Any, options: Any
) -> None:
    with pytest.raises(error, match=message):
        explain(*args, **options)


def test_refusals_of_results(tmp_path: Path) -> None:
    found = explained(causal)
    with pytest.raises(OptionError, match=r"expects a \.svg or \.png file, got '.jpg'"):
        found.save(tmp_path / "mask.jpg")
    with pytest.raises(OptionError, match="0 to 1 and 0 to 1, got 0, 2"):
        found.intervals(h=2)
    with pytest.raises(OptionError, match=r"fact expects one of bounds, .*got 'speed'"):
        found.fact("speed")


def test_blocks_of_a_block_mask_are_its_own() -> None:
    from flexc.runtime.explain.blocks import find_blocks
    from flexc.runtime.explain.subject import Subject

    with pytest.raises(BlockMaskError, match=r"in its own blocks of \(64, 64\)"):
        find_blocks(_subject_with_tables(Subject), (32, 32))


def _subject_with_tables(subject: Any) -> Any:
    from flexc.runtime.autograd import run_attention
    from flexc.runtime.inputs.options import Choices
    from flexc.runtime.interception import Scope, activate

    seen: list[Any] = []

    def run(call: Any) -> Any:
        seen.append(call)
        return run_attention(call)

    mask = create_block_mask(causal, None, None, 300, 300, device="cpu", BLOCK_SIZE=64)
    with activate(Scope(Choices(), run)):
        Layer(mask)(torch.randn(1, 300, 16))
    return subject.of(seen[0])


def test_mods_that_are_traced_at_every_call() -> None:
    table, query = torch.randn(20), torch.randn(1, 1, 20, 16)

    def attend(mod: Any) -> Any:
        return flexc.flex_attention(query, query, query, mod)

    def sums(score, b, h, q_idx, kv_idx):
        return score + table.softmax(0)[kv_idx]

    def adds(score, b, h, q_idx, kv_idx):
        return score + table[kv_idx]

    (found,) = flexc.explain(attend, adds)
    assert found.fact("traced_once").proven
    (found,) = flexc.explain(attend, sums)
    assert "a result of captured tensors alone" in found.fact("traced_once").text
    assert "each call traces them" in str(found)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mods.py"
    path.write_text("def causal(b, h, q_idx, kv_idx):\n    return q_idx >= kv_idx\n")
    picture = tmp_path / "causal.svg"
    command = ["explain", f"{path}:causal", "--q-len", "500", "--kv-len", "400"]
    options = ["--heads", "2", "--block-size", "100,50", "--svg", str(picture)]
    assert main([*command, *options, "--dtype", "float32", "--head-dim", "32"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("causal: 500 queries x 400 keys, B=1, H=2, float32, ")
    assert "here in blocks of 100 x 50" in said
    assert ET.parse(picture).getroot().tag.endswith("svg")
    assert main(["explain", f"{path}:absent", "--q-len", "5"]) == 1
    assert "has no 'absent'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "dtype", "text"),
    [
        ("amx", torch.bfloat16, "tiles of bfloat16, on the matrix unit of amx"),
        ("avx512_bf16", torch.bfloat16, "pairs of bfloat16, which avx512_bf16 has"),
        ("amx", torch.float16, "vectors of float32: amx has none of float16"),
        ("avx2", torch.bfloat16, "vectors of float32: avx2 has none of bfloat16"),
        ("amx", torch.float32, "vectors of float32"),
    ],
)
def test_form_of_products(
    machine: str, dtype: torch.dtype, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "host_machine", lambda: machine)
    monkeypatch.setattr(report, "lacks_tiles", lambda: "")
    x = torch.zeros(1, 1, 40, 16, dtype=dtype)
    (found,) = flexc.explain(flexc.flex_attention, x, x, x)
    assert found.products == text
    assert f"  products of {text}" in str(found)


def test_copies_of_rows_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "host_machine", lambda: "avx2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    views = torch.zeros(1, 1024, 3, 4, 32).permute(2, 0, 3, 1, 4).unbind()
    (found,) = flexc.explain(flexc.flex_attention, *views)
    assert found.copies.startswith("keys and values that a thread reads again")
    assert f"  copies of {found.copies[:40]}" in str(found)
    query, key, value = (x.contiguous() for x in views)
    for few in ((query, key, value), (query[:, :, :1], *views[1:])):
        (found,) = flexc.explain(flexc.flex_attention, *few)
        assert not found.copies
    monkeypatch.setattr(report, "host_machine", lambda: "amx")
    (found,) = flexc.explain(flexc.flex_attention, *(x.bfloat16() for x in views))
    assert found.copies.startswith("keys that a thread reads again")
    monkeypatch.setattr(report, "host_machine", lambda: "avx2")
    wide = torch.zeros(1, 2, 1024, 128)
    (found,) = flexc.explain(flexc.flex_attention, wide[..., :32], key[:, :2], wide)
    assert found.copies.startswith("values that")
