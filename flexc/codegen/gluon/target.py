"""The `gluon` target, which prints kernels in Gluon: one statement for each op.

Each role becomes a function. Its arguments are the numbers, tensors, slots and barriers
from before the roles that it uses. The kernel starts the functions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import singledispatchmethod
from io import StringIO
from struct import pack, unpack
from typing import Any, ClassVar

from xdsl.dialects import arith
from xdsl.dialects.scf import ForOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from flexc.codegen.target import SourceTarget
from flexc.codegen.triton.scalar_rules import GLUON, Language
from flexc.codegen.triton.tile_printer import TilePrinter
from flexc.dialects import tile
from flexc.dialects.tile import (
    AlongAttr,
    OperandAttr,
    ProductAttr,
    ThreadLayoutAttr,
    schedule,
)
from flexc.dialects.tile.schedule import PendingType, shared_bytes, tile_bytes
from flexc.passes import pipelines
from flexc.passes.targets.target import LoweringOptions

SUPPORT = "flexc.codegen.gluon.support"
NAN_OPS = arith.MaximumfOp | arith.MinimumfOp
"""Ops that print with Triton's enumeration `PropagateNan`."""

HOPPER = "triton.experimental.gluon.language.nvidia.hopper"
HOPPER_NAMES = (
    "fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait"
)  # fmt: skip

LARGEST_PRODUCT = 256
"""The number of columns of the largest product that one instruction computes."""


def layout_name(layout: ThreadLayoutAttr) -> str:
    """Return the name of the constant that holds a layout."""
    if isinstance(layout, ProductAttr):
        return f"PRODUCT_{layout.columns.data}"
    if isinstance(layout, OperandAttr):
        return f"OPERAND_{layout.parent.columns.data}"
    what = "COLUMNS" if layout.dim.data else "ROWS"
    return f"{what}_{layout.parent.columns.data}"


def layout_call(layout: ThreadLayoutAttr, warps: int) -> tuple[str, list[str]]:
    """Return the function that makes a layout, and its arguments."""
    if isinstance(layout, ProductAttr):
        columns = min(layout.columns.data, LARGEST_PRODUCT)
        shape = f"instr_shape=[16, {columns}, 16]"
        args = ["version=[3, 0]", f"warps_per_cta=[{warps}, 1]", shape]
        return "gl.NVMMADistributedLayout", args
    parent = layout_name(layout.parent)
    if isinstance(layout, AlongAttr):
        return "gl.SliceLayout", [str(1 - layout.dim.data), parent]
    return "gl.DotOperandLayout", ["operand_index=0", f"parent={parent}", "k_width=2"]


def layouts_of(block: Block) -> list[ThreadLayoutAttr]:
    """Return the layouts of a block's tiles, each after its parent layout."""
    used = {layout for layout in _layouts_within(block)}
    parents = {x if isinstance(x, ProductAttr) else x.parent for x in used}
    others = used - parents
    return [*sorted(parents, key=_order), *sorted(others, key=_order)]


def _order(layout: ThreadLayoutAttr) -> tuple[int, str]:
    product = layout if isinstance(layout, ProductAttr) else layout.parent
    return product.columns.data, layout_name(layout)


def _layouts_within(block: Block) -> Iterator[ThreadLayoutAttr]:
    for op in block.walk():
        args = (a for r in op.regions for b in r.blocks for a in b.args)
        for value in (*op.results, *args):
            layout = layout_of(value.type)
            if layout is not None:
                yield layout


def layout_of(type_: Attribute) -> ThreadLayoutAttr | None:
    """Return the layout of a tile or of a pending product's tile, or None."""
    if isinstance(type_, PendingType):
        type_ = type_.tile
    if not isinstance(type_, tile.TileType):
        return None
    layout = type_.get_layout()
    return layout if isa(layout, ThreadLayoutAttr) else None


