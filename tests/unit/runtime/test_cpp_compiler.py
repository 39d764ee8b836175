"""The machine that kernels are for: the host's, or the one that is asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

import flexc
from flexc.codegen.kernel_spec import KernelSpec
from flexc.errors import OptionError
from flexc.runtime.kernels import cpp_compiler
from flexc.runtime.kernels.cpp_compiler import (
    FLAGS,
    GCC_LIBRARIES,
    Answer,
    Compiler,
    find_compiler,
    flags,
    host_machine,
    lacks_tiles,
    libraries_of,
    machines_of,
    sanitizer_flags,
)
from flexc.runtime.kernels.cpp_loader import check_sanitizer, file_name
from tests.support.reference import attention

REAL = find_compiler().command[0]
HERE = machines_of(find_compiler())
SPEC = KernelSpec("cpp", "entry", (), "affine_map<(b, h, q) -> (q, h, b)>", "")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEXC_MACHINE", "FLEXC_SANITIZE"):
        monkeypatch.delenv(name, raising=False)


def test_the_host_is_its_widest_machine() -> None:
    assert host_machine() == HERE[0]
    assert HERE[-1] == "portable"
    assert flags() == FLAGS


def predefining(monkeypatch: pytest.MonkeyPatch, *names: str) -> Compiler:
    """A compiler that predefines these names."""
    text = "\n".join(f"#define {name} 1" for name in names)
    monkeypatch.setattr(cpp_compiler, "ask", lambda *_: Answer(text))
    return Compiler(("c++", *names), "")


def test_machines_by_what_is_predefined(monkeypatch: pytest.MonkeyPatch) -> None:
    x86 = ("__AVX2__", "__FMA__", "__F16C__", "__AVX512F__")
    whole = ("__AVX512BW__", "__AVX512DQ__", "__AVX512VL__")
    for names, found in (
        ((*x86, *whole), ("avx512", "avx2", "portable")),
        (x86, ("avx2", "portable")),
        (("__AVX2__",), ("portable",)),
        (("__aarch64__",), ("neon", "portable")),
    ):
        assert machines_of(predefining(monkeypatch, *names)) == found


def test_libraries_that_gcc_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other compilers, and of sanitizers, it is not known what they need."""
    monkeypatch.delenv("FLEXC_SANITIZE", raising=False)
    gcc = predefining(monkeypatch, "__GNUC__")
    assert libraries_of(gcc) == GCC_LIBRARIES
    assert libraries_of(predefining(monkeypatch, "__GNUC__", "__clang__")) == ()
    monkeypatch.setenv("FLEXC_SANITIZE", "undefined")
    assert libraries_of(gcc) == ()


def test_no_compiler_no_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert host_machine() == "portable"


def test_a_compiler_that_appears_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "c++"
    monkeypatch.setenv("CXX", str(compiler))
    assert host_machine() == "portable"
    compiler.write_text(f'#!/bin/sh\nexec {REAL} "$@"\n')
    compiler.chmod(0o700)
    assert host_machine() == HERE[0]


@pytest.mark.parametrize("machine", HERE)
def test_machine_that_is_asked_for(
    machine: str, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    plain_name = file_name("f", SPEC.source, find_compiler())
    monkeypatch.setenv("FLEXC_MACHINE", machine)
    query, key, value = torch.randn(3, 1, 2, 70, 16).unbind()
    out = flexc.flex_attention(query, key, value)
    assert isinstance(out, torch.Tensor)
    expected = attention(query, key, value, None, None).out
    torch.testing.assert_close(out.double(), expected.double(), rtol=0, atol=1e-5)
    if machine != HERE[0] and "avx2" in HERE:
        assert file_name("f", SPEC.source, find_compiler()) != plain_name
        (library,) = cache_folder.glob("*.so")
        code = subprocess.run(["objdump", "-d", library], capture_output=True)
        wider = {"avx512_bf16": b"tdpbf16ps", "avx512": b"bf16ps", "avx2": b"zmm"}
        wide = wider.get(machine, b"ymm")
        assert wide not in code.stdout


def test_machine_that_the_host_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXC_MACHINE", "z80")
    with pytest.raises(OptionError, match=r"expects one of .*portable here, got 'z80'"):
        host_machine()


def test_a_matrix_unit_that_the_system_does_not_permit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    macros = frozenset(cpp_compiler.NEEDS["amx"])
    monkeypatch.setattr(cpp_compiler, "predefined", lambda _: macros)
    find = cpp_compiler.machines_of.__wrapped__
    monkeypatch.setattr(cpp_compiler, "tile_refusal", lambda: "")
    assert find(find_compiler())[:2] == ("amx", "avx512_bf16")
    assert not lacks_tiles()
    monkeypatch.setattr(cpp_compiler, "tile_refusal", lambda: "not permitted")
    assert "amx" not in find(find_compiler())
    assert "not permitted" in lacks_tiles()
    monkeypatch.setattr(cpp_compiler, "machines_of", find)
    monkeypatch.setenv("FLEXC_MACHINE", "amx")
    cpp_compiler._machine.cache_clear()
    with pytest.raises(OptionError, match=r"got 'amx', as .* \(not permitted\)"):
        host_machine()


def test_sanitizers(monkeypatch: pytest.MonkeyPatch) -> None:
    name = file_name("f", SPEC.source, find_compiler())
    monkeypatch.setenv("FLEXC_SANITIZE", "address,undefined")
    assert sanitizer_flags()[-1] == "-fsanitize=address,undefined"
    assert file_name("f", SPEC.source, find_compiler()) != name
    monkeypatch.setenv("FLEXC_SANITIZE", "thread")
    with pytest.raises(OptionError, match="expects names among address, undefined"):
        sanitizer_flags()


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="it may be loaded")
def test_address_sanitizer_has_to_be_loaded_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLEXC_SANITIZE", "undefined")
    check_sanitizer()
    monkeypatch.setenv("FLEXC_SANITIZE", "address,undefined")
    with pytest.raises(OptionError, match="LD_PRELOAD="):
        check_sanitizer()
