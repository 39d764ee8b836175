"""`tile-specialize-warps`: give copies and computation to different warps.

`tile.parts` becomes `tile.roles`. One consumer computes each part. The producer is one
warp. It copies the tiles that matrix products read into slots of shared memory, ahead
of their use. Barriers say when a slot is full, and when all consumers have read it.
Results in 16 bits leave through shared memory too. Additions to memory in a fixed order
have a role of their own, the writer. The pass raises `ScheduleError` for a kernel
without such a schedule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i32
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from flexc.dialects import tile
from flexc.dialects.tile import shape_of
from flexc.dialects.tile.schedule import BarriersOp, PartsOp, RoleOp, RolesOp, SharedOp
from flexc.errors import OptionError, ScheduleError
from flexc.passes.hopper.specialize_warps.loads import (
    check_products,
    find_companions,
    move_to_products,
    released_after,
    staged_loads,
)
from flexc.passes.hopper.specialize_warps.resources import (
    SERVICE_REGISTERS,
    add_vectors,
    assign_exchanges,
    assign_outputs,
    assign_rings,
    assign_turns,
    check_registers,
    check_shared_memory,
    check_slots,
    consumer_registers,
    needed_bytes,
    share_of,
    shrink_rings,
    starting_registers,
)
from flexc.passes.hopper.specialize_warps.roles import (
    ConsumerCode,
    RolePlan,
    writes_memory,
)
from flexc.passes.hopper.specialize_warps.services import (
    ProducerCode,
    ServiceCode,
    WriterCode,
)
from flexc.passes.hopper.specialize_warps.slices import check_control_flow
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.gluon import PART_WARPS
from flexc.passes.targets.target import HOPPER_SHARED_MEMORY


def sink_into_roles(roles: RolesOp) -> None:
    """Move ops before `roles` into the one role that uses their results.

    Visit the ops from the last to the first, so that an op's operands can move after
    it.
    """
    op = roles.prev_op
    while op is not None:
        before = op.prev_op
        if (role := only_user(op, roles)) is not None and is_movable(op):
            op.detach()
            first = role.body.block.first_op
            assert first is not None
            role.body.block.insert_op_before(op, first)
        op = before


def only_user(op: Operation, roles: RolesOp) -> RoleOp | None:
    """Return the role that has all uses of an op's results, or None."""
    users = {
        roles.body.block.find_ancestor_op_in_block(u.operation)
        for result in op.results
        for u in result.uses
    }
    user = next(iter(users), None)
    return user if len(users) == 1 and isinstance(user, RoleOp) else None


def is_movable(op: Operation) -> bool:
    """Return True if an op only computes results from values and inputs.

    Do not ask for traits: some ops of `arith` lack them.
    """
    if isinstance(op, SharedOp | BarriersOp | tile.ProgramIdOp):
        return False
    return not any(writes_memory(inner) for inner in op.walk())


DEFAULT_SLOTS = 2


def specialize(kernel: tile.KernelOp, parts: PartsOp, slots: int, memory: int) -> None:
    """Replace a kernel's parts by roles."""
    plan = make_plan(kernel, parts, slots)
    outputs = list(dict.fromkeys(plan.outputs.values()))
    residents = kernel.number("residents") or 1
    share = share_of(memory, residents)
    slots_of = [*plan.all_rings(), *outputs, plan.turns]
    excess = needed_bytes(slots_of) - share
    shrink_rings(parts.body.block, plan.rings, plan.released, excess)
    check_shared_memory(slots_of, memory, residents)
    registers = consumer_registers(plan.consumers, residents)
    check_registers(parts, list(plan.rings), registers)
    code = ScalarCode(InsertPoint.before(parts))
    for ring in plan.all_rings():
        ring.allocate(code, plan.consumers)
    plan.turns.allocate(code, plan.consumers)
    for output in outputs:
        output.allocate(code)
    consumer = ConsumerCode(plan).write()
    body = [RoleOp("consumer", plan.consumers, PART_WARPS, registers, consumer)]
    services: dict[str, ServiceCode] = {"producer": ProducerCode(plan)}
    if plan.outgoing:
        services["writer"] = WriterCode(plan)
    body += [
        RoleOp(label, 1, 1, SERVICE_REGISTERS, role.write())
        for label, role in services.items()
    ]
    roles = RolesOp(Region(Block(body)))
    code.builder.insert(roles)
    describe(kernel, plan, services, slots)
    if residents > 1:
        starting = starting_registers(plan.consumers, residents)
        kernel.attributes["max_registers"] = IntegerAttr(starting, i32)
    parts.detach()
    parts.erase()
    sink_into_roles(roles)


def make_plan(kernel: tile.KernelOp, parts: PartsOp, slots: int) -> RolePlan:
    """Choose the loads that become copies, the order of the loads, and their slots."""
    check_control_flow(parts)
    staged = staged_loads(kernel, parts)
    check_products(kernel, parts, staged)
    if not staged:
        raise ScheduleError("there is nothing to copy to shared memory")
    move_to_products(parts, staged)
    staged = staged_loads(kernel, parts)
    companions = find_companions(kernel, staged)
    rings = assign_rings(parts, staged, slots)
    add_vectors(rings, companions)
    exchanges = assign_exchanges(parts, staged)
    outputs = assign_outputs(kernel, parts, dict.fromkeys(rings.values()))
    released = released_after(staged, companions)
    check_slots(parts.body.block, rings, released)
    turns = assign_turns(parts, outputs)
    return RolePlan(parts, rings, exchanges, companions, outputs, turns, released)


def describe(
    kernel: tile.KernelOp, plan: RolePlan, services: Iterable[str], slots: int
) -> None:
    """Set the kernel's attributes that name its schedule and its number of warps."""
    dots = (o for o in plan.parts.body.walk() if isinstance(o, tile.DotOp))
    if (dot := next(dots, None)) is None:
        raise ScheduleError("there are no products")
    rows = shape_of(dot.lhs.type)[0]
    kernel.attributes["num_warps"] = IntegerAttr(PART_WARPS, i32)
    plural = "s" if plan.consumers > 1 else ""
    others = ", ".join(f"1 {label}" for label in services)
    kernel.attributes["schedule"] = StringAttr(
        f"{plan.consumers} consumer{plural} of {rows} rows, {others}, {slots} slots"
    )


@dataclass(frozen=True)
class TileSpecializeWarpsPass(ModulePass):
    """Give the parts of programs to consumers, and their loads to a producer.

    `slots` is the number of tiles of one tensor in shared memory at once, a power of 2.
    If `slots` is None, the kernel's `num_stages` decides.
    """

    name = "tile-specialize-warps"

    slots: int | None = None
    shared_memory: int = HOPPER_SHARED_MEMORY

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.slots is not None and self.slots & (self.slots - 1):
            raise OptionError(f"slots expects a power of 2, got {self.slots}")
        for kernel in op.ops:
            if not isinstance(kernel, tile.KernelOp):
                continue
            for parts in list(kernel.body.block.ops):
                if isinstance(parts, PartsOp):
                    slots = self.slots or stages(kernel)
                    specialize(kernel, parts, slots, self.shared_memory)


def stages(kernel: tile.KernelOp) -> int:
    """Return the largest power of 2 that is at most a kernel's `num_stages`."""
    count = kernel.number("num_stages")
    count = DEFAULT_SLOTS if count is None else count
    return 1 << (max(count, 1).bit_length() - 1)
