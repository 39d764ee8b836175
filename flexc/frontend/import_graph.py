"""Import of FX graphs of mods as regions, and of calls as `flex` modules."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree
from xdsl.builder import Builder
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    ArrayAttr,
    DenseArrayBase,
    FileLineColLoc,
    Float8E4M3FNType,
    Float8E5M2Type,
    FunctionType,
    IntAttr,
    IntegerAttr,
    ModuleOp,
    NoneAttr,
    StridedLayoutAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
    i8,
    i32,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects.flex import AttentionOp, CombineSplitsOp, YieldOp, score_type
from flexc.dialects.mod_region import mod_args
from flexc.errors import DtypeError, FlexcError, SourceLocation, UnsupportedOpError
from flexc.frontend import aten_float, aten_views  # noqa: F401  (register rules)
from flexc.frontend.captured import CapturedMod, CaptureInput
from flexc.frontend.fields import (
    Field,
    Value,
    as_value,
    captured_field,
    pointwise,
    traced_sizes,
)
from flexc.frontend.locations import node_location
from flexc.frontend.mistakes import is_in_place, unsupported_op
from flexc.frontend.scalars import (
    RULES,
    Emitter,
    RuleEntry,
    Scalar,
    element_type,
    number,
    op_name,
    reduces,
)
from flexc.frontend.signatures import MOD_ARGS, ModKind

NARROW = {
    torch.int8: i8,
    torch.float8_e4m3fn: Float8E4M3FNType(),
    torch.float8_e5m2: Float8E5M2Type(),
}
"""The dtypes of keys and values that are narrower than queries."""


class Stored(NamedTuple):
    """The dtypes of keys and values in memory, and the dimensions of their scales.

    A dtype is None for that of queries, a scale None if there is none.
    """

    key: torch.dtype | None = None
    value: torch.dtype | None = None
    key_scale: int | None = None
    value_scale: int | None = None

    def scales(self) -> dict[str, Attribute]:
        """Return the types of the scales that there are, by name."""
        ranks = {"key_scale": self.key_scale, "value_scale": self.value_scale}
        return {
            name: strided([None] * rank, f32, unit_stride=rank == 3)
            for name, rank in ranks.items()
            if rank is not None
        }


AS_QUERIES = Stored()


@dataclass(frozen=True)
class AttentionCall:
    """The facts of a call on which its kernel depends. Instances are hashable."""

    dtype: torch.dtype
    head_dim: int
    value_dim: int
    lse: bool = False
    max_scores: bool = False
    lse_rest: bool = False
    """True if the kernel also returns the rest of log-sum-exp, lost to rounding."""
    split: bool = False
    """True if rows are split along their keys. The kernel takes the number of splits,
    and returns the results of splits that `flex.attention` defines, regardless of other
    options.
    """
    unit_strides: tuple[bool, bool, bool] = (True, True, True)
    """For each of query, key and value, True if the elements of a row are adjacent."""
    page_size: int | None = None
    """The number of keys of a page, if keys and values lie in pages."""
    stored: Stored = AS_QUERIES
    sparse_block: tuple[int, int] | None = None
    full_tables: bool = False
    scale_positive: bool = False
    q_len_multiple: int | None = None
    kv_len_multiple: int | None = None
    values_in_keys: bool = False
    """True if values are a view of the first columns of keys."""
    alignment: int | None = None
    index_width: int | None = None
    max_length: int | None = None
    has_pairs: bool = False
    few_rows: tuple[int, int] | None = None
    """The numbers of query heads that share a key head, and of queries. One program
    owns them all (see `flex-fold-heads`).
    """

    @property
    def widest(self) -> int:
        """The larger head dim of query and value."""
        return max(self.head_dim, self.value_dim)

    def facts(self) -> dict[str, Attribute]:
        """Return the properties of `flex.attention`."""
        facts: dict[str, Attribute] = {
            name: UnitAttr() if value is True else IntegerAttr(value, i64)
            for name in FACTS
            if (value := getattr(self, name))
        }
        if self.sparse_block is not None:
            facts["sparse_block"] = DenseArrayBase.from_list(i64, self.sparse_block)
        return facts


FACTS = (
    *("q_len_multiple", "kv_len_multiple", "alignment", "index_width", "max_length"),
    *("scale_positive", "has_pairs", "values_in_keys"),
)
"""The fields of a call that are numbers and flags of `flex.attention`."""


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """A `flex` module and the captured values that it takes after the scale."""

    module: ModuleOp
    inputs: tuple[CaptureInput, ...]

    def arguments(self, captures: Sequence[Any]) -> list[Any]:
        """Return the values of the capture arguments, in order."""
        return [i.value(captures) for i in self.inputs]


TABLES = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def build_attention_module(
    score: CapturedMod | None, mask: CapturedMod | None, call: AttentionCall
) -> AttentionModule:
    """Build the `flex` module of a call.

    Its `func.func @attention` takes query, key, value, scale, captures, tables, a page
    table, and the scales of keys and values.
    """
    inputs = _shared_inputs(score, mask)
    operands = _operand_types(call, inputs)
    block = Block(arg_types=[t for types in operands.values() for t in types])
    names = {name: [name] for name in operands}
    names |= {"captures": [i.name for i in inputs], "tables": [*TABLES]}
    _name_args(block, [n for k, t in operands.items() for n in names[k][: len(t)]])
    args, captured = iter(block.args), operands["captures"]
    scale = score_type(operands["query"][0])
    results = _result_types(call, scale)
    attention = AttentionOp(
        {name: list(islice(args, len(types))) for name, types in operands.items()},
        list(results.values()),
        [
            build_region("score_mod", score, inputs, captured, scale),
            build_region("mask_mod", mask, inputs, captured, None),
        ],
        call.facts(),
    )
    if mask is not None and mask.sequences:
        slots = [given.slot for given in inputs]
        places = [slots.index(slot) for slot in mask.sequences]
        attention.sequences = DenseArrayBase.from_list(i64, places)
    hints = [name for name, types in results.items() for _ in types]
    for result, name in zip(attention.results, hints, strict=True):
        result.name_hint = name
    block.add_op(attention)
    block.add_op(ReturnOp(*attention.results))
    function = FunctionType.from_lists(block.arg_types, attention.result_types)
    module = ModuleOp([FuncOp("attention", function, Region(block))])
    return AttentionModule(module, tuple(inputs))


def _operand_types(
    call: AttentionCall, inputs: Sequence[CaptureInput]
) -> dict[str, Sequence[Attribute]]:
    """Return the types of all possible operands of `flex.attention`, in order."""
    element = element_type(call.dtype)
    stored = [NARROW[t] if t else element for t in (None, *call.stored[:2])]
    lengths = None, call.page_size, call.page_size
    dims = call.head_dim, call.head_dim, call.value_dim
    qkv = [
        strided([None, None, length, dim], held, unit)
        for held, length, dim, unit in zip(
            stored, lengths, dims, call.unit_strides, strict=True
        )
    ]
    counts, indices = (strided([None] * rank, i32, unit_stride=True) for rank in (3, 4))
    tables = [] if call.sparse_block is None else [counts, indices]
    pages = strided([None, None], i32, unit_stride=True)
    return {
        **{name: [t] for name, t in zip(("query", "key", "value"), qkv, strict=True)},
        "scale": [score_type(qkv[0])],
        "captures": [_capture_type(i) for i in inputs],
        "tables": tables * (1 + call.full_tables),
        "page_table": [pages] * (call.page_size is not None),
        **{name: [t] for name, t in call.stored.scales().items()},
        "splits": [i32] * call.split,
    }


def _result_types(
    call: AttentionCall, score: Attribute
) -> dict[str, Sequence[Attribute]]:
    """Return the types of all possible results of `flex.attention`, in its order.

    The runtime allocates the results with unit strides.
    """
    split, element = call.split, score if call.split else element_type(call.dtype)
    row = strided([None] * 3, score, unit_stride=True)
    return {
        "out": [strided([None] * 3 + [call.value_dim], element, unit_stride=True)],
        "lse": [row] * (call.lse and not split),
        "max_scores": [row] * (call.max_scores and not split),
        "row_shift": [row] * split,
        "log_sum": [row] * split,
        "lse_rest": [row] * (call.lse_rest and not split),
    }


def _shared_inputs(*mods: CapturedMod | None) -> list[CaptureInput]:
    """Return the captures of the score, then those that only the mask has."""
    inputs: dict[Any, CaptureInput] = {}
    for mod in mods:
        for given in mod.inputs if mod is not None else ():
            inputs.setdefault(_identity(given), given)
    return list(inputs.values())


def _identity(given: CaptureInput) -> Any:
    made = given.number or id(given.constant)
    return made if given.slot is None else (given.slot,)


def _tensor(
    shape: Sequence[int | None], element: Attribute, layout: Attribute | None = None
) -> TensorType:
    dims = [DYNAMIC_INDEX if d is None else d for d in shape]
    return TensorType(element, dims, layout or NoneAttr())


def strided(
    shape: Sequence[int | None], element: Attribute, unit_stride: bool
) -> TensorType:
    """Return the type of a tensor of any strides. The last may be fixed to 1."""
    if not unit_stride:
        return _tensor(shape, element)
    strides = ArrayAttr([*[NoneAttr()] * (len(shape) - 1), IntAttr(1)])
    return _tensor(shape, element, StridedLayoutAttr(strides))


def _capture_type(given: CaptureInput) -> Attribute:
    try:
        element = element_type(given.dtype)
    except DtypeError as error:
        said = f"captured {given.name}: {error}; convert it before the call"
        raise DtypeError(said) from None
    if given.rank is None:
        return element
    return strided([None] * given.rank, element, given.unit_stride)


def _name_args(block: Block, names: Sequence[str]) -> None:
    taken: dict[str, int] = {}
    for arg, name in zip(block.args, names, strict=True):
        name = _hint(name)
        taken[name] = count = taken.get(name, -1) + 1
        arg.name_hint = f"{name}_{count}" if count else name


def _hint(name: str) -> str:
    """Return a name that an SSA value may have."""
    name = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "capture"
    return f"capture{name}" if name[0].isdigit() else name


def build_region(
    kind: ModKind,
    mod: CapturedMod | None,
    inputs: Sequence[CaptureInput],
    types: Sequence[Attribute],
    score: AnyFloat | None,
) -> Region:
    """Build a mod's region. Without a mod, it is the identity or `true`."""
    block = Block(arg_types=mod_args(score, types))
    _name_args(block, (*MOD_ARGS[kind], *(i.name for i in inputs)))
    emitter = Emitter(Builder(InsertPoint.at_end(block)))
    arity = len(MOD_ARGS[kind])
    args = [Scalar(torch.int64, a, nonnegative=True) for a in block.args[:arity]]
    dtype = torch.bool
    if score is not None:
        double = score == element_type(torch.float64)
        dtype = torch.float64 if double else torch.float32
        args[0] = Scalar(dtype, block.args[0])
    if mod is None:
        result = number(True) if score is None else args[0]
    else:
        nodes = mod.graph.graph.find_nodes(op="placeholder")
        at = dict(zip(map(_identity, inputs), block.args[arity:], strict=True))
        values: dict[Node, Any] = dict(zip(nodes, args, strict=False))
        for given, node in zip(mod.inputs, nodes[arity:], strict=True):
            arg = at[_identity(given)]
            values[node] = _capture_value(emitter, node, arg, given.dtype)
        result = _Importer(mod.graph, emitter, values).run()
    assert isinstance(result, Scalar)
    block.add_op(YieldOp(emitter.value(result, dtype)))
    return Region(block)


