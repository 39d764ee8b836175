"""A fourth target, which prints scalar Python: all that a target takes, in one file."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from functools import singledispatchmethod
from io import StringIO
from itertools import product
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from xdsl.context import Context
from xdsl.dialects import scf
from xdsl.ir import Block, Operation

from flexc.codegen.kernel_spec import KernelSpec
from flexc.codegen.source_printer import SourcePrinter
from flexc.codegen.target import Target, param_spec
from flexc.dialects import flex, tile
from flexc.frontend.capture import capture_mods
from flexc.frontend.closures import read_mods
from flexc.frontend.import_graph import AttentionCall, build_attention_module
from flexc.passes import pipelines, targets
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.targets.target import LoweringOptions, TileSizes

PROLOGUE = """\
from itertools import product
from math import inf, nan

def grid(*shape):
    return product(*map(range, shape))

def at(first, o):
    n = len(first) - len(o)
    return (*first[:n], *(i + j for i, j in zip(first[n:], o)))

def compare(a, b, p):
    return (a == b, a != b, a < b, a <= b, a > b, a >= b)[p]

def put(tile, memory, first):
    cells = ((at(first, o), x) for o, x in tile.items())
    memory.update((i, x) for i, x in cells if i in memory)

def dot(a, b, c):
    ks = {k for _, k in a}
    return {(i, j): x + sum(a[i, k] * b[k, j] for k in ks) for (i, j), x in c.items()}

