"""State of tensors: values, shapes, strides, flags, views."""

# ruff: noqa: E731
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
from __future__ import annotations

import types
from typing import Any

import torch

from tests.captured_state.kinds import kind


def learned(*shape: int) -> torch.Tensor:
    return torch.rand(shape).requires_grad_()


@kind
def values_of_a_tensor() -> Any:
    bias = learned(2)
    return lambda s, b, h, q, k: s * bias[h], lambda: bias.data.add_(1), [bias]


@kind
def another_tensor() -> Any:
    held = types.SimpleNamespace(bias=torch.rand(2))
    change = lambda: setattr(held, "bias", torch.rand(2) + 1)
    return lambda s, b, h, q, k: s * held.bias[h], change


@kind
def another_length() -> Any:
    held = types.SimpleNamespace(bias=torch.rand(4))
    change = lambda: setattr(held, "bias", torch.rand(9))
    return lambda s, b, h, q, k: s * held.bias[-1] * held.bias.shape[0], change


@kind
def another_length_than_one() -> Any:
    held = types.SimpleNamespace(bias=torch.rand(1), table=torch.rand(4))
    change = lambda: setattr(held, "bias", torch.rand(4))
    return lambda s, b, h, q, k: s * (held.bias + held.table)[h], change


@kind
def another_rank() -> Any:
    held = types.SimpleNamespace(bias=torch.rand(2))
    change = lambda: setattr(held, "bias", torch.rand(2, 1))
    return lambda s, b, h, q, k: s * held.bias.dim() * held.bias.sum(), change


@kind
def another_dtype() -> Any:
    held = types.SimpleNamespace(bias=torch.rand(2) * 9)
    change = lambda: setattr(held, "bias", held.bias.int())
    return lambda s, b, h, q, k: s * held.bias[h] / 2, change


@kind
def dtype_of_a_tensor() -> Any:
    held = types.SimpleNamespace(bias=torch.ones(2))
    change = lambda: setattr(held, "bias", held.bias.double())

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * (2 if held.bias.dtype is torch.float32 else 3)

    return mod, change


@kind
def strides_of_a_tensor() -> Any:
    held = types.SimpleNamespace(table=torch.rand(2, 3))
    change = lambda: setattr(held, "table", torch.rand(3, 2).t())
    return lambda s, b, h, q, k: s * held.table[h, 1] * held.table.stride(0), change


@kind
def contiguity_of_a_tensor() -> Any:
    held = types.SimpleNamespace(table=torch.rand(3, 3))
    change = lambda: setattr(held, "table", held.table.t())
    return lambda s, b, h, q, k: s * (2 if held.table.is_contiguous() else 3), change


@kind
def offset_of_a_tensor() -> Any:
    whole = torch.rand(8)
    held = types.SimpleNamespace(bias=whole[:2])
    change = lambda: setattr(held, "bias", whole[3:5])
    return lambda s, b, h, q, k: s * (1 + held.bias.storage_offset()), change


@kind
def gradient_flag_of_a_tensor() -> Any:
    bias = torch.rand(2)
    change = lambda: bias.requires_grad_()
    return lambda s, b, h, q, k: s * bias[h] * (2 if bias.requires_grad else 3), change


@kind
def leaf_flag_of_a_tensor() -> Any:
    held = types.SimpleNamespace(bias=learned(2))
    change = lambda: setattr(held, "bias", held.bias * 1)
    return lambda s, b, h, q, k: s * (2 if held.bias.is_leaf else 3), change


@kind
def version_of_a_tensor() -> Any:
    bias = torch.ones(2)
    return lambda s, b, h, q, k: s * (1 + bias._version), lambda: bias.mul_(1)


@kind
def gradient_of_a_tensor() -> Any:
    bias = learned(2)
    bias.grad = torch.ones(2)
    change = lambda: bias.grad.add_(1)  # pyright: ignore
    return lambda s, b, h, q, k: s * bias.grad[h], change  # pyright: ignore


@kind
def data_of_a_tensor() -> Any:
    bias = learned(2)
    return lambda s, b, h, q, k: s * bias.data[h], lambda: bias.data.add_(1)


@kind
def device_of_a_tensor() -> Any:
    held = types.SimpleNamespace(bias=torch.ones(2), x=2.0)

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * held.x if held.bias.device.type == "cpu" else s

    return mod, lambda: setattr(held, "x", 3.0)


@kind
def scalar_tensor() -> Any:
    scale = learned()
    return lambda s, b, h, q, k: s * scale, lambda: scale.data.add_(1), [scale]