def _capture_value(e: Emitter, node: Node, arg: SSAValue, dtype: torch.dtype) -> Value:
    value = node.meta["val"]
    if isinstance(arg.type, TensorType):
        return as_value(e, captured_field(arg, dtype, value.shape))
    number = Scalar(dtype, arg, weak=True)
    return e.cast(number, torch.bool) if isinstance(value, torch.SymBool) else number


@dataclass
class _Importer:
    """An importer of one graph, node by node."""

    gm: GraphModule
    emitter: Emitter
    values: dict[Node, Any]

    def run(self) -> Value:
        for node in self.gm.graph.nodes:
            if node.op == "output":
                return self._argument(pytree.tree_leaves(node.args[0])[0])
            if node.op == "get_attr":
                self.values[node] = _constant(getattr(self.gm, str(node.target)))
            elif node.op == "call_function":
                self._call(node)
        raise AssertionError("a graph without an output")

    def _call(self, node: Node) -> None:
        where = node_location(node)
        self.emitter.location = _location(where)
        try:
            self.values[node] = self._apply(node)
        except FlexcError as error:
            if error.location is not None or where is None:
                raise
            raise type(error)(str(error), where) from None
        except TypeError as error:  # A rule lacks some argument.
            raise UnsupportedOpError(
                f"{node.target} cannot be imported with these arguments: {error}", where
            ) from error

    def _apply(self, node: Node) -> Any:
        args, kwargs = map_aggregate((node.args, node.kwargs), self._argument)
        if node.target is operator.getitem:
            return self._chosen(node, args[0])
        entry = RULES.get(name := op_name(node.target))
        if entry is None:
            raise unsupported_op(node, name)
        meta: Any = node.meta.get("val")
        meta = meta[0] if isinstance(meta, tuple) else meta
        dtype = _value_dtype(meta)
        if is_in_place(node) and not entry.structural:
            # Its result is rounded to the dtype of what it writes to, once.
            wide = _common_dtype(node)
            result = self._run(entry, wide, args, kwargs)
            result = self._run(RULES["to"], dtype, (result,), {})
        else:
            result = self._run(entry, dtype, args, kwargs)
        if isinstance(result, Field):
            return replace(result, sizes=traced_sizes(result.sizes, meta.shape))
        if isinstance(result, Scalar) and result.const is None and result.ssa:
            result.ssa.name_hint = result.ssa.name_hint or _hint(node.name)
        return result

    def _chosen(self, node: Node, results: Any) -> Any:
        """Return one of an op's results, of which most ops have one."""
        if isinstance(results, list):
            part: Field = results[int(node.args[1])]  # type: ignore[arg-type]
            shape = node.meta["val"].shape
            return as_value(
                self.emitter, replace(part, sizes=traced_sizes(part.sizes, shape))
            )
        (source,) = node.all_input_nodes
        if reduces(source.target) and node.args[1] == 1:
            raise unsupported_op(source, "indices")
        return results  # The second result of log_sigmoid_forward is unused.

    def _run(
        self, entry: RuleEntry, out: torch.dtype, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        if entry.structural:
            found = entry.rule(self.emitter, out, *args, **kwargs)
            return as_value(self.emitter, found) if isinstance(found, Field) else found
        kwargs = {k: v for k, v in kwargs.items() if k not in _IGNORED}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Scalar | Field)]

        def compute(e: Emitter, given: Sequence[Scalar]) -> Scalar:
            scalars = dict(zip(places, given, strict=True))
            filled = [scalars.get(i, leaf) for i, leaf in enumerate(leaves)]
            positional, named = pytree.tree_unflatten(filled, spec)
            return entry.rule(e, out, *positional, **named)

        return pointwise(self.emitter, [leaves[i] for i in places], out, compute)

    def _argument(self, arg: Any) -> Any:
        """Return an argument of a node, or a value inside of one."""
        if isinstance(arg, Node):
            return self.values[arg]
        return number(arg) if isinstance(arg, bool | int | float) else arg