GLUON_WORDS = (
    "add_out add_pairs await_progress await_writes barriers copy_in copy_out "
    "fence_async_shared gl gluon keep_columns mbarrier pack_pairs partial_sums "
    "pass_turn read_diagonals report_progress take_turn tile_of tma unpack_pairs "
    "vector_of warpgroup_mma warpgroup_mma_wait widen"
)

COPIES = schedule.CopyInOp | schedule.CopyOutOp


def copied_rank(slots: SSAValue) -> int:
    """Return the rank of the tensors that copies to and from slots read and write.

    Return the rank of the tile if there are no such copies.
    """
    assert isinstance(slots.type, schedule.SharedType)
    ranks = {len(slots.type.tile.get_shape())}
    for use in slots.uses:
        for user in use.operation.results[0].uses:
            if isinstance(user.operation, COPIES):
                ranks.add(len(user.operation.indices))
    return max(ranks)


@dataclass(eq=False, repr=False)
class GluonPrinter(TilePrinter):
    """A printer of a Gluon kernel and its roles."""

    reserved: ClassVar[frozenset[str]] = TilePrinter.reserved | set(GLUON_WORDS.split())
    language: ClassVar[Language] = GLUON
    decorator: ClassVar[str] = "gluon.jit"
    support: ClassVar[dict[type[Operation], str]] = {
        **TilePrinter.support,
        schedule.BarriersOp: "barriers",
        schedule.CopyInOp: "copy_in",
        schedule.CopyOutOp: "copy_out",
        schedule.OpaqueOp: "opaque",
        schedule.PassTurnOp: "pass_turn",
        schedule.SlotOp: "tile_of",
        schedule.ReadViewOp: "vector_of",
        schedule.TakeTurnOp: "take_turn",
        tile.AwaitProgressOp: "await_progress",
        tile.ReportProgressOp: "report_progress",
        tile.KeepColumnsOp: "keep_columns",
        tile.PackPairsOp: "pack_pairs",
        tile.PartialSumsOp: "partial_sums",
        tile.UnpackPairsOp: "unpack_pairs",
        tile.WidenOp: "widen",
        tile.ReadDiagonalsOp: "read_diagonals",
    }
    add_atomically: ClassVar[str | None] = "add_pairs"
    unnamed: ClassVar[str] = "x"

    _roles: list[str] = field(default_factory=list[str], init=False)
    _entry: str = field(default="", init=False)

    def layout_args(self, type_: Attribute) -> tuple[str, ...]:
        layout = layout_of(type_)
        return () if layout is None else (layout_name(layout),)

    def loop_range(self, op: ForOp) -> str:
        bounds = self.args(op.lb, op.ub)
        step = self.name(op.step)
        return f"range({', '.join(bounds if step == '1' else [*bounds, step])})"

    def spread(self, value: str, type_: Attribute) -> str:
        """Return `value` broadcast by `where`: Gluon broadcasts in arithmetic only."""
        assert isinstance(type_, tile.TileType)
        everywhere = self.call(
            "full", list(type_.get_shape()), "True", "gl.int1", *self.layout_args(type_)
        )
        return self.call("where", everywhere, value, value)

    def header(self, kernel: tile.KernelOp) -> list[str]:
        """Add lines about the roles, the shared memory and the residents."""
        lines = super().header(kernel)
        lines += [
            f"role {role.label.data}: {role.copies.value.data} x "
            f"{role.warps.value.data} warps, {role.registers.value.data} registers"
            for role in roles_of(kernel)
        ]
        lines.append(f"shared memory: {shared_bytes(kernel)} bytes")
        if residents := kernel.number("residents"):
            lines.append(f"programs on a multiprocessor: {residents}")
        return lines

    def print_imports(self, kernel: tile.KernelOp) -> None:
        self.line("import triton.experimental.gluon.language as gl")
        if any(isinstance(op, NAN_OPS) for op in kernel.walk()):
            self.line("import triton.language as tl")
        self.line("from triton.experimental import gluon")
        self.print_wrapped(f"from {HOPPER} import (", HOPPER_NAMES, ")")
        if names := self.support_names(kernel):
            self.line()
            self.print_wrapped(f"from {SUPPORT} import (", names, ")")

    def support_name(self, op: Operation) -> str | None:
        if isinstance(op, schedule.CopyOutOp) and op.adds is not None:
            return "add_out"
        if isinstance(op, schedule.AwaitCopiesOp) and op.written is not None:
            return "await_writes"
        return super().support_name(op)

    def print_entry(self, kernel: tile.KernelOp) -> str:
        self._entry = kernel.sym_name.data
        with self.aside() as text:
            entry = super().print_entry(kernel)
        for part in (*self._roles, text.getvalue()):
            self.print_string(part, indent=0)
        return entry

    @contextmanager
    def aside(self) -> Generator[StringIO]:
        """Redirect printing to a separate text without indentation."""
        outer, indent = self.stream, self._indent
        self.stream, self._indent = StringIO(), 0
        yield self.stream
        self.stream, self._indent = outer, indent

    def print_prelude(self, body: Block) -> None:
        """Print the layout constants that a function's statements use."""
        role = body.parent_op()
        if not isinstance(role, schedule.RoleOp):
            return
        for layout in layouts_of(body):
            function, args = layout_call(layout, role.warps.value.data)
            name = layout_name(layout)
            self.print_call(f"{name}: gl.constexpr = {function}", args)

    def assign_call(self, value: SSAValue, function: str, args: list[str]) -> None:
        self.print_call(f"{self.declare(value)} = {function}", args)

    def print_call(self, opening: str, args: list[str]) -> None:
        """Print a call in one line, or in several lines if one would be too long."""
        text = f"{opening}({', '.join(args)})"
        if len(text) + self._indent * self.indent_num_spaces <= 88:
            self.line(text)
        else:
            self.print_wrapped(f"{opening}(", args, ")")

    def print_role(self, role: schedule.RoleOp) -> tuple[str, list[str]]:
        """Print a role's function aside; return its name and its arguments."""
        name = self.unique_name(f"{self._entry}_{role.label.data}")
        captures = (
            v for v in role.captures if not isinstance(v.owner, arith.ConstantOp)
        )
        given = list(dict.fromkeys(map(self.name, captures)))
        used, self._used = self._used, set(given)
        (part,) = role.body.block.args
        first = [f"{self.declare(part)}: gl.constexpr"] if role.is_numbered else []
        with self.aside() as text:
            self.line(f"@{self.decorator}")
            self.print_function(name, [*first, *given], role.body.block)
            self.line()
            self.line()
        self._roles.append(text.getvalue())
        self._used = used
        return name, given

    @singledispatchmethod
    def print_statement(self, op: Operation) -> None:
        """Print a statement that Gluon and Triton share."""
        super().print_statement(op)

    @print_statement.register
    def _(self, op: tile.ConvertLayoutOp) -> None:
        layout = self.layout_args(op.result.type)
        self.assign(
            op.result, self.call("convert_layout", self.name(op.input), *layout)
        )

    @print_statement.register
    def _(self, op: tile.ReadDiagonalsOp) -> None:
        counts = ("None" if v is None else self.name(v) for v in (op.rows, op.columns))
        args = [*self.args(op.tensor, op.first), *counts, str(op.step.value.data)]
        args += self.layout_args(op.result.type)
        self.assign_call(op.result, "read_diagonals", args)

    @print_statement.register
    def _(self, op: schedule.RolesOp) -> None:
        roles = [r for r in op.body.block.ops if isinstance(r, schedule.RoleOp)]
        calls: list[tuple[str, list[str]]] = []
        for role in roles:
            name, given = self.print_role(role)
            for part in range(role.copies.value.data):
                first = [str(part)] if role.is_numbered else []
                calls.append((name, first + given))
        groups = [role for role in roles for _ in range(role.copies.value.data)]
        warps = [role.warps.value.data for role in groups[1:]]
        registers = [role.registers.value.data for role in groups[1:]]
        self.line("gl.warp_specialize(")
        self._indent += 1
        self.line("[")
        self._indent += 1
        for name, args in calls:
            closing = ",))," if len(args) == 1 else ")),"
            self.print_wrapped(f"({name}, (", args, closing)
        self._indent -= 1
        self.line("],")
        self.line(f"{warps},")
        self.line(f"{registers},")
        self._indent -= 1
        self.line(")")

    @print_statement.register
    def _(self, op: schedule.TakeTurnOp) -> None:
        self.line(f"take_turn({self.name(op.part)})")

    @print_statement.register
    def _(self, op: schedule.PassTurnOp) -> None:
        self.line(f"pass_turn({self.name(op.part)}, {op.copies})")

    @print_statement.register
    def _(self, op: schedule.EndOp) -> None:
        if op.prev_op is None:
            self.line("pass")

    @print_statement.register
    def _(self, op: schedule.SharedOp) -> None:
        type_ = op.result.type
        assert isinstance(type_, schedule.SharedType)
        box = list(type_.tile.get_shape())
        box = [1] * (copied_rank(op.result) - len(box)) + box
        dtype = self.language.dtype(type_.tile.element_type)
        layout = self.call("NVMMASharedLayout.get_default_for", box, dtype)
        if len(type_.tile.get_shape()) == 1:
            bits = 8 * tile_bytes(type_.tile) // box[-1]
            layout = self.call("NVMMASharedLayout", "0", str(bits), f"rank={len(box)}")
        args = [dtype, str([type_.slots.data, *box]), layout]
        self.assign_call(op.result, "gl.allocate_shared_memory", args)

    @print_statement.register
    def _(self, op: schedule.BarriersOp) -> None:
        type_ = op.result.type
        assert isinstance(type_, schedule.BarriersType)
        arrivals = type_.arrivals.data * op.arrivals_of_role
        self.assign(op.result, f"barriers({type_.count.data}, {arrivals})")

    @print_statement.register
    def _(self, op: schedule.OpaqueOp) -> None:
        self.assign(op.result, f"opaque({self.name(op.index)})")

    @print_statement.register
    def _(self, op: schedule.SlotOp) -> None:
        self.assign(op.result, self.at(op.shared, op.index))

    def at(self, row: SSAValue, index: SSAValue) -> str:
        """Return the expression of one slot or barrier."""
        return f"{self.name(row)}.index({self.name(index)})"

    def view(self, value: SSAValue) -> str:
        """Return the expression of a tile in shared memory for products and stores."""
        name = self.name(value)
        return f"tile_of({name})" if isinstance(value.owner, schedule.SlotOp) else name

    @print_statement.register
    def _(self, op: tile.KeepColumnsOp) -> None:
        (bits,) = unpack(">I", pack(">f", op.other.value.data))
        args = [*self.args(*op.operands), f'"0f{bits:08X}"']
        args += self.layout_args(op.result.type)
        self.assign_call(op.result, "keep_columns", args)

    @print_statement.register
    def _(self, op: tile.PartialSumsOp) -> None:
        args = self.name(op.input), *self.layout_args(op.result.type)
        self.assign(op.result, f"partial_sums({', '.join(args)})")

    @print_statement.register
    def _(self, op: tile.PackPairsOp) -> None:
        self.assign(op.result, f"pack_pairs({self.name(op.input)})")

    @print_statement.register
    def _(self, op: tile.UnpackPairsOp) -> None:
        dtype = self.language.dtype(tile.element_of(op.result.type))
        args = self.name(op.input), dtype, *self.layout_args(op.result.type)
        self.assign(op.result, f"unpack_pairs({', '.join(args)})")

    @print_statement.register
    def _(self, op: schedule.ReadViewOp) -> None:
        layout = self.layout_args(op.result.type)
        self.assign(
            op.result, f"vector_of({self.name(op.view)}).load({', '.join(layout)})"
        )

    @print_statement.register
    def _(self, op: schedule.TransposeViewOp) -> None:
        self.assign(op.result, f"{self.view(op.view)}.permute([1, 0])")

    @print_statement.register
    def _(self, op: schedule.TakeColumnsOp) -> None:
        _, columns = schedule.tile_of(op.result.type).get_shape()
        start = f"{self.name(op.number)} * {columns}"
        self.assign(op.result, f"{self.view(op.source)}.slice({start}, {columns}, 1)")

    @print_statement.register
    def _(self, op: schedule.CopyInOp) -> None:
        barrier, view = self.at(op.barriers, op.index), self.name(op.view)
        place = f"[{', '.join(self.args(*op.indices))}]"
        self.line(f"copy_in({self.name(op.tensor)}, {place}, {barrier}, {view})")

    @print_statement.register
    def _(self, op: schedule.CopyOutOp) -> None:
        place = f"[{', '.join(self.args(*op.indices))}]"
        function = self.support_name(op)
        self.line(f"{function}({self.name(op.memref)}, {place}, {self.name(op.view)})")

    @print_statement.register
    def _(self, op: schedule.AwaitCopiesOp) -> None:
        outstanding = op.outstanding.value.data
        if op.written is not None:
            self.line(f"await_writes({outstanding})")
        else:
            self.line(f"tma.store_wait({outstanding})")

    @print_statement.register
    def _(self, op: tile.AwaitProgressOp) -> None:
        self.assign_call(op.seen, "await_progress", self.args(*op.operands))

    @print_statement.register
    def _(self, op: tile.ReportProgressOp) -> None:
        self.line(f"report_progress({', '.join(self.args(*op.operands))})")

    @print_statement.register
    def _(self, op: schedule.WriteViewOp) -> None:
        self.line(f"{self.view(op.view)}.store({self.name(op.value)})")

    @print_statement.register
    def _(self, op: schedule.FenceCopiesOp) -> None:
        self.line("fence_async_shared()")

    @print_statement.register
    def _(self, op: schedule.ExpectOp) -> None:
        barrier = self.at(op.barriers, op.index)
        self.line(f"mbarrier.expect({barrier}, {op.bytes.value.data})")

    @print_statement.register
    def _(self, op: schedule.ArriveOp) -> None:
        assert isinstance(op.barriers.owner, schedule.BarriersOp)
        arrivals = op.barriers.owner.arrivals_of_role
        count = "" if arrivals == 1 else f", count={arrivals}"
        self.line(f"mbarrier.arrive({self.at(op.barriers, op.index)}{count})")

    @print_statement.register
    def _(self, op: schedule.AwaitOp) -> None:
        barrier = self.at(op.barriers, op.index)
        self.line(f"mbarrier.wait({barrier}, {self.name(op.parity)})")

    @print_statement.register
    def _(self, op: schedule.IssueDotOp) -> None:
        type_ = op.result.type
        assert isinstance(type_, schedule.PendingType)
        args = [self.view(op.lhs), self.view(op.rhs)]
        if op.acc is None:
            args += [self.full(type_.tile, "0.0"), "use_acc=False"]
        else:
            args.append(self.name(op.acc))
        self.assign_call(op.result, "warpgroup_mma", [*args, "is_async=True"])

    @print_statement.register
    def _(self, op: schedule.AwaitDotOp) -> None:
        wait = f"{op.outstanding.value.data}, [{self.name(op.pending)}]"
        self.assign(op.result, f"warpgroup_mma_wait({wait})")


def roles_of(kernel: tile.KernelOp) -> list[schedule.RoleOp]:
    return [op for op in kernel.walk() if isinstance(op, schedule.RoleOp)]


@dataclass(frozen=True)
class GluonSourceTarget(SourceTarget):
    """A target that prints each kernel of a module as Gluon source."""

    name = "gluon"
    printer = GluonPrinter

    def passes(self, options: LoweringOptions) -> tuple[ModulePass, ...]:
        return pipelines.to_gluon(options)

    def launch_options(self, kernel: tile.KernelOp) -> dict[str, Any]:
        roles = roles_of(kernel)
        return {
            "num_warps": roles[0].warps.value.data if roles else None,
            "max_registers": kernel.number("max_registers"),
        }
