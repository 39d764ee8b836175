"""Descriptors of products that are computed where they are used."""

from __future__ import annotations

import re

import pytest

from flexc.codegen.gluon.descriptors import sink_descriptors

PTX = """\
.visible .entry attention()
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<20>;
	.reg .b64 	%rd<9>;
	mov.b32 	%r1, global_smem;
	add.s32 	%r2, %r1, 1024;
	bfe.u32 	%r3, %r2, 4, 14;
	cvt.u64.u32 	%rd1, %r3;
	or.b64 	%rd2, %rd1, 4611686293305294848;
	mov.b32 	%r9, 0;
$L__loop:
	shl.b32 	%r10, %r9, 7;
	add.s32 	%r11, %r3, %r10;
	cvt.u64.u32 	%rd3, %r11;
	or.b64 	%rd4, %rd3, 4611686293305294848;
	wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r12,%r13}, %rd2, %rd4, 0, 1;
	add.s32 	%r14, %r9, 1;
	mov.b32 	%r9, %r14;
	setp.lt.s32 	%p1, %r14, 8;
	@%p1 bra 	$L__loop;
	wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r12,%r13}, %rd2, %rd4, 0, 1;
	ret;
}
"""

SUNK = """\
$L__loop:
	shl.b32 	%r10, %r9, 7;
	add.s32 	%r11, %r3, %r10;
	cvt.u64.u32 	%rd3, %r11;
	or.b64 	%rd4, %rd3, 4611686293305294848;
	add.s32 	%r20, %r1, 1024;
	bfe.u32 	%r21, %r20, 4, 14;
	cvt.u64.u32 	%rd9, %r21;
	or.b64 	%rd10, %rd9, 4611686293305294848;
	wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r12,%r13}, %rd10, %rd4, 0, 1;
"""


def test_descriptors_from_before_a_loop_are_computed_in_it() -> None:
    found = sink_descriptors(PTX)
    start, end = PTX.index("$L__loop:"), PTX.index("	add.s32 	%r14")
    expected = PTX[:start] + SUNK + PTX[end:]
    expected = expected.replace("%r<20>", "%r<22>").replace("%rd<9>", "%rd<11>")
    assert found == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # No loop.
        ("	@%p1 bra 	$L__loop;\n", ""),
        # The descriptor has two values.
        (
            "	mov.b32 	%r9, 0;\n",
            "	mov.b64 	%rd2, 0;\n	mov.b32 	%r9, 0;\n",
        ),
        # It is read from memory.
        (
            "or.b64 	%rd2, %rd1, 4611686293305294848;",
            "ld.shared.b64 	%rd2, [%r1];",
        ),
        # It is computed under a condition.
        ("	or.b64 	%rd2,", "	@%p2 or.b64 	%rd2,"),
    ],
)
def test_others_stay(old: str, new: str) -> None:
    assert old in PTX
    text = PTX.replace(old, new, 1)
    assert sink_descriptors(text) == text


def test_copies_read_no_register_that_changes() -> None:
    """Of a value that depends on a register with two values, the value is read."""
    text = PTX.replace("add.s32 	%r2, %r1, 1024;", "add.s32 	%r2, %r9, 1024;")
    found = sink_descriptors(text)
    assert "bfe.u32 	%r20, %r2, 4, 14;" in found
    assert len(re.findall("add.s32 	%r\\d+, %r9, 1024;", found)) == 1


def test_new_registers_are_new_in_all_functions() -> None:
    other = ".func other()\n{\n	.reg .b32 	%r<90>;\n	ret;\n}\n"
    found = sink_descriptors(other + PTX)
    assert "bfe.u32 	%r91, %r90, 4, 14;" in found
    assert found.count("%r<92>") == 2
