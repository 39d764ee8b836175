"""The benchmark of GPUs on a CPU, where only flexc has a backward, and its files."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
import torch

from bench.errors import Errors, gradient_errors
from bench.files import path_of
from bench.gpu import __main__ as benchmark
from bench.gpu import checks, report
from bench.gpu.__main__ import able, main
from bench.gpu.cells import DIRECTIONS, HEAD_DIMS, SEQS, Cell, cells
from bench.gpu.measure import EARLIER, measure, started
from bench.gpu.options import cells_of, parser
from bench.gpu.plot import draw
from bench.gpu.problem import Setup, problem_of
from bench.gpu.results import Results, Row
from bench.gpu.systems import MATMUL, PEERS, Contest, by_flexc
from bench.learned import LEARNED
from bench.variants import ANCHORS

TINY = Setup(device="cpu", dtype=torch.float16, batch=1, heads=2)
OWN = ("flexc", "flexc-without-mod", "flexc-mask-mod", "flexc-tables", MATMUL)
H100 = "NVIDIA H100 80GB HBM3, torch 2.11.0, triton 3.6.0, cuDNN 9.19.0, paused"


def test_what_matters_most_comes_first() -> None:
    asked = cells(ANCHORS, HEAD_DIMS, SEQS, DIRECTIONS)
    assert asked[0] == Cell("dense", 128, 8192, "fwd")
    assert len(set(asked)) == len(asked) == 7 * 3 * 2
    assert cells(LEARNED, (64,), (96,), DIRECTIONS) == [
        Cell(name, 64, 96, "bwd") for name in LEARNED
    ]


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    options = parser().parse_args(["--head-dim", "256", "--variants", "dense"])
    assert [c.direction for c in cells_of(options)[:2]] == ["fwd", "bwd"]
    assert len(cells_of(options)) == 2 * len(SEQS)
    assert not options.paused
    with pytest.raises(SystemExit):
        main(["--direction", "sideways"])
    if not torch.cuda.is_available():
        assert main(["--direction", "bwd"]) == 2
        assert "needs a GPU" in capsys.readouterr().err


def test_what_no_package_serves_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = parser().parse_args([])
    assert set(PEERS) < set(options.systems)
    monkeypatch.setattr(benchmark, "fa4_version", lambda: None)
    left = ["flexc", "flexc-deterministic", "torch-flex", "cudnn", MATMUL]
    assert able(options) == left
    assert "left out" in capsys.readouterr().out
    assert able(parser().parse_args(["--systems", "flexc"])) == ["flexc"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["document", "softcap"])
def test_forward_is_checked_and_measured(name: str) -> None:
    cell = Cell(name, 16, 96, "fwd")
    found = measure(cell, TINY, OWN, rounds=1)
    planned = {"flexc", "flexc-mask-mod", "flexc-tables", MATMUL}
    modified = {"flexc", "flexc-without-mod", "flexc-tables", MATMUL}
    systems = {row.system for row in found.rows}
    assert systems == (planned if name == "document" else modified)
    assert found.errors is not None
    assert found.errors.right
    assert not found.failed
    assert found.notes == []
    assert all(row.cell == cell and row.ms > 0 for row in found.rows)


@pytest.mark.parametrize("name", ["dense", "learned-bias"])
def test_backward_is_checked(name: str) -> None:
    setup = Setup(torch.float32, "cpu", batch=1, heads=2)
    problem = problem_of(Cell(name, 16, 96, "bwd"), setup)
    found = gradient_errors(problem, by_flexc(problem).forward())
    assert len(found) == 3 + (name in LEARNED)
    assert all(error <= 2 * peer + 2**-9 for error, peer in found.values())


def test_backward_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SMALL_SEQ", 64)
    cell = Cell("learned-t5", 16, 96, "bwd")
    found = measure(cell, TINY, ("flexc", "flexc-deterministic", *PEERS), rounds=1)
    assert [row.system for row in found.rows] == ["flexc", "flexc-deterministic"]
    assert any(note.startswith("torch-flex: ") for note in found.notes)
    assert not found.failed


def test_a_backward_is_of_a_repeated_call() -> None:
    problem = problem_of(Cell("causal", 16, 96, "bwd"), TINY)
    outs: list[torch.Tensor] = []

    def forward() -> torch.Tensor:
        outs.append(by_flexc(problem).forward())
        return outs[-1]

    run, out = started(Contest.of(problem, forward), backward=True)
    assert out is outs[-1]
    assert len(outs) == 1 + EARLIER
    run()
    assert len(outs) == 1 + EARLIER


def test_wrong_results_are_told() -> None:
    assert "WRONG" in str(Errors(3e-3, 1e-3, 1e-6))
    assert "WRONG" not in str(Errors(2e-3, 1e-3, 1e-6))


def row(
    system: str, tflops: float, variant: str = "softcap", direction: str = "fwd"
) -> Row:
    return Row(variant, 128, 8192, direction, system, 1.5, tflops)


def test_rows_take_the_place_of_older_ones(tmp_path: Path) -> None:
    path = path_of(H100, tmp_path, date(2026, 11, 21))
    assert path.name == "nvidia-h100-80gb-hbm3-2026-11-21.json"
    first = Results(H100).with_rows([row("flexc", 400), row("torch-flex", 200)])
    first.save(path)
    Results.load(path).with_rows([row("flexc", 500), row("cudnn", 600)]).save(path)
    data = json.loads(path.read_text())
    assert data["machine"] == H100
    assert [(r["system"], r["tflops"]) for r in data["rows"]] == [
        ("flexc", 500),
        ("torch-flex", 200),
        ("cudnn", 600),
    ]
    assert data["rows"][0].keys() == {
        *("variant", "head_dim", "seq", "direction", "system", "ms", "tflops")
    }


def test_lines_of_a_run() -> None:
    rows = [row("flexc", 500), row("fa4", 625), row("cudnn", 400)]
    found = Results(H100, tuple(rows))
    systems = ("cudnn", "fa4", "flexc", "flexc-deterministic")
    header = report.header(systems)
    assert header.split()[4:] == ["flexc", "equal", "FA4", "cuDNN", "/best"]
    line = report.line(found, rows[0].cell, systems)
    assert line.split()[4:] == ["500", "-", "625", "400", "0.80"]
    assert len(header) == len(line)


def test_table() -> None:
    rows = [
        *(row("flexc", 500), row("flexc", 400, direction="bwd")),
        *(row("flexc-deterministic", 300, direction="bwd"), row("torch-flex", 200)),
        row("flexc", 640, "dense"),
    ]
    assert report.table(Results(H100, tuple(rows))).splitlines() == [
        *(H100, ""),
        "| D=128 S=8192 | flexc | equal | torch | /best |",
        "| --- | --- | --- | --- | --- |",
        "| softcap | 500 / 400 | - / 300 | 200 / - | 2.50 / - |",
        "| dense | 640 / - | - | - | - |",
    ]


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row("flexc", 500), row(MATMUL, 800), row("cudnn", 600, "dense")]
    draw(Results(H100).with_rows(rows), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_merging(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    source, kept = tmp_path / "new" / "a.json", tmp_path / "a.json"
    Results(H100, (row("flexc", 500),)).save(source)
    Results(H100, (row("flexc", 400), row("cudnn", 600))).save(kept)
    assert main(["--merge", str(source), "--results", str(tmp_path)]) == 0
    assert [r.tflops for r in Results.load(kept).rows] == [500, 600]
    assert "softcap" in capsys.readouterr().out
    assert kept.with_suffix(".png").exists()
