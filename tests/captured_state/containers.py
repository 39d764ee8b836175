"""State in containers and values of the standard library."""

# ruff: noqa: E731
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
from __future__ import annotations

import array
import collections
import contextvars
import datetime
import decimal
import enum
import fractions
import os
import pathlib
import re
import sys
import threading
import types
import weakref
from typing import Any, NamedTuple

import numpy
import torch

from tests.captured_state.kinds import kind


@kind
def element_of_a_list() -> Any:
    values = [2.0]
    return lambda s, b, h, q, k: s * values[0], lambda: values.__setitem__(0, 3.0)


@kind
def length_of_a_list() -> Any:
    values = [2.0]
    return lambda s, b, h, q, k: s * len(values), lambda: values.append(3.0)


@kind
def nested_list() -> Any:
    values = [[1.0], [2.0]]
    change = lambda: values[1].__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * values[1][0], change


@kind
def order_of_a_list() -> Any:
    values = ["a", "b"]
    return lambda s, b, h, q, k: s * (2 if values[0] == "a" else 3), values.reverse


@kind
def element_of_a_tuple() -> Any:
    held = types.SimpleNamespace(pair=(1.0, 2.0))
    change = lambda: setattr(held, "pair", (1.0, 3.0))
    return lambda s, b, h, q, k: s * held.pair[1], change


@kind
def list_within_a_tuple() -> Any:
    pair = (1.0, [2.0])
    return (
        lambda s, b, h, q, k: s * pair[1][0],
        lambda: pair[1].append(0) or (pair[1].__setitem__(0, 3.0)),
    )


class Pair(NamedTuple):
    low: float
    high: list[float]


@kind
def named_tuple() -> Any:
    pair = Pair(1.0, [2.0])
    change = lambda: pair.high.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * pair.high[0], change


@kind
def value_of_a_dictionary() -> Any:
    table = {"x": 2.0}
    return lambda s, b, h, q, k: s * table["x"], lambda: table.update(x=3.0)


@kind
def key_of_a_dictionary() -> Any:
    table = {"x": 2.0}
    change = lambda: table.update(y=1.0)
    return lambda s, b, h, q, k: s * (2 if "y" in table else 1), change


@kind
def sign_of_a_key() -> Any:
    table = {0.0: 1}

    def change() -> None:
        table.clear()
        table[-0.0] = 1

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * sum(2 if str(key) == "0.0" else 3 for key in table)

    return mod, change


@kind
def order_of_a_dictionary() -> Any:
    table = {"x": 2.0, "y": 3.0}

    def change() -> None:
        table["x"] = table.pop("x")

    return lambda s, b, h, q, k: s * (2 if next(iter(table)) == "x" else 3), change


@kind
def ordered_dictionary() -> Any:
    table = collections.OrderedDict(x=2.0)
    return lambda s, b, h, q, k: s * table["x"], lambda: table.update(x=3.0)


@kind
def default_dictionary() -> Any:
    table: Any = collections.defaultdict(lambda: 2.0)
    return lambda s, b, h, q, k: s * table["x"], lambda: table.update(x=3.0)


@kind
def chained_dictionaries() -> Any:
    table: Any = collections.ChainMap({"x": 2.0})
    return lambda s, b, h, q, k: s * table["x"], lambda: table.update(x=3.0)


@kind
def counter() -> Any:
    table = collections.Counter("aab")
    return lambda s, b, h, q, k: s * table["a"], lambda: table.update("a")


@kind
def read_only_view_of_a_dictionary() -> Any:
    table = {"x": 2.0}
    view = types.MappingProxyType(table)
    return lambda s, b, h, q, k: s * view["x"], lambda: table.update(x=3.0)


@kind
def values_view_of_a_dictionary() -> Any:
    table = {"x": 2.0}
    view = table.values()
    return lambda s, b, h, q, k: s * sum(view), lambda: table.update(x=3.0)


@kind
def deque() -> Any:
    values = collections.deque([2.0])
    return lambda s, b, h, q, k: s * values[0], lambda: values.appendleft(3.0)


@kind
def set_of_numbers() -> Any:
    values = {1, 2}
    return lambda s, b, h, q, k: s * len(values), lambda: values.add(3)


