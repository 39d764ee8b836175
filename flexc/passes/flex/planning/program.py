"""What the kernels of a plan share: their arguments, maps and places.

All kernels of a plan are called with the same arguments, of which each takes what
it needs: the mask's captures, `NUMBERS`, then `classes`, `flags` and the summaries.
The grid is (n, heads, batches), and n is the runtime's to say: so one kernel serves
all lengths and sizes of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    ArrayAttr,
    IntAttr,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    StringAttr,
    TensorType,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from flexc.dialects import tile
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.dialects.tile import ParamAttr, ParamKind
from flexc.passes.scalar.describe import describe
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region
from flexc.passes.tile.map_builder import (
    UNIFORM,
    Input,
    build_maps,
)

NUMBERS = (
    "q_len",
    "kv_len",
    "q_block",
    "kv_block",
    "first_row",
    "q_whole",
    "kv_whole",
)
"""i32 arguments: `first_row` is the first block of rows that is planned; only the
first `q_whole` blocks of rows and `kv_whole` of columns may be full."""

DEAD, PARTIAL, FULL, UNKNOWN = range(4)
"""The classes of blocks."""

TILE_ROWS, TILE_COLUMNS = 8, 128
"""Blocks that one program classifies; it raises one flag for each of its rows."""

Scalars = Mapping[str, SSAValue]
Body = Callable[[ScalarCode, Scalars, Sequence[SSAValue]], Sequence[SSAValue]]
"""Writes a map's region, given its named scalars and the captures."""


@dataclass(frozen=True)
class SummaryTensor:
    """One output of `summarize`, as the other kernels read it."""

    name: str
    element: Attribute


class Program:
    """Builds one kernel of a plan, from its entry block on."""

    def __init__(self, name: str, mask: Region):
        self.name = name
        self.mask = mask
        self.block = Block()
        self.code = ScalarCode(self.block)
        self.params: list[ParamAttr] = []
        self.captures = [
            self.argument(i, arg.type, arg.name_hint or "capture")
            for i, arg in enumerate(mask.block.args[len(INDEX_ARGS) :])
        ]
        first = len(self.captures)
        self.uniform: dict[str, SSAValue] = {
            number: self.argument(first + i, i32, number)
            for i, number in enumerate(NUMBERS)
        }
        self.program = self.code.insert(tile.ProgramIdOp(0), "program")
        self.h = self.uniform["h"] = self.code.insert(tile.ProgramIdOp(1), "h")
        self.b = self.uniform["b"] = self.code.insert(tile.ProgramIdOp(2), "b")

    @property
    def first_tensor(self) -> int:
        """Where `classes` stands among the arguments."""
        return len(self.captures) + len(NUMBERS)

    def argument(self, source: int, type_: Attribute, name: str) -> SSAValue:
        arg = self.block.insert_arg(type_, len(self.block.args))
        arg.name_hint = name
        self.params.append(ParamAttr(ParamKind.ARGUMENT, source))
        return arg

    def classes(self, written: bool) -> SSAValue:
        """(batches, heads, rows, columns): the class of every block."""
        return self._tensor(0, 4, i8, "classes", written)

    def flags(self, written: bool) -> SSAValue:
        """(batches, heads, tiles of columns, rows): which have unknown blocks."""
        return self._tensor(1, 4, i32, "flags", written)

    def summary(self, index: int, what: SummaryTensor, written: bool) -> SSAValue:
        """(batches, heads, blocks)."""
        return self._tensor(2 + index, 3, what.element, what.name, written)

    def _tensor(
        self, index: int, rank: int, element: Attribute, name: str, written: bool
    ) -> SSAValue:
        strides = ArrayAttr([*[NoneAttr()] * (rank - 1), IntAttr(1)])
        shape = [DYNAMIC_INDEX] * rank
        layout = StridedLayoutAttr(strides)
        if written:
            layout = StridedLayoutAttr(strides, 0)
            type_: Attribute = MemRefType(element, shape, layout)
        else:
            type_ = TensorType(element, shape, layout)
        name = f"{name}_out" if written else name
        return self.argument(self.first_tensor + index, type_, name)

    def blocks(self, axis: str) -> SSAValue:
        """How many blocks of rows ("q") or columns ("kv") there are."""
        code, size = self.code, self.uniform[f"{axis}_block"]
        padded = code.add(self.uniform[f"{axis}_len"], code.sub(size, code.const(1)))
        return code.div(padded, size, f"{axis}_blocks")

    def map(
        self,
        shape: Sequence[int],
        varying: Mapping[str, Input],
        body: Body,
        names: Sequence[str],
    ) -> list[SSAValue]:
        """A map whose region sees `varying`, all uniform scalars and the captures."""
        inputs = dict(varying) | {n: (v, UNIFORM) for n, v in self.uniform.items()}
        captures: list[Input] = [(c, UNIFORM) for c in self.captures]

        def write(code: ScalarCode, *args: SSAValue) -> Sequence[SSAValue]:
            return body(
                code, dict(zip(inputs, args, strict=False)), args[len(inputs) :]
            )

        return build_maps(self.code, shape, [*inputs.values(), *captures], write, names)

    def finish(self) -> tile.KernelOp:
        self.code.builder.insert(tile.ReturnOp())
        b, h, n = (AffineExpr.dimension(i) for i in range(3))
        attributes: dict[str, Attribute] = {
            "mask": StringAttr(describe(self.mask)),
            "num_warps": IntegerAttr(4, i64),
            "num_stages": IntegerAttr(1, i64),
        }
        grid = AffineMapAttr(AffineMap(3, 0, (n, h, b)))
        return tile.KernelOp(
            self.name, grid, self.params, Region(self.block), attributes
        )


def mask_at(
    mask: Region,
    code: ScalarCode,
    at: Scalars,
    pair: tuple[SSAValue, SSAValue],
    captures: Sequence[SSAValue],
) -> SSAValue:
    """The mask's value at a pair (q_idx, kv_idx)."""
    (live,) = inline_region(mask, [at["b"], at["h"], *pair, *captures], code)
    return live
