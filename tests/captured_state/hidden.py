"""State that no bytecode names: reached by aliases, by C, by classes, by identity."""

# ruff: noqa: E731
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import math
import operator
import sys
import types
from operator import attrgetter as get_attribute
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from tests.captured_state.kinds import kind

read = getattr


class Missing:
    """What stands for no value."""


MISSING = Missing()


def held(x: Any = 2.0) -> Any:
    return types.SimpleNamespace(x=x)


def changed(obj: Any, x: Any = 3.0) -> Any:
    return lambda: setattr(obj, "x", x)


class Pair(NamedTuple):
    a: float


def named() -> Any:
    """A class of named tuples, and one of it."""
    cls = type("Named", (Pair,), {"__slots__": ()})
    return cls, cls(2.0)


@kind
def class_attribute_of_a_named_tuple() -> Any:
    cls, one = named()
    cls.x = 2.0
    return lambda s, b, h, q, k: s * one.x, changed(cls)


@kind
def operator_of_a_named_tuple() -> Any:
    cls, one = named()
    change = lambda: setattr(cls, "__getitem__", lambda self, i: 3.0)
    return lambda s, b, h, q, k: s * one[0], change


@kind
def field_of_a_named_tuple_hidden_by_its_class() -> Any:
    cls, one = named()
    change = lambda: setattr(cls, "a", property(lambda self: 3.0))
    return lambda s, b, h, q, k: s * one.a, change


@kind
def attribute_of_a_subclassed_named_tuple() -> Any:
    one: Any = type("Named", (Pair,), {})(2.0)
    one.x = 2.0
    return lambda s, b, h, q, k: s * one.x * one.a, changed(one)


@kind
def attribute_of_a_partial() -> Any:
    call: Any = functools.partial(max, 1.0)
    call.x = 2.0
    return lambda s, b, h, q, k: s * call.x * call(0.5), changed(call)


@kind
def attribute_of_a_tensor() -> Any:
    table: Any = torch.ones(4)
    table.x = 2.0
    return lambda s, b, h, q, k: s * table.x * table[h], changed(table)


@kind
def attribute_of_a_parameter() -> Any:
    table: Any = torch.nn.Parameter(torch.ones(4))
    table.x = 2.0
    mod = lambda s, b, h, q, k: s * table.x * table[h]
    return mod, changed(table), [table]


@kind
def class_of_a_tensor() -> Any:
    obj = held(torch.ones(4))
    is_learned = lambda: isinstance(obj.x, torch.nn.Parameter)
    change = lambda: setattr(obj, "x", torch.nn.Parameter(torch.ones(4)))
    return lambda s, b, h, q, k: s * (2.0 if is_learned() else 3.0), change


@kind
def buffer_by_its_class() -> Any:
    obj = held(torch.ones(4))
    is_buffer = lambda: isinstance(obj.x, torch.nn.Buffer)
    change = lambda: setattr(obj, "x", torch.nn.Buffer(torch.ones(4)))
    return lambda s, b, h, q, k: s * (2.0 if is_buffer() else 3.0), change


@kind
def storage_of_a_tensor() -> Any:
    obj = held(torch.ones(4)[2:])
    change = lambda: setattr(obj, "x", torch.ones(6)[2:4])
    mod = lambda s, b, h, q, k: s * obj.x.untyped_storage().nbytes() / 16
    return mod, change


@kind
def attribute_of_torch() -> Any:
    torch.x_of_a_test = 2.0
    change = lambda: setattr(torch, "x_of_a_test", 3.0)
    return lambda s, b, h, q, k: s * torch.x_of_a_test, change


@kind
def function_put_into_torch() -> Any:
    functional: Any = torch.nn.functional
    functional.x_of_a_test = torch.sigmoid
    change = lambda: setattr(functional, "x_of_a_test", torch.tanh)
    return lambda s, b, h, q, k: s * functional.x_of_a_test(h + 1.0), change


@kind
def attribute_of_math() -> Any:
    math.x_of_a_test = 2.0
    change = lambda: setattr(math, "x_of_a_test", 3.0)
    return lambda s, b, h, q, k: s * math.x_of_a_test, change


@kind
def module_called_as_another_one() -> Any:
    module: Any = types.ModuleType("math")
    module.x = 2.0
    return lambda s, b, h, q, k: s * module.x, changed(module)


