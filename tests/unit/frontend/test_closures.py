"""Keys, captures and rebuilt mods."""

from __future__ import annotations

import enum
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.attention.flex_attention import and_masks, or_masks

from flexc.frontend.closures import read_mods
from flexc.frontend.walk import MAX_NUMBERS

WINDOW = 3
SETTINGS = {"window": 4, "flags": [True, False]}
SLOPES = torch.ones(4)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window_of(width: Any) -> Callable[..., Any]:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k < width

    return mask


def scaled_by(slopes: Any) -> Callable[..., Any]:
    return lambda s, b, h, q, k: s * slopes[h]


def global_window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k < WINDOW


def from_settings(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k < SETTINGS["window"]) & SETTINGS["flags"][0]


class Window:
    step = 2

    def __init__(self, width: int):
        self.width = width

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k < self.doubled() * Window.step

    def doubled(self) -> int:
        return self.width * 2

    def mask(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k < self.width


@dataclass(frozen=True)
class Frozen:
    width: int
    name: str = "x"


class Pair(NamedTuple):
    low: int
    high: int


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Learned(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.ones(4))
        self.gain = 2.0

    def forward(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * self.gain + self.bias[h]


class Layer(torch.nn.Module):
    """Holds what its mods read; its `forward` cannot be keyed."""

    def __init__(self) -> None:
        super().__init__()
        self.window = 3
        self.slopes = torch.nn.Parameter(torch.arange(4.0))
        self.table = torch.nn.Buffer(torch.arange(12.0).view(4, 3))
        self.project = torch.nn.Linear(1, 1)
        self.inner = Learned()

    def forward(self, x: Any) -> Any:
        return self.project(x)

    def score(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + self.slopes[h] * self.window + self.table[h, 0]

    def doubled(self) -> int:
        return self.window * 2

    def called(self) -> Any:
        return self(1)

    @property
    def calling(self) -> Any:
        return self(1)


LAYER = Layer()


def key(*mods: Any) -> Any:
    return read_mods(*mods).key


def test_equal_bodies_share_a_key() -> None:
    assert key(window_of(3)) == key(window_of(400))
    assert hash(key(window_of(3))) == hash(key(window_of(400)))
    assert read_mods(window_of(3)).captures == (3,)
    assert key(scaled_by(torch.ones(4))) == key(scaled_by(torch.ones(9)))
    both = and_masks(window_of(3), causal), and_masks(window_of(4), causal)
    assert key(both[0]) == key(both[1])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (window_of(3), window_of(3.0)),
        (window_of(3), window_of(True)),
        (window_of("a"), window_of("b")),
        (window_of(None), window_of(0)),
        (window_of(math.inf), window_of(0.5)),
        (window_of(torch.float32), window_of(torch.float16)),
        (window_of(Side.LEFT), window_of(Side.RIGHT)),
        (window_of((1, 2)), window_of((1, 2, 3))),
        (window_of([1]), window_of((1,))),
        (window_of({"a": 1}), window_of({"b": 1})),
        (window_of(Frozen(1, "x")), window_of(SimpleNamespace(width=1))),
        (window_of(math.floor), window_of(math.ceil)),
        (scaled_by(torch.ones(4)), scaled_by(torch.ones(4, 2))),
        (scaled_by(torch.ones(4)), scaled_by(torch.ones(4, dtype=torch.int32))),
        (scaled_by(torch.ones(4)), scaled_by(torch.ones(8)[::2])),
        (and_masks(causal), or_masks(causal)),
        (window_of(3), causal),
        (lambda b, h, q, k: q > 1, lambda b, h, q, k: q > 2),
    ],
)
def test_different_structure_has_another_key(a: Any, b: Any) -> None:
    assert key(a) != key(b)


def test_walk_of_common_mods_is_short() -> None:
    """Each call of attention walks its mods; `bench.host` has the time."""
    mods = scaled_by(SLOPES), and_masks(window_of(3), causal)
    hash(key(*mods))
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        hash(key(*mods))
    finally:
        sys.setprofile(None)
    assert calls < 200, calls


def test_tensors_are_captured_once() -> None:
    signature = read_mods(scaled_by(SLOPES), window_of(SLOPES))
    assert len(signature.captures) == 1
    assert signature.captures[0] is SLOPES
    other = read_mods(scaled_by(SLOPES), window_of(torch.ones(4)))
    assert len(other.captures) == 2
    assert other.key != signature.key


def test_rebinding_a_global_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_mods(global_window)
    monkeypatch.setitem(globals(), "WINDOW", 9)
    after = read_mods(global_window)
    assert (before.captures, after.captures) == ((3,), (9,))
    assert before.key == after.key
    monkeypatch.setitem(globals(), "WINDOW", 9.5)
    assert read_mods(global_window).key != before.key


def test_mutating_containers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_mods(from_settings)
    assert before.captures == (4,)
    monkeypatch.setitem(SETTINGS, "window", 5)
    assert read_mods(from_settings).captures == (5,)
    assert read_mods(from_settings).key == before.key
    monkeypatch.setitem(SETTINGS, "flags", [False, False])
    assert read_mods(from_settings).key != before.key


def test_class_attributes_and_methods_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mod = Window(3)
    before = read_mods(mod)
    assert before.captures == (3,)
    assert before.cacheable
    monkeypatch.setattr(Window, "step", 3)
    assert read_mods(mod).key != before.key
    monkeypatch.undo()
    assert read_mods(mod).key == before.key
    monkeypatch.setattr(Window, "doubled", lambda self: self.width)
    assert read_mods(mod).key != before.key


CALLS: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [
    (window_of(3), (3,), (7,)),
    (functools.partial(lambda w, b, h, q, k: q - k < w, 3), (3,), (7,)),
    (functools.partial(lambda b, h, q, k, w=0: q - k < w, w=3), (0, 3), (0, 7)),
    (lambda b, h, q, k, w=3: q - k < w, (3,), (7,)),
    (Window(3), (3,), (7,)),
    (Window(3).mask, (3,), (7,)),
    (window_of(0).__get__(None, int), (0,), (7,)),
]


@pytest.mark.parametrize(("mod", "captures", "values"), CALLS)
def test_rebuild(mod: Any, captures: Any, values: Any) -> None:
    signature = read_mods(mod)
    assert signature.captures == captures
    ((same,), _), ((other,), _) = map(signature.rebuild, (captures, values))
    points = [(0, 0, q, k) for q in range(40) for k in (0, 3)]
    assert [same(*p) for p in points] == [mod(*p) for p in points]
    assert [other(*p) for p in points] != [mod(*p) for p in points]
    assert read_mods(mod).captures == captures


def test_rebuild_of_nested_functions() -> None:
    ((other,), _) = read_mods(and_masks(window_of(3), window_of(4))).rebuild([7, 5])
    zero = torch.zeros(())
    assert other(zero, zero, torch.tensor(4), 0)
    assert not other(zero, zero, torch.tensor(5), 0)


def test_rebuild_of_objects_in_closures() -> None:
    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k < frozen.width + pair.high + space.deep["a"][0]

    frozen, pair = Frozen(1), Pair(10, 20)
    space = SimpleNamespace(deep={"a": (300,)}, unused=object())
    signature = read_mods(mod)
    assert signature.cacheable
    assert sorted(signature.captures) == [1, 10, 20, 300]
    ((other,), _) = signature.rebuild([0] * 4)
    assert mod(0, 0, 5, 0)
    assert not other(0, 0, 5, 0)
    assert (frozen.width, pair.high, space.deep) == (1, 20, {"a": (300,)})


def test_rebuild_of_a_module() -> None:
    module = Learned()
    signature = read_mods(module)
    assert signature.cacheable
    assert {type(c) for c in signature.captures} == {float, torch.nn.Parameter}
    values = [10.0 if isinstance(c, float) else SLOPES for c in signature.captures]
    ((other,), _) = signature.rebuild(values)
    assert other(1.0, 0, 0, 0, 0) == 11.0
    assert module(torch.ones(()), 0, 0, 0, 0) == 3.0


def _reads(layer: Layer) -> Any:
    return lambda s, b, h, q, k: s + layer.slopes[h] * layer.window


@pytest.mark.parametrize(
    ("of", "count"),
    [
        (_reads, 2),
        (lambda layer: layer.score, 3),
        (lambda layer: lambda s, b, h, q, k: layer.score(s, b, h, q, k), 3),
        (lambda layer: lambda s, b, h, q, k: s + layer.doubled(), 1),
        (lambda layer: lambda s, b, h, q, k: s + layer.inner.bias[h], 1),
        (lambda layer: lambda s, b, h, q, k: layer.inner(s, b, h, q, k), 2),
        (lambda layer: lambda s, b, h, q, k: (lambda: s + layer.window)(), 1),
        (lambda _: lambda s, b, h, q, k: s + LAYER.slopes[h], 1),
    ],
)
def test_attributes_of_a_module_are_keyed_without_its_forward(
    of: Any, count: int
) -> None:
    before = read_mods(of(LAYER))
    assert before.cacheable
    assert len(before.captures) == count
    assert read_mods(of(Layer())).key == before.key
    values = [7 if isinstance(c, int | float) else c + 1 for c in before.captures]
    ((same,), _), ((rebuilt,), _) = map(before.rebuild, (before.captures, values))
    point = (torch.ones(()), 0, 1, 2, 0)
    assert same(*point) == of(LAYER)(*point)
    assert rebuilt(*point) != of(LAYER)(*point)


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, k: LAYER(s),
        lambda s, b, h, q, k: LAYER.called(),
        lambda s, b, h, q, k: LAYER.calling,
        lambda s, b, h, q, k: LAYER.__call__(s),
        lambda s, b, h, q, k: (lambda f: f(s))(LAYER),
        lambda s, b, h, q, k: LAYER.project(s),
        LAYER,
    ],
)
def test_calls_of_a_module_read_the_layers_that_it_calls(mod: Any) -> None:
    before = read_mods(mod)
    assert before.cacheable
    held = {id(p) for p in LAYER.project.parameters()}
    assert held <= {id(c) for c in before.captures}
    LAYER.project.out_features = 2
    try:
        assert read_mods(mod).captures != before.captures
    finally:
        LAYER.project.out_features = 1


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, k: s + LAYER.get_parameter("slopes")[h],
        lambda s, b, h, q, k: s + next(LAYER.buffers())[h, 0],
        lambda s, b, h, q, k: s if hasattr(LAYER, "later") else -s,
        lambda s, b, h, q, k: s if super(Layer, LAYER).training else -s,
    ],
)
def test_searches_of_a_module_are_not_keyed(mod: Any) -> None:
    assert not read_mods(mod).cacheable


