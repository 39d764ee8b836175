"""Facts of tensors: guards never hold where facts differ, and what is kept is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flexc.runtime.replay.equal_facts import (
    LISTINGS_PER_GUARD,
    MOST_GUARDS,
    FactsCache,
    Guard,
    facts_of,
)

CPU = torch.device("cpu")


def given() -> list[Any]:
    return [torch.randn(2, 8), torch.arange(16), None, 3, -0.0, torch.randn(4)]


def emptied(tensor: Tensor) -> Tensor:
    """A tensor whose memory is gone, as FSDP leaves parameters."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


OTHERS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "shape": (0, lambda t: torch.randn(2, 9)),
    "rank": (0, lambda t: torch.randn(16)),
    "strides": (0, lambda t: torch.randn(8, 2).T),
    "dtype": (0, lambda t: t.double()),
    "gradient": (0, lambda t: t.requires_grad_()),
    "negative": (0, lambda t: torch.complex(t, t).conj().imag),
    "alignment": (0, lambda t: torch.randn(17)[1:].view(2, 8)),
    "memory": (0, emptied),
    "layout": (0, lambda t: t.to_sparse()),
    "device": (0, lambda t: t.to("meta")),
    "missing": (0, lambda t: None),
    "number for tensor": (1, lambda t: 7),
    "tensor for None": (2, lambda t: torch.ones(3)),
    "number": (3, lambda t: 4),
    "type of number": (3, lambda t: 3.0),
    "sign of zero": (4, lambda t: 0.0),
}


def test_equal_addresses_are_facts() -> None:
    key = torch.randn(4, 8)
    view, copy = key[:, :5], key.clone()[:, :5]
    assert view.stride() == copy.stride()
    assert facts_of([key, view]) != facts_of([key, copy])
    both = Guard.of([key, view]), Guard.of([key, copy])
    for guard, own, other in zip(both, (view, copy), (copy, view), strict=True):
        assert guard is not None
        assert guard.holds([key, own])
        assert not guard.holds([key, other])


@pytest.mark.parametrize("name", OTHERS)
def test_guards_tell_facts_apart(name: str) -> None:
    guard = Guard.of(given())
    assert guard is not None
    assert guard.holds(given())
    place, change = OTHERS[name]
    other = given()
    other[place] = change(other[place])
    assert not guard.holds(other)
    assert not guard.holds(given()[:-1])


def test_tensors_that_are_one_are_looked_at() -> None:
    x, y = torch.randn(4), torch.randn(4)
    guard = Guard.of([x, y])
    assert guard is not None
    assert guard.holds([y, x])
    assert not guard.holds([x, x])
    assert Guard.of([x, x]) is None
    assert facts_of([x, x]) != facts_of([x, y])


def test_what_is_kept_is_found_again() -> None:
    kept = FactsCache()
    made: list[Sequence[Any]] = []

    def make(tensors: Sequence[Any], facts: object, is_known: bool) -> object:
        made.append(tensors)
        return object()

    first = kept.find("key", given(), CPU, make)
    assert all(kept.find("key", given(), CPU, make) is first for _ in range(3))
    assert kept.find("other", given(), CPU, make) is not first
    assert kept.find("key", given()[::-1], CPU, make) is not first
    assert len(made) == len(kept) == 3
    assert kept.find("another", given(), CPU) is None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_any_number_of_tensors(count: int) -> None:
    kept = FactsCache()
    tensors = [torch.randn(4) for _ in range(count)]
    for given in (tensors, [*tensors, 1]):
        found = [kept.find("key", given, CPU, lambda *_: object()) for _ in range(3)]
        assert len(set(map(id, found))) == 1
    assert len(kept) == 2


def guards_of(kept: FactsCache) -> list[Guard]:
    lists = (by_shape.values() for by_shape in kept._guards.values())
    return [guard for one in lists for some in one for guard, _ in some]


def test_guards_are_few() -> None:
    kept = FactsCache()
    lengths = range(1, 3 * MOST_GUARDS)
    for _ in range(2):
        for n in lengths:
            assert (
                kept.find("key", [torch.randn(n)], CPU, lambda t, *_: t[0].numel()) == n
            )
    assert len(kept) == len(lengths)
    found = guards_of(kept)
    assert len(found) <= MOST_GUARDS


def test_a_dropped_guard_comes_back() -> None:
    kept = FactsCache()

    def holds(n: int) -> bool:
        return any(guard.holds([torch.randn(n)]) for guard in guards_of(kept))

    def find(n: int, times: int) -> None:
        for _ in range(times):
            kept.find("key", [torch.randn(n)], CPU, lambda *_: n)

    find(1, 2)
    assert holds(1)
    for n in range(2, 2 + MOST_GUARDS):
        find(n, 2)
    assert not holds(1)
    find(1, LISTINGS_PER_GUARD)
    assert holds(1)


def test_calls_of_many_lengths_keep_their_guards() -> None:
    kept, query = FactsCache(), torch.randn(1)
    lengths = range(1, 3 * MOST_GUARDS)
    for n in (*lengths, *lengths):
        kept.find("key", [query, torch.randn(n)], CPU, lambda t, *_: t[1].numel())
    for n in lengths:
        assert sum(g.holds([query, torch.randn(n)]) for g in guards_of(kept)) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_shapes_that_are_no_key() -> None:
    kept, query = FactsCache(), torch.randn(4)
    for _ in range(3):
        kept.find("key", [query, torch.randn(4)], CPU, lambda *_: object())

    class Lazy:
        shape = (1, [2])

    nested = torch.nested.nested_tensor([torch.randn(2)])
    for other in (Lazy(), nested):
        assert kept.find("key", [query, other], CPU, lambda *_: object()) is None


def test_settings_of_torch_are_facts() -> None:
    kept = FactsCache()
    x = torch.randn(4), torch.randn(4)
    plain = kept.find("key", x, CPU, lambda *_: object())
    assert kept.find("key", x, CPU) is plain
    with torch.autocast("cpu", torch.bfloat16):
        assert kept.find("key", x, CPU) is None
    with torch.autograd.forward_ad.dual_level():
        assert kept.find("key", x, CPU) is None
    seen: list[Any] = []
    torch.func.vmap(lambda t: seen.append(kept.find("key", x, CPU)) or t)(x[0])
    assert seen == [None]
    assert kept.find("key", x, CPU) is plain


@pytest.mark.parametrize("given", [[1, 2], [None, 2.0], [1, 2, 3]])
def test_numbers_alone(given: list[Any]) -> None:
    kept = FactsCache()
    found = [kept.find("key", given, CPU, lambda *_: object()) for _ in range(3)]
    assert len(set(map(id, found))) == 1
    assert Guard.of(given) is None


def test_modes_of_functions_are_seen() -> None:
    class Doubled(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    kept, x = FactsCache(), (torch.randn(4), torch.randn(4))
    plain = kept.find("key", x, CPU, lambda *_: object())
    with Doubled():
        assert kept.find("key", x, CPU) is None
    with torch.device("cpu"):  # It only says where tensors are made.
        assert kept.find("key", x, CPU) is plain
