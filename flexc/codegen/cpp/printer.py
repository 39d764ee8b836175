"""Prints `tile` kernels, legalized for C++, as C++: one op, one statement.

A tile is spelled as the buffer that `tile-assign-buffers` gave it, so that an
op that updates its operand's buffer prints as an update. Scalars are constants
of their own; loops over a tile's elements are left to the compiler to vectorise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from io import StringIO
from typing import ClassVar

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.hints import isa

from flexc.codegen.cpp.reserved import RESERVED
from flexc.codegen.cpp.scalar_rules import SCALAR_RULES
from flexc.codegen.cpp.spelling import (
    buffer_type,
    from_memory,
    literal,
    memory_type,
    scalar_type,
)
from flexc.codegen.kernel_spec import KernelSpec, ParamSpec, ir_digest
from flexc.codegen.source_printer import SourcePrinter
from flexc.dialects import flex, tile
from flexc.dialects.tile import BUFFERS, BufferAttr, ReduceKind, TileType
from flexc.errors import UnsupportedOpError

_PROGRAM_ID = (
    "program % grid_0",
    "program / grid_0 % grid_1",
    "program / (grid_0 * grid_1)",
)
_REDUCE = {ReduceKind.MAX: "Max", ReduceKind.MIN: "Min", ReduceKind.SUM: "Sum"}
_REDUCE_ALONG = ("reduce_columns", "reduce_rows")


@dataclass(eq=False, repr=False)
class CppPrinter(SourcePrinter):
    """Prints one kernel."""

    _buffers: list[str] = field(default_factory=list[str], init=False)

    reserved: ClassVar[frozenset[str]] = RESERVED
    comment_marker: ClassVar[str] = "//"
    block_open: ClassVar[str] = " {"
    block_close: ClassVar[str] = "}"
    unnamed: ClassVar[str] = "x"

    # The kernel

    def print_kernel(self, op: tile.KernelOp) -> tuple[ParamSpec, ...]:
        """Print a kernel; how it is called."""
        self.print_header(op)
        entry = self.unique_name(op.sym_name.data)
        args = tuple(zip(op.body.block.args, op.params, strict=True))
        params = tuple(ParamSpec.of(self.declare(a), a.type, p) for a, p in args)
        self.line(f"FLEXC_KERNEL void {entry}(")
        for arg, _ in args:
            self.line(f"    {_param_type(arg.type)} {self.name(arg)},")
        self.line(
            "    int64_t grid_0, int64_t grid_1, int64_t grid_2, int32_t threads)"
        )
        with self.block(""):
            self.line("#pragma omp parallel num_threads(threads)")
            with self.block(""):
                self.print_buffers(op)
                self.line("#pragma omp for schedule(dynamic)")
                programs = "program < grid_0 * grid_1 * grid_2"
                with self.block(f"for (int64_t program = 0; {programs}; ++program)"):
                    self.print_block(op.body.block)
        return params

    def print_header(self, op: tile.KernelOp) -> None:
        self.comment(f"flexc kernel {op.sym_name.data}, target cpp")
        for name, value in sorted(op.attributes.items()):
            if isinstance(value, StringAttr):
                self.comment(f"{name}: {value.data}")
        self.comment(f"digest: {ir_digest(op)}")
        vector_bytes = op.attributes.get(tile.VECTOR_BYTES)
        if isa(vector_bytes, IntegerAttr):
            self.line(f"#define FLEXC_VECTOR_BYTES {vector_bytes.value.data}")
        self.line('#include "flexc_support.h"')
        self.line()
        self.line("using namespace flexc;")
        self.line()

    def print_buffers(self, op: tile.KernelOp) -> None:
        """What each thread keeps its tiles in."""
        buffers = op.attributes.get(BUFFERS)
        if not isa(buffers, ArrayAttr[BufferAttr]):
            raise UnsupportedOpError(
                f"{op.sym_name.data} has no buffers: run tile-assign-buffers first"
            )
        for buffer in buffers:
            name = self.unique_name(buffer.label.data)
            self._buffers.append(name)
            self.line(f"{buffer_type(buffer.tile)} {name};")

    # Helpers

    def print_block(self, block: Block) -> None:
        for op in block.ops:
            self.print_op(op)

    def names(self, values: Sequence[SSAValue]) -> list[str]:
        return [self.name(v) for v in values]

    def bind_tiles(self, op: Operation) -> list[str]:
        """Spell the tiles that an op defines as their buffers."""
        indices = op.attributes[BUFFERS]
        assert isinstance(indices, DenseArrayBase)
        labels = [self._buffers[i] for i in indices.get_values()]
        for result, label in zip(op.results, labels, strict=True):
            self.bind(result, label)
        return labels

    def call(self, function: str, *args: str) -> None:
        self.line(f"{function}({', '.join(args)});")

    def constant(self, value: SSAValue, expression: str) -> None:
        """Define a scalar."""
        type_ = scalar_type(value.type)
        self.line(f"const {type_} {self.declare(value)} = {expression};")

    # Ops

    @singledispatchmethod
    def print_op(self, op: Operation) -> None:
        """One scalar op: a constant with an expression."""
        rule = SCALAR_RULES.get(type(op))
        if rule is None:
            raise UnsupportedOpError(f"the C++ target has no rule for {op.name}")
        self.constant(op.results[0], rule(op, self.names(op.operands)))

    @print_op.register
    def _(self, op: arith.ConstantOp) -> None:
        self.bind(op.result, literal(op.value))

    @print_op.register
    def _(self, op: scf.ForOp) -> None:
        induction, *carried = op.body.block.args
        if (segment := op.attributes.get("segment")) is not None:
            self.comment(f"{_plain(segment)} blocks")
        self.open_carried(carried, op.iter_args)
        type_, i = scalar_type(induction.type), self.declare(induction)
        begin, end, step = self.names([op.lb, op.ub, op.step])
        with self.block(f"for ({type_} {i} = {begin}; {i} < {end}; {i} += {step})"):
            self.print_block(op.body.block)
        for result, arg in zip(op.results, carried, strict=True):
            self.bind(result, self.name(arg))

    def open_carried(
        self, carried: Sequence[SSAValue], initial: Sequence[SSAValue]
    ) -> None:
        """Tiles are carried in their buffers, scalars in variables."""
        for value, init in zip(carried, initial, strict=True):
            if isinstance(value.type, TileType):
                self.bind(value, self.name(init))
            else:
                type_ = scalar_type(value.type)
                self.line(f"{type_} {self.declare(value)} = {self.name(init)};")

    @print_op.register
    def _(self, op: scf.IfOp) -> None:
        scalars = [r for r in op.results if not isinstance(r.type, TileType)]
        for result in scalars:
            self.line(f"{scalar_type(result.type)} {self.declare(result)};")
        with self.block(f"if ({self.name(op.cond)})"):
            self.print_block(op.true_region.block)
        if op.false_region.blocks:
            with self.block("else"):
                self.print_block(op.false_region.block)
        yielded = op.true_region.block.last_op
        for result, value in zip(
            op.results, yielded.operands if yielded else (), strict=True
        ):
            if isinstance(result.type, TileType):
                self.bind(result, self.name(value))

    @print_op.register
    def _(self, op: scf.YieldOp) -> None:
        """Scalars are all read before the first is written."""
        parent = op.parent_op()
        assert parent is not None
        carried = parent.body.block.args[1:] if isinstance(parent, scf.ForOp) else None
        targets = parent.results if carried is None else carried
        pairs = [
            (self.name(target), self.unique_name("next"), value)
            for target, value in zip(targets, op.operands, strict=True)
            if not isinstance(value.type, TileType)
        ]
        for _, temporary, value in pairs:
            self.line(
                f"const {scalar_type(value.type)} {temporary} = {self.name(value)};"
            )
        for target, temporary, _ in pairs:
            self.line(f"{target} = {temporary};")

    @print_op.register
    def _(self, op: flex.YieldOp) -> None:
        """What a region yields is bound by the op around it."""

    @print_op.register
    def _(self, op: tile.ReturnOp) -> None:
        """A program ends where its text does."""

    @print_op.register
    def _(self, op: tile.ProgramIdOp) -> None:
        expression = f"static_cast<int32_t>({_PROGRAM_ID[op.axis.value.data]})"
        self.constant(op.result, expression)

    @print_op.register
    def _(self, op: tile.IotaOp) -> None:
        self.call("iota", *self.bind_tiles(op), self.name(op.start))

    @print_op.register
    def _(self, op: tile.FullOp) -> None:
        self.call("fill", *self.bind_tiles(op), self.name(op.value))

    @print_op.register
    def _(self, op: tile.CopyOp) -> None:
        self.call("copy", *self.bind_tiles(op), self.name(op.input))

    @print_op.register
    def _(self, op: tile.TransposeOp) -> None:
        self.call("transpose", *self.bind_tiles(op), self.name(op.input))

    @print_op.register
    def _(self, op: tile.LoadStridedOp) -> None:
        source = f"{self.name(op.tensor)} + {self.name(op.base)}"
        where = self.names([*op.strides, *op.extents])
        self.call("load", *self.bind_tiles(op), source, *where)

    @print_op.register
    def _(self, op: tile.StoreStridedOp) -> None:
        target = f"{self.name(op.memref)} + {self.name(op.base)}"
        where = self.names([*op.strides, *op.extents])
        self.call("store", target, self.name(op.value), *where)

    @print_op.register
    def _(self, op: tile.AddStridedOp) -> None:
        target = f"{self.name(op.memref)} + {self.name(op.base)}"
        self.call("add_to", target, self.name(op.value), *self.names(op.strides))

    @print_op.register
    def _(self, op: tile.MatmulOp) -> None:
        self.call("matmul", *self.bind_tiles(op), *self.names([op.lhs, op.rhs]))

    @print_op.register
    def _(self, op: tile.DotOp) -> None:
        """The accumulator's buffer is the result's."""
        self.call("dot", *self.bind_tiles(op), *self.names([op.lhs, op.rhs]))

    @print_op.register
    def _(self, op: tile.ReduceOp) -> None:
        function = _REDUCE_ALONG[op.dim.value.data]
        kind = _REDUCE[op.kind.data]
        self.call(f"{function}<{kind}>", *self.bind_tiles(op), self.name(op.input))

    @print_op.register
    def _(self, op: tile.DiagonalsOp) -> None:
        self.call("diagonals", *self.bind_tiles(op), self.name(op.input))

    @print_op.register
    def _(self, op: tile.MapOp) -> None:
        """A loop for each dimension; operands are read where they start to vary."""
        labels = self.bind_tiles(op) if op.shape else []
        for index, arg in enumerate(op.body.block.args):
            if not op.span(index):
                self.bind(arg, self.name(op.inputs[index]))
        self.print_map_loops(op, labels, 0)

    def print_map_loops(
        self, op: tile.MapOp, labels: Sequence[str], depth: int
    ) -> None:
        rank = len(op.shape)
        if depth == rank:
            self.print_map_body(op, labels)
            return
        if depth == rank - 1:
            self.line("#pragma omp simd")
        i = _LOOP_VARIABLES[rank][depth]
        with self.block(f"for (int {i} = 0; {i} < {op.shape[depth]}; ++{i})"):
            for index, arg in enumerate(op.body.block.args):
                span = op.span(index)
                if span and max(span) == depth:
                    element = _element(self.name(op.inputs[index]), span, rank)
                    self.constant(arg, from_memory(arg.type, element))
            self.print_map_loops(op, labels, depth + 1)

    def print_map_body(self, op: tile.MapOp, labels: Sequence[str]) -> None:
        self.print_block(op.body.block)
        last = op.body.block.last_op
        assert isinstance(last, flex.YieldOp)
        if not op.shape:
            for result, value in zip(op.results, last.values, strict=True):
                self.bind(result, self.name(value))
        rank = len(op.shape)
        for label, value in zip(labels, last.values, strict=bool(rank)):
            element = _element(label, range(rank), rank)
            self.line(f"{element} = {self.name(value)};")


_LOOP_VARIABLES: dict[int, tuple[str, ...]] = {1: ("at",), 2: ("row", "col")}


def _element(tile_name: str, span: Sequence[int], rank: int) -> str:
    """The element of a tile that spans some dimensions of a loop nest."""
    return tile_name + "".join(f"[{_LOOP_VARIABLES[rank][d]}]" for d in span)


def _plain(attr: Attribute) -> str:
    """An attribute in words, for a comment."""
    return str(getattr(attr, "data", attr))


def _param_type(type_: Attribute) -> str:
    if isa(type_, TensorType[Attribute]):
        return f"const {memory_type(type_.element_type)}*"
    if isa(type_, MemRefType[Attribute]):
        return f"{memory_type(type_.element_type)}*"
    return f"const {scalar_type(type_)}"


def print_kernel(op: tile.KernelOp) -> KernelSpec:
    """The C++ source of a kernel, and how to call it."""
    output = StringIO()
    printer = CppPrinter(output)
    params = printer.print_kernel(op)
    entry, grid = op.sym_name.data, str(op.grid)
    return KernelSpec("cpp", entry, params, grid, output.getvalue())
