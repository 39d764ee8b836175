"""Interpreter of explicit schedules, with their asynchrony.

Roles run as coroutines, one at a time. A copy lands as late as possible. A product or a
copy reads its operands until a role awaits the product or copy. Vector clocks track
what each role knows of the other roles. So a schedule that is wrong in one interleaving
raises in all interleavings, except for deadlocks and errors that depend on a run's
data. `interleaving` is a seed that chooses the order in which roles continue and copies
land.
"""

from flexc.runtime.interpreters.schedule.ops import ScheduleFunctions
from flexc.runtime.interpreters.schedule.program import (
    at_switch,
    program,
    read_operand,
    set_interleaving,
)

__all__ = [
    "ScheduleFunctions",
    "at_switch",
    "program",
    "read_operand",
    "set_interleaving",
]