def test_objects_made_by_a_mod_are_read() -> None:
    assert not read_mods(lambda b, h, q, k: Window(3)(b, h, q, k)).cacheable
    assert read_mods(lambda b, h, q, k: q - k < Window.step).cacheable


def test_hooks_of_a_called_module_are_not_keyed() -> None:
    module = Learned()
    assert read_mods(module).cacheable
    module.register_forward_hook(lambda *given: None)
    assert not read_mods(module).cacheable


def test_comparisons_and_patterns_read_attributes() -> None:
    def matches(frozen: Frozen) -> Any:
        def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
            match frozen:
                case Frozen(width=1):
                    return q >= k
                case _:
                    return q > k

        return mod

    assert not read_mods(matches(Frozen(1))).cacheable
    equal = lambda x: lambda b, h, q, k: q > (x == Frozen(1))  # noqa: E731
    one, two = read_mods(equal(Frozen(1))), read_mods(equal(Frozen(2)))
    told_apart = (one.key, one.captures) != (two.key, two.captures)
    assert told_apart or not (one.cacheable or two.cacheable)


def test_recursive_functions() -> None:
    def power(x: Any, n: int) -> Any:
        return x if n == 0 else x * power(x, n - 1) * base

    base = 2
    signature = read_mods(lambda s, b, h, q, k: power(s, 2))
    assert signature.cacheable
    ((other,), _) = signature.rebuild([1])
    assert other(3, 0, 0, 0, 0) == 27


