"""Interpreter of the ops of explicit schedules."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    ReturnedValues,
    TerminatorValue,
    impl,
    impl_terminator,
    register_impls,
)
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects.tile import schedule
from flexc.runtime.interpreters.memory import load_tile, verify_same_dtype
from flexc.runtime.interpreters.schedule.program import (
    PendingProduct,
    Wait,
    at_switch,
    begin_reads,
    read_operand,
    running_program,
)
from flexc.runtime.interpreters.schedule.synchronization import (
    Barrier,
    CopyIn,
    CopyOut,
    SlotState,
    View,
    Write,
)
from flexc.runtime.interpreters.values import dtype_of

T = TypeVar("T")


def value_name(value: SSAValue, otherwise: str) -> str:
    """Return the name of a value for messages."""
    return f"%{value.name_hint}" if value.name_hint else otherwise


def element(name: str, row: Sequence[T], index: Tensor) -> T:
    """Return one element of a row of slots or barriers.

    Raise InterpretationError if the index is out of range.
    """
    if not 0 <= int(index) < len(row):
        raise InterpretationError(
            f"expected an index into {name} from 0 to {len(row) - 1}, got {int(index)}"
        )
    return row[int(index)]


COPIED_BYTES = 16
"""The bytes that the first byte of a copy is at a multiple of."""


def verify_start(memory: SSAValue, tensor: Tensor, indices: Sequence[Tensor]) -> None:
    """Raise InterpretationError if a copy starts where the hardware cannot start one.

    Rows are aligned, so the last index decides.
    """
    start = int(indices[-1]) * tensor.element_size()
    if start % COPIED_BYTES:
        raise InterpretationError(
            f"a copy of {value_name(memory, 'a tensor')} starts at multiples "
            f"of {COPIED_BYTES} bytes, got byte {start} of a row"
        )


@register_impls
class ScheduleFunctions(InterpreterFunctions):
    """The interpreter of roles, shared memory, copies, barriers and products."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

    @impl(schedule.PartsOp)
    def run_parts(
        self, interpreter: Interpreter, op: schedule.PartsOp, args: PythonValues
    ) -> PythonValues:
        count = op.count.value.data
        bodies = [
            (
                f"part {part}",
                partial(
                    copy(interpreter).run_ssacfg_region,
                    op.body,
                    (number(part),),
                    f"part {part}",
                ),
            )
            for part in range(count)
        ]
        running_program(interpreter).run(bodies)
        return ()

    @impl(schedule.ShareOp)
    def run_share(
        self, interpreter: Interpreter, op: schedule.ShareOp, args: PythonValues
    ) -> PythonValues:
        value, part = args
        assert isinstance(op.result.type, schedule.SharesType)
        running = at_switch(interpreter)
        shares = running.share(op, op.result.type.parts.data)
        shares.values[int(part)] = value
        shares.given.arrive(running.current.release())
        return (shares,)

    @impl(schedule.OfPartOp)
    def run_of_part(
        self, interpreter: Interpreter, op: schedule.OfPartOp, args: PythonValues
    ) -> PythonValues:
        shares, index = args
        at_switch(interpreter).wait(Wait(shares.given, 0))
        return (shares.values[int(index)],)

    @impl(schedule.RolesOp)
    def run_roles(
        self, interpreter: Interpreter, op: schedule.RolesOp, args: PythonValues
    ) -> PythonValues:
        bodies = [
            # A copy of the interpreter has scopes of its own.
            (
                name_of(role, index),
                partial(
                    copy(interpreter).run_ssacfg_region,
                    role.body,
                    (number(index),),
                    name_of(role, index),
                ),
            )
            for role in op.roles
            for index in range(role.copies.value.data)
        ]
        running_program(interpreter).run(bodies)
        return ()

    @impl(schedule.TakeTurnOp)
    def run_take_turn(
        self, interpreter: Interpreter, op: schedule.TakeTurnOp, args: PythonValues
    ) -> PythonValues:
        at_switch(interpreter).take_turn(int(args[0]))
        return ()

    @impl(schedule.PassTurnOp)
    def run_pass_turn(
        self, interpreter: Interpreter, op: schedule.PassTurnOp, args: PythonValues
    ) -> PythonValues:
        at_switch(interpreter).pass_turn((int(args[0]) + 1) % op.copies)
        return ()

    @impl_terminator(schedule.EndOp)
    def run_end(
        self, interpreter: Interpreter, op: schedule.EndOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(()), ()

    @impl(schedule.SharedOp)
    def run_shared(
        self, interpreter: Interpreter, op: schedule.SharedOp, args: PythonValues
    ) -> PythonValues:
        assert isinstance(op.result.type, schedule.SharedType)
        type_, name = op.result.type, value_name(op.result, "shared")
        dtype, shape = dtype_of(type_.tile.element_type), type_.tile.get_shape()
        slots = [
            SlotState(f"{name}[{i}]", torch.empty(shape, dtype=dtype))
            for i in range(type_.slots.data)
        ]
        for slot in slots:
            slot.poison()
        running_program(interpreter).slots += slots
        return (slots,)

    @impl(schedule.OpaqueOp)
    def run_opaque(
        self, interpreter: Interpreter, op: schedule.OpaqueOp, args: PythonValues
    ) -> PythonValues:
        return args

    @impl(schedule.SlotOp)
    def run_slot(
        self, interpreter: Interpreter, op: schedule.SlotOp, args: PythonValues
    ) -> PythonValues:
        slot = element(value_name(op.shared, "shared"), *args)
        return (View(slot, slot.data),)

    @impl(schedule.TransposeViewOp)
    def run_transpose_view(
        self, interpreter: Interpreter, op: schedule.TransposeViewOp, args: PythonValues
    ) -> PythonValues:
        (view,) = args
        return (View(view.slot, view.tensor.T),)

    @impl(schedule.TakeColumnsOp)
    def run_take_columns(
        self, interpreter: Interpreter, op: schedule.TakeColumnsOp, args: PythonValues
    ) -> PythonValues:
        source, index = args
        ranges = numbers(source).chunk(op.count.value.data, dim=1)
        taken = element("the ranges of columns", ranges, index)
        return (View(source.slot, taken) if isinstance(source, View) else taken,)

    @impl(schedule.CopyInOp)
    def run_copy_in(
        self, interpreter: Interpreter, op: schedule.CopyInOp, args: PythonValues
    ) -> PythonValues:
        running = at_switch(interpreter)
        tensor, *indices, view, barriers, index = args
        verify_start(op.tensor, tensor, indices)
        barrier = element(value_name(op.barriers, "barriers"), barriers, index)
        slot, shape = view.slot, view.slot.data.shape
        tile = load_tile(tensor, indices, shape, tuple(range(len(shape))))
        what = f"a copy of {value_name(op.tensor, 'a tensor')} to {slot.name}"
        what = f"{what} by {running.current.name}"
        write = Write(what, barrier.start(slot.size), landed=False, fenced=True)
        slot.begin_write(running.current.clock, write)
        slot.poison()
        running.copies.append(CopyIn(tile, slot, write, barrier))
        return ()

    @impl(schedule.WriteViewOp)
    def run_write_view(
        self, interpreter: Interpreter, op: schedule.WriteViewOp, args: PythonValues
    ) -> PythonValues:
        agent = at_switch(interpreter).current
        value, view = args
        verify_same_dtype(value, view.slot.data)
        what = f"a write to {view.slot.name} by {agent.name}"
        write = Write(what, agent.stamp(), landed=True, fenced=False)
        view.slot.begin_write(agent.clock, write)
        agent.unfenced.append(write)
        view.tensor.copy_(value)
        return ()

    @impl(schedule.ReadViewOp)
    def run_read_view(
        self, interpreter: Interpreter, op: schedule.ReadViewOp, args: PythonValues
    ) -> PythonValues:
        at_switch(interpreter)
        return (read_operand(interpreter, args[0], "a read").clone(),)

    @impl(schedule.FenceCopiesOp)
    def run_fence_copies(
        self, interpreter: Interpreter, op: schedule.FenceCopiesOp, args: PythonValues
    ) -> PythonValues:
        running_program(interpreter).current.fence()
        return ()

    @impl(schedule.CopyOutOp)
    def run_copy_out(
        self, interpreter: Interpreter, op: schedule.CopyOutOp, args: PythonValues
    ) -> PythonValues:
        running = at_switch(interpreter)
        view, memref, *indices = args
        verify_start(op.memref, memref, indices)
        (read,) = begin_reads(running, [view], "a copy out")
        adds = op.adds is not None
        running.current.copies.append(CopyOut(read, view.tensor, memref, indices, adds))
        return ()

    @impl(schedule.AwaitCopiesOp)
    def run_await_copies(
        self, interpreter: Interpreter, op: schedule.AwaitCopiesOp, args: PythonValues
    ) -> PythonValues:
        agent = at_switch(interpreter).current
        agent.end_copied_reads(op.outstanding.value.data)
        if op.written is not None:
            agent.land()
        return ()

    @impl(schedule.BarriersOp)
    def run_barriers(
        self, interpreter: Interpreter, op: schedule.BarriersOp, args: PythonValues
    ) -> PythonValues:
        assert isinstance(op.result.type, schedule.BarriersType)
        type_, name = op.result.type, value_name(op.result, "barriers")
        count, arrivals = type_.count.data, type_.arrivals.data
        return ([Barrier(f"{name}[{i}]", arrivals) for i in range(count)],)

    @impl(schedule.ExpectOp)
    def run_expect(
        self, interpreter: Interpreter, op: schedule.ExpectOp, args: PythonValues
    ) -> PythonValues:
        running = at_switch(interpreter)
        barrier = element(value_name(op.barriers, "barriers"), *args)
        barrier.arrive(running.current.release(), op.bytes.value.data)
        return ()

    @impl(schedule.ArriveOp)
    def run_arrive(
        self, interpreter: Interpreter, op: schedule.ArriveOp, args: PythonValues
    ) -> PythonValues:
        running = at_switch(interpreter)
        barrier = element(value_name(op.barriers, "barriers"), *args)
        barrier.arrive(running.current.release())
        return ()

    @impl(schedule.AwaitOp)
    def run_await(
        self, interpreter: Interpreter, op: schedule.AwaitOp, args: PythonValues
    ) -> PythonValues:
        running = at_switch(interpreter)
        barriers, index, parity = args
        if int(parity) not in (0, 1):
            raise InterpretationError(f"expected parity 0 or 1, got {int(parity)}")
        barrier = element(value_name(op.barriers, "barriers"), barriers, index)
        running.wait(Wait(barrier, int(parity)))
        return ()

    @impl(schedule.IssueDotOp)
    def run_issue_dot(
        self, interpreter: Interpreter, op: schedule.IssueDotOp, args: PythonValues
    ) -> PythonValues:
        running = at_switch(interpreter)
        lhs, rhs, *acc = args
        views = [operand for operand in (lhs, rhs) if isinstance(operand, View)]
        reads = begin_reads(running, views, "a product's read")
        assert isinstance(op.result.type, schedule.PendingType)
        dtype = dtype_of(op.result.type.tile.element_type)
        wide = self.compute_dtype or dtype
        value = numbers(lhs).to(wide) @ numbers(rhs).to(wide)
        for total in acc:
            total = total.value if isinstance(total, PendingProduct) else total
            value = value + total.to(wide)
        product = PendingProduct(value.to(dtype), reads)
        running.current.products.append(product)
        return (product,)

    @impl(schedule.AwaitDotOp)
    def run_await_dot(
        self, interpreter: Interpreter, op: schedule.AwaitDotOp, args: PythonValues
    ) -> PythonValues:
        agent = at_switch(interpreter).current
        agent.complete_products(op.outstanding.value.data)
        product = args[0]
        if not product.complete:
            raise InterpretationError(
                f"expected a wait for this product, got one that leaves "
                f"{op.outstanding.value.data} in flight, this one among them"
            )
        return (product.value,)


def number(value: int) -> Tensor:
    """Return an i32."""
    return torch.tensor(value, dtype=torch.int32)


def name_of(role: schedule.RoleOp, index: int) -> str:
    """Return the name of a copy of a role for messages."""
    label = role.label.data
    return label if role.copies.value.data == 1 else f"{label} {index}"


def numbers(operand: Tensor | View) -> Tensor:
    """Return the values of a tile, in registers or in shared memory."""
    return operand.tensor if isinstance(operand, View) else operand
