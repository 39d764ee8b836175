"""The PTX that converts bytes to 16 bits, run instruction by instruction in Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from flexc.codegen.triton import support

NARROW = {
    "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i8": torch.int8,
}
WIDE = {"bf16": torch.bfloat16, "f16": torch.float16}


def floats_of(bits: int, dtype: torch.dtype, lanes: int) -> list[float]:
    """The numbers in a register, the lowest bits first."""
    data = np.array([bits], dtype=np.uint32).view(np.uint8)
    size = dtype.itemsize * lanes
    return torch.from_numpy(data[:size].copy()).view(dtype).tolist()


def bits_of(numbers: list[float], dtype: torch.dtype) -> int:
    found = torch.tensor(numbers, dtype=torch.float32).to(dtype)
    return int.from_bytes(found.view(torch.uint8).numpy().tobytes(), "little")


def permuted(a: int, b: int, selector: int) -> int:
    """Four bytes of two registers, each chosen by four bits."""
    given = (a | b << 32).to_bytes(8, "little")
    chosen = (given[selector >> 4 * i & 7] for i in range(4))
    return int.from_bytes(bytes(chosen), "little")


def converted(name: str, *args: int) -> int:
    """The conversions between types of floats."""
    f32, f16 = torch.float32, torch.float16
    match name:
        case "cvt.rn.f16x2.e4m3x2":
            return bits_of(floats_of(args[0], torch.float8_e4m3fn, 2), f16)
        case "cvt.f32.f16":
            return bits_of(floats_of(args[0], f16, 1), f32)
        case "cvt.rn.bf16x2.f32":  # The first operand is the upper half.
            numbers = [floats_of(a, f32, 1)[0] for a in reversed(args)]
            return bits_of(numbers, torch.bfloat16)
    raise AssertionError(name)


def sub(a: int, b: int) -> int:
    pairs = zip(*(floats_of(n, torch.float16, 2) for n in (a, b)), strict=True)
    return bits_of([x - y for x, y in pairs], torch.float16)


OPS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "xor.b32": lambda a, b: a ^ b,
    "prmt.b32": permuted,
    "sub.rn.f16x2": sub,
}


def asm_of(name: str) -> str:
    return inspect.getsource(getattr(support, name).fn).split('"""')[3]


def run(asm: str, given: int, results: int) -> list[int]:
    """The registers that a block of code makes of one."""
    registers = {f"${results}": given}

    def read(name: str) -> int:
        if name in registers:
            return registers[name]
        return int(name[2:], 16) if name[:2] in ("0x", "0f") else int(name)

    for line in asm.strip(" \n{}").split(";"):
        name, _, rest = line.strip().partition(" ")
        if not name or name.startswith(".reg"):
            continue
        if pair := re.fullmatch(r"\{(\w+), (\w+)\}, (\S+)", rest):
            whole = read(pair[3])
            registers[pair[1]], registers[pair[2]] = whole & 0xFFFF, whole >> 16
            continue
        target, *operands = rest.split(", ")
        args = [read(o) for o in operands]
        found = OPS[name](*args) if name in OPS else converted(name, *args)
        registers[target] = found
    return [registers[f"${i}"] for i in range(results)]


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", NARROW)
def test_every_byte_is_converted_exactly(narrow: str, wide: str) -> None:
    widen, to_bf16 = asm_of(f"widen_{narrow}"), asm_of("halves_to_bf16")
    every = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    for i in range(256):
        four = every.roll(-i)[:4].contiguous()
        given = int.from_bytes(four.numpy().tobytes(), "little")
        pairs = run(widen, given, 2)
        if wide == "bf16":
            pairs = [r for pair in pairs for r in run(to_bf16, pair, 1)]
        found = [n for pair in pairs for n in floats_of(pair, WIDE[wide], 2)]
        expected = four.view(NARROW[narrow]).float()
        torch.testing.assert_close(
            torch.tensor(found), expected, rtol=0, atol=0, equal_nan=True
        )
