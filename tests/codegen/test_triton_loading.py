"""Compiling and loading Triton kernels: what does not fit, and what is compiled once.

Nothing is launched: kernels are compiled for a GPU that need not be there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton import knobs

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import OptionError
from flexc.runtime.inputs.options import NO_OPTIONS, TileOptions
from flexc.runtime.kernels import (
    driver,
    triton_compiler,
    triton_loader,
)
from flexc.runtime.kernels.build import NO_CALL, Build, build_of
from flexc.runtime.kernels.schedules import candidates
from flexc.runtime.kernels.triton_compiler import (
    TRITON,
    Entry,
)
from flexc.runtime.kernels.triton_loader import OnGrid
from flexc.runtime.planner.tables import order_kernels
from flexc.runtime.tapes.gpus import HOPPER
from tests.codegen.triton_kernels import Variant, call_of

pytestmark = pytest.mark.usefixtures("compiler_caches")

VARIANT = Variant("soft_cap", "sm90", head_dim=64)
SPEC = KernelSpec("triton", "f", (), "", "")


def made(memory: int, tiles: TileOptions = NO_OPTIONS) -> tuple[KernelSpec, Build]:
    """A kernel for a GPU whose programs have so many bytes of shared memory."""
    module, build = call_of(VARIANT)
    build = replace(build, capability=80, tiles=tiles)

    def problems_of(spec: KernelSpec, build: Build, most_spilled: int) -> list[str]:
        return TRITON.find_problems(spec, replace(build, shared_memory=memory))

    # Tiles are chosen as if there were more, as where Triton needs more than they do.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "problems_of", problems_of)
        return driver.make_spec(module, build), build


def shared_bytes(spec: KernelSpec) -> int:
    return TRITON.take(spec, 80).metadata.shared


def test_a_kernel_that_fits_keeps_its_tiles() -> None:
    spec, _ = made(100_000)
    assert spec.schedule == "triton"
    assert shared_bytes(spec) > 48_000


@pytest.mark.parametrize("memory", [48_000, 24_000])
def test_a_kernel_that_does_not_fit_gets_smaller_tiles(memory: int) -> None:
    spec, build = made(memory)
    assert spec.schedule.startswith("triton in smaller tiles")
    assert shared_bytes(spec) <= memory
    reason = next(r for r in spec.rejected if r.startswith("triton: "))
    assert re.search(rf"needs \d+ bytes of shared memory, and {memory} are", reason)
    schedule = candidates(build).labelled(spec.schedule)
    assert schedule is not None
    assert driver.lower(call_of(VARIANT)[0], build, schedule).digest == spec.digest


def test_options_are_kept() -> None:
    spec, _ = made(48_000, TileOptions(block_n=64, num_warps=8))
    assert spec.num_warps == 8
    with pytest.raises(OptionError, match="BLOCK_M=128, BLOCK_N=128, num_stages=3 n"):
        made(48_000, TileOptions(128, 128, num_stages=3))


def test_what_was_checked_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is compiled once, also where Triton's cache is of no use."""
    module, build = call_of(VARIANT)
    spec = driver.lower(module, build)
    assert TRITON.find_problems(spec, replace(build, shared_memory=1)) != []
    assert TRITON.find_problems(spec, build) == []
    monkeypatch.setattr(triton_loader, "capability", lambda _: HOPPER)
    device = torch.device("cuda", 0)
    with monkeypatch.context() as patch:
        patch.setattr(TRITON, "compile", None)
        first = triton_loader.compile_on(device, spec, [])
    assert triton_loader.compile_on(device, spec, []) is not first


def test_two_threads_load_one_kernel() -> None:
    """A kernel's module has a name in the process while its source runs."""
    source = "import time\n\ntime.sleep(0.2)\n\ndef kernel(): ...\n"
    spec = KernelSpec("triton", "kernel", (), "affine_map<() -> ()>", source)
    load = triton_compiler.load_jit_function.__wrapped__  # What is not remembered yet.
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(load, spec) for _ in range(2)]
    assert [f.result().__name__ for f in found] == ["kernel", "kernel"]


def test_reads_are_copied_ahead() -> None:
    """A program holds at least what is said of it before it is compiled."""
    variant = replace(VARIANT, case="pair_bias")
    module, build = call_of(variant)
    spec = driver.lower(module, build)
    assert spec.num_stages == 3
    pairs, element = 128 * 64, 4
    assert spec.copied_ahead == 2 * pairs * element
    assert TRITON.find_problems(spec, build) == []
    assert TRITON.take(spec, HOPPER).metadata.shared > spec.copied_ahead
    single = replace(build, tiles=TileOptions(num_stages=1))
    assert driver.lower(call_of(variant)[0], single).copied_ahead == 0


