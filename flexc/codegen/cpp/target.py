"""The `cpp` target, which prints kernels legalized for C++: one statement for each op.

A tile prints as the name of its buffer, which `tile-assign-buffers` assigned. So an op
that updates its operand's buffer prints as an update. Scalars print as constants.
Vectors are explicit, because GCC vectorizes few of these loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any, ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from flexc.codegen.cpp.map_printer import COMBINE, MapPlan, MapPrinter
from flexc.codegen.cpp.shared_templates import shared_templates, tile_registers
from flexc.codegen.cpp.spelling import buffer_type, memory_type, scalar_type
from flexc.codegen.target import SourceTarget
from flexc.dialects import flex, tile
from flexc.dialects.constants import int_constant
from flexc.dialects.tile import BUFFERS, BufferAttr, RegisterTileAttr, TileType
from flexc.dialects.tile.types import is_memory, is_tensor
from flexc.errors import refuse
from flexc.passes import pipelines
from flexc.passes.targets.target import LoweringOptions

# Words that emitted C++ cannot use as names of values.

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl
const constexpr continue decltype default delete do double else enum explicit export
extern false float for friend goto if inline int long mutable namespace new noexcept
not not_eq nullptr operator or or_eq private protected public register return short
signed sizeof static static_assert static_cast struct switch template this throw true
try typedef typeid typename union unsigned using virtual void volatile wchar_t while
xor xor_eq
"""

_SUPPORT = """
flexc FlushSubnormals TileRegisters half bfloat16 bfloat16x2 float8_e4m3 float8_e5m2
bool Vec Min Kept NearRows UpTo all add_product add_tile_product collect columns_at_once
convert each exchange fixed lanes live_range load_vector mask minus_one_if one_if
product read_if round_pairs select splat store_vector stream_dots stream_sums strided
tile_product tile_steps transposed_diagonals vectors_at_once int8_t int16_t int32_t
int64_t Buffer Max Sum inf_f32 inf_f64 nan_f32 nan_f64 absf absi acos acosh add_to asin
asinh atan atan2 atanh bits cbrt ceil ceildivsi ceildivui copy copysign cos cosh
diagonals divsi divui dot erf exp exp2 expm1 fill floor floordivsi fma fmod fptosi
fptoui iota load log log10 log1p log2 near_exp2 near_tanh max maximumf maxnumf
maxui min minimumf minnumf minui pack pow read reduce_columns reduce_rows remsi remui
round roundeven rsqrt scan_rows scatter shli shrsi shrui sin sinh sqrt store tan tanh
to_unsigned transpose trunc
"""

_KERNEL = "program grid_0 grid_1 grid_2 threads flush tiles row col at v visit second"

RESERVED = frozenset(f"{_KEYWORDS} {_SUPPORT} {_KERNEL}".split())
"""Keywords, names of the support headers that emitted code uses, and loop variables."""


_PROGRAM_ID = (
    "program % grid_0",
    "program / grid_0 % grid_1",
    "program / (grid_0 * grid_1)",
)
_REDUCE_ALONG = ("reduce_columns", "reduce_rows")


