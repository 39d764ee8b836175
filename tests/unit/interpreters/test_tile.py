"""`tile.kernel`: what its ops compute, and which accesses it allows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from xdsl.utils.exceptions import InterpretationError

from flexc.runtime.interpreters import run_module
from tests.support.reference import attention
from tests.unit.interpreters.ir import parse

DATA, OUT = "tensor<?x?x?x?xf32>", "memref<?x?x?x?xf32>"
INDICES = "i32, i32, i32, i32"
GRID = "affine_map<(b, h, q_len) -> (q_len ceildiv 4, h, b)>"
PLACE = """
    %m = tile.program_id 0
    %h = tile.program_id 1
    %b = tile.program_id 2
    %c0 = arith.constant 0 : i32
    %c4 = arith.constant 4 : i32
    %row = arith.muli %m, %c4 : i32"""
LOAD = f"""
    %x = tile.load %q[%b, %h, %row, %c0] checked [0] : {DATA}, {INDICES}
        -> !tile.tile<4x8xf32>"""
TILE = "!tile.tile<4x8xf32>"


def store(value: str, checked: str = "checked [0]") -> str:
    return f"""
    tile.store {value} : {TILE}, %out[%b, %h, %row, %c0] {checked} : {OUT}, {INDICES}"""


def run(
    body: str, args: list[Tensor], params: str = "", grid: str = GRID
) -> list[Tensor]:
    """Run a kernel of query, key, value, scale and out."""
    text = f"""
    tile.kernel @attention(
        %q : {DATA} #tile.param<argument 0>, %k : {DATA} #tile.param<argument 1>,
        %v : {DATA} #tile.param<argument 2>, %scale : f32 #tile.param<argument 3>,
        %out : {OUT} #tile.param<argument 4>{params}) grid {grid} {{
      {PLACE}
      {body}
      tile.return
    }}"""
    return run_module(parse(text), [*args, 0.3])


def inputs(q_len: int = 10, kv_len: int = 9) -> list[Tensor]:
    q = torch.randn(2, 4, q_len, 8)
    return [q, torch.randn(2, 2, kv_len, 8), torch.randn(2, 2, kv_len, 8)]


def test_load_and_store_copy_every_row():
    args = inputs()
    (out,) = run(LOAD + store("%x"), args)
    assert out.equal(args[0])


def test_elements_outside_are_zero():
    # The last of three programs holds rows 8, 9 and two of zeros.
    args = inputs()
    body = f"""{LOAD}
    %total = tile.reduce sum %x along 0 : {TILE}
    %sums = tile.map(%t : f32 = %total [1] : !tile.tile<8xf32>) {{
      flex.yield %t : f32
    }} -> {TILE}"""
    (out,) = run(body + store("%sums"), args)
    expected = args[0][:, :, 8:].sum(2, keepdim=True).expand(2, 4, 2, 8)
    torch.testing.assert_close(out[:, :, 8:], expected)


def test_what_no_program_writes_is_nan():
    one_program = "affine_map<(b, h, q_len) -> (1, h, b)>"
    (out,) = run(LOAD + store("%x"), inputs(), grid=one_program)
    assert out[:, :, :4].isfinite().all()
    assert out[:, :, 4:].isnan().all()


def test_given_outputs_are_written_in_place():
    args = [*inputs(), 0.3, torch.zeros(2, 4, 10, 8).transpose(1, 2).contiguous()]
    args[4] = args[4].transpose(1, 2)
    text = f"""
    tile.kernel @attention(%q : {DATA} #tile.param<argument 0>,
        %out : {OUT} #tile.param<argument 4>) grid {GRID} {{
      {PLACE} {LOAD} {store("%x")}
      tile.return
    }}"""
    (out,) = run_module(parse(text), args)
    assert out is args[4]
    assert out.equal(args[0])


@pytest.mark.parametrize(
    "body", [LOAD.replace("checked [0]", ""), LOAD + store("%x", "")]
)
def test_an_unchecked_access_must_fit(body: str):
    run(body, inputs(q_len=8))
    with pytest.raises(InterpretationError, match="elements 8 to 11"):
        run(body, inputs(q_len=10))


def test_leading_indices_must_fit():
    body = LOAD.replace("%b, %h", "%c4, %h")
    with pytest.raises(InterpretationError, match="dimension 0 of size 2"):
        run(body, inputs())


def test_stores_do_not_convert():
    body = f"""
    %one = arith.constant 1.0 : f64
    %x = tile.full %one : f64 -> !tile.tile<4x8xf64>
    tile.store %x : !tile.tile<4x8xf64>, %out[%b, %h, %row, %c0] checked [0]
        : {OUT}, {INDICES}"""
    with pytest.raises(InterpretationError, match=r"got torch\.float64"):
        run(body, inputs())


def test_map_broadcasts_operands_by_their_spans():
    body = f"""
    %rows = tile.iota %row : !tile.tile<4xi32>
    %columns = tile.iota %c0 : !tile.tile<8xi32>
    %n = tile.map(%i : i32 = %rows [0] : !tile.tile<4xi32>,
                  %j : i32 = %columns [1] : !tile.tile<8xi32>,
                  %s : f32 = %scale [] : f32, %t : {DATA} = %q [] : {DATA},
                  %b_ : i32 = %b [] : i32, %h_ : i32 = %h [] : i32) {{
      %x = flex.load_capture %t[%b_, %h_, %i, %j] : {DATA}, {INDICES}
      %y = arith.mulf %x, %s : f32
      flex.yield %y : f32
    }} -> {TILE}"""
    args = inputs()
    (out,) = run(body + store("%n"), args)
    assert out.equal(args[0] * torch.tensor(0.3))


def test_map_of_transposed_span_and_of_numbers():
    body = f"""{LOAD}
    %x_t = tile.transpose %x : {TILE} -> !tile.tile<8x4xf32>
    %two, %three = tile.map(%s : f32 = %scale [] : f32) {{
      %a = arith.constant 2.0 : f32
      %b_ = arith.constant 3.0 : f32
      flex.yield %a, %b_ : f32, f32
    }} -> f32, f32
    %y = tile.map(%e : f32 = %x_t [1, 0] : !tile.tile<8x4xf32>,
                  %f : f32 = %three [] : f32) {{
      %g = arith.mulf %e, %f : f32
      flex.yield %g : f32
    }} -> {TILE}"""
    args = inputs()
    (out,) = run(body + store("%y"), args)
    assert out.equal(args[0] * 3)


def test_control_flow():
    # Sum of 0..row, and negated for head 1.
    body = f"""{LOAD}
    %one = arith.constant 1 : i32
    %zero = arith.constant 0.0 : f32
    %sum = scf.for %i = %c0 to %row step %one iter_args(%s = %zero) -> (f32) : i32 {{
      %f = arith.sitofp %i : i32 to f32
      %next = arith.addf %s, %f : f32
      scf.yield %next : f32
    }}
    %first = arith.cmpi eq, %h, %one : i32
    %signed = scf.if %first -> (f32) {{
      %n = arith.negf %sum : f32
      scf.yield %n : f32
    }} else {{
      scf.yield %sum : f32
    }}
    %y = tile.full %signed : f32 -> {TILE}"""
    (out,) = run(body + store("%y"), inputs())
    assert out[0, :, 8, 0].tolist() == [28.0, -28.0, 28.0, 28.0]
    assert (out[:, :, :4] == 0).all()


def test_params_name_sizes_and_strides():
    params = """, %n : i32 #tile.param<dim 1, 2>, %s : i64 #tile.param<stride 0, 1>"""
    body = f"""
    %size = tile.dim %k, 2 : {DATA} -> i32
    %stride = tile.stride %q, 1 : {DATA} -> i64
    %d = arith.subi %size, %n : i32
    %e = arith.subi %stride, %s : i64
    %f = arith.trunci %e : i64 to i32
    %g = arith.ori %d, %f : i32
    %x = arith.sitofp %g : i32 to f32
    %y = tile.full %x : f32 -> {TILE}"""
    args = inputs()
    args[0] = args[0].transpose(1, 2).contiguous().transpose(1, 2)
    (out,) = run(body + store("%y"), args, params)
    assert (out == 0).all()


