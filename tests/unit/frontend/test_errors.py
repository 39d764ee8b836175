"""Refusals: the class, the message and the user's line."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from flexc.errors import (
    DataDependentControlFlowError,
    FlexcError,
    ModSignatureError,
    MutationError,
    UnsupportedOpError,
)
from tests.unit.frontend.evaluate import import_mods

TABLE = torch.ones(4, 8)


def branches(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    if q > 3:  # here
        return s
    return s * 2


def calls_item(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    x = s * 2
    return x + q.item()  # here


def converts(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + int(q)  # here


def adds_in_place(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    s += 1  # here
    return s


def writes_a_table(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    TABLE[0, 0] = 1  # here
    return s


def sums_a_table(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + TABLE.sum()  # here


def draws(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    x = s + 1
    return x + torch.rand_like(s)  # here


def sizes_from_data(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + torch.nonzero(TABLE)[0, 0]  # here


def masks_a_table(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + TABLE[TABLE > 0][0]  # here


def takes_four(s: Any, b: Any, h: Any, q: Any) -> Any:  # here
    return s


def returns_a_table(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:  # here
    return TABLE


def returns_nothing(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:  # here
    _ = s * 2


@pytest.mark.parametrize(
    ("mod", "error", "says"),
    [
        (branches, DataDependentControlFlowError, "torch.where"),
        (calls_item, DataDependentControlFlowError, "torch.where"),
        (converts, DataDependentControlFlowError, "torch.where"),
        (adds_in_place, MutationError, "add_"),
        (writes_a_table, MutationError, "must not write"),
        (sums_a_table, UnsupportedOpError, "aten.sum"),
        (draws, UnsupportedOpError, "aten.rand_like"),
        (sizes_from_data, UnsupportedOpError, "nonzero"),
        (masks_a_table, UnsupportedOpError, "aten"),
        (takes_four, ModSignatureError, "score, b, h, q_idx, kv_idx"),
        (returns_a_table, ModSignatureError, r"a tensor of shape \(4, 8\): index it"),
        (returns_nothing, ModSignatureError, "NoneType"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_refusals(mod: Any, error: type[FlexcError], says: str) -> None:
    lines, first = inspect.getsourcelines(mod)
    (offset,) = (i for i, line in enumerate(lines) if "# here" in line)
    with pytest.raises(error, match=says) as raised:
        import_mods(mod)
    location = raised.value.location
    assert location is not None
    assert location.filename == __file__
    assert location.line == first + offset
    assert str(raised.value).count(f"{location}:") == 1


def test_masks_return_booleans() -> None:
    with pytest.raises(ModSignatureError, match="boolean scalar, got"):
        import_mods(None, lambda b, h, q, k: q - k)


def test_mods_are_functions() -> None:
    with pytest.raises(ModSignatureError, match=r"score_mod expects .* got float"):
        import_mods(0.5)
    says = r"mask_mod expects a function of \(b, h, q_idx, kv_idx\), got Tensor"
    with pytest.raises(ModSignatureError, match=says):
        import_mods(None, TABLE > 0)


def test_exceptions_of_the_user_pass() -> None:
    with pytest.raises(NameError, match="undefined"):
        import_mods(lambda s, b, h, q, k: undefined)  # noqa: F821  # pyright: ignore
