"""Schedules: a right one runs in any order, and wrong ones are found out."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.traits import is_side_effect_free, is_speculatable
from xdsl.utils.exceptions import InterpretationError, VerifyException

from flexc.dialects import tile
from flexc.dialects.tile import schedule
from flexc.runtime.interpreters import run_module
from tests.unit.interpreters.ir import parse
from tests.unit.interpreters.schedules import KERNEL, expected, inputs

INTERLEAVINGS = [None, 0, 1, 2, 3]


def run(text: str, args: list[Tensor], interleaving: int | None = None) -> Tensor:
    """Run a kernel of query, key, value and out."""
    out = torch.full_like(args[0], torch.nan)
    run_module(parse(text), [*args, out], interleaving=interleaving)
    return out


def changed(old: str, new: str = "", text: str = KERNEL) -> str:
    """The kernel with something in another way, in one place."""
    assert text.count(old) == 1, f"{text.count(old)} times: {old}"
    return text.replace(old, new)


def line(beginning: str, text: str = KERNEL) -> str:
    """The one line that begins so."""
    (found,) = [
        found for found in text.splitlines() if found.strip().startswith(beginning)
    ]
    return found


def without(beginning: str) -> str:
    """The kernel without the line that begins so."""
    return changed(line(beginning) + "\n")


def exchanged(first: str, second: str) -> str:
    """The kernel with the lines that begin so in each other's place."""
    text = changed(line(first), "<first>")
    text = changed(line(second), line(first), text)
    return changed("<first>", line(second), text)


@pytest.mark.parametrize("interleaving", [None, *range(10)])
def test_a_right_schedule_runs_in_any_order(interleaving: int | None):
    args = inputs()
    assert run(KERNEL, args, interleaving).equal(expected(*args))


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_short_loops(blocks: int):
    args = inputs(blocks)
    assert run(KERNEL, args).equal(expected(*args))


@pytest.mark.parametrize("rows", [3, 13])
def test_copies_leave_out_what_lies_outside(rows: int):
    args = inputs(rows=rows)
    assert run(KERNEL, args, 0).equal(expected(*args))


def test_slots_are_free_when_copies_out_have_read_them():
    args = inputs()
    again = """tile.await_copies outstanding 0
    %nothing = arith.constant 0.0 : bf16
    %blank = tile.full %nothing : bf16 -> !tile.tile<4x8xbf16>
    tile.write_view %blank, %q : !tile.tile<4x8xbf16>, !view"""
    text = changed("tile.await_copies outstanding 0", again)
    assert run(text, args).equal(expected(*args))


RACES = {
    "consumer-does-not-await-k": (
        without("tile.await %k_full[%k_slot]"),
        "a slot that was written, got a product's read by consumer . of %k_s"
        "|(to be complete|a wait for).* got a product's read by consumer . of %k_s",
    ),
    "consumer-does-not-await-v": (
        without("tile.await %v_full[%v_slot]"),
        "got a product's read by consumer . of %v_s",
    ),
    "consumer-does-not-await-q": (
        without("tile.await %q_full[%c0]"),
        "got a product's read by consumer . of %q_s",
    ),
    "consumer-awaits-the-other-parity": (
        changed(
            "%k_parity = arith.andi %k_turn, %c1",
            "%k_right = arith.andi %k_turn, %c1 : i32\n"
            "%k_parity = arith.xori %k_right, %c1",
        ),
        "got a product's read by consumer . of %k_s|deadlock",
    ),
    "consumer-awaits-the-slot-before": (
        changed("%v_full[%v_slot] parity", "%v_full[%k_slot] parity"),
        "of %v_s|deadlock",
    ),
    "producer-does-not-await": (
        without("tile.await %k_empty[%at_slot]"),
        "got a copy of %key to %k_s|arrivals in phase|got a product's read",
    ),
    "producer-awaits-the-other-parity": (
        changed("%k_empty[%at_slot] parity %parity", "%k_empty[%at_slot] parity %c0"),
        r"deadlock: consumer 0 waits for .*; consumer 1 waits for .*; "
        r"producer waits for %k_empty\[0\] with parity 0 \(phase 0 has 0 of 2",
    ),
    "producer-awaits-the-other-ring": (
        changed("tile.await %v_empty[%at_slot]", "tile.await %k_empty[%at_slot]"),
        "expected a product's read by consumer . of %v_s|expected a wait for"
        "|arrivals in phase . of %v_full|deadlock",
    ),
    "no-arrive-in-the-loop": (
        without("tile.arrive %k_empty[%k_slot]"),
        r"deadlock: .*producer waits for %k_empty\[1\] with parity 0",
    ),
    "arrives-before-the-product-is-awaited": (
        exchanged("%sum = tile.await_dot", "tile.arrive %v_empty[%v_slot]"),
        "expected .*a product's read by consumer . of %v_s.*got a copy of %value",
    ),
    "one-slot-for-all": (
        changed("tile.slot %k_s[%at_slot]", "tile.slot %k_s[%c0]"),
        "got a copy of %key to %k_s|expected a slot that was written",
    ),
    "producer-copies-once-more": (
        changed(
            "%end = scf.for %i = %c0 to %n",
            "%more = arith.addi %n, %c1 : i32\n%end = scf.for %i = %c0 to %more",
        ),
        "expected a wait for a copy of %key to .* before the kernel ends, got none",
    ),
    "result-over-the-other-part": (
        changed(
            "tile.write_view %result, %q",
            "%other = arith.xori %part, %c1 : i32\n"
            "%its = tile.slot %q_s[%other] : !slots -> !view\n"
            "tile.write_view %result, %its",
        ),
        "of %q_s|a write to %q_s",
    ),
    "no-fence": (
        without("tile.fence_copies"),
        "expected a tile.fence_copies after a write to %q_s.* got a copy out",
    ),
    "copies-out-in-flight-at-the-end": (
        without("tile.await_copies"),
        "expected consumer . to end with all copies out awaited, got 1",
    ),
    "write-under-a-copy-out": (
        changed(
            "tile.await_copies outstanding 0",
            "tile.write_view %result, %q : !tile.tile<4x8xbf16>, !view",
        ),
        "expected a copy out by consumer . of %q_s.* to be complete, got a write",
    ),
    "copy-before-its-bytes-are-expected": (
        exchanged("%second =", "tile.expect %q_full").replace("128", "64"),
        "expected a tile.expect for the bytes .* got 0 expected and 64 copied",
    ),
    "copy-at-an-odd-address": (
        changed("%query[%b, %h, %first, %c0]", "%query[%b, %h, %first, %c4]"),
        "a copy of %query starts at multiples of 16 bytes, got byte 8 of a row",
    ),
    "index-beyond-the-ring": (
        changed("%v_to = tile.slot %v_s[%at_slot]", "%v_to = tile.slot %v_s[%i]"),
        r"an index into %v_s from 0 to 1, got 2",
    ),
}


