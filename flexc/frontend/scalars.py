"""Scalars of torch dtypes as SSA values, their arithmetic, and the table of rules.

An element type says less than a dtype: `uint8` and `int8` are both `i8`. So values
carry their dtype, and the emitter chooses the signed or the unsigned op. Half types are
computed in f32 and rounded after every op, as in torch.

Positions are int64, but have the type i32. So do values computed from positions, and
sizes and Python numbers that meet positions, which are truncated. Such an *index* is
still exact: `flex-widen-indices` gives the type i64 to all values that may need it. A
number that does not fit i32 is a truncated i64 constant, whose bits that pass restores.

`RULES` maps the name of an aten overload packet, without the underscore of in-place
variants, to a function that builds scalar ops.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from xdsl.builder import Builder
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Operation, SSAValue

from flexc.dialects.flex.scalar import Ties, set_ties
from flexc.errors import DtypeError

Number = bool | int | float

ELEMENT_TYPES: dict[torch.dtype, IntegerType | AnyFloat] = {
    torch.bool: i1,
    torch.uint8: i8,
    torch.int8: i8,
    torch.int16: i16,
    torch.int32: i32,
    torch.int64: i64,
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.float32: f32,
    torch.float64: f64,
}

HALF_TYPES = (torch.float16, torch.bfloat16)


def element_type(dtype: torch.dtype) -> Any:
    """Return the element type for a dtype: an `IntegerType` or a float type."""
    if dtype not in ELEMENT_TYPES:
        raise DtypeError(f"mods compute with {_names()}, got {dtype}")
    return ELEMENT_TYPES[dtype]


def _names() -> str:
    return ", ".join(str(d).removeprefix("torch.") for d in ELEMENT_TYPES)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which arithmetic on a dtype is computed."""
    return torch.float32 if dtype in HALF_TYPES else dtype


@dataclass(frozen=True, eq=False)
class Scalar:
    """One number of a mod: an SSA value, or a constant without a type."""

    dtype: torch.dtype
    ssa: SSAValue | None
    const: Number | None = None
    weak: bool = False
    """True for a Python number, which raises a result's kind but never its width."""
    nonnegative: bool = False
    """True if the value is known to be at least 0, as positions are."""

    @property
    def is_index(self) -> bool:
        """True for an int64 that has the type i32."""
        narrow = self.ssa is not None and self.ssa.type == i32
        return narrow and self.dtype is torch.int64

    @property
    def can_be_index(self) -> bool:
        """True if the value can be combined with an index without loss."""
        if self.is_index or self.dtype.is_floating_point:
            return self.is_index
        return self.weak or self.const is not None or self.dtype is not torch.int64


def number(value: Number) -> Scalar:
    """Return a Python number as a scalar."""
    kind = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(value)]
    return Scalar(kind, None, value, True, value >= 0)


def _kind(dtype: torch.dtype) -> int:
    return 0 if dtype is torch.bool else 2 if dtype.is_floating_point else 1


def promote(*values: Scalar) -> torch.dtype:
    """Return the dtype in which torch computes, given tensors and Python numbers."""
    strong = [v.dtype for v in values if not v.weak] or [v.dtype for v in values]
    dtype = strong[0]
    for other in strong[1:]:
        dtype = torch.promote_types(dtype, other)
    for other in (v.dtype for v in values if v.weak):
        if _kind(other) > _kind(dtype):
            floating = other.is_floating_point
            dtype = torch.get_default_dtype() if floating else other
    return dtype


