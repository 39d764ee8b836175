"""Functions that emitted Gluon kernels import.

This module hides names that differ among versions of Triton, so that the text of a
kernel is the same for all versions.

`read_diagonals` reads a tensor along the diagonals of a tile that has a product's
layout. In a tile with N columns a thread has N / 2 elements. Bit 0 of an element's
number stands for 1 column, bit 1 for 8 rows, the other bits for 8 columns each. The
address of an element depends only on row - column. Relative to the thread's first
element that is 8 a - 8 g - e, for bits a and e and group g. So 2 (N / 8 + 1) loads
serve all elements, at constant distances from one address. The first two loads serve
only the row 8 below. They have an address of their own, because that row may not count.
"""

# pyright: basic, reportArgumentType=false, reportAssignmentType=false
# pyright: reportAttributeAccessIssue=false
# Triton, which has no stubs, types the arguments.

from __future__ import annotations

from typing import Any

import triton.experimental.gluon.language as gl
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)
from triton.runtime.jit import constexpr_function

from flexc.codegen.triton import support

MARGIN = gl.constexpr(1024)
"""A number of elements greater than any element's distance before the first one."""


@constexpr_function
def slot_of(element):
    """Return the number of the load that gives an element of the thread."""
    e, a, group = element & 1, element >> 1 & 1, element >> 2
    return 2 * (group - a + 1) + e


@constexpr_function
def read_code(kind, count, step, has_columns):
    """Return the PTX that loads a thread's elements.

    Each input has one register per element, of which only the first element's is used.
    The inputs are the address of the first element and that of the row 8 below, both
    MARGIN elements too large. With `has_columns`, a third input is the number of
    columns that count, from the first element's column on.
    """
    bits = 16 if kind in ("bf16", "f16") else 32
    near, far, columns = f"${count}", f"${2 * count}", f"${3 * count}"
    slots = count // 2 + 2
    lines = ["{", ".reg .pred p;", ".reg .b16 zero;", "mov.b16 zero, 0;"]
    lines += [f".reg .b{bits} x<{slots}>;", f".reg .b32 y<{slots}>;"]
    for slot in range(slots):
        group, e = slot // 2 - 1, slot % 2
        column = 8 * max(group, 0) + e
        offset = bits // 8 * (-step * column - MARGIN.value)
        address = f"[{far if group < 0 else near} + {offset}]"
        if has_columns:
            lines.append(f"setp.gt.s32 p, {columns}, {column};")
            lines.append(f"mov.b{bits} x{slot}, 0;")
        guard = "@p " if has_columns else ""
        lines.append(f"{guard}ld.global.nc.b{bits} x{slot}, {address};")
        lines.append(widening_code(kind, slot))
    lines += [f"mov.b32 ${i}, y{slot_of(i)};" for i in range(count)]
    return "\n".join([*lines, "}"])


@constexpr_function
def widening_code(kind, slot):
    """Return the PTX that converts a load to an element of 32 bits."""
    if kind == "bf16":
        return f"mov.b32 y{slot}, {{zero, x{slot}}};"
    cast = "cvt.f32.f16" if kind == "f16" else "mov.b32"
    return f"{cast} y{slot}, x{slot};"


@constexpr_function
def read_constraints(kind, count, has_columns):
    """Return the register constraints of the results and of each input."""
    result = "=&r" if kind == "i32" else "=&f"
    inputs = ["l"] * (2 * count) + ["r"] * (count * has_columns)
    return ",".join([result] * count + inputs)


@constexpr_function
def kind_of(dtype):
    """Return the IR's name of a dtype."""
    return {"fp32": "f32", "int32": "i32", "fp16": "f16"}.get(dtype.name, dtype.name)


@constexpr_function
def read_type(kind):
    """Return the dtype of elements after they are read."""
    return gl.int32 if kind == "i32" else gl.float32