_IGNORED = ("dtype", "device", "layout", "pin_memory", "non_blocking", "memory_format")


def _location(where: SourceLocation | None) -> FileLineColLoc | None:
    if where is None:
        return None
    return FileLineColLoc(StringAttr(where.filename), IntAttr(where.line), IntAttr(0))


def _common_dtype(node: Node) -> torch.dtype:
    """Return the dtype in which torch computes a pointwise op of tensors."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return elementwise_dtypes(*tensors, type_promotion_kind=kind)[1]


def _value_dtype(value: Any) -> torch.dtype:
    match value:
        case torch.Tensor():
            return value.dtype
        case torch.SymBool() | bool():
            return torch.bool
        case torch.SymFloat() | float():
            return torch.float64
        case _:
            return torch.int64


def _constant(tensor: Any) -> Scalar:
    """Return the constant for a 0-d tensor that the mod made from a Python number."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim():
        raise UnsupportedOpError(f"a constant of type {type(tensor).__name__}")
    value = tensor.item()
    return Scalar(tensor.dtype, None, value, False, value >= 0)


NAMES = ("outs", "row_shift", "log_sum")


def build_combine_module(call: AttentionCall) -> ModuleOp:
    """Build `func.func @combine_splits` over the results of a kernel for splits."""
    row, dim = [None, None, None], call.value_dim
    matrix = strided([*row, dim], element_type(call.dtype), unit_stride=True)
    score = score_type(matrix)
    outs_type = strided([*row, None, dim], score, unit_stride=True)
    numbers = strided([*row, None], score, unit_stride=False)
    block = Block(arg_types=[outs_type, numbers, numbers])
    for arg, name in zip(block.args, NAMES, strict=True):
        arg.name_hint = name
    known = {}
    if call.alignment is not None:
        known["alignment"] = IntegerAttr(call.alignment, i64)
    lse = strided(row, score, unit_stride=True)
    outs, row_shift, log_sum = block.args
    combine = CombineSplitsOp(outs, row_shift, log_sum, matrix, lse, known)
    combine.out.name_hint, combine.lse.name_hint = "out", "lse"
    block.add_ops([combine, ReturnOp(combine.out, combine.lse)])
    types = FunctionType.from_lists(block.arg_types, combine.result_types)
    return ModuleOp([FuncOp("combine_splits", types, Region(block))])