def test_threads_compile_at_the_same_time() -> None:
    """The depth of Python's parser is that of all threads: one parses at a time."""
    specs = [
        driver.lower(*call_of(replace(VARIANT, case=case)))
        for case in ("causal", "alibi", "soft_cap", "sliding_window")
    ]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda s: TRITON.compile(s, HOPPER), specs))
    assert all(kernel.asm["cubin"] for kernel in found)


class Launcher:
    """Like a launcher of Triton's: asks for memory, and calls a function in C."""

    def __init__(self, memory: int = 0, flat: bool = True):
        self.global_scratch_size, self.flat = memory, flat
        self.heard: list[tuple[Any, ...]] = []

    def launch(self, *args: Any) -> None:
        self.heard.append(args)

    def __call__(
        self, x: int, y: int, z: int, stream: Any, function: Any, *args: Any
    ) -> None:
        size = self.global_scratch_size  # Allocated whatever the stream is.
        scratch = bytearray(size) if size else None
        first, values = args[:4], args[4:]
        last = values if self.flat else (values,)
        self.launch(x, y, z, stream, function, False, scratch, *first, *last)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("memory", [0, 8])
def test_launches_go_to_the_function_in_c(flat: bool, memory: int) -> None:
    launcher, values = Launcher(memory, flat), (7, 8, 9)
    kernel = SimpleNamespace(run=launcher, function="f", packed_metadata="meta")
    OnGrid(kernel, (4, 5, 6), len(values), SPEC).launch(3, *values)
    launcher(4, 5, 6, 3, "f", "meta", None, None, None, *values)
    first, second = launcher.heard
    assert first == second
    assert first[6] is None or first[6] is not second[6]


def test_a_child_has_locks_of_its_own() -> None:
    """A thread that it does not have may have held its parent's."""
    script = """
import os, threading
from flexc.runtime.kernels import gluon_compiler, triton_compiler
held, done = threading.Event(), threading.Event()
def hold():
    with triton_compiler._one_at_a_time, gluon_compiler.assembler_log():
        held.set()
        done.wait(60)
thread = threading.Thread(target=hold)
thread.start()
held.wait(60)
child = os.fork()
if child == 0:
    free = triton_compiler._one_at_a_time.acquire(timeout=10)
    with gluon_compiler.assembler_log():
        os._exit(0 if free else 1)
done.set()
thread.join()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_hooks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Kernel:
        run, function, packed_metadata = Launcher(), "f", "meta"

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *values, stream: told.append((grid, stream, values))

    kernel = Kernel()
    launch = OnGrid(kernel, (4, 5, 6), 1, SPEC).launch
    monkeypatch.setattr(
        knobs.runtime, "launch_enter_hook", SimpleNamespace(calls=[print])
    )
    launch(3, 7)
    assert told == [((4, 5, 6), 3, (7,))]
    assert kernel.run.heard == []


BUILD = build_of(NO_CALL, torch.device("cpu"), "triton")


def order_spec() -> KernelSpec:
    spec = order_kernels(BUILD).spec("order")
    assert spec is not None
    return spec


@pytest.fixture
def ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel in a cache of Triton's own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return TRITON.compile(order_spec(), HOPPER)


def test_an_entry_is_the_kernel_that_was_compiled(ordered: Any) -> None:
    entry = Entry.of(ordered)
    source = TRITON.launcher_source(order_spec())
    found = Entry(*json.loads(json.dumps(entry))).load(source)
    assert found is not None
    assert found.hash == ordered.hash
    assert found.kernel == ordered.kernel
    assert found.metadata._asdict().items() <= ordered.metadata._asdict().items()
    assert found.packed_metadata == ordered.packed_metadata


@pytest.mark.parametrize("damage", ["truncated", "empty", "no binary", "gone"])
def test_an_entry_that_cannot_be_read_is_none(
    damage: str, ordered: Any, tmp_path: Path
) -> None:
    entry = Entry.of(ordered)
    files = {Path(path).suffix: Path(path) for path in ordered.metadata_group.values()}
    if damage == "truncated":
        files[".json"].write_text(files[".json"].read_text()[:-20])
    elif damage == "empty":
        files[".json"].write_text("{}")
    elif damage == "no binary":
        files[".cubin"].unlink()
    else:
        shutil.rmtree(tmp_path)
    assert entry.load(TRITON.launcher_source(order_spec())) is None


def test_launchers_ask_a_bare_source_for_types() -> None:
    spec = KernelSpec(
        "triton", "f", (ParamSpec("a", "f32", "input", "tensor", 0),), "", ""
    )
    source = TRITON.launcher_source(spec)
    assert list(source.signature.values()) == ["*fp32"]
    assert source.constants == {}
