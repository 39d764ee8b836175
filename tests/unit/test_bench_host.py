"""The benchmark of calls on tiny ones, its files and its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.host import report
from bench.host.__main__ import cells_of, main, parser
from bench.host.cells import (
    FORWARD,
    MODES,
    PASSES,
    RECORDED,
    TRAINING,
    VARIANTS,
    Cell,
    Shape,
    cells,
    problem_of,
)
from bench.host.cpu_kernels import parts_of
from bench.host.measure import measure
from bench.host.results import Row, by_key, load, path_of, save
from bench.host.systems import DEFAULT, call_of
from bench.timing import (
    BURST,
    FEWEST,
    UNTIMED,
    interleaved_host_medians,
    interleaved_loop_medians,
)

TINY = Shape(1, 2, 24, 16, "fp32")
H200 = "NVIDIA H200, torch 2.11.0, triton 3.6.0"


def test_all_ways_to_call() -> None:
    found = cells([TINY], VARIANTS, MODES, PASSES)
    assert len(set(found)) == len(found) == len(VARIANTS) * (3 * 3 - 1)
    assert found[0] == Cell("dense", TINY, "eager", FORWARD)


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    on_cpu = cells_of(parser().parse_args(["--device", "cpu"]))
    assert {cell.mode for cell in on_cpu} == {"eager", "compiled"}
    assert {str(c.shape) for c in on_cpu} == {"1x1x16x64:fp32", "1x8x128x64:fp32"}
    on_gpu = cells_of(parser().parse_args(["--device", "cuda"]))
    long = [cell for cell in on_gpu if cell.shape.seq == 8192]
    assert len(long) == 2 * 2 * len(VARIANTS)
    assert {(cell.mode, cell.kind) for cell in long} == {
        *(("eager", FORWARD), ("eager", TRAINING))
    }
    options = parser().parse_args(["--shapes", "1x2x24x16:fp32", "--device", "cuda"])
    assert {cell.shape for cell in cells_of(options)} == {TINY}
    assert Shape.parse(str(TINY)) == TINY
    for wrong in ("1x2x24:fp32", "1x2x24x16:int8", "1x2xax16:fp32"):
        with pytest.raises(SystemExit):
            parser().parse_args(["--shapes", wrong])
    assert "invalid parse value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variant", "kind"),
    [("alibi", FORWARD), ("document", RECORDED), ("document-mask-mod", TRAINING)],
)
def test_calls_are_measured(variant: str, kind: str) -> None:
    cell = Cell(variant, TINY, "eager", kind)
    found = measure(cell, "cpu", ("flexc", "sdpa"), seconds=0)
    assert found.notes == []
    own, sdpa = found.rows
    assert (own.system, sdpa.system) == ("flexc", "sdpa")
    assert own.host > 0
    assert own.back_to_back > 0
    assert own.kernels
    assert own.rest
    assert own.launches
    assert own.launches >= (2 if kind == TRAINING else 1)
    assert sdpa.kernels is sdpa.launches is None


def test_what_a_system_lacks_is_told() -> None:
    cell = Cell("causal", TINY, "eager", TRAINING)
    found = measure(cell, "cpu", ("flexc", "torch-flex"), seconds=0)
    assert [row.system for row in found.rows] == ["flexc"]
    assert found.notes[0].startswith("torch-flex: ")


def test_within_torch_compile() -> None:
    cell = Cell("window", TINY, "compiled", FORWARD)
    problem = problem_of(cell, "cpu")
    assert call_of(problem, "flexc-compile") is None
    found = measure(cell, "cpu", ("flexc",), seconds=0)
    assert found.notes == []
    assert len(found.rows) == 1


def test_kernels_are_watched_for_a_while_only() -> None:
    call = call_of(problem_of(Cell("causal", TINY, "eager", FORWARD), "cpu"), "flexc")
    assert call is not None
    for _ in range(2):
        parts = parts_of(call, calls=3)
        assert parts.launches == 1
        assert min(parts.kernels, parts.rest) > 0


def test_turns() -> None:
    calls: list[str] = []
    runs = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    interleaved_host_medians(runs, "cpu", rounds=2)
    assert "".join(calls) == BURST * "a" + 2 * BURST * "b" + BURST * "a"
    assert BURST > UNTIMED
    calls.clear()
    found = interleaved_loop_medians(runs, "cpu", rounds=9, budget=0, calls=3)
    assert len(calls) == FEWEST * 2 * (1 + 3)
    assert found.keys() == runs.keys()


def row(system: str, host: float, variant: str = "causal") -> Row:
    found = Row(variant, str(TINY), "eager", FORWARD, system, host, 40.0)
    return replace(found, kernels=20.0, device=25.0) if system == "flexc" else found


def test_rows_take_the_place_of_older_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = path_of(H200, tmp_path)
    assert path.name.startswith("nvidia-h200-host-20")
    rows = by_key([row("flexc", 100), row("sdpa", 20)])
    save(path, H200, rows)
    machine, stored = load(path)
    assert (machine, stored) == (H200, rows)
    stored |= by_key([row("flexc", 30), row("flexc", 50, "alibi")])
    save(path, machine, stored)
    assert [row.host for row in load(path)[1].values()] == [30, 20, 50]
    assert main(["--show", str(path)]) == 0
    *_, header, first, second, last = capsys.readouterr().out.splitlines()
    assert len(header) == len(first) == len(second) == len(last)
    assert first.split()[1:] == [
        *("causal", "eager", "forward", "flexc", "30.0", "40.0", "20.0", "25.0"),
        *("-", "-", "2.00", "1.50", "-"),
    ]
    assert last.split()[-2:] == ["-", "-"]


def test_tables_say_what_columns_mean() -> None:
    assert {"/sdpa", "/torch", "host", "loop"} <= set(report.header().split())
    assert set(report.OTHERS) < set(DEFAULT)