OFFSETS = f"""
    %sb = tile.stride %q, 0 : {DATA} -> i64
    %sh = tile.stride %q, 1 : {DATA} -> i64
    %sm = tile.stride %q, 2 : {DATA} -> i64
    %b64 = arith.extsi %b : i32 to i64
    %h64 = arith.extsi %h : i32 to i64
    %row64 = arith.extsi %row : i32 to i64
    %ob = arith.muli %b64, %sb : i64
    %oh = arith.muli %h64, %sh : i64
    %om = arith.muli %row64, %sm : i64
    %obh = arith.addi %ob, %oh : i64
    %base = arith.addi %obh, %om : i64
    %q_len = tile.dim %q, 2 : {DATA} -> i32"""
TILE_OFFSETS = """
    %rows = tile.iota %row : !tile.tile<4xi32>
    %places = tile.iota %c0 : !tile.tile<4xi32>
    %columns = tile.iota %c0 : !tile.tile<8xi32>
    %offsets = tile.map(%i : i32 = %places [0] : !tile.tile<4xi32>,
                        %j : i32 = %columns [1] : !tile.tile<8xi32>,
                        %s : i64 = %sm [] : i64) {
      %s32 = arith.trunci %s : i64 to i32
      %o = arith.muli %i, %s32 : i32
      %p = arith.addi %o, %j : i32
      flex.yield %p : i32
    } -> !tile.tile<4x8xi32>
    %inside = tile.map(%i : i32 = %rows [0] : !tile.tile<4xi32>,
                       %n : i32 = %q_len [] : i32) {
      %c = arith.cmpi slt, %i, %n : i32
      flex.yield %c : i1
    } -> !tile.tile<4x8xi1>"""