def test_names_of_captures() -> None:
    assert read_mods(window_of(3)).capture_names() == ("width",)
    assert read_mods(global_window).capture_names() == ("WINDOW",)
    assert read_mods(Window(3).mask).capture_names() == ("width",)


@pytest.mark.parametrize(
    "mod",
    [
        lambda b, h, q, k: q < getattr(SETTINGS, "window", 1),
        lambda b, h, q, k: q < globals()["WINDOW"],
        lambda b, h, q, k: q < len(object.__dict__),
        window_of(object()),
        window_of(torch.ones(2).numpy()),
        functools.lru_cache(causal),
    ],
)
def test_what_cannot_be_keyed_is_said(mod: Any) -> None:
    assert not read_mods(mod).cacheable


def test_writes_to_state_are_not_cached() -> None:
    calls = 0

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        nonlocal calls
        calls += 1
        return q >= k

    assert not read_mods(mod).cacheable


def test_numbers_without_end() -> None:
    """Only so many numbers are arguments; the others are told apart by their values."""
    table = [float(i) for i in range(3 * MAX_NUMBERS)]

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * table[-1]

    before = read_mods(mod)
    assert len(before.captures) == MAX_NUMBERS
    table[0] = -1.0
    assert read_mods(mod).key == before.key
    table[-1] = -1.0
    assert read_mods(mod).key != before.key
    ((rebuilt,), _) = before.rebuild(before.captures)
    assert rebuilt(1, 0, 0, 0, 0) == -1.0


def test_a_class_is_not_a_number_of_it() -> None:
    def made(first: Any, second: Any) -> Any:
        return lambda s, b, h, q, k: (s * 2 if first == 3 else s) + (second is int)

    assert read_mods(made(int, 3)).key != read_mods(made(3, int)).key
