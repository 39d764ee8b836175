"""Which schedules a call's kernel may have, which it gets, and what is said of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

import flexc
from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.errors import CompilationError, OptionError, ScheduleError
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall
from flexc.passes.targets.cpp import CPP, KEPT_COLUMNS, MACHINES, MOST_PANELS
from flexc.passes.targets.target import AttentionShape, SizeOptions, TileSizes
from flexc.runtime.attention.call import (
    Attention,
    Outputs,
    read_signature,
)
from flexc.runtime.explain import explain_mask, key_of, light
from flexc.runtime.explain.report import Explanation
from flexc.runtime.inputs.options import (
    NO_CHOICES,
    NO_OPTIONS,
    SCHEDULE_NAMES,
    Choices,
    TileOptions,
    read_choices,
    tile_options,
)
from flexc.runtime.inputs.options import kernel_options as options_of
from flexc.runtime.inputs.tensor_facts import is_aligned
from flexc.runtime.kernels import driver, schedules
from flexc.runtime.kernels.build import Build
from flexc.runtime.kernels.schedules import (
    Check,
    Schedule,
    candidates,
    choose,
)
from flexc.runtime.tapes import gpus
from flexc.runtime.tapes.gpus import HOPPER
from tests.support.corpus_masks import causal_mask

CALL = AttentionCall(torch.bfloat16, 128, 128, alignment=16)
BUILD = Build(CALL, "triton", "cuda", TileOptions(), capability=HOPPER)
NAMES = ("overlap", "simple", "triton")


def test_an_h100_prefers_roles() -> None:
    found = candidates(BUILD)
    assert tuple(found.names) == NAMES
    assert found.rejected == found.slower == ()


def test_a_crowd_of_programs_has_no_need_of_overlap() -> None:
    assert candidates(BUILD, lambda: 3) == candidates(BUILD)
    found = candidates(BUILD, lambda: 4)
    labels = [s.label for s in found.schedules]
    fewer = ["overlap of 128 rows", "simple of 128 rows"]
    assert labels == ["simple", "overlap", *fewer, "triton"]
    (why,) = found.slower
    assert why.startswith("overlap: 4 programs without it share a multiprocessor")


def test_where_registers_spill_programs_have_fewer_rows() -> None:
    def rows_of(build: Build) -> list[int | None]:
        return [s.rows for s in candidates(build).schedules]

    assert rows_of(BUILD) == [None, 128, None, 128, None]
    for block, rows in (((128, 128), 128), ((192, 128), 64)):
        tabled = replace(BUILD, call=replace(CALL, sparse_block=block))
        assert rows_of(tabled) == [None, rows, None, rows, None]
    tabled = replace(BUILD, call=replace(CALL, sparse_block=(32, 32)))
    asked = replace(BUILD, tiles=TileOptions(block_m=64))
    assert rows_of(tabled) == rows_of(asked) == [None] * 3
    few = replace(BUILD, program_rows=64)
    assert rows_of(few) == rows_of(replace(BUILD, program_rows=128)) == [None] * 3
    variant = candidates(BUILD).labelled("simple of 128 rows")
    assert variant == replace(schedules.SIMPLE, rows=128)
    assert driver.convert_for(BUILD, variant).block_m == 128


OBSTACLES: dict[str, tuple[Build, str]] = {
    "older": (replace(BUILD, capability=80), "of capability 9.0, not one of 8.0"),
    "newer": (replace(BUILD, capability=100), "not one of 10.0"),
    "unknown": (replace(BUILD, capability=None), "not an unknown one"),
    "fp32": (replace(BUILD, call=replace(CALL, dtype=torch.float32)), "float32"),
    "wide": (replace(BUILD, call=replace(CALL, value_dim=320)), "up to 256"),
    "unaligned": (replace(BUILD, call=replace(CALL, alignment=None)), "16 bytes"),
    "derivative": (replace(BUILD, derivative=True, roles="cannot"), "derivative"),
    "warps": (replace(BUILD, tiles=TileOptions(num_warps=8)), "num_warps=8"),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_what_cannot_have_roles_says_why(case: str) -> None:
    build, why = OBSTACLES[case]
    found = candidates(build)
    assert found.schedules == (schedules.TRITON,)
    (reason,) = found.rejected
    assert reason.startswith("overlap, simple: ")
    assert why in reason


def test_other_makers_gpus_and_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "hip", "6.4")
        assert "AMD" in candidates(BUILD).rejected[0]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET" in candidates(BUILD).rejected[0]


def asking(name: str, build: Build = BUILD) -> Build:
    return replace(build, tiles=TileOptions(schedule=name))


@pytest.mark.parametrize("name", NAMES)
def test_one_that_is_asked_for_is_the_only_one(name: str) -> None:
    assert [s.name for s in candidates(asking(name)).schedules] == [name]


def test_one_that_is_asked_for_in_vain() -> None:
    with pytest.raises(ScheduleError, match=r'schedule="overlap" cannot .* not one of'):
        candidates(asking("overlap", OBSTACLES["older"][0]))


SPEC = KernelSpec(
    "gluon",
    "attention",
    (ParamSpec("query", "bf16", "input", "descriptor", 0, box=(1, 1, 64, 128)),),
    "affine_map<(d0, d1, d2) -> (d0)>",
    "source",
    num_warps=4,
)


def lower_as(**outcomes: str) -> Callable[[Schedule], KernelSpec]:
    """Lowering that refuses schedules for the reasons given, to tiles of 128 rows."""

    def lower(schedule: Schedule) -> KernelSpec:
        if schedule.name in outcomes:
            raise ScheduleError(outcomes[schedule.name])
        return replace(SPEC, target=schedule.target, source=schedule.name)

    return lower


def check_as(**outcomes: list[str]) -> Check:
    """A check that finds problems in the kernels of schedules."""
    return lambda spec, most_spilled: outcomes.get(spec.source, [])


def test_the_first_that_compiles_well_is_chosen() -> None:
    spec = choose(BUILD, lower_as(), check_as())
    assert (spec.schedule, spec.rejected) == ("overlap", ())


def test_what_is_left_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flexc")
    lower = lower_as(overlap="a product cannot be delayed")
    spec = choose(BUILD, lower, check_as(simple=["800 bytes spilled", "C7510"]))
    assert spec.schedule == "triton"
    assert spec.rejected == (
        "overlap: a product cannot be delayed",
        "simple: 800 bytes spilled; C7510",
    )
    for text in (*spec.rejected, "schedule triton"):
        assert text in caplog.text


def test_candidates_are_compiled_one_after_another() -> None:
    seen: list[str] = []

    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        seen.append(spec.source)
        return ["bad"] * (spec.source == "overlap")

    assert choose(BUILD, lower_as(), check).schedule == "simple"
    assert seen == ["overlap", "simple"]


def test_fewer_rows_are_tried_where_they_make_a_difference() -> None:
    def lower(schedule: Schedule) -> KernelSpec:
        return replace(SPEC, target=schedule.target, source=schedule.label)

    spills = ["500 bytes spill"]
    spec = choose(BUILD, lower, check_as(overlap=spills))
    assert spec.schedule == "overlap of 128 rows"
    assert spec.rejected == ("overlap: 500 bytes spill",)
    still = {"overlap": spills, "overlap of 128 rows": ["C7510"]}
    spec = choose(BUILD, lower, check_as(**still))
    assert spec.schedule == "simple of 128 rows"
    assert [r.partition(":")[0] for r in spec.rejected] == list(still)


def test_overlap_is_not_tried_where_a_crowd_is_faster() -> None:
    seen: list[str] = []

    def lower(schedule: Schedule) -> KernelSpec:
        seen.append(schedule.label)
        return replace(SPEC, target=schedule.target, source=schedule.label)

    def crowd() -> int:
        return 4

    spec = choose(BUILD, lower, check_as(), crowd)
    assert (spec.schedule, seen) == ("simple", ["simple"])
    assert spec.rejected == candidates(BUILD, crowd).slower
    faults = {"simple": ["C7510"], "overlap": ["spills"]}
    spec = choose(BUILD, lower, check_as(**faults), crowd)
    assert spec.schedule == "overlap of 128 rows"
    assert spec.rejected == ("simple: C7510", "overlap: spills")
    assert choose(asking("overlap"), lower, check_as(), crowd).rejected == ()


def lower_labelled(schedule: Schedule) -> KernelSpec:
    """A kernel of its own for every candidate."""
    return replace(SPEC, target=schedule.target, source=schedule.label)


OF_128 = " of 128 rows"


@pytest.mark.parametrize(
    ("spilled", "tried"),
    {
        1024: ["overlap", "overlap" + OF_128, "simple" + OF_128],
        1028: ["overlap", "overlap" + OF_128],
        2052: ["overlap"],
    }.items(),
)
def test_what_is_hopeless_is_not_compiled(spilled: int, tried: list[str]) -> None:
    """Where much spills, other schedules do not help, and then nor do fewer rows."""
    seen: list[str] = []

    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        seen.append(spec.source)
        problem = f"{spilled} bytes spill to memory, with 168 registers"
        return [problem] * (spec.target == "gluon")

    assert choose(BUILD, lower_labelled, check).schedule == "triton"
    assert seen == [*tried, "triton"]


def test_as_many_rows_are_not_fewer() -> None:
    seen: list[str] = []

    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        seen.append(spec.source)
        return ["1028 bytes spill to memory"] * (spec.target == "gluon")

    assert choose(BUILD, lower_as(), check).schedule == "triton"
    assert seen == ["overlap", "triton"]


@pytest.mark.parametrize(
    ("spilled", "tried"), [(500, ["simple", "overlap"]), (700, ["simple", "triton"])]
)
def test_what_spills_in_a_crowd(spilled: int, tried: list[str]) -> None:
    seen: list[str] = []

    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        seen.append(spec.source)
        problem = f"{spilled} bytes spill to memory, with 64 registers"
        return [problem] * (spec.source == "simple")

    choose(BUILD, lower_as(), check, lambda: 4)
    assert seen == tried


TOO_LARGE = "needs 300000 bytes of shared memory, and 232448 are there"


def test_tiles_that_do_not_fit_are_made_smaller() -> None:
    build, seen = asking("triton"), list[str]()

    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        seen.append(spec.source)
        return [TOO_LARGE] * (len(seen) < 3)

    spec = choose(build, lower_labelled, check)
    assert spec.schedule == "triton in smaller tiles (2)"
    assert [r.partition(": ") for r in spec.rejected] == [
        ("triton", ": ", TOO_LARGE),
        ("triton in smaller tiles (1)", ": ", TOO_LARGE),
    ]
    found = candidates(build).labelled(spec.schedule)
    assert found == replace(schedules.TRITON, smaller=2)
    assert driver.convert_for(build, found).smaller == 2


def test_tiles_whose_reads_do_not_fit_are_not_compiled() -> None:
    checked: list[str] = []

    def lower(schedule: Schedule) -> KernelSpec:
        ahead = (400_000, 240_000, 120_000)[min(schedule.smaller, 2)]
        return replace(lower_labelled(schedule), copied_ahead=ahead)

    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        checked.append(spec.source)
        return []

    spec = choose(asking("triton"), lower, check)
    assert checked == [spec.schedule] == ["triton in smaller tiles (2)"]
    assert spec.rejected[1].endswith(
        "copies 240000 bytes to shared memory ahead, and 232448 are there"
    )
    # Fewer stages cannot be had where a user chose how many.
    given = TileOptions(num_stages=3, schedule="triton")
    assert choose(replace(BUILD, tiles=given), lower, check).schedule == "triton"


def test_nothing_fits() -> None:
    wide, tall = TileOptions(block_n=256, num_warps=4), TileOptions(512, num_stages=4)
    for tiles, told in (
        (wide, "kernel options BLOCK_N=256 needs 300000"),
        (tall, "BLOCK_M=512, num_stages=4 needs"),
    ):
        build = replace(BUILD, tiles=tiles._replace(schedule="triton"))
        with pytest.raises(OptionError, match=told):
            choose(build, lower_as(), check_as(triton=[TOO_LARGE]))
    with pytest.raises(CompilationError, match="smallest tiles do not fit"):
        choose(asking("triton"), lower_as(), check_as(triton=[TOO_LARGE]))


def test_what_does_not_compile_is_left() -> None:
    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        if spec.target == "triton":
            return []
        raise CompilationError(f"{spec.source} was refused")

    spec = choose(BUILD, lower_as(), check)
    assert spec.rejected == tuple(f"{n}: {n} was refused" for n in NAMES[:2])
    with pytest.raises(ScheduleError, match="simple was refused"):
        choose(asking("simple"), lower_as(), check)


def test_one_that_is_asked_for_need_not_compile_well() -> None:
    spec = choose(asking("simple"), lower_as(), check_as(simple=["spills"]))
    assert (spec.schedule, spec.rejected) == ("simple", ("simple: spills",))
    refused = lower_as(simple="a load depends on the part")
    with pytest.raises(ScheduleError, match="a load depends on the part"):
        choose(asking("simple"), refused, check_as())


def test_specs_are_stored_with_their_choice() -> None:
    spec = replace(SPEC, schedule="simple", rejected=("overlap: spills",))
    again = KernelSpec.from_json(spec.to_json())
    assert again == spec
    assert again.digest == SPEC.digest


def test_options() -> None:
    assert tile_options({"schedule": "simple"}) == TileOptions(schedule="simple")
    for value in ("fastest", None, 3, True):
        with pytest.raises(OptionError, match="overlap, simple, triton, got"):
            tile_options({"schedule": value})
    choices = read_choices("auto", {"schedule": "triton", "BLOCK_M": 64})
    assert options_of(choices) == {"BLOCK_M": 64, "schedule": "triton"}


def test_a_cpu_has_no_use_for_schedules() -> None:
    query = torch.randn(1, 1, 40, 16)
    options = {"schedule": "overlap"}
    got = flexc.flex_attention(query, query, query, kernel_options=options)
    torch.testing.assert_close(got, flexc.flex_attention(query, query, query))


def test_kernels_are_keyed_on_the_gpu_and_the_choice() -> None:
    others = (asking("simple"), replace(BUILD, capability=80))
    keys = {driver.kernel_key(ModuleOp([]), b) for b in (BUILD, *others)}
    assert len(keys) == 3


@pytest.fixture
def stored(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache, and which schedules are lowered for it."""
    lowered: list[str] = []

    def lower(_: ModuleOp, build: Build, schedule: Schedule) -> KernelSpec:
        lowered.append(schedule.label)
        return replace(SPEC, target=schedule.target, source=schedule.name)

    monkeypatch.setattr(driver, "lower", lower)
    monkeypatch.setattr(
        driver, "problems_of", lambda spec, *_: ["spills"] * (spec.source == "overlap")
    )
    return lowered


