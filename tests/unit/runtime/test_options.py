"""Names of options: honoured, known to change nothing, or refused."""

from __future__ import annotations

import typing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import flexc
from flexc.errors import OptionError
from flexc.runtime.attention.call import f32_precision
from flexc.runtime.inputs.options import (
    IGNORED_OPTIONS,
    TILE_OPTIONS,
    TORCH_BACKENDS,
    kernel_options,
    read_choices,
)
from flexc.runtime.torch_compile.dynamo import flexc_backend

Q = torch.randn(1, 2, 16, 8)

theirs: Any = torch_flex
attend: Any = flexc.flex_attention


def test_all_names_of_torch_are_known() -> None:
    known = {*TILE_OPTIONS, *IGNORED_OPTIONS}
    assert known == set(theirs.FlexKernelOptions.__annotations__)
    assert set(TORCH_BACKENDS) == set(typing.get_args(theirs._Backend))


MOOT: tuple[dict[str, Any], ...] = (
    {"BACKEND": "AUTO"},
    {"BACKEND": "TRITON"},
    {"PRESCALE_QK": True, "fwd_ROWS_GUARANTEED_SAFE": False},
    {"bwd_BLOCK_M": 64, "bwd_num_warps": 4, "BLOCK_M1": 32, "bwd_BLOCK_N2": 32},
    {"FORCE_USE_FLEX_ATTENTION": True, "USE_TMA": True, "kpack": 2},
)


@pytest.mark.parametrize("options", MOOT)
def test_moot_options_are_listed(options: dict[str, Any]) -> None:
    assert read_choices("auto", options).ignored == tuple(options)
    torch.testing.assert_close(attend(Q, Q, Q, kernel_options=options), attend(Q, Q, Q))
    (explained,) = flexc.explain(lambda: attend(Q, Q, Q, kernel_options=options))
    assert explained.ignored == tuple(options)
    assert f"ignored options  {', '.join(options)}: they" in str(explained)
    (plain,) = flexc.explain(
        lambda: attend(Q, Q, Q, kernel_options={"BLOCK_M": 16, "num_warps": 4})
    )
    assert "ignored options" not in str(plain)


def test_options_for_gpus_are_listed_on_a_cpu() -> None:
    options = {"BLOCK_M": 16, "schedule": "simple", "num_warps": 4}
    (explained,) = flexc.explain(lambda: attend(Q, Q, Q, kernel_options=options))
    assert explained.for_gpus == ("num_warps", "schedule")
    assert "options for GPUs  num_warps, schedule: of no" in str(explained)


def test_moot_options_of_a_compiled_function_are_listed() -> None:
    compiled = flexc.compile(attend, options={"kernel_options": {"WRITE_DQ": True}})
    (explained,) = flexc.explain(
        lambda: compiled(Q, Q, Q, kernel_options={"USE_TMA": False})
    )
    assert explained.ignored == ("WRITE_DQ", "USE_TMA")


@pytest.mark.parametrize("given", ["tf32", "'tf32'", "ieee", '"tf32x3"'])
def test_precision_of_fp32_products(given: str) -> None:
    """Quotes are what torch needs to paste the value into a kernel."""
    options = {"FLOAT32_PRECISION": given}
    choices = read_choices("auto", options)
    expected = given.strip("'\"")
    assert choices.tiles.f32_precision == expected
    assert choices.ignored == ()
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)
    assert f32_precision(on_gpu, choices.tiles.f32_precision) == expected
    on_gpu.dtype = torch.bfloat16
    assert f32_precision(on_gpu, "tf32") == "ieee"
    assert read_choices("auto", kernel_options(choices)) == choices
    torch.testing.assert_close(attend(Q, Q, Q, kernel_options=options), attend(Q, Q, Q))


def test_default_precision_of_fp32_products() -> None:
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)
    assert f32_precision(on_gpu, None) == "tf32x3"
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        for setting in ("ieee", "tf32"):
            matmul.fp32_precision = setting
            assert f32_precision(on_gpu, None) == setting
            assert f32_precision(on_gpu, "tf32x3") == "tf32x3"
    finally:
        matmul.fp32_precision = before
    assert f32_precision(Q, None) == "ieee"