@dataclass(eq=False, repr=False)
class CppPrinter(MapPrinter):
    """A printer of one kernel."""

    _buffers: list[tuple[str, TileType]] = field(
        default_factory=list[tuple[str, TileType]], init=False
    )
    """The name of each buffer, and the type of its tile."""
    _copies: dict[SSAValue, str] = field(
        default_factory=dict[SSAValue, str], init=False
    )
    """The names of what holds copies of rows, by their tensors."""

    reserved: ClassVar[frozenset[str]] = RESERVED
    comment_marker: ClassVar[str] = "//"
    block_open: ClassVar[str] = " {"
    block_close: ClassVar[str] = "}"
    unnamed: ClassVar[str] = "x"

    def print_kernel(self, op: tile.KernelOp) -> str:
        self.print_header(op)
        entry = self.unique_name(op.sym_name.data)
        self.line(f"FLEXC_KERNEL void {entry}(")
        for arg in op.body.block.args:
            self.line(f"    {_param_type(arg.type)} {self.declare(arg)},")
        self.line(
            "    int64_t grid_0, int64_t grid_1, int64_t grid_2, int32_t threads)"
        )
        with self.block(""):
            self.line("#pragma omp parallel num_threads(threads)")
            with self.block(""):
                self.line("const FlushSubnormals flush;")
                if any(_uses_unit(inner) for inner in op.walk()):
                    self.line("const TileRegisters tiles;")
                self.print_buffers(op)
                self.line("#pragma omp for schedule(dynamic)")
                programs = "program < grid_0 * grid_1 * grid_2"
                with self.block(f"for (int64_t program = 0; {programs}; ++program)"):
                    self.print_block(op.body.block)
        return entry

    def print_header(self, op: tile.KernelOp) -> None:
        self.comment(f"flexc kernel {op.sym_name.data}, target cpp")
        for name, value in sorted(op.attributes.items()):
            if isinstance(value, StringAttr):
                self.comment(f"{name}: {value.data}")
        if (vector_bytes := op.number(tile.VECTOR_BYTES)) is not None:
            self.line(f"#define FLEXC_VECTOR_BYTES {vector_bytes}")
        self.line('#include "flexc_support.h"')
        self.line()
        self.line("using namespace flexc;")
        for template in shared_templates(op):
            self.line(f"extern template struct flexc::{template};")
        self.line()

    def print_buffers(self, op: tile.KernelOp) -> None:
        """Print the definitions of the buffers in which each thread keeps its tiles."""
        buffers = op.attributes.get(BUFFERS)
        if not isa(buffers, ArrayAttr[BufferAttr]):
            refuse(op, "expects buffers: run tile-assign-buffers first")
        for buffer in buffers:
            name = self.unique_name(buffer.label.data)
            self._buffers.append((name, buffer.tile))
            self.line(f"{buffer_type(buffer.tile)} {name};")
        for inner in op.walk():
            if not isinstance(inner, tile.CollectOp | tile.NearRowsOp):
                continue
            if inner.tensor not in self._copies:
                name = self.unique_name(f"{self.name(inner.tensor)}_copy")
                self._copies[inner.tensor] = name
                self.line(_copies_of_rows(inner, name))

    def print_block(self, block: Block) -> None:
        for op in block.ops:
            self.print_op(op)

    def bind_tiles(self, op: Operation) -> list[str]:
        """Bind the tiles that an op defines to their buffers' names; return these."""
        indices = op.attributes.get(BUFFERS)
        given = indices.get_values() if isinstance(indices, DenseArrayBase) else ()
        known = [self._buffers[i] for i in given if 0 <= i < len(self._buffers)]
        if [tile for _, tile in known] != list(op.result_types):
            refuse(op, "expects buffers of its results: run tile-assign-buffers first")
        for result, (label, _) in zip(op.results, known, strict=True):
            self.bind(result, label)
        return [label for label, _ in known]

    def call(self, function: str, *args: str) -> None:
        self.line(f"{function}({', '.join(args)});")

    @singledispatchmethod
    def print_op(self, op: Operation) -> None:
        if len(op.results) != 1:
            refuse(op, "the C++ target has no statement for it")
        self.print_number(op)

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
        """Bind carried tiles to their buffers, and define carried scalars."""
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
        """Assign all yielded scalars through temporaries, so that reads come first."""
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
        """Print nothing: the op around the region binds the yielded values."""

    @print_op.register
    def _(self, op: tile.ReturnOp) -> None:
        """Print nothing: a program ends where its text ends."""

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
        function = "copy" if op.moves is None else "exchange"
        self.call(function, *self.bind_tiles(op), self.name(op.input))

    @print_op.register
    def _(self, op: tile.TransposeOp) -> None:
        self.call("transpose", *self.bind_tiles(op), self.name(op.input))

    @print_op.register
    def _(self, op: tile.LoadStridedOp) -> None:
        source = f"{self.name(op.tensor)} + {self.name(op.base)}"
        where = self.names([*op.strides, *op.extents])
        self.call("load", *self.bind_tiles(op), source, *where)

    @print_op.register
    def _(self, op: tile.CollectOp) -> None:
        assert isa(op.rows.type, TensorType[Attribute])
        element = memory_type(op.rows.type.element_type)
        step, rows = self.declare(op.step), self.declare(op.rows)
        copy, columns = self._copies[op.tensor], op.rows.type.get_shape()[1]
        source = f"{self.name(op.tensor)} + {self.name(op.base)}"
        table = f"{self.name(op.table)} + {self.name(op.entries)}"
        where = self.names([*op.strides, op.num_pages, op.start, op.count])
        args = ", ".join([copy, step, source, table, *where])
        self.line(f"int64_t {step};")
        call = f"collect<{columns}, {op.page_size}>({args})"
        self.line(f"const {element}* const {rows} = {call};")

    @print_op.register
    def _(self, op: tile.NearRowsOp) -> None:
        assert isa(op.rows.type, TensorType[Attribute])
        element = memory_type(op.rows.type.element_type)
        step, rows = self.declare(op.step), self.declare(op.rows)
        source = f"{self.name(op.tensor)} + {self.name(op.head)}"
        where = self.names([op.start, op.stride, op.count])
        args = ", ".join([step, source, *where])
        self.line(f"int64_t {step};")
        call = f"{self._copies[op.tensor]}.find({args})"
        self.line(f"const {element}* const {rows} = {call};")

    @print_op.register
    def _(self, op: tile.StoreStridedOp) -> None:
        target = f"{self.name(op.memref)} + {self.name(op.base)}"
        where = self.names([*op.strides, *op.extents])
        self.call("store", target, self.name(op.value), *where)

    @print_op.register
    def _(self, op: tile.ScatterOp) -> None:
        target = f"{self.name(op.memref)} + {self.name(op.base)}"
        if op.mask is None:
            refuse(op, "the C++ target scatters under a mask only")
        where = self.names([op.offsets, op.mask])
        self.call("scatter", target, self.name(op.value), *where)

    @print_op.register
    def _(self, op: tile.AddStridedOp) -> None:
        target = f"{self.name(op.memref)} + {self.name(op.base)}"
        count = [] if op.count is None else [op.count]
        where = self.names([*op.strides, *count])
        self.call("add_to", target, self.name(op.value), *where)

    @print_op.register
    def _(self, op: tile.PackOp) -> None:
        count = [] if op.count is None else [self.name(op.count)]
        self.call("pack", *self.bind_tiles(op), self.name(op.input), *count)

    @print_op.register
    def _(self, op: tile.RegisterProductOp) -> None:
        """Print a product into the result's buffer, which is also the accumulator's."""
        rows, inner = tile.shape_of(op.result.type)[0], tile.shape_of(op.rhs.type)[0]
        lhs = [self.name(op.lhs)]
        if op.base is not None:
            places = [self.stride(s) for s in op.strides]
            lhs = [f"{self.name(op.lhs)} + {self.name(op.base)}", *places]
            lhs += [] if op.next is None else [self.name(op.next)]
        args = [
            *self.bind_tiles(op),
            f"strided({', '.join(lhs)})",
            self.name(op.rhs),
            f"fixed<{rows}>" if op.rows is None else self.name(op.rows),
            str(inner) if op.inner is None else self.name(op.inner),
        ]
        if op.beside is None:
            self.call(_product(op.register_tile, op.acc is not None), *args)
            return
        if not isinstance(op.next_op, tile.PanelMapOp):
            refuse(op, "expects a panel map to be beside")
        self.steps = self.unique_name("steps")
        call = f"tile_steps{_sizes(op.register_tile)}({', '.join(args)})"
        self.line(f"auto {self.steps} = {call};")

    @print_op.register
    def _(self, op: tile.AddRegisterProductOp) -> None:
        """Print a product that is added to memory, whose rows are a stride apart."""
        rows, inner = tile.shape_of(op.lhs.type)
        self.call(
            _product(op.register_tile, True),
            f"{self.name(op.memref)} + {self.name(op.base)}",
            self.name(op.stride),
            f"strided({self.name(op.lhs)})",
            self.name(op.rhs),
            f"fixed<{rows}>" if op.rows is None else self.name(op.rows),
            str(inner) if op.inner is None else self.name(op.inner),
        )

    @print_op.register
    def _(self, op: tile.StreamProductOp) -> None:
        """Print a product into the result's buffer, which is also the accumulator's."""
        block = op.register_tile
        sizes = (block.rows.data, block.vectors.data, op.ahead.value.data)
        function = "stream_sums" if op.transposed is None else "stream_dots"
        onto = [] if op.transposed else ["false" if op.acc is None else "true"]
        self.call(
            f"{function}<{', '.join(map(str, sizes))}>",
            *self.bind_tiles(op),
            self.name(op.lhs),
            f"{self.name(op.rhs)} + {self.name(op.base)}",
            self.name(op.stride),
            self.name(op.count),
            *onto,
        )

    def stride(self, value: SSAValue) -> str:
        """Return the text of a stride; a constant becomes part of a type."""
        number = int_constant(value)
        return self.name(value) if number is None else f"fixed<{number}>"

    @print_op.register
    def _(self, op: tile.ReduceOp) -> None:
        function = _REDUCE_ALONG[op.dim.value.data]
        kind = COMBINE[op.kind.data]
        count = [] if op.count is None else [self.name(op.count)]
        args = [*self.bind_tiles(op), self.name(op.input), *count]
        self.call(f"{function}<{kind}>", *args)

    @print_op.register
    def _(self, op: tile.ScanOp) -> None:
        self.call("scan_rows", *self.bind_tiles(op), self.name(op.input))

    @print_op.register
    def _(self, op: tile.LiveRangeOp) -> None:
        first, length = (self.declare(r) for r in op.results)
        operands = self.names([op.flags, *([op.count] if op.count else [])])
        self.line(f"int32_t {first}, {length};")
        self.call("live_range", first, length, *operands)

    @print_op.register
    def _(self, op: tile.DiagonalsOp) -> None:
        function = "transposed_diagonals" if op.is_transposed else "diagonals"
        count = [] if op.count is None else [self.name(op.count)]
        self.call(function, *self.bind_tiles(op), self.name(op.input), *count)

    @print_op.register
    def _(self, op: tile.MapOp) -> None:
        if not op.shape:
            self.print_scalar_map(op)
            return
        rows = str(op.shape[0]) if len(op.shape) > 1 else None
        plan = MapPlan(op, rows, (None,) * len(op.results))
        self.print_tile_map(plan, self.bind_tiles(op))

    @print_op.register
    def _(self, op: tile.PanelMapOp) -> None:
        rows = str(op.shape[0]) if op.count is None else self.name(op.count)
        outcomes = tuple(op.outcome(i) for i in range(len(op.results)))
        self.print_tile_map(MapPlan(op, rows, outcomes), self.bind_tiles(op))


