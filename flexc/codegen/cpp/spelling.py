"""Spell types and constants in C++."""

from __future__ import annotations

import math
import struct

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
)
from xdsl.ir import Attribute
from xdsl.utils.hints import isa

from flexc.dialects.tile import KeptAttr, PairsAttr, TileType
from flexc.errors import UnsupportedOpError

_FLOATS: dict[type[Attribute], str] = {
    Float16Type: "half",
    BFloat16Type: "bfloat16",
    Float32Type: "float",
    Float64Type: "double",
    Float8E4M3FNType: "float8_e4m3",
    Float8E5M2Type: "float8_e5m2",
}
_INTEGERS = {1: "bool", 8: "int8_t", 16: "int16_t", 32: "int32_t", 64: "int64_t"}


def scalar_type(type_: Attribute) -> str:
    """Return the C++ type of one number."""
    if isinstance(type_, IndexType):
        return "int64_t"
    if isinstance(type_, IntegerType):
        name = _INTEGERS.get(type_.bitwidth)
    else:
        name = _FLOATS.get(type(type_))
    if name is None:
        raise UnsupportedOpError(
            "the C++ target has integers of 1, 8, 16, 32 and 64 bits and floats of 8, "
            f"16, 32 and 64 bits, got {type_}"
        )
    return name


def vector_type(type_: Attribute, map_is_wide: bool) -> str:
    """Return the C++ type of a vector.

    `map_is_wide` is True if some vector of the same map has 64-bit numbers.
    """
    return f"Vec<{scalar_type(type_)}{', lanes<double>' if map_is_wide else ''}>"


def memory_type(type_: Attribute) -> str:
    """Return the C++ type of one number in memory.

    A bool is stored as int8_t, because GCC does not vectorize loads of bool.
    """
    name = scalar_type(type_)
    return "int8_t" if name == "bool" else name


def from_memory(type_: Attribute, element: str) -> str:
    """Return the expression that converts an element of memory to its scalar type."""
    return f"{element} != 0" if scalar_type(type_) == "bool" else element


def to_memory(type_: Attribute, vector: str) -> str:
    """Return the expression that converts a vector to its type in memory."""
    is_bool = scalar_type(type_) == "bool"
    return f"convert<int8_t>(one_if({vector}))" if is_bool else vector


def buffer_type(type_: TileType) -> str:
    """Return the C++ type of a buffer that holds a tile."""
    name = "Kept" if type_.get_layout() == KeptAttr() else "Buffer"
    return f"{name}<{', '.join(map(str, parameters(type_)))}>"


def parameters(type_: TileType) -> tuple[str | int, ...]:
    """Return the element type and the sizes of a tile in C++."""
    element, shape = memory_type(type_.element_type), type_.get_shape()
    if type_.get_layout() != PairsAttr():
        return element, *shape
    return f"{element}x2", shape[0] // 2, shape[1]


def literal(value: Attribute) -> str:
    """Return a constant, spelled so that it has exactly the type of the attribute."""
    if isa(value, IntegerAttr):
        return _integer_literal(value.value.data, value.type)
    assert isinstance(value, FloatAttr)
    number, type_ = value.value.data, value.get_type()
    if isinstance(type_, Float64Type):
        return _special(number, "f64") or repr(number)
    text = _special(number, "f32") or f"{_shortest_f32(number)}f"
    name = scalar_type(type_)
    return text if name == "float" else f"{name}({text})"


def _integer_literal(number: int, type_: Attribute) -> str:
    name = scalar_type(type_)
    if name == "bool":
        return "true" if number else "false"
    if name == "int32_t" and abs(number) < 1 << 31:
        return str(number)
    if number == -(1 << 63):
        return f"int64_t({number + 1} - 1)"
    return f"{name}({number})"


def _special(number: float, width: str) -> str | None:
    if math.isnan(number):
        return f"nan_{width}"
    if math.isinf(number):
        return f"-inf_{width}" if number < 0 else f"inf_{width}"
    return None


def _shortest_f32(number: float) -> str:
    """Return the shortest decimal that reads back as the same float."""
    (single,) = struct.unpack("f", struct.pack("f", number))
    texts = (f"{single:.{digits}g}" for digits in range(1, 10))
    text = next(t for t in texts if _is_f32(t, single))
    return text if any(c in text for c in ".e") else f"{text}.0"


def _is_f32(text: str, single: float) -> bool:
    try:
        return struct.unpack("f", struct.pack("f", float(text)))[0] == single
    except OverflowError:
        return False