REFUSED: dict[str, tuple[dict[Any, Any], str]] = {
    "backend": ({"BACKEND": "nonsense"}, "BACKEND expects one of AUTO, .* 'nonsense'$"),
    "backend-case": ({"BACKEND": "triton"}, "got 'triton'; did you mean 'TRITON'"),
    "backend-flash": ({"BACKEND": "FLASH"}, "'FLASH' asks for .*; leave it out"),
    "backend-decode": (
        {"BACKEND": "TRITON_DECODE"},
        "'TRITON_DECODE' asks for .*leave it out, as flexc splits the keys",
    ),
    "backend-none": ({"BACKEND": None}, "BACKEND expects one of AUTO.* None"),
    "backend-of-one-way": ({"fwd_BACKEND": "AUTO"}, "no key 'fwd_BACKEND'"),
    "backend-and-force": (
        {"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True},
        "give BACKEND or FORCE_USE_FLEX_ATTENTION, not both",
    ),
    "internal": ({"OUTPUT_MAX": True}, "no key 'OUTPUT_MAX'.* The keys are BLOCK_M"),
    "precision": (
        {"FLOAT32_PRECISION": "tf23"},
        "FLOAT32_PRECISION expects one of ieee, tf32, tf32x3, .* did you mean 'tf32'",
    ),
    "precision-number": ({"FLOAT32_PRECISION": 32}, "one of ieee, tf32.* got 32"),
    "precision-list": ({"FLOAT32_PRECISION": ["tf32"]}, "one of ieee, .* got .'tf32'"),
    "typo": ({"BLOK_M": 32}, "no key 'BLOK_M'; did you mean 'BLOCK_M'"),
    "case": ({"block_n": 32}, "no key 'block_n'; did you mean 'BLOCK_N'"),
    "typo-of-one-way": ({"bwd_nonsense": 1}, "no key 'bwd_nonsense'"),
    "typo-of-own": ({"schedul": "simple"}, "did you mean 'schedule'"),
    "own-of-one-way": (
        {"fwd_schedule": "simple"},
        "no key 'fwd_schedule'; did you mean",
    ),
    "schedule": ({"schedule": "overlapp"}, "did you mean 'overlap'"),
    "ignored-value": ({"USE_TMA": "yes"}, "USE_TMA expects True or False, got 'yes'"),
    "ignored-number": (
        {"bwd_BLOCK_M1": 3.5},
        "bwd_BLOCK_M1 expects an integer, got 3.5",
    ),
    "number": ({3: 1}, "no key 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_kernel_options(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(OptionError, match=message):
        attend(Q, Q, Q, kernel_options=options)
    with pytest.raises(OptionError, match=message):
        flexc.compile(attend, options={"kernel_options": options})


@pytest.mark.parametrize("options", ["BLOCK_M", [("BLOCK_M", 16)], 3])
def test_options_are_a_dict(options: Any) -> None:
    with pytest.raises(OptionError, match="kernel_options expects a dict, got"):
        attend(Q, Q, Q, kernel_options=options)
    with pytest.raises(OptionError, match=r"^options expects a dict, got"):
        flexc.compile(attend, options=options)


SCOPES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"backend": "cp"}, "backend expects one of auto.* got 'cp'; did you mean 'cpp'"),
    ({"backend": None}, "backend expects one of auto.* got None"),
    ({"options": {"determinstic": True}}, "did you mean 'deterministic'"),
    (
        {"options": {"BLOCK_M": 64}},
        "options expects 'BLOCK_M' among its kernel_options",
    ),
    ({"options": {"kernel_option": {}}}, "did you mean 'kernel_options'"),
)


@pytest.mark.parametrize(("kwargs", "message"), SCOPES)
def test_refused_options_of_compile(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        flexc.compile(attend, **kwargs)
    options = {**kwargs.pop("options", {}), **kwargs}
    compiled: Any = torch.compile(
        lambda q: attend(q, q, q), backend="flexc", options=options
    )
    with pytest.raises(Exception, match=message):
        compiled(Q)


def test_refused_backends_of_a_call() -> None:
    with pytest.raises(OptionError, match="got 'trition'; did you mean 'triton'"):
        attend(Q, Q, Q, backend="trition")
    for options in (None, {}, {"BLOCK_M": 64}):
        with pytest.raises(OptionError, match="backend expects one of auto"):
            attend(Q, Q, Q, backend=["cpp"], kernel_options=options)


INDUCTORS: tuple[dict[str, Any], ...] = (
    {"mode": "max-autotune-no-cudagraphs"},
    {"options": {"epilogue_fusion": True, "deterministic": True}},
)


@pytest.mark.parametrize("given", INDUCTORS, ids=str)
def test_inductor_has_the_mode_and_its_options(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Any]] = []

    class Inductor(torch._TorchCompileInductorWrapper):
        def __init__(self, mode: Any, options: Any, dynamic: Any) -> None:
            super().__init__(mode, options, dynamic)
            seen.append((mode, options))

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", Inductor)
    torch.compiler.reset()
    options = given.get("options", {})
    compiled: Any = torch.compile(
        lambda q: attend(q, q, q), backend=flexc_backend, **given
    )
    torch.testing.assert_close(compiled(Q), attend(Q, Q, Q))
    assert seen == [(given.get("mode"), options)]


def test_inductor_is_left_out() -> None:
    def compile(**given: Any) -> Any:
        torch.compiler.reset()
        return torch.compile(lambda q: attend(q, q, q), backend="flexc", **given)

    options: Any = {"inductor": False}
    torch.testing.assert_close(compile(options=options)(Q), attend(Q, Q, Q))
    with pytest.raises(OptionError, match='"inductor": True with option'):
        compile(options={**options, "max_autotune": True})(Q)


@pytest.mark.parametrize("function", [attend, theirs.flex_attention])
def test_options_under_dynamo(function: Any) -> None:
    """The same names are refused, and numbers that become symbolic are read."""
    torch.compiler.reset()
    compiled: Any = torch.compile(
        lambda q, options: function(q, q, q, kernel_options=options),
        backend="flexc",
        fullgraph=True,
    )
    for size in (16, 64, 32):
        for name in ("BLOCK_M", "bwd_BLOCK_N1"):
            found = compiled(Q, {name: size, "PRESCALE_QK": True})
            torch.testing.assert_close(found, attend(Q, Q, Q))
    with pytest.raises(Exception, match="did you mean 'BLOCK_M'"):
        compiled(Q, {"BLOCKM": 16})
    with pytest.raises(Exception, match=r"Invalid BACKEND|BACKEND expects one of"):
        compiled(Q, {"BACKEND": "nonsense"})
    with pytest.raises(Exception, match="'FLASH' asks for a kernel of torch"):
        compiled(Q, {"BACKEND": "FLASH"})


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_symbolic_options_of_own_operator(backend: str) -> None:
    torch.compiler.reset()
    compiled: Any = torch.compile(
        lambda q, size: attend(q, q, q, kernel_options={"BLOCK_M": size}),
        backend=backend,
        fullgraph=True,
    )
    for size in (16, 64, 32):
        torch.testing.assert_close(compiled(Q, size), attend(Q, Q, Q))