@pytest.mark.parametrize("interleaving", INTERLEAVINGS)
@pytest.mark.parametrize("name", RACES)
def test_wrong_schedules_are_found_in_any_order(name: str, interleaving: int | None):
    text, message = RACES[name]
    with pytest.raises(InterpretationError, match=message):
        run(text, inputs(), interleaving)


REFUSED = {
    "never-signalled": (
        changed(
            line("tile.arrive %v_empty[%v_slot]"),
            "",
            without("tile.arrive %v_empty[%v_at_slot]"),
        ),
        "%v_empty expects a tile.expect or tile.arrive",
    ),
    "too-few-arrivals": (
        changed("!empty = !tile.barriers<2, 2>", "!empty = !tile.barriers<2, 1>"),
        "%k_empty has 2 arrivals of its roles in a phase, but expects 1",
    ),
    "too-many-arrivals": (
        changed("!full = !tile.barriers<2, 1>", "!full = !tile.barriers<2, 2>"),
        "%k_full has 1 arrivals of its roles in a phase, but expects 2",
    ),
    "too-many-outstanding": (
        changed("await_dot %s outstanding 1", "await_dot %s outstanding 2"),
        "outstanding expects 0 to 1, the products issued after this one, got 2",
    ),
    "fewer-bytes-than-copied": (
        changed("bytes 128", "bytes 64"),
        "%q_full expects 128 bytes, as the copies after it bring, got 64",
    ),
    "product-never-awaited": (
        changed(
            "tile.fence_copies",
            "%lost = tile.issue_dot %p, %v_last of !p, !view -> !tile.pending<!acc>",
        ),
        "expects one use, a tile.await_dot in the same block, got none",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_schedules_are_refused(name: str):
    text, message = REFUSED[name]
    with pytest.raises(VerifyException, match=message):
        parse(text)


def test_no_thread_is_left_over():
    before = threading.active_count()
    with pytest.raises(InterpretationError, match="deadlock"):
        run(without("tile.arrive %k_empty[%k_slot]"), inputs())
    run(KERNEL, inputs())
    assert threading.active_count() == before


PARTS = """
!data = tensor<?x?x?x8xf32>
!out = memref<?x?x?x8xf32>
tile.kernel @attention(
    %query : !data #tile.param<argument 0>, %key : !data #tile.param<argument 1>,
    %value : !data #tile.param<argument 2>, %out : !out #tile.param<argument 3>)
    grid affine_map<(b, h, q_len) -> (q_len ceildiv 8, h, b)> {
  %m = tile.program_id 0
  %h = tile.program_id 1
  %b = tile.program_id 2
  %c0 = arith.constant 0 : i32
  %c4 = arith.constant 4 : i32
  %c8 = arith.constant 8 : i32
  %first = arith.muli %m, %c8 : i32
  tile.parts 2 {
  ^bb0(%part : i32):
    %rows = arith.muli %part, %c4 : i32
    %row = arith.addi %first, %rows : i32
    %x = tile.load %query[%b, %h, %row, %c0] checked [0]
        : !data, i32, i32, i32, i32 -> !tile.tile<4x8xf32>
    tile.store %x : !tile.tile<4x8xf32>, %out[%b, %h, %row, %c0] checked [0]
        : !out, i32, i32, i32, i32
    tile.end
  }
  tile.return
}"""


@pytest.mark.parametrize("interleaving", [None, 0, 1])
def test_parts_run_once_each(interleaving: int | None):
    args = [tensor.float() for tensor in inputs(rows=19)]
    assert run(PARTS, args, interleaving).equal(args[0])


COPY = """
    %slots = tile.shared : !slots
    %full = tile.barriers : !once
    %place = tile.slot %slots[%c0] : !slots -> !view
    tile.expect %full[%c0] bytes 64 : !once
    tile.copy_in %key[%b, %h, %first, %c0] to %place, %full[%c0] : !data, !view, !once
    tile.await %full[%c0] parity %c0 : !once
    %x = tile.load %query[%b, %h, %first, %c0] checked [0]
        : !data, i32, i32, i32, i32 -> !tile.tile<4x8xbf16>
    %zero = arith.constant 0.0 : f32
    %zeros = tile.full %zero : f32 -> !s
    %place_t = tile.transpose_view %place : !view -> !turned
    %s = tile.dot %x, %place_t, %zeros : !tile.tile<4x8xbf16>, !turned, !s -> !s
    %p = tile.map(%e : f32 = %s [0, 1] : !s) {
      %f = arith.truncf %e : f32 to bf16
      flex.yield %f : bf16
    } -> !p
    %acc = tile.full %zero : f32 -> !acc
    %o = tile.dot %p, %place, %acc : !p, !view, !acc -> !acc
    %y = tile.map(%e : f32 = %o [0, 1] : !acc) {
      %f = arith.truncf %e : f32 to bf16
      flex.yield %f : bf16
    } -> !tile.tile<4x8xbf16>
    tile.store %y : !tile.tile<4x8xbf16>, %out[%b, %h, %first, %c0] checked [0]
        : !out, i32, i32, i32, i32"""


def one_role(body: str = COPY) -> str:
    """A kernel without roles, where the whole program copies and waits."""
    head, tail = KERNEL.index("  %q_s = tile.shared"), KERNEL.index("  tile.return")
    return KERNEL[:head].replace("ceildiv 8", "ceildiv 4") + body + KERNEL[tail:]


def test_a_program_without_roles_waits_too():
    """And products that are not asynchronous read shared memory."""
    q, k, v = inputs(blocks=1, rows=4)
    p = (q.float() @ k.float().mT).bfloat16().float()
    assert run(one_role(), [q, k, v]).equal((p @ k.float()).bfloat16())


WRONG_WITHOUT_ROLES = {
    "no-await": (
        changed(line("tile.await", COPY), "", COPY),
        "to be complete, got tile.dot's read by the program of %slots",
    ),
    "more-bytes-than-copied": (
        changed(line("tile.copy_in", COPY), "", COPY),
        r"deadlock: the program waits for %full\[0\] with parity 0 \(phase 0 has "
        "1 of 1 arrivals and lacks 64 bytes",
    ),
}


@pytest.mark.parametrize("name", WRONG_WITHOUT_ROLES)
def test_wrong_programs_without_roles(name: str):
    body, message = WRONG_WITHOUT_ROLES[name]
    with pytest.raises(InterpretationError, match=message):
        run(one_role(body), inputs(blocks=1, rows=4))


def test_shared_bytes():
    (kernel,) = parse(KERNEL).ops
    # Six slots of 64 bytes, nine barriers.
    assert schedule.shared_bytes(kernel) == 6 * 64 + 9 * 8


def test_products_that_read_shared_memory_are_not_moved():
    dots = [op for op in parse(one_role()).walk() if isinstance(op, tile.DotOp)]
    assert [is_side_effect_free(op) for op in dots] == [False, False]
    assert [is_speculatable(op) for op in dots] == [False, False]


ORDERING = (
    schedule.AwaitOp,
    schedule.ArriveOp,
    schedule.ExpectOp,
    schedule.FenceCopiesOp,
    schedule.AwaitCopiesOp,
)


def ordering_ops(module: ModuleOp) -> list[Operation]:
    """All that waits and signals, in program order."""
    return [op for op in module.walk() if isinstance(op, ORDERING)]


# Nothing is copied over the last values, so that nobody waits for their readers.
NEEDLESS = "tile.arrive %v_empty[%v_at_slot]"


@pytest.mark.parametrize("index", range(len(ordering_ops(parse(KERNEL)))))
def test_everything_that_waits_or_signals_is_needed(index: int):
    module = parse(KERNEL)
    op = ordering_ops(module)[index]
    needless = str(op).startswith(NEEDLESS)
    op.detach()
    op.erase()
    args = inputs()
    out = torch.full_like(args[0], torch.nan)
    if needless:
        run_module(module, [*args, out])
        assert out.equal(expected(*args))
        return
    with pytest.raises((VerifyException, InterpretationError), match="expect"):
        verify_and_run(module, [*args, out])


def verify_and_run(module: ModuleOp, args: list[Tensor]) -> None:
    module.verify()
    run_module(module, args)
