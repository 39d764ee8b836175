"""A schedule by hand: two consumers, a producer, rings of two slots.

For blocks i of four keys, with rows q: p_i = q k_i^T, acc_0 = 0, and
acc_i = (acc_{i-1} + p_{i-1} v_{i-1}) / 2; the output is the last acc + p v. The
second product of a block runs beside the first one of the next.
"""

from __future__ import annotations

import torch
from torch import Tensor

KEYS, WIDTH = 4, 8


def inputs(blocks: int = 5, rows: int = 8) -> list[Tensor]:
    """Query, key and value."""
    torch.manual_seed(0)
    lengths = (rows, blocks * KEYS, blocks * KEYS)
    return [torch.randn(1, 2, n, WIDTH, dtype=torch.bfloat16) for n in lengths]


def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What the kernel computes."""
    acc = product = torch.zeros_like(q, dtype=torch.float32)
    for first in range(0, k.shape[2], KEYS):
        rows = slice(first, first + KEYS)
        acc = (acc + product) / 2
        p = (q.float() @ k[:, :, rows].float().mT).to(q.dtype)
        product = p.float() @ v[:, :, rows].float()
    return (acc + product).to(q.dtype)


TYPES = """
!data = tensor<?x?x?x8xbf16>
!out = memref<?x?x?x8xbf16>
!acc = !tile.tile<4x8xf32>
!p = !tile.tile<4x4xbf16>
!s = !tile.tile<4x4xf32>
!view = !tile.view<!tile.tile<4x8xbf16>>
!turned = !tile.view<!tile.tile<8x4xbf16>>
!slots = !tile.shared<2, !tile.tile<4x8xbf16>>
!once = !tile.barriers<1, 1>
!full = !tile.barriers<2, 1>
!empty = !tile.barriers<2, 2>
"""


def place(name: str) -> str:
    """The slot and the parity of what a counter counts, in a ring of two."""
    return f"""
    %{name}_slot = arith.andi %{name}, %c1 : i32
    %{name}_turn = arith.shrui %{name}, %c1 : i32
    %{name}_parity = arith.andi %{name}_turn, %c1 : i32"""


def rounded(target: str, source: str, shape: str) -> str:
    """A tile of f32 rounded to bf16."""
    return f"""
    %{target} = tile.map(%x : f32 = %{source} [0, 1] : !tile.tile<{shape}xf32>) {{
      %y = arith.truncf %x : f32 to bf16
      flex.yield %y : bf16
    }} -> !tile.tile<{shape}xbf16>"""


CONSUMER = f"""
    %part_rows = arith.muli %part, %c4 : i32
    %row = arith.addi %first, %part_rows : i32
    %half = arith.constant 0.5 : f32
    %zero = arith.constant 0.0 : f32
    %acc_0 = tile.full %zero : f32 -> !acc
    tile.await %q_full[%c0] parity %c0 : !once
    %q = tile.slot %q_s[%part] : !slots -> !view
    tile.await %k_full[%c0] parity %c0 : !full
    %k_0 = tile.slot %k_s[%c0] : !slots -> !view
    %k_t_0 = tile.transpose_view %k_0 : !view -> !turned
    %s_0 = tile.issue_dot %q, %k_t_0 of !view, !turned -> !tile.pending<!s>
    %x_0 = tile.await_dot %s_0 outstanding 0 : !tile.pending<!s> -> !s
    tile.arrive %k_empty[%c0] : !empty
    {rounded("p_0", "x_0", "4x4")}
    %p, %acc, %k_at, %v_at = scf.for %i = %c1 to %n step %c1
        iter_args(%p_i = %p_0, %acc_i = %acc_0, %k = %c1, %v = %c0)
        -> (!p, !acc, i32, i32) : i32 {{
      {place("k")}
      {place("v")}
      tile.await %k_full[%k_slot] parity %k_parity : !full
      %k_i = tile.slot %k_s[%k_slot] : !slots -> !view
      %k_t = tile.transpose_view %k_i : !view -> !turned
      %s = tile.issue_dot %q, %k_t of !view, !turned -> !tile.pending<!s>
      tile.await %v_full[%v_slot] parity %v_parity : !full
      %v_i = tile.slot %v_s[%v_slot] : !slots -> !view
      %o = tile.issue_dot %p_i, %v_i, %acc_i : !acc, of !p, !view -> !tile.pending<!acc>
      %x_i = tile.await_dot %s outstanding 1 : !tile.pending<!s> -> !s
      tile.arrive %k_empty[%k_slot] : !empty
      {rounded("p_next", "x_i", "4x4")}
      %sum = tile.await_dot %o outstanding 0 : !tile.pending<!acc> -> !acc
      tile.arrive %v_empty[%v_slot] : !empty
      %acc_next = tile.map(%x : f32 = %sum [0, 1] : !acc, %y : f32 = %half [] : f32) {{
        %z = arith.mulf %x, %y : f32
        flex.yield %z : f32
      }} -> !acc
      %k_next = arith.addi %k, %c1 : i32
      %v_next = arith.addi %v, %c1 : i32
      scf.yield %p_next, %acc_next, %k_next, %v_next : !p, !acc, i32, i32
    }}
    {place("v_at")}
    tile.await %v_full[%v_at_slot] parity %v_at_parity : !full
    %v_last = tile.slot %v_s[%v_at_slot] : !slots -> !view
    %o_last = tile.issue_dot %p, %v_last, %acc : !acc, of !p, !view
        -> !tile.pending<!acc>
    %total = tile.await_dot %o_last outstanding 0 : !tile.pending<!acc> -> !acc
    tile.arrive %v_empty[%v_at_slot] : !empty
    {rounded("result", "total", "4x8")}
    tile.write_view %result, %q : !tile.tile<4x8xbf16>, !view
    tile.fence_copies
    tile.copy_out %q to %out[%b, %h, %row, %c0] : !view, !out
    tile.await_copies outstanding 0"""

PRODUCER = f"""
    tile.expect %q_full[%c0] bytes 128 : !once
    %q_0 = tile.slot %q_s[%c0] : !slots -> !view
    tile.copy_in %query[%b, %h, %first, %c0] to %q_0, %q_full[%c0] : !data, !view, !once
    %second = arith.addi %first, %c4 : i32
    %q_1 = tile.slot %q_s[%c1] : !slots -> !view
    tile.copy_in %query[%b, %h, %second, %c0] to %q_1, %q_full[%c0]
        : !data, !view, !once
    %end = scf.for %i = %c0 to %n step %c1 iter_args(%at = %c0) -> (i32) : i32 {{
      %start = arith.muli %i, %c4 : i32
      {place("at")}
      %parity = arith.xori %at_parity, %c1 : i32
      tile.await %k_empty[%at_slot] parity %parity : !empty
      tile.expect %k_full[%at_slot] bytes 64 : !full
      %k_to = tile.slot %k_s[%at_slot] : !slots -> !view
      tile.copy_in %key[%b, %h, %start, %c0] to %k_to, %k_full[%at_slot]
          : !data, !view, !full
      tile.await %v_empty[%at_slot] parity %parity : !empty
      tile.expect %v_full[%at_slot] bytes 64 : !full
      %v_to = tile.slot %v_s[%at_slot] : !slots -> !view
      tile.copy_in %value[%b, %h, %start, %c0] to %v_to, %v_full[%at_slot]
          : !data, !view, !full
      %next = arith.addi %at, %c1 : i32
      scf.yield %next : i32
    }}"""

KERNEL = f"""{TYPES}
tile.kernel @attention(
    %query : !data #tile.param<argument 0>, %key : !data #tile.param<argument 1>,
    %value : !data #tile.param<argument 2>, %out : !out #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (q_len ceildiv 8, h, b)> {{
  %m = tile.program_id 0
  %h = tile.program_id 1
  %b = tile.program_id 2
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c4 = arith.constant 4 : i32
  %c8 = arith.constant 8 : i32
  %first = arith.muli %m, %c8 : i32
  %kv_len = tile.dim %key, 2 : !data -> i32
  %n = arith.divui %kv_len, %c4 : i32
  %q_s = tile.shared : !slots
  %k_s = tile.shared : !slots
  %v_s = tile.shared : !slots
  %q_full = tile.barriers : !once
  %k_full = tile.barriers : !full
  %k_empty = tile.barriers : !empty
  %v_full = tile.barriers : !full
  %v_empty = tile.barriers : !empty
  tile.roles {{
    tile.role "consumer" copies 2 warps 4 registers 240 {{
    ^bb0(%part : i32):
      {CONSUMER}
      tile.end
    }}
    tile.role "producer" copies 1 warps 1 registers 24 {{
    ^bb0(%copy : i32):
      {PRODUCER}
      tile.end
    }}
  }}
  tile.return
}}"""
