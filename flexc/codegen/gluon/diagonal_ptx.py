"""PTX that reads a tensor along the diagonals of a tile that lies as a product does.

Of such a tile with N columns a thread has N / 2 elements: the lowest bit of an
element's number is a column further, the next one 8 rows, the others 8 columns each.
Element [i, j] is read at an offset that depends on i - j alone, which is
8 a - 8 g - e relative to the thread's first one, for bits a and e and group g. So
2 (N / 8 + 1) loads serve them all, at known distances from one address.

Loads and what makes 32-bit floats of 16-bit ones are separate instructions: those that
wait for memory come as late as they may, and until then a register holds two elements.
"""

# pyright: basic
# Triton, which has no stubs, types the arguments.

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.runtime.jit import constexpr_function

MARGIN = gl.constexpr(1024)
"""More than any offset is below that of the tile's first element."""


@constexpr_function
def is_half(kind):
    """Whether elements have 16 bits."""
    return kind in ("bf16", "f16")


@constexpr_function
def slots(count):
    """What is loaded for so many elements: its number, and its row - column."""
    groups = range(count // 4 + 1)
    return [(2 * g + e, 8 * (1 - g) - e) for g in groups for e in range(2)]


@constexpr_function
def slot_of(element):
    """Which load an element of the thread gets."""
    e, a, group = element & 1, element >> 1 & 1, element >> 2
    return 2 * (group - a + 1) + e


@constexpr_function
def load_code(kind, count, step, bounded):
    """PTX that loads a thread's slots, two of 16 bits to a register.

    Inputs, of which the first element's counts: an address, MARGIN elements too far,
    and, where bounded, how far row - column is above the lowest, and what that has to
    be below.
    """
    bits = 16 if is_half(kind) else 32
    outputs = count // 2 if is_half(kind) else count
    last = count // 2 + 1
    lines = ["{", f".reg .b{bits} x<{outputs * 32 // bits}>;"]
    if bounded:
        lines += [".reg .pred p;", ".reg .u32 d;"]
    for slot, distance in slots(count):
        guard = ""
        if bounded:
            lines += [
                f"add.u32 d, ${outputs + count}, {distance};",
                f"setp.lt.u32 p, d, ${outputs + 2 * count};",
                f"mov.b{bits} x{slot}, 0;",
            ]
            guard = "@p "
        offset = bits // 8 * (step * distance - MARGIN.value)
        lines.append(f"{guard}ld.global.nc.b{bits} x{slot}, [${outputs} + {offset}];")
    per_register = 32 // bits
    for register in range(outputs):
        first = register * per_register
        if first > last:
            lines.append(f"mov.b32 ${register}, 0;")
        elif is_half(kind):
            lines.append(f"mov.b32 ${register}, {{x{first}, x{first + 1}}};")
        else:
            lines.append(f"mov.b32 ${register}, x{first};")
    return "\n".join([*lines, "}"])


@constexpr_function
def load_constraints(kind, count, bounded):
    out = {"f32": "=&f", "i32": "=&r"}.get(kind, "=&r")
    outputs = count // 2 if is_half(kind) else count
    inputs = ["l"] * count + ["r"] * (2 * count if bounded else 0)
    return ",".join([out] * outputs + inputs)


@constexpr_function
def spread_code(kind, count):
    """PTX that gives a thread's elements what was loaded for them."""
    lines = ["{", f".reg .b32 x<{count // 2 + 2}>;"]
    if kind == "f16":
        lines.append(".reg .b16 low, high;")
    for slot, _ in slots(count):
        register = f"${count + slot // 2}" if is_half(kind) else f"${count + slot}"
        is_high = slot % 2
        if kind == "bf16" and is_high:
            lines.append(f"and.b32 x{slot}, {register}, 0xffff0000;")
        elif kind == "bf16":
            lines.append(f"shl.b32 x{slot}, {register}, 16;")
        elif kind == "f16":
            lines.append(f"mov.b32 {{low, high}}, {register};")
            lines.append(f"cvt.f32.f16 x{slot}, {'high' if is_high else 'low'};")
        else:
            lines.append(f"mov.b32 x{slot}, {register};")
    lines += [f"mov.b32 ${i}, x{slot_of(i)};" for i in range(count)]
    return "\n".join([*lines, "}"])


@constexpr_function
def spread_constraints(kind, count):
    register = "r" if kind == "i32" else "f"
    given = {"f32": "f", "i32": "r"}.get(kind, "r")
    inputs = count // 2 if is_half(kind) else count
    return ",".join([f"=&{register}"] * count + [given] * inputs)