def _copies_of_rows(op: tile.CollectOp | tile.NearRowsOp, name: str) -> str:
    """Return the definition of what holds copies of a tensor's rows."""
    assert isa(op.rows.type, TensorType[Attribute])
    element = memory_type(op.rows.type.element_type)
    rows, columns = op.rows.type.get_shape()
    if isinstance(op, tile.NearRowsOp):
        later = f"grid_0 >= {op.REPEATING_PROGRAMS} * threads"
        again = "true" if op.repeated is not None else later
        return f"NearRows<{element}, {columns}> {name}({again});"
    return f"alignas(64) {element} {name}[{rows * columns}];"


def _uses_unit(op: Operation) -> bool:
    if not isinstance(op, tile.RegisterProductOp | tile.AddRegisterProductOp):
        return False
    return op.register_tile.is_of_unit


def _product(block: RegisterTileAttr, adds: bool) -> str:
    """Return the function that computes a product."""
    name = "tile_product" if block.is_of_unit else "product"
    return f"{'add_' if adds else ''}{name}{_sizes(block)}"


def _sizes(block: RegisterTileAttr) -> str:
    """Return the template arguments for a block of registers."""
    rows = tile_registers(block) if block.is_of_unit else block.rows.data
    return f"<{rows}, {block.vectors.data}>"


def _plain(attr: Attribute) -> str:
    """Return the text of an attribute for a comment."""
    return str(getattr(attr, "data", attr))


def _param_type(type_: Attribute) -> str:
    if is_tensor(type_):
        return f"const {memory_type(type_.element_type)}*"
    if is_memory(type_):
        return f"{memory_type(type_.element_type)}*"
    return f"const {scalar_type(type_)}"


@dataclass(frozen=True)
class CppSourceTarget(SourceTarget):
    """A target that prints each kernel of a module as a C++ source file."""

    name = "cpp"
    printer = CppPrinter

    def passes(self, options: LoweringOptions) -> tuple[ModulePass, ...]:
        return pipelines.to_cpp(options.machine)

    def launch_options(self, kernel: tile.KernelOp) -> dict[str, Any]:
        return {"shared": shared_templates(kernel)}

    @property
    def separator(self) -> str:
        return "\n"