class Emitter:
    """A builder of scalar ops at one insertion point. Each op has the user's line."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.location: LocationAttr | None = None
        self._constants: dict[tuple[torch.dtype, str], SSAValue] = {}

    def insert(self, op: Operation) -> SSAValue:
        """Insert an op with one result, and return the result."""
        if self.location is not None:
            op.location = self.location
        self.builder.insert(op)
        return op.results[0]

    def constant(self, value: Number, dtype: torch.dtype) -> Scalar:
        """Return a constant of a dtype. Equal constants share one op."""
        value = _convert_number(value, dtype)
        key = (dtype, repr(value))
        if key not in self._constants:
            self._constants[key] = self.insert(_constant_op(value, dtype))
        positive = bool(value >= 0)
        return Scalar(dtype, self._constants[key], value, False, positive)

    def ssa(self, x: Scalar) -> SSAValue:
        """Return the SSA value of a scalar, in its own dtype."""
        return x.ssa if x.ssa is not None else self.value(x, x.dtype)

    def value(self, x: Scalar, dtype: torch.dtype) -> SSAValue:
        """Return the SSA value of a scalar, cast to a dtype and its element type."""
        ssa = self.written(x, dtype).ssa
        assert ssa is not None
        return ssa

    def written(self, x: Scalar, dtype: torch.dtype) -> Scalar:
        """Return a scalar cast to a dtype and its element type, never an index."""
        x = self.cast(x, dtype)
        if not x.is_index:
            return x
        if x.const is not None:
            return self.constant(x.const, dtype)
        return replace(x, ssa=self.insert(arith.ExtSIOp(self.ssa(x), i64)))

    def together(self, dtype: torch.dtype, *args: Scalar) -> list[Scalar]:
        """Return scalars cast to one dtype, as indices if any is one and all can be."""
        some = dtype is torch.int64 and any(x.is_index for x in args)
        if some and all(x.can_be_index for x in args):
            return [self._as_index(x) for x in args]
        return [self.written(x, dtype) for x in args]

    def values(self, dtype: torch.dtype, *args: Scalar) -> list[SSAValue]:
        """Return the SSA values of scalars, cast to one dtype."""
        return [self.ssa(x) for x in self.together(dtype, *args)]

    def _as_index(self, x: Scalar) -> Scalar:
        if x.is_index:
            return x
        if x.const is not None:
            return self._index_constant(int(x.const))
        return replace(x, dtype=torch.int64, ssa=self.value(x, torch.int32))

    def _index_constant(self, value: int) -> Scalar:
        if _convert_number(value, torch.int32) == value:
            return replace(self.constant(value, torch.int32), dtype=torch.int64)
        wide = self.constant(value, torch.int64)
        return replace(wide, ssa=self.insert(arith.TruncIOp(self.ssa(wide), i32)))

    def cast(self, x: Scalar, to: torch.dtype) -> Scalar:
        """Return a scalar cast to a dtype, as `Tensor.to` does."""
        if x.const is not None and (x.ssa is None or x.dtype is not to):
            return self.constant(x.const, to)
        if x.dtype is to:
            return replace(x, weak=False)
        if x.dtype.is_floating_point:
            ssa = self._cast_float(x, to)
        else:
            ssa = self._cast_int(x, to)
        unsigned = not x.dtype.is_signed and to is not torch.int8
        whole = to.is_floating_point or to.itemsize >= x.dtype.itemsize
        return Scalar(to, ssa, nonnegative=(x.nonnegative and whole) or unsigned)

    def _cast_float(self, x: Scalar, to: torch.dtype) -> SSAValue:
        source = self.ssa(x)
        type_ = element_type(to)
        if to is torch.bool:
            zero = self.value(number(0.0), x.dtype)
            return self.insert(arith.CmpfOp(source, zero, "une"))
        if not to.is_floating_point:
            if to.itemsize < 4:  # Out of range, the low bits remain.
                source = self.insert(arith.FPToSIOp(source, i32))
                return self.insert(arith.TruncIOp(source, type_))
            return self.insert(arith.FPToSIOp(source, type_))
        if {x.dtype.itemsize, to.itemsize} <= {2} or (
            to in HALF_TYPES and x.dtype is torch.float64
        ):
            return self.value(self.cast(x, torch.float32), to)
        wider = to.itemsize > x.dtype.itemsize
        return self.insert((arith.ExtFOp if wider else arith.TruncFOp)(source, type_))

    def _cast_int(self, x: Scalar, to: torch.dtype) -> SSAValue:
        source, type_ = self.ssa(x), element_type(to)
        unsigned = not x.dtype.is_signed
        if to is torch.bool:
            return self.ssa(self.compare("ne", x, number(0)))
        if to in HALF_TYPES:
            return self.value(self.cast(x, torch.float32), to)
        if to.is_floating_point:
            op = arith.UIToFPOp if unsigned else arith.SIToFPOp
            return self.insert(op(source, type_))
        if x.dtype is torch.bool or to.itemsize > x.dtype.itemsize:
            op = arith.ExtUIOp if unsigned else arith.ExtSIOp
            return self.insert(op(source, type_))
        if to.itemsize == x.dtype.itemsize:
            return source
        # Emit the user's truncation as an op, unlike the implicit truncation of
        # indices.
        source = self.value(x, x.dtype) if to is torch.int32 else source
        return self.insert(arith.TruncIOp(source, type_))

    def op(
        self,
        kind: type[Operation],
        dtype: torch.dtype,
        *args: Scalar,
        ties: Ties = Ties.HALVES,
    ) -> Scalar:
        """Build an op whose operands and result have the dtype.

        An op of a half type is computed in f32 and rounded. An op of Python numbers
        gives a Python number. `ties` applies to a maximum or minimum of floats.
        """
        inner = compute_dtype(dtype)
        op = kind(*self.values(inner, *args))
        if dtype.is_floating_point:
            set_ties(op, ties)
        result = Scalar(inner, self.insert(op))
        return replace(self.cast(result, dtype), weak=all(x.weak for x in args))

    def compare(self, predicate: str, a: Scalar, b: Scalar) -> Scalar:
        """Return a comparison's result. `predicate` is one of eq ne lt le gt ge."""
        dtype = promote(a, b)
        x, y = self.values(dtype, a, b)
        if dtype.is_floating_point:
            prefix = "u" if predicate == "ne" else "o"
            return self._flag(arith.CmpfOp(x, y, prefix + predicate))
        if predicate not in ("eq", "ne"):
            predicate = ("s" if dtype.is_signed else "u") + predicate
        return self._flag(arith.CmpiOp(x, y, predicate))

    def _flag(self, op: Operation) -> Scalar:
        return Scalar(torch.bool, self.insert(op))

    def select(self, cond: Scalar, a: Scalar, b: Scalar, dtype: torch.dtype) -> Scalar:
        """Return `a` if the condition holds, else `b`."""
        condition = self.value(cond, torch.bool)
        chosen = arith.SelectOp(condition, *self.values(dtype, a, b))
        both = a.nonnegative and b.nonnegative
        return Scalar(dtype, self.insert(chosen), nonnegative=both)

    def negate(self, flag: Scalar) -> Scalar:
        """Return the logical not of a flag."""
        return self.op(arith.XOrIOp, torch.bool, flag, number(True))

    def both(self, a: Scalar, b: Scalar) -> Scalar:
        """Return the logical and of two flags."""
        return self.op(arith.AndIOp, torch.bool, a, b)


