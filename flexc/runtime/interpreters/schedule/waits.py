"""What is waited for: barriers' phases and products in flight."""

from __future__ import annotations

import torch
from torch import Tensor
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects.tile import schedule
from flexc.runtime.interpreters.schedule.agents import Product, Wait
from flexc.runtime.interpreters.schedule.barriers import Barrier
from flexc.runtime.interpreters.schedule.names import element, value_name
from flexc.runtime.interpreters.schedule.program import at_switch, begin_reads
from flexc.runtime.interpreters.schedule.slots import View
from flexc.runtime.interpreters.values import dtype_of


@register_impls
class BarrierFunctions(InterpreterFunctions):
    """Arrivals, and waits for them."""

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


@register_impls
class ProductFunctions(InterpreterFunctions):
    """Products from their issue to their wait."""

    def __init__(self, compute_dtype: torch.dtype | None = None):
        self.compute_dtype = compute_dtype

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
        if acc:
            value = value + acc[0].to(wide)
        product = Product(value.to(dtype), reads)
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


def numbers(operand: Tensor | View) -> Tensor:
    """The numbers of a tile, wherever it lies."""
    return operand.tensor() if isinstance(operand, View) else operand