def test_the_next_process_makes_what_was_chosen(stored: list[str]) -> None:
    query = torch.zeros(1, 1, 512, 128, dtype=torch.bfloat16)
    module = call_of(query).compiled().attention.module
    first = driver.find_spec(module, BUILD, "key")
    assert stored == ["overlap", "overlap of 128 rows", "simple"]
    stored.clear()
    assert driver.find_spec(module, BUILD, "key") == first
    assert not stored
    assert (first.schedule, first.rejected) == ("simple", ("overlap: spills",))


CPU = torch.device("cpu")


def documents(b, h, q_idx, kv_idx):
    return q_idx // 100 == kv_idx // 100


def call_of(query: Tensor, mask_mod: Callable[..., Any] | None = None) -> Attention:
    """A call of the Triton backend."""
    signature = read_signature(None, mask_mod, CPU)
    value = query.clone()
    return Attention(
        query, query, value, 0.1, None, signature, Outputs(), "triton", NO_CHOICES
    )


def soft_cap(score, b, h, q_idx, kv_idx):
    return 20 * torch.tanh(score / 20)


def test_what_derivatives_save_is_computed_by_roles() -> None:
    """Bounded scores are shifted by a constant, which is stored like any other row."""
    query = torch.zeros(1, 1, 512, 128, dtype=torch.bfloat16)
    signature = read_signature(soft_cap, None, CPU)
    saved = Outputs(lse=True, lse_rest=True)
    call = Attention(
        query, query, query, 0.1, None, signature, saved, "triton", NO_CHOICES
    )
    compiled = call.compiled()
    for schedule in schedules.WITH_ROLES:
        module = compiled.attention.module.clone()
        spec = driver.lower(module, compiled.build, schedule)
        assert spec.target == "gluon"
        assert [p.kind for p in spec.params[:3]] == ["descriptor"] * 3


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", ["overlap", "simple"])
def test_sizes_are_for_the_schedule_that_is_asked_for(name: str, head_dim: int) -> None:
    query = torch.zeros(1, 1, 512, head_dim, dtype=torch.bfloat16)
    signature = read_signature(soft_cap, documents, CPU)
    compiled = Attention(
        *(query, query, query, 0.1, None, signature, Outputs(), "triton"),
        Choices(tiles=TileOptions(schedule=name)),
    ).compiled()
    schedule = schedules.SCHEDULES[name]
    module = compiled.attention.module
    spec = driver.lower(module.clone(), compiled.build, schedule)
    together = re.search(r"programs on a multiprocessor: (\d)", spec.source)
    crowd = {("simple", 64): 4, ("overlap", 64): 3}.get((name, head_dim), 1)
    assert int(together[1] if together else 1) == crowd
    simple = driver.simple_attention(module)
    assert driver.residents_of(simple, compiled.build) == (4 if head_dim == 64 else 1)


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [((1, 8, 1024), 64), ((2, 8, 1024), 128), ((2, 16, 1024), None), ((1, 1, 7), 64)],
)
def test_few_programs_have_few_rows(
    sizes: tuple[int, int, int], rows: int | None
) -> None:
    """So few that all run at once on 132 multiprocessors."""
    query = torch.zeros(*sizes, 64, dtype=torch.bfloat16)
    key = query[:, :, :1].expand(-1, -1, 10_000, -1)
    signature = read_signature(None, causal_mask, CPU)
    call = Attention(
        *(query, key, key, 0.1, None, signature, Outputs(), "triton"), NO_CHOICES
    )
    assert call.build().program_rows == rows
    tile = call.proved_in(call.compiled()).rows.tile
    assert tile == TileSizes(rows or 192, 128, 4, 2)


