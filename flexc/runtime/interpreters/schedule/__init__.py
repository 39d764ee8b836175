"""The meaning of explicit schedules, with their asynchrony.

Roles run as coroutines, one at a time. Copies land as late as they may, products
and copies read until they are awaited, and vector clocks know what each role has
seen of the others. So a schedule that is wrong on some interleaving raises here on
each, but for deadlocks and what depends on a run's data: `interleaving`, a seed,
chooses among the orders in which roles go on and copies land.
"""

from __future__ import annotations

from flexc.runtime.interpreters.schedule.functions import ScheduleFunctions
from flexc.runtime.interpreters.schedule.program import (
    program,
    read_operand,
    set_interleaving,
)

__all__ = ["ScheduleFunctions", "program", "read_operand", "set_interleaving"]