@constexpr_function
def lies_as_product(layout, columns):
    """Return True if a thread's elements are numbered as this module assumes."""
    further = range((columns // 8).bit_length() - 1)
    registers = [[0, 1], [8, 0], *([0, 8 << i] for i in further)]
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    return (layout.reg_bases, layout.lane_bases) == (registers, lanes)


@gluon.jit
def addresses(tensor, first, row, column, STEP: gl.constexpr):
    """Return the addresses of elements, MARGIN elements too large."""
    offsets = first + STEP * (row[:, None] - column[None, :]) + MARGIN
    if first.dtype == gl.int32:
        # A valid sum is not negative, thanks to MARGIN. A sum that seems to be negative
        # exceeds 31 bits.
        offsets = offsets.to(gl.uint32)
    return tensor + offsets.to(gl.int64)


@gluon.jit
def read_diagonals(
    tensor, first, rows, columns, STEP: gl.constexpr, LAYOUT: gl.constexpr
):
    """Return the elements at first + STEP * (row - column), 16-bit floats as f32.

    `rows` and `columns` are the numbers of rows and columns that count, or None for
    all. Elements beyond them are unspecified.
    """
    ROWS: gl.constexpr = 16 * LAYOUT.warps_per_cta[0]
    COLUMNS: gl.constexpr = LAYOUT.instr_shape[1]
    bases: gl.constexpr = gl.to_linear_layout(LAYOUT, [ROWS, COLUMNS])
    gl.static_assert(lies_as_product(bases, COLUMNS))
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    near, far = row, row + 8
    if rows is not None:
        # Rows that do not count read the elements of the last row that counts.
        near = gl.minimum(near, rows - 1)
        far = gl.minimum(far, rows - 1)
    near = addresses(tensor, first, near, column, STEP)
    far = addresses(tensor, first, far, column, STEP)
    inputs = (near, far)
    if columns is not None:
        inputs += ((columns - column)[None, :] + 0 * row[:, None],)
    COUNT: gl.constexpr = COLUMNS // 2
    KIND: gl.constexpr = kind_of(tensor.dtype.element_ty)
    HAS_COLUMNS: gl.constexpr = columns is not None
    DTYPE: gl.constexpr = read_type(KIND)
    return gl.inline_asm_elementwise(
        read_code(KIND, COUNT, STEP, HAS_COLUMNS),
        read_constraints(KIND, COUNT, HAS_COLUMNS),
        inputs,
        dtype=DTYPE.value,
        is_pure=True,
        pack=COUNT,
    )


@gl._core.builtin
def reduce_add(tensor, coord, src, _semantic: Any = None):
    """Start to add a tile in shared memory to global memory, atomically."""
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(kind, tensor.handle, coord, src.handle)


# Triton 3.6 has other names for these, and none for `add_out`.
HAS_REINTERPRET = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
add_out = getattr(tma, "async_atomic_add", None) or reduce_add


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return COUNT barriers; each completes a phase after ARRIVALS arrivals."""
    row = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):  # pyright: ignore
        mbarrier.init(row.index(i), count=ARRIVALS)
    # Ordinary stores wrote the initial values, and asynchronous copies must see them.
    fence_async_shared()
    return row


@gluon.jit
def tile_of(slot):
    """Return the tile in a slot, without the leading dimensions of size 1."""
    ROWS: gl.constexpr = slot.shape[slot.rank - 2]
    COLUMNS: gl.constexpr = slot.shape[slot.rank - 1]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(  # pyright: ignore
        [ROWS, COLUMNS], slot.dtype
    )
    if HAS_REINTERPRET:
        return slot.reinterpret(slot.dtype, [ROWS, COLUMNS], layout)
    else:
        return slot._reinterpret(slot.dtype, [ROWS, COLUMNS], layout)


@gluon.jit
def vector_of(slot):
    """Return the vector in a slot, without the leading dimensions of size 1."""
    COLUMNS: gl.constexpr = slot.shape[slot.rank - 1]
    BITS: gl.constexpr = slot.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMASharedLayout(0, BITS, rank=1)  # pyright: ignore
    if HAS_REINTERPRET:
        return slot.reinterpret(slot.dtype, [COLUMNS], layout)
    else:
        return slot._reinterpret(slot.dtype, [COLUMNS], layout)


@constexpr_function
def keep_code(count, other):
    """Return the PTX that replaces elements of a thread outside of two rows' columns.

    Each input has one register per element. The inputs are the elements, and for each
    row its first column and the one after its last. The first two bits of an element's
    number and its other bits are as in `slot_of`. A row's elements are bits of a mask.
    """
    lines = ["{", ".reg .pred p;", ".reg .b32 lane, x, n, m<2>, low;"]
    lines += [
        "mov.u32 lane, %laneid;",
        "and.b32 lane, lane, 3;",
        "shl.b32 lane, lane, 1;",
    ]
    for row in range(2):
        for bound, mask in ((2, "low"), (3, f"m{row}")):
            lines += [
                f"sub.s32 x, ${bound * count + 2 * row}, lane;",
                "max.s32 x, x, 0;",
                "shr.u32 n, x, 3;",
                "and.b32 x, x, 7;",
                "min.u32 x, x, 2;",
                "mad.lo.u32 n, n, 2, x;",
                f"bmsk.clamp.b32 {mask}, 0, n;",
            ]
        lines += ["not.b32 low, low;", f"and.b32 m{row}, m{row}, low;"]
    for i in range(count):
        bit = 1 << (2 * (i >> 2) + (i & 1))
        lines.append(f"and.b32 x, m{i >> 1 & 1}, {bit};")
        lines.append("setp.ne.u32 p, x, 0;")
        lines.append(f"selp.f32 ${i}, ${count + i}, {other}, p;")
    return "\n".join([*lines, "}"])


@constexpr_function
def keep_constraints(count):
    """Return the register constraints of the results and of each input."""
    return ",".join(["=&f"] * count + ["f"] * count + ["r"] * (2 * count))


@gluon.jit
def keep_columns(x, first, end, OTHER: gl.constexpr, LAYOUT: gl.constexpr):
    """Return elements from column `first` of a row to `end`, and OTHER elsewhere.

    OTHER is the PTX of a float.
    """
    ROWS: gl.constexpr = 16 * LAYOUT.warps_per_cta[0]
    COLUMNS: gl.constexpr = LAYOUT.instr_shape[1]
    bases: gl.constexpr = gl.to_linear_layout(LAYOUT, [ROWS, COLUMNS])
    gl.static_assert(lies_as_product(bases, COLUMNS))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    COUNT: gl.constexpr = COLUMNS // 2
    return gl.inline_asm_elementwise(
        keep_code(COUNT, OTHER),
        keep_constraints(COUNT),
        [x, first[:, None] + 0 * column[None, :], end[:, None] + 0 * column[None, :]],
        dtype=gl.float32,
        is_pure=True,
        pack=COUNT,
    )


@gluon.jit
def partial_sums(x, LAYOUT: gl.constexpr):
    """Return the sums of a thread's elements, by the pair of columns of each thread."""
    ROWS: gl.constexpr = x.shape[0]
    COLUMNS: gl.constexpr = LAYOUT.instr_shape[1]
    folded = gl.reshape(x, [ROWS, x.shape[1] // COLUMNS, COLUMNS])
    return gl.convert_layout(gl.sum(folded, 1), LAYOUT, assert_trivial=True)


@gluon.jit
def pack_pairs(x):
    """Return the 16-bit elements of adjacent columns as one element of 32 bits."""
    pairs = gl.reshape(x.to(gl.int16, bitcast=True), [x.shape[0], x.shape[1] // 2, 2])
    return gl.inline_asm_elementwise(
        "mov.b32 $0, {$1, $2};",
        "=r,h,h",
        gl.split(pairs),
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def unpack_pairs(x, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the elements that `pack_pairs` packed."""
    even, odd = x.to(gl.int16), (x >> 16).to(gl.int16)
    pairs = gl.join(even, odd).reshape([x.shape[0], 2 * x.shape[1]])
    return gl.convert_layout(pairs.to(DTYPE, bitcast=True), LAYOUT, assert_trivial=True)


@constexpr_function
def add_code(is_masked):
    """Return the PTX that adds two elements to memory, if a mask says so."""
    test = "setp.ne.b32 p, $6, 0;" if is_masked else "setp.eq.b32 p, 0, 0;"
    add = "@p red.relaxed.gpu.global.add.v2.f32 [$2], {$4, $5};"
    return f"{{ .reg .pred p; {test} {add} mov.b32 $0, 0; mov.b32 $1, 0; }}"


@gluon.jit
def add_pairs(pointers, tile, mask=None):
    """Add a tile in the layout of a product to memory, atomically.

    Triton adds one element at a time. In this layout, elements 2 i and 2 i + 1 of a
    thread are neighbours in a row, no other thread has them, and the first one's
    address is a multiple of 8. The mask is that of rows.
    """
    # Pointers and floats have no common type.
    inputs = (pointers, tile.to(gl.int32, bitcast=True))
    if mask is not None:
        inputs += (mask.to(gl.int32),)
    IS_MASKED: gl.constexpr = mask is not None
    REGISTERS: gl.constexpr = "=r,=r,l,l,r,r,r,r" if IS_MASKED else "=r,=r,l,l,r,r"
    gl.inline_asm_elementwise(
        add_code(IS_MASKED), REGISTERS, inputs, dtype=gl.int32, is_pure=False, pack=2
    )


@gluon.jit
def await_progress(progress, program, least, known):
    """Wait until a program's progress is at least a number, and return its progress.

    Asynchronous copies that start afterwards come after what that program wrote.
    """
    return gl.inline_asm_elementwise(
        """{
        .reg .pred p;
        mov.b32 $0, $3;
        setp.ge.s32 p, $3, $2;
        @p bra done;
        again:
        ld.acquire.gpu.global.b32 $0, [$1];
        setp.lt.s32 p, $0, $2;
        @p bra again;
        fence.proxy.async.global;
        done:
        }""",
        "=&r,l,r,r",
        [progress + program, least, known],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def await_writes(OUTSTANDING: gl.constexpr):
    """Wait until at most OUTSTANDING copies out are not in memory yet."""
    CODE: gl.constexpr = f"cp.async.bulk.wait_group {OUTSTANDING}; mov.b32 $0, 0;"
    gl.inline_asm_elementwise(CODE, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def report_progress(progress, program, number):
    """Set a program's progress, for a role of one warp.

    Any of the warp's lanes may have started and awaited copies out, and one lane
    releases what all of them have seen. Copies that were awaited need no fence.
    """
    gl.inline_asm_elementwise(
        """{
        .reg .pred p;
        .reg .b32 lane;
        bar.warp.sync 0xffffffff;
        mov.u32 lane, %laneid;
        setp.eq.u32 p, lane, 0;
        @p st.release.gpu.global.b32 [$1], $2;
        mov.b32 $0, 0;
        }""",
        "=r,l,r",
        [progress + program, number],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


FIRST_TURN = gl.constexpr(10)
"""The first of the 16 named barriers that is for turns.

Triton takes one for each role's copy and two more.
"""


@constexpr_function
def turn_code(instruction, part):
    """Return the PTX by which a copy of a role takes or gives the turn of a copy.

    A turn is a named barrier of two warp groups: the one that gives it arrives, the
    one that takes it waits.
    """
    return f"bar.{instruction} {FIRST_TURN.value + part}, 256; mov.b32 $0, 0;"


@gluon.jit
def take_turn(part: gl.constexpr):
    """Wait until a copy of a role has the turn."""
    gl.inline_asm_elementwise(
        turn_code("sync", part), "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def pass_turn(part: gl.constexpr, COPIES: gl.constexpr):
    """Give the turn to the next copy of a role."""
    NEXT: gl.constexpr = (part + 1) % COPIES
    gl.inline_asm_elementwise(
        turn_code("arrive", NEXT), "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def opaque(index):
    """Return an index that the compiler cannot move out of a loop."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [index + 0], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def widen(x):
    """Return the elements of a bf16 tile as f32; a thread has pairs of elements."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
        "=f,=f,r",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=2,
    )


# Inline assembly for single elements works in any layout: the code is Triton's.
await_kernels = gluon.jit(support.await_kernels.fn)
tanh_approx = gluon.jit(support.tanh_approx.fn)
read_bf16 = gluon.jit(support.read_bf16.fn)
read_f16 = gluon.jit(support.read_f16.fn)
read_f32 = gluon.jit(support.read_f32.fn)
read_i32 = gluon.jit(support.read_i32.fn)
read_bf16_if = gluon.jit(support.read_bf16_if.fn)
read_f16_if = gluon.jit(support.read_f16_if.fn)
read_f32_if = gluon.jit(support.read_f32_if.fn)
read_i32_if = gluon.jit(support.read_i32_if.fn)