def _convert_number(value: Number, dtype: torch.dtype) -> Number:
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_floating_point:
        return float(value)
    bits = dtype.itemsize * 8
    value = int(value) if math.isfinite(value) else 0
    wrapped = value & ((1 << bits) - 1)
    if dtype.is_signed and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return wrapped


def _constant_op(value: Number, dtype: torch.dtype) -> arith.ConstantOp:
    type_ = element_type(dtype)
    if isinstance(type_, IntegerType):
        attr = IntegerAttr(int(value), type_, truncate_bits=True)
        return arith.ConstantOp(attr)
    if dtype in HALF_TYPES or dtype is torch.float32:
        value = torch.tensor(value, dtype=torch.float64).to(dtype).item()
    return arith.ConstantOp(FloatAttr(float(value), type_))


Rule = Callable[..., Any]
"""A function `rule(emitter, result dtype, *args, **kwargs)` with aten's arguments.
Every tensor and number is a `Scalar`, or a `Field` for a structural rule.
"""


@dataclass(frozen=True)
class RuleEntry:
    """A rule, and the way in which it is applied."""

    rule: Rule
    structural: bool
    """True if the rule takes fields. Other rules are applied element by element."""
    reduces: bool = False
    """True if the rule combines the elements of a field, whose sizes must be known."""
    dims: int | None = None
    """The place of the argument that has the dimensions of a reduction, None if all
    dimensions of all arguments matter.
    """


RULES: dict[str, RuleEntry] = {}


def rule(
    *names: str,
    is_structural: bool = False,
    reduces: bool = False,
    dims: int | None = None,
) -> Callable[[Rule], Rule]:
    """Register a rule, by default a pointwise one."""

    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, RuleEntry(fn, is_structural, reduces, dims)))
        return fn

    return register


structural = partial(rule, is_structural=True)
"""Register a rule that moves elements instead of computing with them."""


def op_name(target: Any) -> str:
    """Return the name of an FX node's target, as in RULES."""
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.partition("::")[2]
        in_place = name.endswith("_") and not name.endswith("__")
        return name.removesuffix("_") if in_place else name
    return getattr(target, "__name__", str(target))


def is_known(target: Any) -> bool:
    """Return True if a rule imports the target of an FX node."""
    return target is operator.getitem or op_name(target) in RULES


def reduces(target: Any) -> bool:
    """Return True if a rule combines the elements of the target's arguments."""
    entry = RULES.get(op_name(target))
    return entry is not None and entry.reduces