@kind
def seed_of_torch() -> Any:
    torch.manual_seed(2)
    change = lambda: torch.manual_seed(3)
    return lambda s, b, h, q, k: s * torch.initial_seed(), change


@kind
def builtins_of_a_function() -> Any:
    names: dict[str, Any] = {"__builtins__": {"x": 2.0}}
    exec("def mod(s, b, h, q, k): return s * x", names)
    return names["mod"], lambda: names["__builtins__"].update(x=3.0)


@kind
def alias_of_attrgetter() -> Any:
    obj = held()
    return lambda s, b, h, q, k: s * get_attribute("x")(obj), changed(obj)


@kind
def getattr_called_by_map() -> Any:
    obj = held()
    return lambda s, b, h, q, k: s * sum(map(read, [obj], ["x"])), changed(obj)


@kind
def getattr_in_a_partial() -> Any:
    obj = held()
    x = functools.partial(getattr, obj, "x")
    return lambda s, b, h, q, k: s * x(), changed(obj)


@kind
def attribute_read_by_a_format() -> Any:
    obj = held()
    return lambda s, b, h, q, k: s * float(f"{obj.x}"), changed(obj)


@kind
def members_of_an_enumeration() -> Any:
    cls: Any = enum.Enum("Size", {"SMALL": 1, "LARGE": 2})
    change = lambda: setattr(cls.LARGE, "_value_", 4)
    return lambda s, b, h, q, k: s * sum(one.value for one in cls), change


@kind
def attribute_of_a_key() -> Any:
    cls: Any = enum.Enum("Size", {"SMALL": 1})
    cls.SMALL.x = 2.0
    sizes = {cls.SMALL: 1.0}
    mod = lambda s, b, h, q, k: s * sum(sizes[one] * one.x for one in sizes)
    return mod, changed(cls.SMALL)


@kind
def protocol() -> Any:
    @runtime_checkable
    class Sized(Protocol):
        x: float

    obj = types.SimpleNamespace()
    mod = lambda s, b, h, q, k: s * (2.0 if isinstance(obj, Sized) else 3.0)
    return mod, changed(obj)


@kind
def attribute_of_a_bare_module() -> Any:
    module: Any = torch.nn.Module()
    module.x = 2.0
    return lambda s, b, h, q, k: s * module.x, changed(module)


@kind
def parameter_that_was_none() -> Any:
    module = torch.nn.Module()
    module.register_parameter("x", None)
    change = lambda: setattr(module, "x", torch.nn.Parameter(torch.ones(3)))
    return lambda s, b, h, q, k: s * (2.0 if module.x is None else 3.0), change


@kind
def sentinel_held_by_a_class() -> Any:
    cls: Any = type("Window", (), {"x": MISSING})
    obj = cls()
    return lambda s, b, h, q, k: s * (2.0 if obj.x is MISSING else 3.0), changed(cls)


@kind
def list_held_twice() -> Any:
    obj = held([1.0])
    obj.y = obj.x
    mod = lambda s, b, h, q, k: s * (2.0 if obj.x is obj.y else 3.0)
    return mod, changed(obj, [1.0])


@dataclasses.dataclass
class Sizes:
    x: float = 2.0


@kind
def fields_of_a_dataclass() -> Any:
    obj = Sizes()
    values = lambda: [read(obj, f.name) for f in dataclasses.fields(obj)]
    return lambda s, b, h, q, k: s * sum(values()), changed(obj)


@kind
def dataclass_as_a_dictionary() -> Any:
    obj = Sizes()
    return lambda s, b, h, q, k: s * dataclasses.asdict(obj)["x"], changed(obj)


@kind
def copied_object() -> Any:
    obj = held()
    return lambda s, b, h, q, k: s * copy.copy(obj).x, changed(obj)


@kind
def module_found_by_name() -> Any:
    module: Any = types.ModuleType("module_of_a_test")
    module.x = 2.0
    sys.modules["module_of_a_test"] = module
    return lambda s, b, h, q, k: s * sys.modules["module_of_a_test"].x, changed(module)


@kind
def method_called_by_operator() -> Any:
    cls = type("Width", (), {"get": lambda self: self.x})
    obj: Any = cls()
    obj.x = 2.0
    call = operator.methodcaller
    return lambda s, b, h, q, k: s * call("get")(obj), changed(obj)
