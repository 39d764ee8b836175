"""The edit of PTX that lets each warp arrive at a barrier by itself."""

from __future__ import annotations

import re

import pytest

from flexc.codegen.gluon.ptxas import arrive_by_warps
from tests.codegen.gluon_kernels import compiled
from tests.codegen.triton_kernels import Variant

ARRIVE = """\
	bar.sync 	2, 128;
	// begin inline asm
	@%p1 mbarrier.arrive.shared::cta.b64 _, [%r1], 4;
	// end inline asm
"""
WAIT = """\
	bar.sync 	2, 128;
	// begin inline asm
{
	.reg .pred complete;
	waitLoop:
	mbarrier.try_wait.parity.shared.b64 complete, [%r2], %r3;
	@!complete bra.uni waitLoop;
}
	// end inline asm
"""
PRODUCT = "\twgmma.mma_async.sync.aligned.m64n8k16 {%r4}, %rd1, %rd2;\n"
LOAD = "\tld.shared.b32 \t%r5, [%r6];\n"
STORE = "\tst.shared.b32 \t[%r6], %r5;\n"
SYNC = "\tbar.sync \t2, 128;\n"


def loop(*body: str) -> str:
    head, *rest = "\t.loc 1 2 3\n$L__BB0_1:\n", "\t@%p2 bra \t$L__BB0_1;\n"
    return "".join([head, *body, *rest])


def is_edited(text: str) -> bool:
    return "@is_first" in arrive_by_warps(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Products read slots; nothing else needs the warps together.
        (loop(PRODUCT, ARRIVE), True),
        # A load of one warp and a store of another, in the next iteration.
        (loop(STORE, SYNC, LOAD, ARRIVE), False),
        # Another bar.sync separates them.
        (loop(SYNC, STORE, SYNC, LOAD, SYNC, ARRIVE), True),
        # A store after products have read the same memory.
        (loop(PRODUCT, ARRIVE, STORE, SYNC), False),
        (loop(PRODUCT, ARRIVE, SYNC, STORE, SYNC), True),
        # Before and after the loop, without a bar.sync within or between.
        (LOAD + loop(PRODUCT, ARRIVE) + STORE, False),
        (LOAD + SYNC + loop(PRODUCT, ARRIVE) + SYNC + STORE, True),
        # Behind jumps: over the store, and to it.
        (ARRIVE + "\tbra.uni \t$L__end;\n" + STORE + "$L__end:\n\tret;\n", True),
        (LOAD + ARRIVE + "\tbra \t$L__s;\n\tret;\n$L__s:\n" + STORE, False),
    ],
)
def test_bar_sync_is_kept_where_it_separates_accesses(
    text: str, expected: bool
) -> None:
    assert is_edited(text) == expected


def test_jumps_by_tables() -> None:
    table = "$L_t: .branchtargets\n\t$L_a,\n\t$L_b;\n\tbrx.idx \t%r9, $L_t;\n"
    rest = "$L_a:\n\tret;\n$L_b:\n"
    assert not is_edited(LOAD + ARRIVE + table + rest + STORE)
    assert is_edited(LOAD + ARRIVE + table + rest + SYNC + STORE)


def test_waits() -> None:
    found = arrive_by_warps(loop(WAIT, PRODUCT, ARRIVE))
    assert "bar.sync" not in found
    assert "waitLoop" in found
    assert arrive_by_warps(loop(WAIT, PRODUCT)) == loop(WAIT, PRODUCT)


def test_turns_stay() -> None:
    turn = "\tbar.sync \t10, 256;\n"
    text = loop(turn + WAIT[WAIT.index("\n") + 1 :], PRODUCT, ARRIVE)
    assert turn in arrive_by_warps(text)


def test_fewer_warps_than_threads_arrive() -> None:
    text = loop(PRODUCT, ARRIVE.replace("], 4;", "], 2;"))
    assert arrive_by_warps(text) == text
    text = loop(PRODUCT, ARRIVE.replace("], 4;", "];"))
    assert arrive_by_warps(text) == text


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["causal", "soft_cap"])
def test_loops_of_a_kernel_have_no_bar_sync_but_turns(name: str) -> None:
    ptx = compiled(Variant(name, "sm90", "bf16", 128)).kernel.asm["ptx"]
    loops = [body for body in innermost_loops(ptx) if "wgmma.mma_async" in body]
    assert len(loops) >= 2
    assert all(body.count("@is_first") == 2 for body in loops)
    waits = [re.findall(r"bar\.sync\s+(\d+, \d+);", body) for body in loops]
    assert {tuple(found) for found in waits} == {("10, 256",), ("11, 256",)}


def innermost_loops(ptx: str) -> list[str]:
    labels = {m[1]: m.start() for m in re.finditer(r"^(\$\w+):", ptx, re.MULTILINE)}
    branches = re.finditer(r"\bbra(?:\.uni)? \t(\$\w+);", ptx)
    ends = [(labels[m[1]], m.start()) for m in branches if labels[m[1]] < m.start()]
    return [
        ptx[start:end]
        for start, end in ends
        if not any(start <= a and b < end for a, b in ends)
    ]