@kind
def frozen_set_of_signed_zeros() -> Any:
    held = types.SimpleNamespace(values=frozenset({0.0}))
    change = lambda: setattr(held, "values", frozenset({-0.0}))

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * (2 if str(next(iter(held.values))) == "0.0" else 3)

    return mod, change


@kind
def complex_number() -> Any:
    held = types.SimpleNamespace(z=complex(0.0, 1.0))
    change = lambda: setattr(held, "z", complex(-0.0, 1.0))
    return lambda s, b, h, q, k: s * (2 if str(held.z.real) == "0.0" else 3), change


@kind
def array_of_numbers() -> Any:
    values = array.array("d", [2.0])
    return lambda s, b, h, q, k: s * values[0], lambda: values.__setitem__(0, 3.0)


@kind
def bytearray_of_numbers() -> Any:
    values = bytearray([2])
    return lambda s, b, h, q, k: s * values[0], lambda: values.__setitem__(0, 3)


@kind
def memory_view() -> Any:
    values = bytearray([2])
    view = memoryview(values)
    return lambda s, b, h, q, k: s * view[0], lambda: values.__setitem__(0, 3)


@kind
def numpy_array() -> Any:
    values = numpy.array([2.0, 1.0])
    change = lambda: values.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * float(values[0]), change


@kind
def numpy_scalar() -> Any:
    held = types.SimpleNamespace(x=numpy.float32(2))
    change = lambda: setattr(held, "x", numpy.float32(3))
    return lambda s, b, h, q, k: s * float(held.x), change


@kind
def tensor_of_a_numpy_array() -> Any:
    values = numpy.array([2.0, 1.0], dtype=numpy.float32)
    change = lambda: values.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * torch.from_numpy(values)[h], change


@kind
def fraction() -> Any:
    held = types.SimpleNamespace(x=fractions.Fraction(1, 2))
    change = lambda: setattr(held, "x", fractions.Fraction(1, 3))
    return lambda s, b, h, q, k: s * float(held.x), change


@kind
def decimal_number() -> Any:
    held = types.SimpleNamespace(x=decimal.Decimal("0.5"))
    change = lambda: setattr(held, "x", decimal.Decimal("0.25"))
    return lambda s, b, h, q, k: s * float(held.x), change


@kind
def date() -> Any:
    held = types.SimpleNamespace(x=datetime.date(2020, 1, 2))
    change = lambda: setattr(held, "x", datetime.date(2020, 1, 3))
    return lambda s, b, h, q, k: s * held.x.day, change


@kind
def file_path() -> Any:
    held = types.SimpleNamespace(x=pathlib.PurePosixPath("a"))
    change = lambda: setattr(held, "x", pathlib.PurePosixPath("bcd"))
    return lambda s, b, h, q, k: s * len(str(held.x)), change


@kind
def regular_expression() -> Any:
    held = types.SimpleNamespace(x=re.compile("a+"))
    change = lambda: setattr(held, "x", re.compile("b+"))
    return lambda s, b, h, q, k: s * (2 if held.x.match("aa") else 3), change


@kind
def range_of_numbers() -> Any:
    held = types.SimpleNamespace(x=range(2))
    change = lambda: setattr(held, "x", range(3))
    return lambda s, b, h, q, k: s * len(held.x), change


@kind
def slice_of_a_list() -> Any:
    held = types.SimpleNamespace(x=slice(0, 1))
    change = lambda: setattr(held, "x", slice(1, 2))
    return lambda s, b, h, q, k: s * sum([2.0, 3.0][held.x]), change


@kind
def weak_reference() -> Any:
    held = _Held(2.0)
    reference = weakref.ref(held)
    keep = [held]
    change = lambda: setattr(keep[0], "x", 3.0)
    return lambda s, b, h, q, k: s * reference().x, change  # pyright: ignore


class _Held:
    def __init__(self, x: float):
        self.x = x


@kind
def weak_dictionary() -> Any:
    held = _Held(2.0)
    table = weakref.WeakValueDictionary(x=held)
    change = lambda: setattr(held, "x", 3.0)
    return lambda s, b, h, q, k: s * table["x"].x, change


@kind
def context_variable() -> Any:
    variable = contextvars.ContextVar("variable", default=2.0)
    return lambda s, b, h, q, k: s * variable.get(), lambda: variable.set(3.0)


