"""The shorter walk finds what the walk finds, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import noop_mask

from flexc.frontend.closures import read_key, read_plain
from flexc.frontend.walk import Walk

WIDTH, FACTOR, SLOPES = 3, 0.5, torch.randn(2)


def of_globals(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return (
        torch.where(q - k < WIDTH, s.to(torch.float32) * FACTOR, -math.pi) + SLOPES[h]
    )


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def of_cells(*values: Any) -> Callable[..., Any]:
    a, b, c = values

    def mask(_: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k < a) & (q > b) & (c * k > 0)

    return mask


def shifted(mask: Callable[..., Any], offset: int) -> Callable[..., Any]:
    return lambda b, h, q, k: mask(b, h, q + offset, k)


def all_of(*masks: Callable[..., Any]) -> Callable[..., Any]:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        result = q.new_ones((), dtype=torch.bool)
        for each in masks:
            result = result & each(b, h, q, k).to(result.device)
        return result

    return mask


def repeated(count: int) -> Callable[..., Any]:
    def mask(b: Any, h: Any, q: Any, k: Any, left: int) -> Any:
        return q >= k if left == 0 else mask(b, h, q + 1, k, left - 1)

    return lambda b, h, q, k: mask(b, h, q, k, count)


def doubled(count: int) -> tuple[Any, ...]:
    """Return a small object with 2**count parts."""
    found: tuple[Any, ...] = ()
    for _ in range(count):
        found = (found, found)
    return found


def mods() -> dict[str, tuple[Any, Any]]:
    table, other = torch.randn(2, 3), torch.randn(4)
    return {
        "none": (None, None),
        "no-state": (None, causal),
        "globals": (of_globals, causal),
        "modules-twice": (of_globals, lambda b, h, q, k: torch.exp2(q) > math.e),
        "numbers": (None, of_cells(3, -0.5, 2**62)),
        "tensors": (None, of_cells(table, other, table)),
        "shared-tensors": (of_cells(table, 1, other), of_cells(other, 1.0, table)),
        "strides": (None, of_cells(table.mT, table[:, ::2], torch.tensor(2))),
        "integers": (None, of_cells(torch.arange(3), torch.ones(2).bool(), 1)),
        "constants": (None, of_cells(True, None, torch.float16)),
        "functions": (None, shifted(of_cells(table, 1, 2), 3)),
        "functions-twice": (of_globals, all_of(causal, shifted(causal, 2), causal)),
        "modules-within": (
            None,
            all_of(of_cells(1, 2, 3), lambda b, h, q, k: torch.exp2(q) > math.e),
        ),
        "itself": (None, repeated(2)),
        "tuples": (None, of_cells((1, (table, 2.0)), (), (causal, 1))),
    }


def walked(mods: tuple[Any, Any]) -> Walk:
    walk = Walk()
    walk.run(mods)
    return walk


@pytest.mark.parametrize("name", mods())
def test_it_finds_what_the_walk_finds(name: str) -> None:
    given = mods()[name]
    found, walk = read_plain(given), walked(given)
    assert found is not None
    key, captures = found
    assert key == (torch.get_default_dtype(), *walk.key)
    assert len(captures) == len(walk.captures)
    assert all(a is b for a, b in zip(captures, walk.captures, strict=True))
    assert walk.sound
    assert not walk.static_numbers


class Module(torch.nn.Module):
    width = 3


def with_default(b: Any, h: Any, q: Any, k: Any, width: int = 3) -> Any:
    return q - k < width


def of_a_builtin(b: Any, h: Any, q: Any, k: Any) -> Any:
    return abs(q - k) < WIDTH


def of_a_class(b: Any, h: Any, q: Any, k: Any) -> Any:
    return Module.width > q


def with_an_attribute(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q > k


with_an_attribute.width = 3  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize(
    "mod",
    [
        with_default,
        of_a_builtin,
        of_a_class,
        with_an_attribute,
        of_cells(2**70, 1, 2),
        of_cells(math.inf, 1, 2),
        of_cells(math.nan, 1, 2),
        of_cells([1], 1, 2),
        of_cells(torch.nn.Parameter(torch.ones(2)), 1, 2),
        of_cells(torch.ones(2).to_sparse(), 1, 2),
        of_cells(with_default, 1, 2),
        of_cells(noop_mask, 1, 2),
        of_cells(tuple(range(100)), 1, 2),
        of_cells(doubled(16), 1, 2),
        noop_mask,
        max,
    ],
)
def test_all_else_is_walked(mod: Any) -> None:
    assert read_plain((None, mod)) is None


def test_tuples_of_the_same_tuples_are_walked() -> None:
    """Their parts double at each level."""
    mask = of_cells(doubled(60), 1, 2)
    assert read_plain((None, mask)) is None
    assert read_key(None, mask) == (None, ())


def test_a_tuple_that_contains_itself_is_walked() -> None:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return within[1](b, h, q, k) & (q - k < within[2])

    within = (mask, causal, 3)
    given = (None, lambda b, h, q, k: within[0](b, h, q, k))
    assert not walked(given).sound
    assert read_plain(given) is None


def test_what_a_user_puts_into_a_module_is_walked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = read_plain((of_globals, None))
    monkeypatch.setattr(torch, "where", lambda c, a, b: a)
    assert read_plain((of_globals, None)) is None
    monkeypatch.setattr(torch, "where", torch.clamp)
    other = read_plain((of_globals, None))
    assert first is not None
    assert other is not None
    assert first[0] != other[0]


def test_a_tensor_with_attributes_is_walked() -> None:
    table = torch.ones(2)
    assert read_plain((None, of_cells(table, 1, 2))) is not None
    table.width = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert read_plain((None, of_cells(table, 1, 2))) is None


def test_a_variable_without_a_value_is_walked() -> None:
    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q - k < width

    assert read_plain((None, mask)) is None
    width = 3
    assert read_plain((None, mask)) is not None


@pytest.mark.parametrize("name", mods())
def test_a_key_is_that_of_the_walk(name: str) -> None:
    given = mods()[name]
    assert read_key(*given)[0] == (torch.get_default_dtype(), *walked(given).key)
