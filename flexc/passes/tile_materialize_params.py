"""`tile-materialize-params`: make sizes and strides arguments of the kernel.

Every `tile.dim` and `tile.stride` becomes a constant, where the type says it,
or an argument with a `#tile.param` that tells the runtime what to pass. Equal
queries share an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, IntegerType, ModuleOp
from xdsl.ir import BlockArgument, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from flexc.dialects import tile
from flexc.dialects.tile import ParamAttr, ParamKind
from flexc.passes.scalar_code import ScalarCode
from flexc.passes.tile_shapes import static_dim, static_stride


def materialize(kernel: tile.KernelOp) -> None:
    """Replace a kernel's shape queries by arguments."""
    block = kernel.body.block
    known: dict[tuple[ParamAttr, IntegerType], SSAValue] = {}
    for op in list(kernel.walk()):
        if not isinstance(op, tile.DimOp | tile.StrideOp):
            continue
        dim = op.dim.value.data
        type_ = op.result.type
        assert isinstance(type_, IntegerType)
        is_dim = isinstance(op, tile.DimOp)
        static = (static_dim if is_dim else static_stride)(op.tensor.type, dim)
        if static is not None:
            code = ScalarCode(InsertPoint.before(op))
            Rewriter.replace_op(op, [], [code.const(static, type_)])
            continue
        tensor = op.tensor
        assert isinstance(tensor, BlockArgument)
        source = kernel.params.data[tensor.index].source.data
        kind = ParamKind.DIM if is_dim else ParamKind.STRIDE
        param = ParamAttr(kind, source, dim)
        if (param, type_) not in known:
            arg = block.insert_arg(type_, len(block.args))
            what = "size" if is_dim else "stride"
            arg.name_hint = op.result.name_hint or f"{tensor.name_hint}_{what}{dim}"
            kernel.params = ArrayAttr([*kernel.params.data, param])
            known[(param, type_)] = arg
        Rewriter.replace_op(op, [], [known[(param, type_)]])


@dataclass(frozen=True)
class TileMaterializeParamsPass(ModulePass):
    """Turn shape queries into kernel arguments."""

    name = "tile-materialize-params"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                materialize(kernel)