def capped(s: Any, *_: Any) -> Any:
    return 20 * torch.tanh(s / 20)


@pytest.mark.parametrize(
    ("dim", "mods", "most"),
    [
        (32, (None, None), 2048),
        (64, (None, causal_mask), 4096),
        (64, (capped, None), 1 << 30),
        (80, (None, None), 256),
        (128, (None, causal_mask), 1024),
        (128, (capped, None), 1024),
        (160, (None, causal_mask), 0),
    ],
)
def test_few_keys_have_small_programs(
    dim: int, mods: tuple[Any, Any], most: int
) -> None:
    call = replace(CALL, head_dim=dim, value_dim=dim)
    traced = capture_mods(read_mods(*mods), torch.float32, "cpu")
    compiled = driver.CompiledMods(traced, replace(BUILD, call=call))
    for keys in (1, 200, 256, 257, 1000, 1024, 1025, 3000, 4096, 4097):
        found = compiled.under(compiled.proofs((8, 8, 5000, keys), ())).rows
        assert (found.tile.residents > 1) == (keys <= most)


def window(n: int) -> Any:
    return lambda b, h, q, k: (q >= k) & (q - k < n)


BANDS = {
    "window": (window, 512),
    "to both sides": (lambda n: lambda b, h, q, k: (q - k).abs() < n, 256),
    "sinks": (lambda n: lambda b, h, q, k: (q >= k) & ((q - k < n) | (k < 4)), 508),
    "chunks": (lambda n: lambda b, h, q, k: (q >= k) & (q // n == k // n), 512),
    "shifted": (lambda n: lambda b, h, q, k: (q + 9 >= k) & (q + 9 - k < n), 512),
    "prefix": (lambda n: lambda b, h, q, k: k < n, 512),
    "causal or prefix": (lambda n: lambda b, h, q, k: (q >= k) | (k < n), 0),
}


@pytest.mark.parametrize("name", BANDS)
def test_narrow_bands_have_small_programs(name: str) -> None:
    """Each row sees few of the keys, as a captured number says."""
    make, most = BANDS[name]
    call = replace(CALL, head_dim=128, value_dim=128)
    for n in (100, 256, 257, 508, 509, 512, 513, 3000):
        signature = read_mods(None, make(n))
        traced = capture_mods(signature, torch.float32, "cpu")
        compiled = driver.CompiledMods(traced, replace(BUILD, call=call))
        captures = compiled.attention.arguments(signature.captures)
        proofs = compiled.proofs((8, 8, 5000, 5000), captures)
        assert proofs.few_keys == (n <= most)
        assert (compiled.under(proofs).rows.tile.residents > 1) == (n <= most)


def test_bands_of_unknown_width_have_large_programs() -> None:
    widths = torch.full((8,), 100)
    mask: Any = lambda b, h, q, k: (q >= k) & (q - k < widths[h])  # noqa: E731
    traced = capture_mods(read_mods(None, mask), torch.float32, "cpu")
    call = replace(CALL, head_dim=128, value_dim=128)
    compiled = driver.CompiledMods(traced, replace(BUILD, call=call))
    assert not compiled.proofs((8, 8, 5000, 5000), [widths]).few_keys


@pytest.mark.parametrize(
    "given",
    [
        {"program_rows": 128},
        {"tiles": TileOptions(block_n=64)},
        {"tiles": TileOptions(schedule="triton")},
        {"capability": 80},
        {"call": replace(CALL, few_rows=(4, 1))},
        {"call": replace(CALL, dtype=torch.float32)},
    ],
)
def test_few_keys_are_no_fact_where_tiles_do_not_depend_on_them(
    given: dict[str, Any],
) -> None:
    traced = capture_mods(read_mods(None, causal_mask), torch.float32, "cpu")
    compiled = driver.CompiledMods(traced, replace(BUILD, **given))
    assert not compiled.proofs((8, 8, 5000, 100), ()).few_keys


@pytest.mark.parametrize(
    ("q_len", "rows"), [(1, 1), (17, 32), (32, 32), (33, 64), (64, 64), (65, None)]
)
def test_programs_of_a_cpu_have_no_panels_beyond_the_queries(
    q_len: int, rows: int | None
) -> None:
    """Programs of wide heads own up to four panels, two on a matrix unit."""
    query = torch.zeros(1, 2, q_len, 256, dtype=torch.bfloat16)
    signature = read_signature(None, None, CPU)
    call = Attention(
        *(query, query, query, 0.1, None, signature, Outputs(), "cpp"), NO_CHOICES
    )
    assert call.build().program_rows == rows
    assert replace(call, few_rows=(1, q_len)).build().program_rows is None
    for machine in ("amx", "avx512_bf16", "avx2"):
        options = SizeOptions(machine=machine, program_rows=rows)
        tile = CPP.attention_sizes(AttentionShape(16, 256, 256, is_bf16=True), options)
        panel = MACHINES[machine].panel(32)
        most = (2 if machine == "amx" else MOST_PANELS) * panel
        assert tile.block_m == min(most, max(panel, rows or most))


@pytest.mark.parametrize("sparse_block", [None, (64, 64), (128, 512), (256, 384)])
def test_tiles_of_packed_products_are_whole_blocks_that_threads_keep(
    sparse_block: tuple[int, int] | None,
) -> None:
    options = SizeOptions(machine="amx")
    for dim in (16, 64, 128, 256, 384, 512, 768, 2000):
        shape = AttentionShape(16, dim, dim, sparse_block, is_bf16=True)
        tile = CPP.attention_sizes(shape, options)
        assert tile.block_n % KEPT_COLUMNS == 0


@pytest.mark.parametrize(
    ("mods", "dtype", "head_dim", "options", "expected"),
    [
        ((None, causal_mask), torch.bfloat16, 64, NO_OPTIONS, [64, 128, None]),
        ((None, causal_mask), torch.bfloat16, 128, NO_OPTIONS, [64, None, None]),
        ((soft_cap, None), torch.bfloat16, 64, NO_OPTIONS, [None] * 3),
        ((None, causal_mask), torch.float32, 64, NO_OPTIONS, [None] * 3),
        ((None, causal_mask), torch.bfloat16, 64, TileOptions(block_m=64), [None] * 3),
    ],
)
def test_no_kernel_is_compiled_twice_for_its_number_of_programs(
    mods: Any, dtype: torch.dtype, head_dim: int, options: TileOptions, expected: Any
) -> None:
    signature = read_signature(mods[0], mods[1], CPU)
    found: list[int | None] = []
    choices = Choices(tiles=options)
    for heads in (8, 16, 32):
        query = torch.zeros(1, heads, 1024, head_dim, dtype=dtype)
        call = Attention(
            *(query, query, query, 0.1, None, signature, Outputs(), "triton"), choices
        )
        found.append(call.compiled().build.program_rows)
    assert found == expected


def explained(head_dim: int = 128) -> flexc.runtime.explain.Explanation:
    return explain_mask(causal_mask, Q_LEN=512, device="cuda", head_dim=head_dim)


@pytest.mark.skipif(torch.cuda.is_available(), reason="explains an absent GPU")
def test_explain_tells_the_schedule(stored: list[str]) -> None:
    assert explained().schedule is not None
    assert "overlap, simple or triton: the first call finds out" in str(explained())
    subject = call_of(torch.zeros(1, 1, 512, 128, dtype=torch.bfloat16), causal_mask)
    proved = subject.proved_in(subject.compiled())
    module, build = proved.module, proved.build
    driver.find_spec(module, build, driver.kernel_key(module, build))
    text = str(explained())
    assert "schedule  simple: " in text
    assert "not overlap  spills" in text
    assert "tiles of 64 x 128" in text
    assert "not overlap, simple  needs head dims up to 256" in str(explained(320))


def test_the_device_is_asked_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    gpus.capability.cache_clear()
    assert gpus.capability(torch.device("cuda", 3)) == 86
    gpus.capability.cache_clear()
    assert gpus.capability(CPU) == HOPPER


@pytest.mark.parametrize("how", ["address", "rows", "elements"])
def test_explain_tells_how_tensors_lie(how: str, stored: list[str]) -> None:
    query = torch.zeros(1, 2, 40, 64, dtype=torch.bfloat16)
    key = {
        "address": torch.zeros(query.numel() + 1, dtype=query.dtype)[1:].view_as(query),
        "rows": torch.zeros(1, 2, 40, 68, dtype=query.dtype)[..., :64],
        "elements": torch.zeros(1, 2, 40, 64, 2, dtype=query.dtype)[..., 0],
    }[how]
    recorded = replace(call_of(query), key=key)
    call = light(recorded)
    assert call.key.untyped_storage().nbytes() == 128
    assert call.build() == recorded.build() != call_of(query).build()
    assert key_of(recorded) != key_of(call_of(query))
    found = Explanation.of(call, None).schedule
    assert found is not None
    assert found.name == "triton"
    assert "16 bytes" in found.rejected[0]


def aligned(query: Tensor) -> int | None:
    return call_of(query).build().call.alignment


def test_calls_whose_tiles_can_be_copied() -> None:
    """Strides are multiples of 16 bytes, where there is more than one element."""
    whole = torch.zeros(2, 3, 40, 64, dtype=torch.bfloat16)
    assert aligned(whole) == 16
    assert aligned(whole.transpose(1, 2).contiguous().transpose(1, 2)) == 16
    assert aligned(whole[:1].expand(5, -1, -1, -1)) == 16
    assert aligned(whole[:, :1].as_strided((2, 1, 40, 64), (7680, 3, 64, 1))) == 16
    assert aligned(whole[..., 1:57]) is None
    assert aligned(whole[..., ::2]) is None
    assert aligned(torch.zeros(2, 3, 40, 60, dtype=torch.bfloat16)) is None
    strides = (1 << 40, 2560, 64, 1)
    far = torch.empty_strided((2, 3, 40, 64), strides, device="meta")
    assert not is_aligned(far)
    assert is_aligned(far[:1])


def test_every_schedule_can_be_asked_for() -> None:
    assert tuple(schedules.SCHEDULES) == SCHEDULE_NAMES


@pytest.mark.parametrize(
    ("spilled", "chosen"),
    {
        160: "overlap",
        164: "overlap that recomputes addresses",
        1200: "overlap that recomputes addresses",
        2052: "triton",
    }.items(),
)
def test_derivatives_recompute_addresses_where_registers_spill(
    spilled: int, chosen: str
) -> None:
    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        too_many = spec.source == "overlap" and spilled > most_spilled
        return [f"{spilled} bytes spill to memory"] * too_many

    call = replace(BUILD.call, head_dim=256, value_dim=256)
    build = replace(BUILD, call=call, derivative=True)
    assert choose(build, lower_labelled, check).schedule == chosen
    narrow = replace(BUILD.call, head_dim=64, value_dim=64)
    narrow_build = replace(build, call=narrow)
    assert choose(narrow_build, lower_labelled, check).schedule == "triton"


def test_derivatives_without_overlap_where_registers_spill() -> None:
    def check(spec: KernelSpec, most_spilled: int) -> list[str]:
        return ["1200 bytes spill to memory"] * ("overlap" in spec.source)

    build = replace(BUILD, derivative=True, roles="must")
    assert choose(build, lower_labelled, check).schedule == "simple"