@kind
def scalar_tensor_by_getattr() -> Any:
    held = types.SimpleNamespace(scale=learned())
    change = lambda: held.scale.data.add_(1)
    return (
        lambda s, b, h, q, k: s * getattr(held, "scale"),  # noqa: B009
        change,
        [held.scale],
    )


@kind
def table_by_getattr() -> Any:
    held = types.SimpleNamespace(table=learned(2, 5))
    change = lambda: held.table.data.mul_(-2)
    return (
        lambda s, b, h, q, k: s + getattr(held, "table")[h, k],  # noqa: B009
        change,
        [held.table],
    )


@kind
def computed_from_a_tensor_by_getattr() -> Any:
    held = types.SimpleNamespace(table=learned(5, 2))

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        table = torch.softmax(getattr(held, "table"), 0).t()  # noqa: B009
        return s + table[h, k]

    return mod, lambda: held.table.data.mul_(2), [held.table]


@kind
def tensors_in_containers() -> Any:
    held = {"a": [learned(2)], "b": (learned(5),)}
    change = lambda: held["a"][0].data.add_(1)

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * held["a"][0][h] * held["b"][0][k]

    return mod, change, [held["a"][0], held["b"][0]]


@kind
def one_tensor_twice() -> Any:
    bias = learned(2)
    held = types.SimpleNamespace(one=bias, two=bias)
    change = lambda: setattr(held, "two", torch.rand(2))
    return lambda s, b, h, q, k: s * held.one[h] * held.two[h], change, [bias]


@kind
def view_of_a_tensor() -> Any:
    whole = learned(4)
    held = types.SimpleNamespace(bias=whole[:2])
    change = lambda: setattr(held, "bias", whole[2:])
    return lambda s, b, h, q, k: s * held.bias[h], change, [whole]


@kind
def tensor_that_is_replaced_by_a_number() -> Any:
    held = types.SimpleNamespace(scale=torch.tensor(2.0))
    change = lambda: setattr(held, "scale", 3.0)
    return lambda s, b, h, q, k: s * held.scale, change


@kind
def tensor_made_of_a_number() -> Any:
    held = types.SimpleNamespace(x=2.0)
    change = lambda: setattr(held, "x", 3.0)
    return lambda s, b, h, q, k: s * torch.tensor([held.x, 1.0])[h], change


@kind
def default_dtype() -> Any:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * (2 if torch.get_default_dtype() is torch.float32 else 3)

    return mod, lambda: torch.set_default_dtype(torch.float64)


@kind
def items_of_a_tensor_by_getattr() -> Any:
    held = types.SimpleNamespace(scale=torch.tensor(2.0))
    change = lambda: held.scale.fill_(3.0)
    return lambda s, b, h, q, k: s * getattr(held, "scale").item(), change  # noqa: B009


@kind
def address_of_a_tensor() -> Any:
    whole = torch.rand(8)
    held = types.SimpleNamespace(x=whole[:2])
    change = lambda: setattr(held, "x", whole[4:6])
    first = whole.data_ptr()
    return lambda s, b, h, q, k: s * (2 if held.x.data_ptr() == first else 3), change


@kind
def sum_of_a_tensor() -> Any:
    table = learned(5)
    return lambda s, b, h, q, k: s * table.sum(), lambda: table.data.add_(1), [table]


@kind
def sorted_tensor() -> Any:
    table = learned(5)
    mod = lambda s, b, h, q, k: s * table.sort()[0][k]
    return mod, lambda: table.data.add_(1), [table]


@kind
def running_sum_of_a_tensor() -> Any:
    table = learned(5)
    mod = lambda s, b, h, q, k: s * table.cumsum(0)[k]
    return mod, lambda: table.data.add_(1), [table]


@kind
def product_of_matrices() -> Any:
    left, right = learned(5, 2), learned(2, 5)
    mod = lambda s, b, h, q, k: s + (left @ right)[q, k]
    return mod, lambda: left.data.mul_(-2), [left, right]


@kind
def positions_of_values_that_are_not_zero() -> Any:
    table = torch.tensor([0.0, 0.0, 1.0, 1.0])
    change = lambda: table[1].fill_(1.0)
    return lambda s, b, h, q, k: s * torch.nonzero(table)[0, 0], change


@kind
def triangle_of_a_tensor() -> Any:
    table = torch.rand(5, 5)
    change = lambda: table.mul_(-2)
    return lambda s, b, h, q, k: s + table.tril()[q, k], change