GATHER = f"""
    %x = tile.gather %q[%base + %offsets] if %inside : !tile.tile<4x8xi1>
        : {DATA}, !tile.tile<4x8xi32> -> {TILE}"""
SCATTER = f"""
    tile.scatter %x, %out[%base + %offsets] if %inside : !tile.tile<4x8xi1>
        : {TILE}, {OUT}, !tile.tile<4x8xi32>"""


def test_gather_and_scatter_by_storage():
    args = inputs()
    (out,) = run(OFFSETS + TILE_OFFSETS + GATHER + SCATTER, args)
    assert out.equal(args[0])


def test_gather_without_a_mask_must_fit():
    unmasked = GATHER.replace("if %inside : !tile.tile<4x8xi1>", "")
    with pytest.raises(InterpretationError, match="within 640 elements"):
        run(OFFSETS + TILE_OFFSETS + unmasked, inputs())


def test_strided_access():
    body = f"""{OFFSETS}
    %one = arith.constant 1 : i64
    %c8 = arith.constant 8 : i32
    %left = arith.subi %q_len, %row : i32
    %x_t = tile.load_strided %q[%base] strides [%one, %sm] extents [%c8, %left]
        : {DATA} -> !tile.tile<8x4xf64>
    %copy = tile.copy %x_t : !tile.tile<8x4xf64>
    %x = tile.transpose %copy : !tile.tile<8x4xf64> -> !tile.tile<4x8xf64>
    tile.store_strided %x, %out[%base] strides [%sm, %one] extents [%left, %c8]
        : !tile.tile<4x8xf64>, {OUT}"""
    args = inputs()
    (out,) = run(body, args)
    assert out.equal(args[0])


