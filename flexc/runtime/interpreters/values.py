"""Representation of the IR's values as torch tensors.

A number of type T is a tensor with T's dtype and *any broadcastable shape*. So one run
of a region of scalar code covers all pairs of positions.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    BFloat16Type,
    DenseArrayBase,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    TensorType,
)
from xdsl.ir import Attribute
from xdsl.utils.exceptions import InterpretationError

_INTEGERS = {
    1: torch.bool,
    8: torch.int8,
    16: torch.int16,
    32: torch.int32,
    64: torch.int64,
}

_OTHERS: dict[type[Attribute], torch.dtype] = {
    BFloat16Type: torch.bfloat16,
    Float16Type: torch.float16,
    Float32Type: torch.float32,
    Float64Type: torch.float64,
    Float8E4M3FNType: torch.float8_e4m3fn,
    Float8E5M2Type: torch.float8_e5m2,
    IndexType: torch.int64,
}

_SIGNLESS = {
    torch.uint8: torch.int8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def dtype_of(type_: Attribute) -> torch.dtype:
    """Return the dtype for numbers of an MLIR type; signless integers are signed."""
    if isinstance(type_, IntegerType):
        dtype = _INTEGERS.get(type_.width.data)
    else:
        dtype = _OTHERS.get(type(type_))
    if dtype is None:
        raise InterpretationError(f"no torch dtype holds numbers of type {type_}")
    return dtype


def as_value(value: object, type_: Attribute) -> Tensor:
    """Convert a caller's tensor or Python number, checked against its type."""
    if isinstance(type_, TensorType | MemRefType):
        return _as_tensor(value, type_)
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=dtype_of(type_), device="cpu")
    if value.dim() != 0:
        raise InterpretationError(
            f"expected a number of type {type_}, got a tensor of {value.dim()} dims"
        )
    return signless(value).to(dtype_of(type_))


def _as_tensor(value: object, type_: TensorType | MemRefType) -> Tensor:
    if not isinstance(value, Tensor) or value.dim() != type_.get_num_dims():
        raise InterpretationError(f"expected a tensor of type {type_}, got {value}")
    value = signless(value)
    if value.dtype != dtype_of(type_.element_type):
        raise InterpretationError(
            f"expected a tensor of type {type_}, got one of {value.dtype}"
        )
    for expected, got in zip(type_.get_shape(), value.shape, strict=True):
        if expected not in (DYNAMIC_INDEX, got):
            raise InterpretationError(
                f"expected a tensor of type {type_}, got shape {tuple(value.shape)}"
            )
    return value


def signless(value: Tensor) -> Tensor:
    """Return the same bits as signed integers, which represent signless types."""
    dtype = _SIGNLESS.get(value.dtype)
    return value if dtype is None else value.view(dtype)


def dense_array(array: DenseArrayBase) -> tuple[int, ...]:
    """Return the elements of a dense array of integers."""
    return cast(DenseArrayBase[IntegerType], array).get_values()


def sum_heads(sums: Tensor, tensor: Tensor) -> Tensor:
    """Add up sums (B, Hq, ...) over the heads and batches that share a tensor's."""
    batch, heads = tensor.shape[:2]
    shape = batch, sums.size(0) // batch, heads, sums.size(1) // heads, *sums.shape[2:]
    return sums.reshape(shape).sum((1, 3))
