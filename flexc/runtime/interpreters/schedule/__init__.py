"""The meaning of explicit schedules, with their asynchrony.

Roles run as coroutines, one at a time. Copies land as late as they may, products
and copies read until they are awaited, and vector clocks know what each role has
seen of the others. So a schedule that is wrong on some interleaving raises here on
each, but for deadlocks and what depends on a run's data: `interleaving`, a seed,
chooses among the orders in which roles go on and copies land.
"""

from __future__ import annotations

import torch
from xdsl.interpreter import InterpreterFunctions

from flexc.runtime.interpreters.schedule.memory import SharedMemoryFunctions
from flexc.runtime.interpreters.schedule.program import (
    program,
    read_operand,
    set_interleaving,
)
from flexc.runtime.interpreters.schedule.roles import RoleFunctions
from flexc.runtime.interpreters.schedule.waits import BarrierFunctions, ProductFunctions

__all__ = ["program", "read_operand", "schedule_functions", "set_interleaving"]


def schedule_functions(
    compute_dtype: torch.dtype | None = None,
) -> tuple[InterpreterFunctions, ...]:
    """The meaning of all ops of a schedule."""
    return (
        RoleFunctions(),
        SharedMemoryFunctions(),
        BarrierFunctions(),
        ProductFunctions(compute_dtype),
    )