@pytest.mark.parametrize("product", ["dot", "register_product"])
def test_attention_by_hand(product: str):
    square = "!tile.tile<4x4xf32>"
    matrices = {
        "dot": f"tile.dot %x, %k_t, %zeros : {TILE}, !tile.tile<8x4xf32>, {square}",
        "register_product": f"tile.register_product %x, %k_t by <6 x 2> : {TILE}, "
        "!tile.tile<8x4xf32>",
    }
    body = f"""{LOAD}
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %kv_h = arith.divsi %h, %two : i32
    %zeros = tile.full %zero : f32 -> {square}
    %acc_zero = tile.full %zero : f32 -> {TILE}
    %l_zero = tile.full %zero : f32 -> !tile.tile<4xf32>
    %kv_len = tile.dim %k, 2 : {DATA} -> i32
    %three = arith.constant 3 : i32
    %acc, %l = scf.for %i = %c0 to %three step %one
        iter_args(%a = %acc_zero, %l_i = %l_zero)
        -> ({TILE}, !tile.tile<4xf32>) : i32 {{
      %n = arith.muli %i, %c4 : i32
      %y = tile.load %k[%b, %kv_h, %n, %c0] checked [0] : {DATA}, {INDICES} -> {TILE}
      %k_t = tile.transpose %y : {TILE} -> !tile.tile<8x4xf32>
      %s = {matrices[product]} -> {square}
      %columns = tile.iota %n : !tile.tile<4xi32>
      %p = tile.map(%e : f32 = %s [0, 1] : {square}, %f : f32 = %scale [] : f32,
                    %j : i32 = %columns [1] : !tile.tile<4xi32>,
                    %end : i32 = %kv_len [] : i32) {{
        %g = arith.mulf %e, %f : f32
        %w = math.exp %g : f32
        %c = arith.cmpi slt, %j, %end : i32
        %none = arith.constant 0.0 : f32
        %r = arith.select %c, %w, %none : f32
        flex.yield %r : f32
      }} -> {square}
      %sums = tile.reduce sum %p along 1 : {square}
      %l_next = tile.map(%u : f32 = %l_i [0] : !tile.tile<4xf32>,
                         %t : f32 = %sums [0] : !tile.tile<4xf32>) {{
        %z = arith.addf %u, %t : f32
        flex.yield %z : f32
      }} -> !tile.tile<4xf32>
      %z = tile.load %v[%b, %kv_h, %n, %c0] checked [0] : {DATA}, {INDICES} -> {TILE}
      %next = tile.dot %p, %z, %a : {square}, {TILE}, {TILE} -> {TILE}
      scf.yield %next, %l_next : {TILE}, !tile.tile<4xf32>
    }}
    %o = tile.map(%e : f32 = %acc [0, 1] : {TILE},
                  %f : f32 = %l [0] : !tile.tile<4xf32>) {{
      %d = arith.divf %e, %f : f32
      flex.yield %d : f32
    }} -> {TILE}"""
    q, k, v = inputs()
    (out,) = run(body + store("%o"), [q, k, v])
    expected = attention(q, k, v, scale=0.3, enable_gqa=True).out
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_reduce_max():
    body = f"""{LOAD}
    %max = tile.reduce max %x along 1 : {TILE}
    %y = tile.map(%e : f32 = %max [0] : !tile.tile<4xf32>) {{
      flex.yield %e : f32
    }} -> {TILE}"""
    args = inputs()
    (out,) = run(body + store("%y"), args)
    assert out.equal(args[0].amax(-1, keepdim=True).expand(2, 4, 10, 8))


def test_strides_in_units():
    """A stride parameter counts in units where it is a multiple of them."""
    body = f"""
    %e = arith.sitofp %unit : i64 to f32
    %x = tile.full %e : f32 -> {TILE}"""
    param = ", %unit : i64 #tile.param<stride 0, 2 / 8>"
    (out,) = run(body + store("%x"), inputs(), param)
    assert (out == 1).all()
