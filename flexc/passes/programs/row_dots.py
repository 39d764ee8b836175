"""Dot products of rows: a program owns some rows of one head."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, TensorType
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex, tile
from flexc.dialects.tile import ParamAttr, ParamKind, ReduceKind, TileType
from flexc.passes.map_builder import FULL, ROW, build_map
from flexc.passes.programs.builder import aligned, entry_block, rows_grid
from flexc.passes.scalar_code import ScalarCode
from flexc.passes.tile_sizes import padded_head_dim

BLOCK = 64
"""Rows of a program: memory is all that counts here."""


class RowDotsProgram:
    """Builds the kernel of one `flex.row_dots`."""

    def __init__(self, op: flex.RowDotsOp, name: str, target: str):
        self.op = op
        self.name = name
        self.target = target
        self.block = entry_block(op)
        values = [*op.operands, *op.results]
        self.args = dict(zip(values, self.block.args, strict=True))
        self.code = ScalarCode(self.block)

    def build(self) -> tile.KernelOp:
        code, op = self.code, self.op
        axes = [code.insert(tile.ProgramIdOp(i)) for i in (2, 1, 0)]
        start = [*axes[:2], code.mul(axes[2], code.const(BLOCK), "start")]
        assert isa(op.result.type, TensorType[AnyFloat])
        element = op.result.type.element_type
        total = None
        for lhs, rhs in zip(op.lhs, op.rhs, strict=True):
            product = self.product(
                self.load(lhs, start), self.load(rhs, start), element
            )
            total = product if total is None else self.combine(total, product, FULL)
        assert total is not None
        dots = code.insert(tile.ReduceOp(ReduceKind.SUM, total, 1), "dots")
        for minus in op.minus:
            rows = TileType(element, [BLOCK])
            load = tile.LoadOp(self.args[minus], start, [0], rows)
            dots = self.combine(dots, code.insert(load, minus.name_hint), ROW)
        code.builder.insert(tile.StoreOp(dots, self.args[op.result], start, [0]))
        code.builder.insert(tile.ReturnOp())
        params = [ParamAttr(ParamKind.ARGUMENT, i) for i in range(len(self.block.args))]
        attributes = {
            name: attr
            for name, attr in op.properties.items()
            if name in ("alignment", "max_length")
        }
        attributes |= aligned(op, [*op.lhs, *op.rhs])
        return tile.KernelOp(
            self.name, rows_grid(BLOCK), params, Region(self.block), attributes
        )

    def load(self, tensor: SSAValue, start: Sequence[SSAValue]) -> SSAValue:
        assert isa(tensor.type, TensorType[Attribute])
        dim = tensor.type.get_shape()[3]
        padded = padded_head_dim(self.target, dim)
        type_ = TileType(tensor.type.element_type, [BLOCK, padded])
        checked = [0] if padded == dim else [0, 1]
        load = tile.LoadOp(
            self.args[tensor], [*start, self.code.const(0)], checked, type_
        )
        return self.code.insert(load, tensor.name_hint)

    def product(self, lhs: SSAValue, rhs: SSAValue, element: AnyFloat) -> SSAValue:
        def body(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
            a, b = (
                v if v.type == element else code.insert(arith.ExtFOp(v, element))
                for v in (a, b)
            )
            return code.insert(arith.MulfOp(a, b))

        shape = tile.shape_of(lhs.type)
        return build_map(self.code, shape, [(lhs, FULL), (rhs, FULL)], body, "product")

    def combine(self, a: SSAValue, b: SSAValue, span: Sequence[int]) -> SSAValue:
        """a + b of full tiles, a - b of rows."""
        kind = arith.AddfOp if len(span) > 1 else arith.SubfOp

        def body(code: ScalarCode, x: SSAValue, y: SSAValue) -> SSAValue:
            return code.insert(kind(x, y))

        shape = tile.shape_of(a.type)
        return build_map(self.code, shape, [(a, span), (b, span)], body, "total")
