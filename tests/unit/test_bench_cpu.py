"""The benchmark of CPUs on small calls, its files and its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.cpu import cells as all_cells
from bench.cpu import measure as measuring
from bench.cpu import report
from bench.cpu.__main__ import main
from bench.cpu.cells import DIRECTIONS, SHAPES, VARIANTS, Cell, Shape, cells, pairs_of
from bench.cpu.contest import SYSTEMS, attn_mask, by_flexc
from bench.cpu.measure import PEAK, READ, backward_errors, measure
from bench.cpu.memory import growth
from bench.cpu.peak import fma_burst, read_burst
from bench.cpu.plot import draw
from bench.cpu.results import Results, Row
from bench.errors import forward_errors
from bench.timing import seconds_of

MACHINE = "Some CPU, avx2, torch 2.13.0"
OWN = ("flexc", "flexc-mask-mod", "sdpa")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that take no time, by the names of the usual ones."""
    monkeypatch.setitem(SHAPES, "s1k", Shape(2, 2, 80, 80, 16))
    monkeypatch.setitem(SHAPES, "decode", Shape(4, 2, 1, 96, 16))
    monkeypatch.setattr(measuring, "SMALL", Shape(2, 2, 48, 48, 16))
    backward_errors.cache_clear()


def test_what_is_measured() -> None:
    asked = cells(VARIANTS, SHAPES, ("fp32", "bf16"), DIRECTIONS)
    assert len(set(asked)) == len(asked) == 4 * 7 * 2 * 2 + 2 * 2 * 2
    assert asked[0] == Cell("dense", "s1k", "fp32", "fwd")
    assert pairs_of("causal", Shape(1, 1, 10, 10, 8)) == 55
    whole = Shape(1, 1, 900, 900, 8)
    assert pairs_of("window", whole) < pairs_of("causal", whole)
    assert 900**2 / all_cells.DOCUMENTS < pairs_of("documents", whole) < 900**2


@pytest.mark.parametrize("name", VARIANTS)
def test_forward_is_checked_and_measured(name: str) -> None:
    found = measure(Cell(name, "s1k", "fp32", "fwd"), OWN, rounds=1)
    expected = {"flexc", "sdpa", PEAK}
    if name == "softcap":
        expected -= {"sdpa"}
    if name == "documents":
        expected |= {"flexc-mask-mod"}
    assert {row.system for row in found.rows} == expected
    assert found.notes == []
    assert not found.failed
    assert all(row.ms > 0 and row.gflops > 0 for row in found.rows)


def test_backward_is_checked_and_measured() -> None:
    found = measure(Cell("alibi", "s1k", "bf16", "bwd"), ("flexc", "sdpa"), rounds=1)
    assert {row.system for row in found.rows} == {"flexc", "sdpa", PEAK}
    assert not found.failed
    assert str(found.errors).startswith("d_")


def test_decoding_is_measured_by_what_it_reads() -> None:
    found = measure(Cell("alibi", "decode", "bf16", "fwd"), ("flexc", "sdpa"), rounds=1)
    assert {row.system for row in found.rows} == {"flexc", "sdpa", PEAK, READ}
    assert not found.failed
    read = next(row for row in found.rows if row.system == READ)
    assert read.gbytes > 0 == read.gflops


def test_errors_of_few_rows_are_of_all_heads() -> None:
    problem = all_cells.make_problem("alibi", SHAPES["decode"], torch.float32, "fwd")
    out = by_flexc(problem)().clone()
    assert forward_errors(problem, out).right
    out[0, 1] += 1
    assert not forward_errors(problem, out).right


def test_what_a_system_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError("no backward here\nat all")

    monkeypatch.setitem(SYSTEMS, "torch-flex", fail)
    found = measure(Cell("dense", "s1k", "fp32", "fwd"), ("torch-flex",), rounds=1)
    assert found.notes == ["torch-flex: ValueError: no backward here"]
    assert found.failed


def test_masks_for_sdpa() -> None:
    problem = all_cells.make_problem(
        "window", Shape(2, 2, 300, 300, 16), torch.float32, "fwd"
    )
    mask = attn_mask(problem)
    assert mask is not None
    assert mask.shape == (1, 1, 300, 300)
    assert int(mask.sum()) == pairs_of("window", Shape(2, 2, 300, 300, 16))


def test_bursts() -> None:
    burst = fma_burst(1)
    assert 1e9 < burst.work / seconds_of(burst.run) < 1e13
    assert fma_burst(2).work > 0
    assert read_burst(1).work == 1 << 28
    assert seconds_of(read_burst(1).run) > 0


def row(system: str, ms: float, gflops: float, threads: int = 2, **sizes: str) -> Row:
    sizes = {"variant": "causal", "shape": "s4k", "dtype": "fp32", **sizes}
    return Row(**sizes, direction="fwd", system=system, threads=threads, ms=ms,
               gflops=gflops, gbytes=0)  # fmt: skip


ROWS = (
    row("flexc", 10, 400),
    row("torch-flex", 30, 133),
    row("sdpa", 12.5, 320),
    row(PEAK, 20, 450),
    row("flexc", 20, 300, variant="dense"),
    row("torch-flex", 80, 75, variant="dense"),
    row(PEAK, 20, 500, variant="dense"),
)


def test_table() -> None:
    text = report.table(Results(MACHINE, ROWS))
    above, _, below = text.partition("\n2 threads\n")
    assert all(name in above for name in report.NAMES.values())
    header, causal, dense, _, *means = below.splitlines()
    assert header.split()[4:9] == ["flexc", "plan", "torch", "blocks", "SDPA"]
    assert causal.split() == [
        *("fp32", "fwd", "s4k", "causal", "400", "-", "133", "-", "320"),
        *("10.00", "80", "%", "-", "3.00", "-", "1.25"),
    ]
    assert dense.split()[9:12] == ["20.00", "60", "%"]
    assert len(header) == len(causal) == len(dense)
    assert means == [
        "fp32 fwd: flexc is 3.46 times as fast as torch in the geometric mean of 2, "
        "3.00 at least",
        "fp32 fwd: flexc is 1.25 times as fast as SDPA in the geometric mean of 1, "
        "1.25 at least",
    ]


def test_rows_of_other_threads_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    Results(MACHINE, ROWS).with_rows([row("flexc", 20, 200, threads=1)]).save(path)
    found = Results.load(path)
    assert found.threads == [1, 2]
    assert len(found.rows) == len(ROWS) + 1
    assert found.with_rows([row("flexc", 5, 800)]).rows[0].gflops == 800


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--variants", "causal", "--dtypes", "fp32", "--systems"]
    arguments += ["flexc", "--threads", "1", "--results", str(tmp_path)]
    assert main(arguments) == 0
    (path,) = tmp_path.glob("*.json")
    assert {r["threads"] for r in json.loads(path.read_text())["rows"]} == {1}
    assert "causal" in capsys.readouterr().out


def test_help_says_what_shapes_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "s4k128     8 heads, 4,096 x 4,096, head dim 128\n" in said
    assert "decode128  32 heads (8 of keys), 1 x 8,192, head dim 128" in said


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--show", "absent.json"])
    assert "argument --show: no file absent.json" in capsys.readouterr().err


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(Results(MACHINE, ROWS), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_memory() -> None:
    found = growth(Cell("dense", "s1k", "fp32", "fwd"), "flexc")
    assert found is None or -5 < found < 50