"""
"""Tiles and tensors are dictionaries from indices to numbers."""

TABLE = """\
arith.addi arith.addf: {} + {}
arith.subi arith.subf: {} - {}
arith.muli arith.mulf: {} * {}
arith.divf: {} / {}
arith.divsi: int({} / {})
arith.shrsi: {} >> {}
arith.andi: {} & {}
arith.negf: -{}
arith.constant: {value!r}
arith.cmpi: compare({}, {}, {predicate})
arith.cmpf: compare({}, {}, (None, 0, 4, 5, 2, 3)[{predicate}])
arith.select: {1} if {0} else {2}
arith.maxsi arith.maxnumf: max({}, {})
arith.minsi arith.minnumf: min({}, {})
math.fma: {} * {} + {}
math.exp2: 2.0 ** {}
math.absf: abs({})
tile.transpose: {{(j, i): x for (i, j), x in {}.items()}}
tile.dot: dot({}, {}, {})
tile.iota: {{(i,): {0} + i for i, in grid({shape})}}
tile.full: {{o: {0} for o in grid({shape})}}
tile.dim: 1 + max(i[{dim}] for i in {0})
tile.program_id: program[{axis}]
tile.load: {{o: {0}.get(at({rest}, o), 0.0) for o in grid({shape})}}
tile.store: put({0}, {1}, {rest1})
"""
FORMULAS = {
    op: text
    for names, text in (line.split(": ", 1) for line in TABLE.splitlines())
    for op in names.split()
}


@dataclass(eq=False, repr=False)
class ToyPrinter(SourcePrinter):
    """One Python statement for each op."""

    reserved = frozenset(keyword.kwlist) | set(
        re.findall(r"\w+", PROLOGUE + "".join(FORMULAS.values()))
    )

    def names(self, values: Any) -> str:
        return "".join(f"{self.name(value)}, " for value in values)

    def print_body(self, block: Block, carried: Any = ()) -> None:
        for op in block.ops:
            if isinstance(op, scf.YieldOp):
                self.line(f"{self.names(carried)} = {self.names(op.operands)}")
            elif isinstance(op, flex.YieldOp):
                self.line(f"return {self.names(op.operands)}")
            elif not isinstance(op, tile.ReturnOp):
                self.statement(op)

    @singledispatchmethod
    def statement(self, op: Operation) -> None:
        names: list[str] = [self.name(v) for v in op.operands]
        facts: dict[str, Any] = {}
        for key, attr in op.properties.items():
            value = getattr(attr, "value", attr)
            facts[key] = getattr(value, "data", value)
        facts |= {f"rest{i or ''}": f"({', '.join(names[1 + i :])})" for i in (0, 1)}
        for result in op.results:
            if isinstance(result.type, tile.TileType):
                facts["shape"] = ", ".join(map(str, result.type.get_shape()))
        text = FORMULAS[op.name].format(*names, **facts)
        self.line("".join(f"{self.declare(r)} = " for r in op.results) + text)

    @statement.register
    def _(self, op: tile.MapOp) -> None:
        function = self.unique_name("f")
        with self.block(f"def {function}(*o)"):
            spans = (span.get_values() for span in op.spans)
            args = op.body.block.args
            for arg, value, span in zip(args, op.inputs, spans, strict=True):
                index = "".join(f"o[{i}], " for i in span)
                place = f"[{index}]" if index else ""
                self.line(f"{self.declare(arg)} = {self.name(value)}{place}")
            self.print_body(op.body.block)
        for i, result in enumerate(op.results):
            grid = f"grid({', '.join(map(str, op.shape))})"
            text = f"{{o: {function}(*o)[{i}] for o in {grid}}}"
            text = text if op.shape else f"{function}()[{i}]"
            self.line(f"{self.declare(result)} = {text}")

    @statement.register
    def _(self, op: tile.ReduceOp) -> None:
        kind, source = op.kind.data.value, self.name(op.input)
        each = f"{kind}(x for (i, j), x in {source}.items() if i == row)"
        text = f"{{(row,): {each} for row in {{i for i, _ in {source}}}}}"
        self.line(f"{self.declare(op.result)} = {text}")

    @statement.register
    def _(self, op: scf.ForOp) -> None:
        for result, first in zip(op.results, op.iter_args, strict=True):
            self.line(f"{self.declare(result)} = {self.name(first)}")
        index, *args = op.body.block.args
        for arg, result in zip(args, op.results, strict=True):
            self.bind(arg, self.name(result))
        bounds = ", ".join(map(self.name, (op.lb, op.ub, op.step)))
        with self.block(f"for {self.declare(index)} in range({bounds})"):
            self.print_body(op.body.block, op.results)


class ToySizes(targets.Target):
    """Small tiles, which need not be powers of 2."""

    name = "toy"

    def attention_sizes(self, shape: Any, options: Any) -> TileSizes:
        return TileSizes(3, 4)

    pair_sizes = attention_sizes


class ToyTarget(Target):
    """Prints a kernel as a function of a program's position and its arguments."""

    name = "toy"

    def passes(self, options: LoweringOptions) -> pipelines.Passes:
        return pipelines.TIDY

    def print_kernel(self, kernel: tile.KernelOp) -> KernelSpec:
        printer, args = ToyPrinter(stream=StringIO()), kernel.body.block.args
        printer.print_string(PROLOGUE)
        names = ", ".join(printer.declare(arg) for arg in args)
        with printer.block(f"def kernel(program, {names})"):
            printer.print_body(kernel.body.block)
        params = zip(args, kernel.params, strict=True)
        specs = tuple(param_spec(printer.name(a), a.type, p) for a, p in params)
        assert isinstance(printer.stream, StringIO)
        source = printer.stream.getvalue()
        return KernelSpec(self.name, "kernel", specs, str(kernel.grid), source)


def numbers(t: torch.Tensor) -> dict[tuple[int, ...], float]:
    return {i: t[i].item() for i in product(*map(range, t.shape))}


def test_a_target_is_added_in_one_file() -> None:
    targets.register(ToySizes())
    mods = read_mods(None, lambda b, h, q, k: q >= k)
    traced = capture_mods(mods, torch.float32, "cpu")
    call = AttentionCall(torch.float32, head_dim=2, value_dim=3)
    module = build_attention_module(traced.score, traced.mask, call).module
    convert, target = ConvertFlexToBlocksparsePass("toy"), ToyTarget()
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile("toy"))
    pipelines.run((*passes, *target.passes(LoweringOptions())), Context(), module)
    (spec,) = target.print_kernels(module)
    query, key, value = (torch.randn(1, 2, 7, n) for n in (2, 2, 3))
    out = numbers(torch.zeros(1, 2, 7, 3))
    defined: dict[str, Any] = {}
    exec(spec.source, defined)
    for program in product(*map(range, spec.grid_function(1, 2, 7))):
        defined[spec.entry](program, *map(numbers, (query, key, value)), 0.5, out)
    true = scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.5)
    torch.testing.assert_close(torch.tensor(list(out.values())), true.flatten())