@kind
def thread_local() -> Any:
    local = threading.local()
    local.x = 2.0
    return lambda s, b, h, q, k: s * local.x, lambda: setattr(local, "x", 3.0)


@kind
def environment_variable() -> Any:
    os.environ["CAPTURED_FACTOR"] = "2"
    change = lambda: os.environ.update(CAPTURED_FACTOR="3")
    return lambda s, b, h, q, k: s * float(os.environ["CAPTURED_FACTOR"]), change


@kind
def environment_variable_by_getenv() -> Any:
    os.environ["CAPTURED_FACTOR"] = "2"
    change = lambda: os.environ.update(CAPTURED_FACTOR="3")
    return lambda s, b, h, q, k: s * float(os.getenv("CAPTURED_FACTOR", "1")), change


@kind
def state_of_the_interpreter() -> Any:
    before = sys.getrecursionlimit()
    change = lambda: sys.setrecursionlimit(before + 10)
    return (
        lambda s, b, h, q, k: s * (2 if sys.getrecursionlimit() == before else 3),
        change,
    )


@kind
def order_of_a_set() -> Any:
    # Both numbers have the same place in a table of eight: the first one keeps it.
    held = types.SimpleNamespace(values={0, 8})
    change = lambda: setattr(held, "values", {8, 0})
    return lambda s, b, h, q, k: s * (2 if next(iter(held.values)) else 3), change


@kind
def attribute_of_a_python_module() -> Any:
    module = types.ModuleType("settings")
    module.factor = 2.0  # type: ignore[attr-defined]
    change = lambda: setattr(module, "factor", 3.0)
    return lambda s, b, h, q, k: s * module.factor, change  # pyright: ignore


@kind
def attribute_that_a_module_computes() -> Any:
    module = types.ModuleType("settings")
    values = [2.0]
    module.__getattr__ = lambda name: values[0]  # type: ignore
    change = lambda: values.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * module.anything, change  # pyright: ignore


class Mode(enum.Enum):
    NARROW = 1
    WIDE = 2

    @property
    def width(self) -> int:
        return self.value * 10


@kind
def member_of_an_enumeration() -> Any:
    held = types.SimpleNamespace(mode=Mode.NARROW)
    change = lambda: setattr(held, "mode", Mode.WIDE)
    return lambda s, b, h, q, k: s * (2 if held.mode is Mode.NARROW else 3), change


@kind
def property_of_a_member() -> Any:
    held = types.SimpleNamespace(mode=Mode.NARROW)
    change = lambda: setattr(held, "mode", Mode.WIDE)
    return lambda s, b, h, q, k: s * held.mode.width * 0.1, change


@kind
def attribute_of_a_member() -> Any:
    Mode.NARROW.factor = 2.0  # type: ignore[attr-defined]
    change = lambda: setattr(Mode.NARROW, "factor", 3.0)
    return lambda s, b, h, q, k: s * Mode.NARROW.factor, change  # pyright: ignore


class Key(enum.Enum):
    A = 1


@kind
def attribute_of_a_member_that_is_a_key() -> Any:
    Key.A.factor = 2.0  # type: ignore[attr-defined]
    weights = {Key.A: 1.0}
    change = lambda: setattr(Key.A, "factor", 3.0)
    return lambda s, b, h, q, k: s * sum(key.factor for key in weights), change


class Settings(enum.Enum):
    TABLE = [2.0]  # noqa: RUF012


@kind
def list_that_is_a_members_value() -> Any:
    Settings.TABLE.value[0] = 2.0
    change = lambda: Settings.TABLE.value.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * Settings.TABLE.value[0], change


class Flags(enum.Flag):
    A = 1
    B = 2


@kind
def flags() -> Any:
    held = types.SimpleNamespace(x=Flags.A)
    change = lambda: setattr(held, "x", Flags.A | Flags.B)
    return lambda s, b, h, q, k: s * (3 if Flags.B in held.x else 2), change


class Level(enum.IntEnum):
    LOW = 2
    HIGH = 3


@kind
def member_that_is_a_number() -> Any:
    held = types.SimpleNamespace(x=Level.LOW)
    change = lambda: setattr(held, "x", Level.HIGH)
    return lambda s, b, h, q, k: s * int(held.x), change


@kind
def container_that_holds_itself() -> Any:
    values: list[Any] = [2.0]
    values.append(values)
    change = lambda: values.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * values[1][0], change
