"""Compiling and loading Gluon kernels: what is said of them, and how they are launched.

Nothing is launched: kernels are compiled for a GPU that need not be there.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton import knobs

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import CompilationError
from flexc.frontend.import_graph import AttentionCall
from flexc.runtime.inputs.options import NO_OPTIONS
from flexc.runtime.kernels import (
    gluon_loader as tensor_maps,
)
from flexc.runtime.kernels import (
    triton_loader,
)
from flexc.runtime.kernels.build import Build
from flexc.runtime.kernels.gluon_compiler import (
    EDITED,
    GLUON,
    LOGGED,
    assembler_log,
)
from flexc.runtime.kernels.gluon_loader import TensorMaps
from flexc.runtime.kernels.triton_loader import OnDevice
from flexc.runtime.tapes.gpus import HOPPER

pytestmark = pytest.mark.usefixtures("compiler_caches")

SOURCE = """
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma
)

from flexc.codegen.gluon.support import barriers, copy_in, copy_out

# {name}

@gluon.jit(do_not_specialize=['row'], do_not_specialize_on_alignment=['flags'])
def copy(query, out, flags, row: gl.int32):
    rows = gl.allocate_shared_memory(gl.bfloat16, [1, 1, 64, 64], query.layout)
    full = barriers(1, 1)
    fence_async_shared()
    mbarrier.expect(full.index(0), 8192)
    copy_in(query, [0, 0, row, 0], full.index(0), rows)
    mbarrier.wait(full.index(0), 0)
    copy_out(out, [0, 0, row, 0], rows)
    gl.store(flags + row, {value})
    tma.store_wait(0)
"""

BOX = (1, 1, 64, 64)
PARAMS = (
    ParamSpec("query", "bf16", "input", "descriptor", 0, box=BOX),
    ParamSpec("out", "bf16", "output", "descriptor", 1, box=BOX),
    ParamSpec("flags", "f32", "output", "argument", 2),
    ParamSpec("row", "i32", "scalar", "argument", 3),
)
BUILD = Build(
    AttentionCall(torch.bfloat16, 64, 64, alignment=16),
    "triton",
    "cuda",
    NO_OPTIONS,
    capability=HOPPER,
)


def spec_of(name: str, value: str = "1.0") -> KernelSpec:
    source = SOURCE.format(name=name, value=value)
    return KernelSpec("gluon", "copy", PARAMS, "", source, num_warps=4)


def test_what_is_said_of_a_kernel(capfd: pytest.CaptureFixture[str]) -> None:
    """Also of one that is in Triton's cache, and to nobody else."""
    before = dict(os.environ)
    for _ in range(2):
        with assembler_log() as said:
            GLUON.compile(spec_of("said"), HOPPER)
        (log,) = said
        assert "registers" in log
        assert "0 bytes spill stores" in log
    assert capfd.readouterr().out == ""
    assert dict(os.environ) == before
    for knob in (*LOGGED.knobs, *EDITED.knobs):
        assert vars(knob.owner).get(knob.name) is not knob.value


def test_a_user_may_hear_it_too(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_DUMP_PTXAS_LOG", "1")
    with assembler_log() as said:
        GLUON.compile(spec_of("heard"), HOPPER)
    assert said[0].strip() in capfd.readouterr().out
    assert knobs.nvidia.dump_ptxas_log


def test_threads_hear_of_their_own_kernels() -> None:
    def compile_one(name: str) -> list[str]:
        with assembler_log() as said:
            GLUON.compile(spec_of(name, f"{len(name)}.0"), HOPPER)
        return said

    with ThreadPoolExecutor(3) as pool:
        logs = list(pool.map(compile_one, ("a", "bb", "ccc")))
    assert [len(log) for log in logs] == [1, 1, 1]
    assert not knobs.nvidia.dump_ptxas_log


def test_problems() -> None:
    spec = spec_of("checked")
    assert GLUON.find_problems(spec, BUILD) == []
    (problem,) = GLUON.find_problems(spec, replace(BUILD, shared_memory=4096))
    assert "bytes of shared memory, and 4096 are there" in problem
    with pytest.raises(CompilationError, match="Triton refused an emitted kernel"):
        GLUON.find_problems(spec_of("wrong", "undefined"), BUILD)


def test_what_was_checked_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of("taken")
    assert GLUON.find_problems(spec, BUILD) == []
    with monkeypatch.context() as patch:
        patch.setattr(GLUON, "compile", None)
        first = GLUON.take(spec, HOPPER)
    # Another device gets its own.
    assert GLUON.take(spec, HOPPER) is not first


def test_launches_take_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = GLUON.compile(spec_of("launched"), HOPPER)
    metas = kernel.metadata.tensordesc_meta
    assert [list(m["block_size"]) for m in metas] == [list(BOX)] * 2
    passed = list(GLUON.expand(kernel, spec_of("launched")).src.signature.values())
    of_map = ["nvTmaDesc", *["i32"] * 4, *["i64"] * 4]
    assert passed == [*of_map, *of_map, "*fp32", "i32"]
    assert not kernel.metadata.tensordesc_meta

    made: list[Any] = []
    monkeypatch.setattr(tensor_maps, "map_maker", lambda: lambda *given: made.append)
    maps = (*(TensorMaps(m) for m in metas), None, None)
    query = torch.zeros(2, 3, 70, 64, dtype=torch.bfloat16)
    flags = torch.zeros(70)
    monkeypatch.setattr(triton_loader, "OnGrid", lambda *_: None)
    prepared = OnDevice(spec_of("launched"), kernel, maps).prepare(
        (1, 1, 1), [query, query, flags, 7]
    )
    assert len(prepared.values) == len(passed)
    assert prepared.values[1:9] == [2, 3, 70, 64, 13440, 4480, 64, 1]
    assert prepared.values[-2:] == [0, 7]
    places = [(position, number) for position, number, _ in prepared.addresses]
    assert places == [(0, 0), (9, 1), (18, 2)]
