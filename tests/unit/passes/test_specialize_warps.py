"""What has roles, what is refused them and why."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.scf import Scf
from xdsl.parser import Parser

from flexc.dialects import tile
from flexc.dialects.flex import Flex
from flexc.dialects.tile.schedule import (
    ArriveOp,
    AwaitDotOp,
    CopyInOp,
    CopyOutOp,
    IssueDotOp,
    RoleOp,
    SharedOp,
    shared_bytes,
)
from flexc.errors import ScheduleError
from flexc.passes.hopper.specialize_warps.resources import (
    SERVICE_REGISTERS,
    THREADS,
    consumer_registers,
    share_of,
    starting_registers,
)
from flexc.passes.hopper.specialize_warps.tile_specialize_warps import (
    TileSpecializeWarpsPass,
)
from flexc.passes.hopper.tile_assign_layouts import TileAssignLayoutsPass
from flexc.passes.hopper.tile_async_products import TileAsyncProductsPass
from flexc.passes.targets.gluon import (
    LEAST_REGISTERS,
    MOST_REGISTERS,
    REGISTER_STEP,
    REGISTERS,
)
from flexc.passes.targets.target import HOPPER_SHARED_MEMORY

KERNEL = """
!t = tensor<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!o = memref<?x?x?x64xbf16, strided<[?, ?, ?, 1]>>
!b = !tile.tile<64x64xbf16>
!f = !tile.tile<64x64xf32>
tile.kernel @k(%query : !t #tile.param<argument 0>, %key : !t #tile.param<argument 1>,
    %value : !t #tile.param<argument 2>, %out : !o #tile.param<argument 3>,
    %n : i32 #tile.param<argument 4>)
    grid affine_map<(b, h, q_len) -> (q_len ceildiv 64)>
    attributes {alignment = 16 : i64} {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c64 = arith.constant 64 : i32
  %on = arith.constant true
  %zero = arith.constant 0.0 : f32
  tile.parts 2 {
  ^bb0(%part : i32):
    %first = arith.muli %part, %c64 : i32
    %zeros = tile.full %zero : f32 -> !f
    %q = tile.load %query[%c0, %c0, %first, %c0] : !t, i32, i32, i32, i32 -> !b
    %o = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %zeros) -> (!f) : i32 {
      %k = tile.load %key[%c0, %c0, %i, %c0] : !t, i32, i32, i32, i32 -> !b
      %v = tile.load %value[%c0, %c0, %i, %c0] : !t, i32, i32, i32, i32 -> !b
      %k_t = tile.transpose %k : !b -> !b
      %s = tile.dot %q, %k_t, %zeros : !b, !b, !f -> !f
      %p = tile.map(%x : f32 = %s [0, 1] : !f) {
        %y = arith.truncf %x : f32 to bf16
        flex.yield %y : bf16
      } -> !b
      %new = tile.dot %p, %v, %acc : !b, !b, !f -> !f
      scf.yield %new : !f
    }
    %o_bf16 = tile.map(%x : f32 = %o [0, 1] : !f) {
      %y = arith.truncf %x : f32 to bf16
      flex.yield %y : bf16
    } -> !b
    tile.store %o_bf16 : !b, %out[%c0, %c0, %first, %c0] : !o, i32, i32, i32, i32
    tile.end
  }
  tile.return
}
"""


def parse(text: str) -> ModuleOp:
    ctx = Context()
    for dialect in (Builtin, Arith, Scf, Flex, tile.Tile):
        ctx.load_dialect(dialect)
    return Parser(ctx, text).parse_module()


def changed(*edits: tuple[str, str]) -> str:
    """The kernel with other text in some places."""
    text = KERNEL
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


def specialized(text: str, **options: int) -> ModuleOp:
    """The kernel with roles and products in flight."""
    module = parse(text)
    module.verify()
    TileSpecializeWarpsPass(**options).apply(Context(), module)
    module.verify()
    TileAsyncProductsPass().apply(Context(), module)
    module.verify()
    return module


def count(module: ModuleOp, kind: type) -> int:
    return sum(isinstance(op, kind) for op in module.walk())


def test_without_products_in_flight() -> None:
    """Each product is waited for before anything else."""
    module = specialized(KERNEL)
    assert count(module, tile.DotOp) == 0
    assert count(module, IssueDotOp) == 2
    waits = [o for o in module.walk() if isinstance(o, AwaitDotOp)]
    assert [o.outstanding.value.data for o in waits] == [0, 0]
    assert all(isinstance(o.next_op, ArriveOp) for o in waits)
    assert count(module, CopyInOp) == 4
    assert count(module, CopyOutOp) == 1


def test_kernels_without_parts_are_left_alone() -> None:
    module = parse("tile.kernel @k() grid affine_map<(b, h, m) -> (m)> { tile.return }")
    before = str(module)
    TileSpecializeWarpsPass().apply(Context(), module)
    TileAsyncProductsPass().apply(Context(), module)
    assert str(module) == before


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        pytest.param([("ment = 16", "ment = 8")], "not aligned", id="8 bytes"),
        pytest.param([("bf16", "f32")], "16 bits", id="fp32"),
        pytest.param(
            [("strided<[?, ?, ?, 1]>", "strided<[?, ?, ?, 2]>")],
            "not contiguous",
            id="strided",
        ),
        pytest.param(
            [("%p, %v, %acc", "%v, %p, %acc")], "is computed", id="computed rhs"
        ),
        pytest.param(
            [("%key[%c0, %c0, %i", "%key[%c0, %c0, %first")],
            "key in a loop depends on the part",
            id="tile of the part in a loop",
        ),
        pytest.param(
            [("scf.for %i = %c0 to %n", "scf.for %i = %part to %n")],
            "depends on the part",
            id="loop of the part",
        ),
        pytest.param(
            [
                ("(%x : f32 = %s [0, 1] : !f)", "(%x : bf16 = %k [0, 1] : !b)"),
                ("truncf %x : f32 to bf16\n        flex", "addf %x, %x : bf16\n flex"),
            ],
            "used by more than matrix products",
            id="read by a map",
        ),
        pytest.param(
            [("tile.parts 2", "tile.parts 7")], "too few", id="many consumers"
        ),
    ],
)  # fmt: skip
def test_is_refused(edits: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        specialized(changed(*edits))


def test_a_load_in_a_branch_is_refused() -> None:
    load = "%k = tile.load %key[%c0, %c0, %i, %c0] : !t, i32, i32, i32, i32 -> !b"
    text = changed(
        (load, ""),
        ("%k_t = tile.transpose %k : !b -> !b", ""),
        (
            "%s = tile.dot %q, %k_t, %zeros : !b, !b, !f -> !f",
            f"""%s = scf.if %on -> (!f) {{
              {load}
              %t = tile.dot %q, %k, %zeros : !b, !b, !f -> !f
              scf.yield %t : !f
            }} else {{
              scf.yield %zeros : !f
            }}""",
        ),
    )
    with pytest.raises(ScheduleError, match="key is in a branch"):
        specialized(text)


def test_loops_without_a_count_are_refused() -> None:
    loop = """scf.while () : () -> () {
      scf.condition(%on)
    } do {
      scf.yield
    }
    tile.store"""
    with pytest.raises(ScheduleError, match=r"scf\.while is no loop"):
        specialized(changed(("tile.store", loop)))


def test_tiles_that_other_loops_carry_have_no_layout() -> None:
    module = parse("""
    tile.roles {
      tile.role "a" copies 1 warps 4 registers 240 {
      ^bb0(%part : i32):
        %on = arith.constant true
        %zero = arith.constant 0.0 : f32
        %v = tile.full %zero : f32 -> !tile.tile<64xf32>
        %w = scf.while (%x = %v) : (!tile.tile<64xf32>) -> !tile.tile<64xf32> {
          scf.condition(%on) %x : !tile.tile<64xf32>
        } do {
        ^bb1(%y : !tile.tile<64xf32>):
          scf.yield %y : !tile.tile<64xf32>
        }
        tile.end
      }
    }""")
    with pytest.raises(ScheduleError, match="carried by what is no loop"):
        TileAssignLayoutsPass().apply(Context(), module)


def test_shared_memory_is_limited() -> None:
    with pytest.raises(ScheduleError, match="bytes of shared memory"):
        specialized(KERNEL, shared_memory=32_768)


def test_shared_memory_is_that_of_all_resident_programs() -> None:
    """A program has a tile of Q, and some of K and of V, of 8 KiB each.

    What is loaded last has fewer slots where there is no room.
    """
    text = changed(
        ("tile.parts 2", "tile.parts 1"),
        ("alignment = 16 : i64", "alignment = 16 : i64, residents = 4 : i32"),
    )
    for slots, expected in (2, [1, 2, 2]), (4, [1, 4, 1]):
        module = specialized(text, slots=slots)
        assert slots_of(module) == expected
        assert shared_bytes(module) <= share_of(HOPPER_SHARED_MEMORY, 4)
    with pytest.raises(ScheduleError, match="there are 23808 for each of 4 programs"):
        specialized(text, slots=2, shared_memory=98_304)


def slots_of(module: ModuleOp) -> list[int]:
    types = [op.result.type for op in module.walk() if isinstance(op, SharedOp)]
    return [type_.slots.data for type_ in types]


TWO_TILES_AT_ONCE = changed(
    ("%k_t =", "%k2 = tile.load %key[%c0, %c0, %c1, %c0] : !t, i32, i32, i32, i32"
     " -> !b\n      %k_t ="),
    ("%p, %v, %acc", "%p, %k2, %e"),
    ("%new =", "%e = tile.dot %p, %v, %acc : !b, !b, !f -> !f\n      %new ="),
    ("%s = tile.dot %q, %k_t", "%z = tile.dot %q, %k2, %zeros : !b, !b, !f -> !f\n"
     "      %s = tile.dot %q, %k_t"),
)  # fmt: skip
"""Two tiles of the keys, one of which is used after the other is."""


def test_too_few_slots_are_refused() -> None:
    assert count(specialized(TWO_TILES_AT_ONCE, slots=2), SharedOp) == 3
    with pytest.raises(ScheduleError, match="2 tiles of k"):
        specialized(TWO_TILES_AT_ONCE, slots=1)


def test_registers_are_shared_out() -> None:
    assert [consumer_registers(n) for n in (1, 2, 3)] == [240, 240, 160]
    assert [consumer_registers(1, n) for n in (2, 3, 4)] == [232, 136, 104]
    with pytest.raises(ScheduleError, match="6 consumers have 80 registers"):
        consumer_registers(6)


@pytest.mark.parametrize("residents", [1, 2, 3, 4])
@pytest.mark.parametrize("consumers", [1, 2, 3, 4, 5])
def test_registers_suffice(consumers: int, residents: int) -> None:
    """Roles take at most what programs start with, and programs what there is."""
    try:
        own = consumer_registers(consumers, residents)
    except ScheduleError:
        return
    assert own % REGISTER_STEP == 0
    assert LEAST_REGISTERS <= own <= MOST_REGISTERS
    started = starting_registers(consumers, residents) * (consumers + 1)
    assert consumers * own + SERVICE_REGISTERS <= started
    assert residents * started * THREADS <= REGISTERS


def test_wide_tiles_take_too_many_registers() -> None:
    scores, turned = "!tile.tile<64x64xf32>", "!tile.tile<256x64xbf16>"
    text = changed(
        ("64x64", "64x256"),
        ("x64xbf16, s", "x256xbf16, s"),
        ("!b -> !b", f"!b -> {turned}"),
        ("%k_t, %zeros : !b, !b, !f -> !f", f"%k_t, %z : !b, {turned}, {scores} -> !s"),
        ("!s\n", f"{scores}\n"),
        ("    %q =", f"    %z = tile.full %zero : f32 -> {scores}\n    %q ="),
        ("= %s [0, 1] : !f)", f"= %s [0, 1] : {scores})"),
        ("} -> !b\n      %new", "} -> !tile.tile<64x64xbf16>\n      %new"),
        ("%p, %v, %acc : !b", "%p, %v, %acc : !tile.tile<64x64xbf16>"),
    )
    assert count(specialized(text), RoleOp) == 2
    with pytest.raises(ScheduleError, match="registers of each thread"):
        specialized(text.replace("tile.parts 2", "tile.parts 3"))
