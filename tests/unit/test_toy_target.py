"""A fourth target, which prints scalar Python: all that a target takes, in one file."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from xdsl.ir import Operation

from flexc import flex_attention
from flexc.codegen.source_printer import PythonPrinter
from flexc.codegen.target import SourceTarget
from flexc.dialects import tile
from flexc.passes import pipelines, targets
from flexc.passes.targets.target import TileSizes
from flexc.runtime.inputs.options import BACKENDS, Backend
from flexc.runtime.kernels.targets import TARGETS, KernelTarget

PROLOGUE = """\
from itertools import product
from math import exp2, floor, inf, log2, nan
def grid(shape):
    return product(*map(range, shape))
def cells(shape, tensor, first):
    offset = (0,) * (len(first) - len(shape))
    for o in grid(shape):
        index = tuple(i + j for i, j in zip(first, (*offset, *o)))
        yield o, index if all(map(int.__lt__, index, tensor.shape)) else None
def load(shape, tensor, *first):
    return {o: tensor[i].item() if i else 0.0 for o, i in cells(shape, tensor, first)}
def store(tile, tensor, *first):
    for o, index in cells([n + 1 for n in max(tile)], tensor, first):
        if index:
            tensor[index] = tile[o]
def compare(a, b, p):
    return (a == b, a != b, a < b, a <= b, a > b, a >= b)[p]
def dot(a, b, c):
    ks = {k for _, k in a}
    return {(i, j): x + sum(a[i, k] * b[k, j] for k in ks) for (i, j), x in c.items()}
def reduce(kind, a):
    return {(i,): kind(x for (j, _), x in a.items() if i == j) for i, _ in a}
"""

TABLE = """\
arith.addi arith.addf: {0} + {1}
arith.subi arith.subf: {0} - {1}
arith.muli arith.mulf: {0} * {1}
arith.divf: {0} / {1}
arith.divsi: int({0} / {1})
arith.shrsi: {0} >> {1}
arith.andi: {0} & {1}
arith.negf: -{0}
arith.constant: {op.value.value.data!r}
arith.cmpi: compare({all}, {op.predicate.value.data})
arith.cmpf: compare({all}, (None, 0, 4, 5, 2, 3)[{op.predicate.value.data}])
arith.select: {1} if {0} else {2}
arith.maxsi arith.maxnumf: max({all})
arith.minsi arith.minnumf: min({all})
math.fma: {0} * {1} + {2}
math.absf: abs({0})
tile.transpose: {{(j, i): x for (i, j), x in {0}.items()}}
tile.reduce: reduce({op.kind.data.value}, {0})
tile.iota: {{(i,): {0} + i for i in range(*{shape})}}
tile.full: {{o: {0} for o in grid({shape})}}
tile.dim: {0}.shape[{op.dim.value.data}]
tile.program_id: program[{op.axis.value.data}]
tile.load: load({shape}, {all})
math.exp2 math.log2 math.floor tile.dot tile.store: {name}({all})
flex.yield: return ({all},)
"""
FORMULAS = {
    op: text
    for names, text in (line.split(": ", 1) for line in TABLE.splitlines())
    for op in names.split()
}


class ToyPrinter(PythonPrinter):
    """One Python statement for each op; a tile is a dictionary from indices."""

    reserved = PythonPrinter.reserved | set(re.findall(r"\w+", PROLOGUE + TABLE))

    def print_kernel(self, op: tile.KernelOp) -> str:
        self.print_string(PROLOGUE)
        args = ", ".join(map(self.declare, op.body.block.args))
        with self.block(f"def kernel(program, {args})"):
            self.print_block(op.body.block)
        return "kernel"

    def expression(self, op: Operation) -> str:
        args, shapes = self.args(*op.operands), map(tile.shape_of, op.result_types)
        facts = {"all": ", ".join(args), "name": op.name.partition(".")[2]}
        return FORMULAS[op.name].format(*args, op=op, shape=next(shapes, ()), **facts)

    def print_map(self, op: tile.MapOp) -> None:
        function = self.unique_name("f")
        with self.block(f"def {function}(*o)"):
            for i, arg in enumerate(op.body.block.args):
                index = "".join(f"o[{dim}], " for dim in op.span(i))
                self.assign(arg, self.name(op.inputs[i]) + f"[{index}]" * bool(index))
            self.print_block(op.body.block)
        for i, result in enumerate(op.results):
            text = f"{{o: {function}(*o)[{i}] for o in grid({op.shape})}}"
            self.assign(result, text if op.shape else f"{function}()[{i}]")


class ToyTarget(targets.Target, SourceTarget, KernelTarget):
    """Small tiles, whose sizes need not be powers of 2, and programs run one by one."""

    name = "toy"
    printer = ToyPrinter

    def attention_sizes(self, shape: Any, options: Any) -> TileSizes:
        return TileSizes(3, 4)

    pair_sizes = attention_sizes

    def passes(self, options: Any) -> Any:
        return pipelines.TIDY

    @property
    def codegen(self) -> SourceTarget:
        return self

    def load(self, spec: Any) -> Any:
        exec(spec.source, defined := {})
        grid, kernel = defined["grid"], defined["kernel"]
        run = SimpleNamespace(prepare=lambda *_: None)
        run.interpret = lambda shape, args: [kernel(p, *args) for p in grid(shape)]
        return run


@pytest.mark.usefixtures("cache_folder")
def test_a_target_is_added_in_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    targets.register(toy := ToyTarget())
    monkeypatch.setitem(TARGETS, "toy", toy)
    monkeypatch.setitem(BACKENDS, "toy", Backend("toy", ("toy",)))
    q, k, v = (torch.randn(1, 2, 7, n) for n in (2, 2, 3))
    out = flex_attention(q, k, v, mask_mod=lambda b, h, m, n: m >= n, backend="toy")
    true = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out, true)
