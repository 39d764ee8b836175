"""The base of the Triton and Gluon printers: one statement for each op.

A `tile.map` prints the statements of its region. Operands print with the broadcast that
their span needs.
"""

from __future__ import annotations

import textwrap
from abc import abstractmethod
from collections.abc import Iterable
from functools import singledispatchmethod
from typing import ClassVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DenseArrayBase,
    Float8E4M3FNType,
    Float8E5M2Type,
    StringAttr,
    f32,
    i32,
)
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from flexc.codegen.source_printer import PythonPrinter
from flexc.codegen.triton import scalar_rules
from flexc.codegen.triton.scalar_rules import Language
from flexc.dialects import flex, tile
from flexc.dialects.mod_region import is_scalar
from flexc.dialects.tile import ParamKind, TileType, shape_of
from flexc.errors import refuse

READ_WORDS = (
    "read_bf16 read_bf16_if read_f16 read_f16_if read_f32 read_f32_if read_i32 "
    "read_i32_if tanh_approx widen_i8 widen_f8e4m3fn widen_f8e5m2"
)

EIGHT_BITS = (Float8E4M3FNType, Float8E5M2Type)

LINE_LENGTH = 84
HIDDEN_BLANK = "\0"

BROADCASTS: dict[tuple[int, ...], str] = {(0,): "[:, None]", (1,): "[None, :]"}
"""The text that broadcasts a row or column value to a full tile, by span."""


def is_pointer(arg: SSAValue, param: tile.ParamAttr) -> bool:
    """Return True if an argument is the address of a tensor."""
    return not is_scalar(arg.type) and param.kind.data == ParamKind.ARGUMENT


