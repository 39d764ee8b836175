"""`tile-check-capacity`: verify that a schedule fits a multiprocessor of Hopper."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects import tile
from flexc.dialects.tile.schedule import RoleOp, RolesOp, shared_bytes
from flexc.passes.targets.gluon import (
    LEAST_REGISTERS,
    MOST_REGISTERS,
    PART_WARPS,
    REGISTER_STEP,
    REGISTERS,
    RESERVED_BYTES,
    THREADS,
)
from flexc.passes.targets.target import HOPPER_SHARED_MEMORY

GROUP_THREADS = 32 * PART_WARPS


@dataclass(frozen=True)
class TileCheckCapacityPass(ModulePass):
    """Verify the threads, the registers and the shared memory of kernels with roles."""

    name = "tile-check-capacity"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in op.walk():
            if isinstance(inner, RolesOp):
                check_roles(inner)
            elif isinstance(inner, tile.KernelOp):
                check_kernel(inner)


def threads(roles: Iterable[RoleOp]) -> int:
    """Return the threads of all copies, in whole warp groups."""
    warps = sum(role.copies.value.data * role.warps.value.data for role in roles)
    return -(-warps // PART_WARPS) * GROUP_THREADS


def registers(roles: Iterable[RoleOp]) -> int:
    """Return the registers of all threads; roles of a part of a group share groups."""
    whole, small = list[RoleOp](), list[RoleOp]()
    for role in roles:
        (small if role.warps.value.data % PART_WARPS else whole).append(role)
    most = max((role.registers.value.data for role in small), default=0)
    of_whole = sum(threads([role]) * role.registers.value.data for role in whole)
    return of_whole + threads(small) * most


def check_roles(op: RolesOp) -> None:
    """Verify the registers of each thread, and the threads and registers of all."""
    for role in op.roles:
        number = role.registers.value.data
        fits = LEAST_REGISTERS <= number <= MOST_REGISTERS
        if number % REGISTER_STEP or not fits:
            raise VerifyException(
                f"registers expects a multiple of {REGISTER_STEP} from "
                f"{LEAST_REGISTERS} to {MOST_REGISTERS}, got {number}"
            )
    if (count := threads(op.roles)) > THREADS:
        raise VerifyException(f"expects at most {THREADS} threads, got {count}")
    if (total := registers(op.roles)) > REGISTERS:
        raise VerifyException(
            f"expects at most {REGISTERS} registers of all roles, got {total}"
        )


def check_kernel(kernel: tile.KernelOp) -> None:
    """Verify a kernel's shared memory, and the registers that programs start with."""
    shared = shared_bytes(kernel)
    if shared > HOPPER_SHARED_MEMORY:
        raise VerifyException(
            f"expects at most {HOPPER_SHARED_MEMORY} bytes of shared memory, got "
            f"{shared}"
        )
    for op in kernel.body.block.ops:
        if isinstance(op, RolesOp):
            needed = registers(op.roles)
            if (most := number(kernel, "max_registers")) is not None:
                started = threads(op.roles) * most
                check_starting_registers(needed, started)
                needed = started
            residents = number(kernel, "residents")
            check_residents(1 if residents is None else residents, needed, shared)


def check_starting_registers(wanted: int, started: int) -> None:
    """Verify that roles need at most the registers that a program starts with.

    A role that needs more waits until other roles release registers.
    """
    if wanted > started:
        raise VerifyException(
            f"max_registers expects as many registers as roles have, {wanted} in all, "
            f"got {started}"
        )


def check_residents(residents: int, registers: int, shared: int) -> None:
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
    limit = (HOPPER_SHARED_MEMORY + RESERVED_BYTES) // residents - RESERVED_BYTES
    if shared > limit:
        raise VerifyException(
            f"expects at most {limit} bytes of shared memory, as {residents} programs "
            f"are resident, got {shared}"
        )


def number(kernel: tile.KernelOp, name: str) -> int | None:
    """Return a kernel's attribute that must be an integer, None if it is missing."""
    attribute = kernel.attributes.get(name)
    if attribute is None:
        return None
    if not isa(attribute, IntegerAttr):
        raise VerifyException(f"{name} expects an integer, got {attribute}")
    return attribute.value.data
