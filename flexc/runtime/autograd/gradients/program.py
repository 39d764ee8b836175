"""A derivative's host function: what it launches, allocates and adds up, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.ir import Operation, SSAValue

from flexc.dialects import flex
from flexc.dialects.flex.pair_sums import element_of
from flexc.passes import pipelines
from flexc.passes.flex.flex_expand_derivatives import FlexExpandDerivativesPass
from flexc.passes.flex.flex_infer_facts import FlexInferFactsPass
from flexc.passes.flex.flex_simplify_mods import FlexSimplifyModsPass
from flexc.passes.scalar.reads.capture_index import read_of_index
from flexc.passes.scalar.reads.captured_read import CapturedRead, IndexClass
from flexc.runtime.autograd.captured_gradients import (
    CapturedGradient,
    Chunk,
    Scatter,
)
from flexc.runtime.autograd.gradients.launch import (
    Compile,
    Launch,
    Point,
)
from flexc.runtime.interpreters.values import dtype_of


def expand(module: ModuleOp, one_pass: bool) -> None:
    """Take a module's derivatives apart, in place."""
    passes = (
        *pipelines.to_simple_flex(),
        FlexInferFactsPass(),
        FlexExpandDerivativesPass(one_pass),
        FlexSimplifyModsPass(),
    )
    pipelines.run(passes, Context(), module)


class Program:
    """The host function of an expanded derivative, ready to run."""

    def __init__(self, module: ModuleOp, compile: Compile):
        *kernels, host = (o for o in module.ops if isinstance(o, func.FuncOp))
        self.host = host
        self.launches = {f.sym_name.data: Launch(f, compile) for f in kernels}
        self.scatters: dict[Operation, Scatter] = {
            o: Scatter(_captured_read(o))
            for o in host.body.ops
            if isinstance(o, flex.ScatterSumsOp)
        }
        self.rounded: dict[Operation, torch.dtype] = {
            o: dtype_of(element_of(o.result))
            for o in host.body.ops
            if isinstance(o, flex.SumPartsOp)
        }
        self.done = _done(host)

    def start(self) -> None:
        """Start to compile all kernels, first those that take longest: of pairs."""
        launches = self.launches.values()
        for launch in sorted(launches, key=lambda launch: not launch.visits_pairs):
            launch.start()

    def wait(self) -> None:
        """Wait for all kernels, and raise what went wrong with one."""
        for launch in self.launches.values():
            launch.start().get()

    def run(self, args: Sequence[Any], point: Point) -> list[Tensor]:
        """What the function returns for its arguments."""
        run = Execution(self, point, dict(zip(self.host.args, args, strict=True)))
        for op in self.host.body.ops:
            for value in self.done.get(op, ()):
                del run.values[value]
            if isinstance(op, func.ReturnOp):
                return [_finished(run.values[v]) for v in op.operands]
            results = run.results(op)
            run.values.update(zip(op.results, results, strict=True))
        raise AssertionError("a function returns")


@dataclass
class Execution:
    """One run of a program, as far as it has come."""

    program: Program
    point: Point
    values: dict[SSAValue, Any]
    gradients: dict[SSAValue, CapturedGradient] = field(
        default_factory=dict[SSAValue, CapturedGradient]
    )
    """Of captured tensors, as sums come in."""

    def results(self, op: Operation) -> Sequence[Any]:
        """What an op makes of what is known."""
        values = self.values
        match op:
            case flex.LaunchOp():
                return self.launch(op)
            case flex.ScatterSumsOp():
                gradient = self.gradient(op)
                if (sums := values[op.sums]) is not None:
                    gradient.add(self.program.scatters[op], sums)
                return [gradient]
            case flex.CenterRowsOp():
                return [center_rows(*(values[v] for v in op.operands))]
            case flex.SumPartsOp():
                return [sum_parts(values[op.parts], self.program.rounded[op])]
            case flex.ZerosLikeOp():
                return [torch.zeros_like(values[op.tensor])]
            case arith.ConstantOp():
                assert isinstance(op.value, IntegerAttr)
                return [op.value.value.data]
            case _:
                raise AssertionError(f"{op.name} in a derivative's function")

    def launch(self, op: flex.LaunchOp) -> Sequence[Tensor | None]:
        """What a kernel makes. What it makes in parts is added where it belongs."""

        def add(number: int, sums: Tensor, chunk: Chunk) -> None:
            for use in op.outputs[number].uses:
                scatter = use.operation
                assert isinstance(scatter, flex.ScatterSumsOp)
                added = self.program.scatters[scatter]
                self.gradient(scatter).add(added, sums, chunk)

        launch = self.program.launches[op.callee.string_value()]
        return launch.run([self.values[v] for v in op.inputs], self.point, add)

    def gradient(self, op: flex.ScatterSumsOp) -> CapturedGradient:
        """The gradient of the captured tensor that sums are added to."""
        if op.target not in self.gradients:
            self.gradients[op.target] = CapturedGradient(
                self.values[op.target],
                [self.values[v] for v in op.captures],
                self.point.sizes,
                dtype_of(element_of(op.sums)),
                self.point.deterministic,
            )
        return self.gradients[op.target]


def _done(host: func.FuncOp) -> dict[Operation, list[SSAValue]]:
    """For each op, values made before it that nothing uses from there on.

    They may be as large as the query: their memory goes to what comes next.
    """
    found: dict[Operation, list[SSAValue]] = {}
    for op in host.body.ops:
        for value in op.results:
            users = {use.operation for use in value.uses}
            last = next((o for o in reversed(list(host.body.ops)) if o in users), op)
            if last.next_op is not None:
                found.setdefault(last.next_op, []).append(value)
    return found


def _finished(value: Any) -> Tensor:
    return value.result() if isinstance(value, CapturedGradient) else value


def center_rows(sums: Tensor, total: Tensor, values: Tensor) -> Tensor:
    """sums - total * values, in the type of the values."""
    return torch.addcmul(sums, total[..., None], values, value=-1).to(values.dtype)


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first dimension, in the given type."""
    total = parts[0] if parts.size(0) == 1 else parts.sum(0)
    return total.to(dtype)


def _captured_read(op: flex.ScatterSumsOp) -> CapturedRead:
    """What is known of the read that a scatter stands for."""
    number = list(op.captures).index(op.target)
    return read_of_index(op.index, number, IndexClass(op.by.data))
