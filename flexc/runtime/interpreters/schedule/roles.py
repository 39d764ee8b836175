"""What parts and roles do."""

from __future__ import annotations

from copy import copy
from functools import partial

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

from flexc.dialects.tile import schedule
from flexc.runtime.interpreters.schedule.program import running_program


@register_impls
class RoleFunctions(InterpreterFunctions):
    """Parts one after the other, roles side by side."""

    @impl(schedule.PartsOp)
    def run_parts(
        self, interpreter: Interpreter, op: schedule.PartsOp, args: PythonValues
    ) -> PythonValues:
        running = running_program(interpreter)
        for part in running.interleaving.arrange(range(op.count.value.data)):
            interpreter.run_ssacfg_region(op.body, (number(part),), "part")
        return ()

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

    @impl_terminator(schedule.EndOp)
    def run_end(
        self, interpreter: Interpreter, op: schedule.EndOp, args: PythonValues
    ) -> tuple[TerminatorValue, PythonValues]:
        return ReturnedValues(()), ()


def number(value: int) -> Tensor:
    """An i32."""
    return torch.tensor(value, dtype=torch.int32)


def name_of(role: schedule.RoleOp, index: int) -> str:
    """How messages call a copy of a role."""
    label = role.label.data
    return label if role.copies.value.data == 1 else f"{label} {index}"