class TilePrinter(PythonPrinter):
    """A printer of a kernel in a language with Triton's functions."""

    reserved: ClassVar[frozenset[str]] = PythonPrinter.reserved | set(
        f"{READ_WORDS} tl triton".split()
    )
    language: ClassVar[Language]
    decorator: ClassVar[str]
    """The decorator that makes a Python function a kernel."""
    support: ClassVar[dict[type[Operation], str]] = {
        tile.TanhApproxOp: "tanh_approx",
        tile.DiagonalsOp: "diagonals",
        tile.ScatterAddOp: "add_to",
        tile.AwaitKernelsOp: "await_kernels",
    }
    """Ops that print as calls of functions of the support module."""
    add_atomically: ClassVar[str | None] = None
    """The function of the support module for atomic additions, or None."""

    def layout_args(self, type_: Attribute) -> tuple[str, ...]:
        """Return the layout arguments of a function that makes a tile."""
        return ()

    def print_kernel(self, kernel: tile.KernelOp) -> str:
        for part in self.header(kernel):
            self.comment(part)
        self.line()
        self.print_imports(kernel)
        self.line()
        self.line()
        return self.print_entry(kernel)

    def header(self, kernel: tile.KernelOp) -> list[str]:
        """Return the comment lines at the top of a kernel's source."""
        name, language = kernel.sym_name.data, self.language.name
        lines = [f"{name}, emitted by flexc for {language}"]
        lines.append(f"grid: {kernel.grid.data}")
        warps = kernel.number("num_warps")
        stages = kernel.number("num_stages")
        if warps is not None and stages is not None:
            lines.append(f"num_warps: {warps}, num_stages: {stages}")
        for key, attr in kernel.attributes.items():
            if isinstance(attr, StringAttr):
                lines.append(f"{key}: {attr.data}")
        return lines

    @abstractmethod
    def print_imports(self, kernel: tile.KernelOp) -> None:
        """Print the imports of a kernel's source."""

    def support_names(self, kernel: tile.KernelOp) -> list[str]:
        """Return the functions of the support module that a kernel calls, sorted."""
        names: set[str] = set()
        for op in kernel.walk():
            if (name := self.support_name(op)) is not None:
                names.add(name)
            elif isinstance(op, tile.ReadOp) and "in_place" in op.attributes:
                names.add(scalar_rules.in_place_function(op))
            elif isinstance(op, tile.WidenBytesOp):
                names.update(scalar_rules.widening_functions(op))
        return sorted(names)

    def support_name(self, op: Operation) -> str | None:
        """Return the function of the support module that an op's statement calls."""
        if isinstance(op, tile.ScatterAddOp) and op.atomic is not None:
            return self.add_atomically
        return self.support.get(type(op))

    def print_entry(self, kernel: tile.KernelOp) -> str:
        """Print the kernel's function; return its name."""
        entry = self.unique_name(kernel.sym_name.data)
        args = kernel.body.block.args
        names = [self.declare(arg) for arg in args]
        numbers = [n for n, arg in zip(names, args, strict=True) if is_scalar(arg.type)]
        aligned = kernel.attributes.get("aligned")
        known = aligned.get_values() if isinstance(aligned, DenseArrayBase) else ()
        unaligned = [
            name
            for i, (name, param) in enumerate(zip(names, kernel.params, strict=True))
            if i not in known and is_pointer(args[i], param)
        ]
        # One kernel serves all lengths and addresses, so Triton must not specialize.
        opening = f"@{self.decorator}(do_not_specialize=["
        self.print_wrapped(opening, map(repr, numbers), "],")
        self.print_wrapped(
            "do_not_specialize_on_alignment=[", map(repr, unaligned), "])"
        )
        # Annotations keep Triton from inferring types from values.
        params = [n + self.annotation(a) for n, a in zip(names, args, strict=True)]
        self.print_function(entry, params, kernel.body.block)
        return entry

    def annotation(self, arg: SSAValue) -> str:
        """Return a parameter's annotation: the dtype of a number, "" for a tensor."""
        return f": {self.language.dtype(arg.type)}" if is_scalar(arg.type) else ""

    def print_function(self, name: str, params: Iterable[str], body: Block) -> None:
        self.print_wrapped(f"def {name}(", params, "):")
        self._indent += 1
        self.print_prelude(body)
        self.print_block(body)
        self._indent -= 1

    def print_wrapped(self, opening: str, items: Iterable[str], closing: str) -> None:
        """Print items between `opening` and `closing` in lines of bounded length."""
        self.line(opening)
        # Hide the blanks within items, so that lines break only between items.
        text = ", ".join(item.replace(" ", HIDDEN_BLANK) for item in items)
        width = LINE_LENGTH - self._indent * self.indent_num_spaces
        for part in textwrap.wrap(text, width, break_long_words=False):
            part = part.replace(HIDDEN_BLANK, " ")
            self.line(" " * self.indent_num_spaces + part)
        self.line(closing)

    def print_prelude(self, body: Block) -> None:
        """Print lines before a function's statements."""

    def call(self, function: str, *args: object) -> str:
        """Return a call of one of the language's functions."""
        return self.language.call(function, *map(str, args))

    def expression(self, op: Operation) -> str:
        """Return the expression of a scalar op."""
        if len(op.results) != 1:
            refuse(op, f"the {self.language.name} backend has no statement for it")
        return scalar_rules.expression(self.language, op, self.args(*op.operands))

    @singledispatchmethod
    def print_statement(self, op: Operation) -> None:
        """Print a statement of Python."""
        super().print_statement(op)

    @print_statement.register
    def _(self, op: arith.ConstantOp) -> None:
        self.bind(op.result, scalar_rules.literal(op.value))

    @print_statement.register
    def _(self, op: tile.AwaitKernelsOp) -> None:
        self.line("await_kernels()")

    @print_statement.register
    def _(self, op: tile.ReturnUnlessOp) -> None:
        with self.block(f"if not {self.name(op.condition)}"):
            self.line("return")

    @print_statement.register
    def _(self, op: tile.ProgramIdOp) -> None:
        self.assign(op.result, self.call("program_id", op.axis.value.data))

    @print_statement.register
    def _(self, op: tile.IotaOp) -> None:
        (size,) = shape_of(op.result.type)
        steps = self.call("arange", 0, size, *self.layout_args(op.result.type))
        self.assign(op.result, f"{self.name(op.start)} + {steps}")

    @print_statement.register
    def _(self, op: tile.FullOp) -> None:
        type_ = op.result.type
        assert isinstance(type_, TileType)
        self.assign(op.result, self.full(type_, self.name(op.value)))

    def full(self, type_: TileType, value: str) -> str:
        """Return a tile whose elements all are `value`."""
        shape, dtype = list(type_.get_shape()), self.language.dtype(type_.element_type)
        return self.call("full", shape, value, dtype, *self.layout_args(type_))

    @print_statement.register
    def _(self, op: tile.GatherOp) -> None:
        place = " + ".join(self.args(op.tensor, op.base, op.offsets))
        # Triton casts no integer to floats of 8 bits.
        is_float = isinstance(tile.element_of(op.result.type), EIGHT_BITS)
        other = "other=0.0" if is_float else "other=0"
        mask = () if op.mask is None else (f"mask={self.name(op.mask)}", other)
        self.assign(op.result, self.call("load", place, *mask))

    @print_statement.register
    def _(self, op: tile.ScatterOp) -> None:
        place = " + ".join(self.args(op.memref, op.base, op.offsets))
        mask = () if op.mask is None else (f"mask={self.name(op.mask)}",)
        self.line(self.call("store", place, self.name(op.value), *mask))

    @print_statement.register
    def _(self, op: tile.ScatterAddOp) -> None:
        place = " + ".join(self.args(op.memref, op.base, op.offsets))
        mask = () if op.mask is None else (f"mask={self.name(op.mask)}",)
        args = place, self.name(op.value), *mask
        if (name := self.support_name(op)) is not None:
            self.line(f"{name}({', '.join(args)})")
        else:
            self.line(self.call("atomic_add", *args, 'sem="relaxed"'))

    @print_statement.register
    def _(self, op: tile.ReduceOp) -> None:
        if op.count is not None:
            refuse(op, f"tiles of {self.language.name} have no count")
        dim = op.dim.value.data
        self.assign(op.result, self.call(op.kind.data.value, self.name(op.input), dim))

    @print_statement.register
    def _(self, op: tile.ScanOp) -> None:
        self.assign(op.result, self.call("cumsum", self.name(op.input), 1))

    def print_map(self, op: tile.MapOp) -> None:
        block, shape = op.body.block, list(op.shape)
        for i, (arg, value) in enumerate(zip(block.args, op.inputs, strict=True)):
            if op.span(i) == (1, 0):
                refuse(op, f"the {self.language.name} backend transposes no operand")
            broadcast = BROADCASTS.get(op.span(i), "") if len(shape) == 2 else ""
            self.bind(arg, self.name(value) + broadcast)
        last = block.last_op
        assert isinstance(last, flex.YieldOp)
        hints = dict(zip(last.values, op.results, strict=True))
        for inner in block.ops:
            if inner is last:
                continue
            if inner.results[0] in hints:
                inner.results[0].name_hint = hints[inner.results[0]].name_hint
            self.print_statement(inner)
        for result, value in zip(op.results, last.values, strict=True):
            self.print_map_result(op, result, value)

    def print_map_result(
        self, op: tile.MapOp, result: SSAValue, value: SSAValue
    ) -> None:
        """Bind a map's result, or assign it if it lacks the map's shape.

        A constant or an operand that the region only yields may have a smaller shape.
        """
        owner, shape = value.owner, list(op.shape)
        if isinstance(owner, arith.ConstantOp):
            extra = self.layout_args(result.type)
            text = self.language.typed_literal(owner.value, shape, *extra)
            self.assign(result, text)
        elif isinstance(value, BlockArgument) and len(op.span(value.index)) < len(
            shape
        ):
            self.assign(result, self.spread(self.name(value), result.type))
        else:
            self.bind(result, self.name(value))

    def spread(self, value: str, type_: Attribute) -> str:
        """Return a value of lower rank, spelled with its broadcast, as a tile."""
        return self.call("broadcast_to", value, list(shape_of(type_)))

    def initial(self, value: SSAValue) -> str:
        """Return a variable's initial text; a literal alone would be i32 or f32."""
        owner = value.owner
        if isinstance(owner, arith.ConstantOp) and value.type not in (i32, f32):
            return self.language.typed_literal(owner.value, [])
        return self.name(value)
