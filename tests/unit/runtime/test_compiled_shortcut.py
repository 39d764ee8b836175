"""Repeated calls of a compiled function: no walk, and never a stale result."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flexc
from flexc.runtime.compiled import compiled_function
from tests.unit.runtime.functions import COMPILE, Block, qkv, traces

attend: Any = flexc.flex_attention


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], int]:
    """How many walks a call makes."""
    count = [0]
    read = compiled_function.read_call

    def counted(*args: Any) -> Any:
        count[0] += 1
        return read(*args)

    monkeypatch.setattr(compiled_function, "read_call", counted)

    def walks(call: Callable[[], Any]) -> int:
        before = count[0]
        call()
        return count[0] - before

    return walks


FACTOR = 2.0


def scaled(q: Tensor, by: float = 1.0) -> Tensor:
    return q * by * FACTOR


class Options:
    depth = 1

    def __init__(self) -> None:
        self.width, self.bias = 3, torch.ones(8)

    @property
    def size(self) -> int:
        return self.width * self.depth


class Wider(Options):
    depth = 5


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.options = Options()
        self.table = {"scale": [1.0, 2.0]}
        self.parts = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0))
        self.act: Any = torch.relu
        self.extra: Any = None

    def more(self, x: Tensor) -> Tensor:
        return x + 1

    def forward(self, q: Tensor, times: int = 1) -> Tensor:
        out = attend(q, q, q) * self.table["scale"][1] * times
        out = self.more(scaled(self.parts(out))) * self.options.size
        return self.act(out) + self.options.bias


def _restored(owner: Any, name: str, value: Any) -> Callable[[Model], Any]:
    @contextmanager
    def change(_: Model) -> Iterator[None]:
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)

    return change


def _requires_no_grad(model: Model) -> None:
    model.requires_grad_(False)


def _grow(model: Model) -> None:
    model.options.bias.data = torch.ones(1)


def _swap_class(model: Model) -> None:
    model.options.__class__ = Wider


def _shadow_method(model: Model) -> None:
    model.more = lambda x: x - 1


def _new_weight(model: Model) -> None:
    model.parts[0].weight = nn.Parameter(torch.zeros(8, 8))


CHANGES: dict[str, Callable[[Model], Any]] = {
    "global": _restored(__import__(__name__, fromlist="_"), "FACTOR", 3.0),
    "default": _restored(scaled, "__defaults__", (7.0,)),
    "code": _restored(scaled, "__code__", (lambda q, by=1.0: q * by).__code__),
    "class": _restored(Options, "depth", 4),
    "method": _restored(Model, "more", lambda self, x: x + 9),
    "property": _restored(Options, "size", property(lambda self: 8)),
    "instance hides class": lambda m: setattr(m.options, "depth", 9),
    "attribute": lambda m: setattr(m.options, "width", 4),
    "list": lambda m: m.table["scale"].__setitem__(1, 5.0),
    "dict": lambda m: m.table.update(scale=[1.0, 6.0]),
    "module": lambda m: m.parts.__setitem__(1, nn.Sigmoid()),
    "parameter": _new_weight,
    "mode": lambda m: m.parts.eval(),
    "hook": lambda m: m.parts.register_forward_hook(lambda *a: a[2] * 0),
    "function": lambda m: setattr(m, "act", torch.tanh),
    "buffer": lambda m: m.register_buffer("extra2", torch.ones(1)),
    "tensor": lambda m: setattr(m.options, "bias", torch.zeros(8)),
    "tensor in place": lambda m: m.options.bias.zero_(),
    "shape in place": _grow,
    "requires no grad": _requires_no_grad,
    "type of an object": _swap_class,
    "method on the object": _shadow_method,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changes_are_seen(change: Any, walks: Any) -> None:
    model, q = Model(), qkv()[0]
    compiled = COMPILE(model)
    for _ in range(3):
        compiled(q)
    assert walks(lambda: torch.testing.assert_close(compiled(q), model(q))) == 0
    done = change(model)
    with done if hasattr(done, "__enter__") else nullcontext():
        for _ in range(3):
            found, expected = compiled(q), model(q)
            torch.testing.assert_close(found, expected)
            assert found.requires_grad == expected.requires_grad
    torch.testing.assert_close(compiled(q), model(q))


def test_arguments_and_settings_are_seen(walks: Any) -> None:
    model, (q, other, _) = Model(), qkv()
    compiled = COMPILE(model)
    for _ in range(3):
        compiled(q)
    calls = {
        "equal": (lambda: (other,), 0),
        "number": (lambda: (q, 2), 1),
        "bool": (lambda: (q, True), 1),
        "float": (lambda: (q, 1.0), 1),
        "length": (lambda: (qkv(13)[0],), 1),
        "strides": (lambda: (q.mT.contiguous().mT,), 1),
        "grad": (lambda: (q.detach().requires_grad_(),), 1),
        "double": (lambda: (nn.Parameter(q),), 1),
    }
    for make, most in calls.values():
        args = make()
        for walked in (most, 0):
            assert walks(functools.partial(compiled, *args)) == walked
            torch.testing.assert_close(compiled(*args), model(*args))
    with torch.no_grad():
        assert not compiled(q).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(q).dtype == model(q).dtype
    assert compiled(q).requires_grad


def test_arguments_that_look_alike() -> None:
    """Texts like the text of another, and a tensor with something to be read on it."""

    def scaled(q: Any, name: Any) -> Any:
        return q * (getattr(q, "factor", 1) if name == "factor" else len(name) + 1)

    compiled, (q, other, _) = COMPILE(scaled), qkv()
    for name in ("", "''", "factor", ""):
        for _ in range(4):
            torch.testing.assert_close(compiled(q, name), scaled(q, name))
    other.factor = 3
    for _ in range(4):
        torch.testing.assert_close(compiled(other, "factor"), 3 * other)


def test_the_same_tensor_twice() -> None:
    compiled = COMPILE(lambda q, k: (attend(q, k, k), q.add_(1), k.clone()))
    q, k, _ = qkv()
    for _ in range(3):
        compiled(q, k)
    _, _, same = compiled(q, q)
    torch.testing.assert_close(same, q)
    _, _, other = compiled(q, k)
    torch.testing.assert_close(other, k)


def test_what_was_replaced_may_go() -> None:
    """A record holds no tensor, and nothing else once it was seen to be replaced."""
    state = {"bias": torch.ones(1), "part": Options()}
    compiled = COMPILE(lambda q: q * state["bias"] * state["part"].bias[0])
    q = qkv()[0]
    for _ in range(3):
        compiled(q)
    gone = weakref.ref(state["bias"]), weakref.ref(state["part"])
    state.update(bias=torch.zeros(1))
    gc.collect()
    assert gone[0]() is None
    state.update(part=Options())
    assert compiled(q).sum() == 0
    gc.collect()
    assert gone[1]() is None


def test_records_of_what_changes_are_made_ever_less_often(walks: Any) -> None:
    state = {"bias": torch.ones(1)}
    compiled = COMPILE(lambda q: q * state["bias"])
    q = qkv()[0]

    def run() -> None:
        for n in range(100):
            state["bias"] = torch.full((1,), float(n))
            torch.testing.assert_close(compiled(q), q * n)

    assert traces(lambda: walks(run)) == 1
    assert compiled._shortcut._patience > 8
    assert walks(lambda: [compiled(q) for _ in range(200)]) < 120


def test_modules_are_not_walked_again(walks: Any) -> None:
    block = Block().eval()
    compiled, x = COMPILE(block), torch.randn(1, 6, 16)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        assert walks(lambda: compiled(x)) == 0
        block.bias.mul_(2)
        assert walks(lambda: torch.testing.assert_close(compiled(x), block(x))) == 0
