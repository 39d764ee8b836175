"""What is done to shared memory: slots, copies in and out."""

from __future__ import annotations

import torch
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)

from flexc.dialects.tile import schedule
from flexc.runtime.interpreters.memory import load_tile, verify_same_dtype
from flexc.runtime.interpreters.schedule.names import element, value_name
from flexc.runtime.interpreters.schedule.program import (
    at_switch,
    begin_reads,
    running_program,
)
from flexc.runtime.interpreters.schedule.slots import Slot, View, Write
from flexc.runtime.interpreters.schedule.transfers import CopyIn, CopyOut
from flexc.runtime.interpreters.values import dtype_of


@register_impls
class SharedMemoryFunctions(InterpreterFunctions):
    """Slots, views, and what copies them."""

    @impl(schedule.SharedOp)
    def run_shared(
        self, interpreter: Interpreter, op: schedule.SharedOp, args: PythonValues
    ) -> PythonValues:
        assert isinstance(op.result.type, schedule.SharedType)
        type_, name = op.result.type, value_name(op.result, "shared")
        dtype, shape = dtype_of(type_.tile.element_type), type_.tile.get_shape()
        slots = [
            Slot(f"{name}[{i}]", torch.empty(shape, dtype=dtype))
            for i in range(type_.slots.data)
        ]
        for slot in slots:
            slot.poison()
        running_program(interpreter).slots += slots
        return (slots,)

    @impl(schedule.SlotOp)
    def run_slot(
        self, interpreter: Interpreter, op: schedule.SlotOp, args: PythonValues
    ) -> PythonValues:
        return (View(element(value_name(op.shared, "shared"), *args)),)

    @impl(schedule.TransposeViewOp)
    def run_transpose_view(
        self, interpreter: Interpreter, op: schedule.TransposeViewOp, args: PythonValues
    ) -> PythonValues:
        return (args[0].transpose(),)

    @impl(schedule.CopyInOp)
    def run_copy_in(
        self, interpreter: Interpreter, op: schedule.CopyInOp, args: PythonValues
    ) -> PythonValues:
        running = at_switch(interpreter)
        tensor, *indices, view, barriers, index = args
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
        view.tensor().copy_(value)
        return ()

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
        (read,) = begin_reads(running, [view], "a copy out")
        running.current.copies.append(CopyOut(read, view.tensor(), memref, indices))
        return ()

    @impl(schedule.AwaitCopiesOp)
    def run_await_copies(
        self, interpreter: Interpreter, op: schedule.AwaitCopiesOp, args: PythonValues
    ) -> PythonValues:
        running = at_switch(interpreter)
        ended = running.current.end_copied_reads(op.outstanding.value.data)
        running.leaving += ended
        return ()
