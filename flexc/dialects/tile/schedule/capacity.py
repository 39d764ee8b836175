"""Limits of one multiprocessor of Hopper: threads, registers, shared memory.

The numbers are those of compute capability 9.0 in the CUDA programming guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xdsl.dialects.builtin import FixedBitwidthType
from xdsl.ir import Operation, Region
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.tile.schedule.memory import BarriersOp, SharedOp
from flexc.dialects.tile.types import BarriersType, SharedType, TileType

REGISTERS = 65536
"""The number of 32-bit registers of a multiprocessor."""

THREADS = 1024
"""The most threads of a program."""

SHARED_BYTES = 232448
"""The most shared memory of a program, in bytes."""

RESERVED_BYTES = 1024
"""The shared memory that each program takes in addition to its own, in bytes.

All programs of a multiprocessor together have `SHARED_BYTES + RESERVED_BYTES`.
"""

BARRIER_BYTES = 8

WARP_GROUP = 4
"""The number of warps in a warp group; warps and registers are allocated by groups."""


class Group(NamedTuple):
    """`copies` groups of `warps` warps; each thread may have `registers` registers."""

    copies: int
    warps: int
    registers: int

    @property
    def threads(self) -> int:
        """The threads of all copies, each rounded up to whole warp groups."""
        return self.copies * -(-self.warps // WARP_GROUP) * WARP_GROUP * 32


def verify_group(group: Group) -> None:
    """Verify the copies, warps and registers of one role."""
    if group.copies < 1:
        raise VerifyException(f"copies expects 1 or more, got {group.copies}")
    if group.warps < 1 or group.warps & (group.warps - 1):
        raise VerifyException(f"warps expects a power of two, got {group.warps}")
    if group.registers % 8 or not 24 <= group.registers <= 240:
        raise VerifyException(
            f"registers expects a multiple of 8 from 24 to 240, got {group.registers}"
        )


def verify_groups(groups: Sequence[Group]) -> None:
    """Verify that all roles together have enough threads and registers."""
    threads = sum(group.threads for group in groups)
    if threads > THREADS:
        raise VerifyException(f"expects at most {THREADS} threads, got {threads}")
    registers = sum(group.threads * group.registers for group in groups)
    if registers > REGISTERS:
        raise VerifyException(
            f"expects at most {REGISTERS} registers of all roles, got {registers}"
        )


def verify_starting_registers(groups: Sequence[Group], most: int) -> None:
    """Verify that roles need at most the registers that a program starts with.

    Each thread starts with `most` registers. A role that needs more waits until other
    roles release registers.
    """
    started = sum(group.threads for group in groups) * most
    wanted = sum(group.threads * group.registers for group in groups)
    if wanted > started:
        raise VerifyException(
            f"max_registers expects as many registers as roles have, {wanted} in all, "
            f"got {started}"
        )


def verify_residents(residents: int, registers: int, shared: int) -> None:
    """Verify that `residents` programs fit a multiprocessor.

    Each program has `registers` registers and `shared` bytes of shared memory.
    """
    if residents < 1:
        raise VerifyException(f"residents expects 1 or more, got {residents}")
    if residents * registers > REGISTERS:
        raise VerifyException(
            f"expects at most {REGISTERS} registers of {residents} programs, got "
            f"{residents * registers}"
        )
    limit = SHARED_BYTES + RESERVED_BYTES
    if residents * (shared + RESERVED_BYTES) > limit:
        raise VerifyException(
            f"expects at most {limit // residents - RESERVED_BYTES} bytes of shared "
            f"memory, as {residents} programs are resident, got {shared}"
        )


def tile_bytes(tile: TileType) -> int:
    """Return the number of bytes that a tile takes."""
    assert isinstance(tile.element_type, FixedBitwidthType)
    count = 1
    for size in tile.get_shape():
        count *= size
    return count * tile.element_type.size


def shared_bytes(kernel: Operation | Region) -> int:
    """Return the bytes of shared memory that a kernel's slots and barriers take."""
    total = 0
    for op in kernel.walk():
        if isinstance(op, SharedOp):
            assert isinstance(op.result.type, SharedType)
            total += op.result.type.slots.data * tile_bytes(op.result.type.tile)
        elif isinstance(op, BarriersOp):
            assert isinstance(op.result.type, BarriersType)
            total += op.result.type.count.data * BARRIER_BYTES
    return total
