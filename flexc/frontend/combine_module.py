"""The `flex` module that combines the splits of a call's rows."""

from __future__ import annotations

from xdsl.dialects.builtin import FunctionType, IntegerAttr, ModuleOp, i32, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region

from flexc.dialects.flex import CombineSplitsOp, score_type
from flexc.frontend.import_graph import AttentionCall, strided
from flexc.frontend.scalars import element_type

NAMES = ("outs", "row_shift", "log_sum", "splits")


def build_combine_module(call: AttentionCall) -> ModuleOp:
    """`func.func @combine_splits` over what a kernel for splits gives, and how many."""
    element = element_type(call.dtype)

    def matrix(element: Attribute) -> Attribute:
        return strided([None, None, None, call.value_dim], element, unit_stride=True)

    score = score_type(matrix(element))
    row = strided([None, None, None], score, unit_stride=True)
    block = Block(arg_types=[matrix(score), row, row, i32])
    for arg, name in zip(block.args, NAMES, strict=True):
        arg.name_hint = name
    known = {}
    if call.alignment is not None:
        known["alignment"] = IntegerAttr(call.alignment, i64)
    outs, row_shift, log_sum, splits = block.args
    combine = CombineSplitsOp(
        outs, row_shift, log_sum, splits, matrix(element), row, known
    )
    combine.out.name_hint, combine.lse.name_hint = "out", "lse"
    block.add_ops([combine, ReturnOp(combine.out, combine.lse)])
    types = FunctionType.from_lists(block.arg_types, combine.result_types)
    return ModuleOp([FuncOp("combine_splits", types, Region(block))])
