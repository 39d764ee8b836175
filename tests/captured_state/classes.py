"""State of objects and classes: attributes, properties, methods, metaclasses."""

# ruff: noqa: E731
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
from __future__ import annotations

import abc
import dataclasses
import functools
import types
from typing import Any, ClassVar

import torch

from tests.captured_state.kinds import kind

Scalar = Any


class Window:
    """An object with a bit of everything; each kind makes a class of its own."""

    def __init__(self, x: float = 2.0):
        self.x = x


def fresh(**members: Any) -> Any:
    """A class that no other kind changes."""
    return type("Fresh", (Window,), members)


def reads(obj: Any) -> Any:
    return lambda s, b, h, q, k: s * obj.x


@kind
def attribute_of_an_object() -> Any:
    obj = Window()
    return reads(obj), lambda: setattr(obj, "x", 3.0)


@kind
def attribute_of_another_type() -> Any:
    obj: Any = Window()
    return reads(obj), lambda: setattr(obj, "x", 3)


@kind
def class_of_the_object() -> Any:
    one, two = fresh(f=lambda self: 2.0), fresh(f=lambda self: 3.0)
    obj = one()
    return lambda s, b, h, q, k: s * obj.f(), lambda: setattr(obj, "__class__", two)


@kind
def slots() -> Any:
    class Slotted:
        __slots__ = ("x",)

        def __init__(self) -> None:
            self.x = 2.0

    obj = Slotted()
    return reads(obj), lambda: setattr(obj, "x", 3.0)


@kind
def slot_without_a_value() -> Any:
    class Slotted:
        __slots__ = ("x",)

    obj = Slotted()

    def mod(s: Scalar, b: Any, h: Any, q: Any, k: Any) -> Any:
        try:
            return s * obj.x  # type: ignore[attr-defined]
        except AttributeError:
            return s

    return mod, lambda: setattr(obj, "x", 3.0)


@kind
def data_class() -> Any:
    @dataclasses.dataclass
    class Config:
        x: float = 2.0

    obj = Config()
    return reads(obj), lambda: setattr(obj, "x", 3.0)


@kind
def frozen_data_class_with_a_list() -> Any:
    @dataclasses.dataclass(frozen=True)
    class Config:
        x: list[float] = dataclasses.field(default_factory=lambda: [2.0])

    obj = Config()
    change = lambda: obj.x.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * obj.x[0], change


@kind
def object_within_objects() -> Any:
    inner = types.SimpleNamespace(x=2.0)
    obj = types.SimpleNamespace(a=types.SimpleNamespace(b=[inner]))
    change = lambda: setattr(inner, "x", 3.0)
    return lambda s, b, h, q, k: s * obj.a.b[0].x, change


@kind
def objects_that_hold_each_other() -> Any:
    one, two = Window(), Window()
    one.other, two.other = two, one  # type: ignore[attr-defined]
    change = lambda: setattr(one, "x", 3.0)
    return lambda s, b, h, q, k: s * one.other.other.x, change  # pyright: ignore


@kind
def attribute_of_a_class() -> Any:
    cls = fresh(factor=2.0)
    change = lambda: setattr(cls, "factor", 3.0)
    return lambda s, b, h, q, k: s * cls.factor, change


@kind
def sign_of_a_class_attribute() -> Any:
    cls = fresh(zero=0.0)
    change = lambda: setattr(cls, "zero", -0.0)
    return lambda s, b, h, q, k: s * (2 if str(cls.zero) == "0.0" else 3), change


@kind
def class_attribute_through_an_object() -> Any:
    cls = fresh(factor=2.0)
    obj = cls()
    change = lambda: setattr(cls, "factor", 3.0)
    return lambda s, b, h, q, k: s * obj.factor, change


@kind
def class_attribute_behind_one_of_the_object() -> Any:
    cls = fresh(factor=2.0)
    obj = cls()
    obj.factor = 5.0
    change = lambda: setattr(cls, "factor", 3.0)
    return lambda s, b, h, q, k: s * type(obj).factor, change


@kind
def attribute_of_a_base_class() -> Any:
    base = fresh(factor=2.0)
    obj = type("Derived", (base,), {})()
    change = lambda: setattr(base, "factor", 3.0)
    return lambda s, b, h, q, k: s * obj.factor, change


@kind
def table_of_a_class() -> Any:
    cls = fresh(table={"x": 2.0})
    change = lambda: cls.table.update(x=3.0)
    return lambda s, b, h, q, k: s * cls.table["x"], change


@kind
def method() -> Any:
    cls = fresh(f=lambda self: self.x)
    obj = cls()
    return lambda s, b, h, q, k: s * obj.f(), lambda: setattr(obj, "x", 3.0)


@kind
def method_that_is_replaced() -> Any:
    cls = fresh(f=lambda self: 2.0)
    obj = cls()
    change = lambda: setattr(cls, "f", lambda self: 3.0)
    return lambda s, b, h, q, k: s * obj.f(), change


@kind
def method_that_is_replaced_on_the_object() -> Any:
    obj: Any = fresh(f=lambda self: 2.0)()
    change = lambda: setattr(obj, "f", lambda: 3.0)
    return lambda s, b, h, q, k: s * obj.f(), change


@kind
def bound_method_as_the_mod() -> Any:
    cls = fresh(mod=lambda self, s, b, h, q, k: s * self.x)
    obj = cls()
    return obj.mod, lambda: setattr(obj, "x", 3.0)


@kind
def object_that_is_called() -> Any:
    cls = fresh(__call__=lambda self, s, b, h, q, k: s * self.x)
    obj = cls()
    return obj, lambda: setattr(obj, "x", 3.0)


@kind
def class_method() -> Any:
    cls = fresh(factor=2.0, f=classmethod(lambda c: c.factor))
    obj = cls()
    change = lambda: setattr(cls, "factor", 3.0)
    return lambda s, b, h, q, k: s * obj.f(), change


@kind
def static_method() -> Any:
    values = [2.0]
    cls = fresh(f=staticmethod(lambda: values[0]))
    change = lambda: values.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * cls.f(), change


@kind
def partial_method() -> Any:
    cls = fresh(f=functools.partialmethod(lambda self, a: self.x * a, 0.5))
    obj = cls()
    return lambda s, b, h, q, k: s * obj.f(), lambda: setattr(obj, "x", 3.0)


@kind
def property_of_an_object() -> Any:
    cls = fresh(f=property(lambda self: self.x * 2))
    obj = cls()
    return lambda s, b, h, q, k: s * obj.f, lambda: setattr(obj, "x", 3.0)


@kind
def property_that_hides_an_attribute() -> Any:
    cls = fresh(f=property(lambda self: self.x * 2))
    obj = cls()
    vars(obj)["f"] = 9.0
    return lambda s, b, h, q, k: s * obj.f, lambda: setattr(obj, "x", 3.0)


@kind
def cached_property() -> Any:
    class Cached(Window):
        @functools.cached_property
        def f(self) -> float:
            return self.x * 2

    obj = Cached()

    def change() -> None:
        vars(obj).pop("f", None)
        obj.x = 3.0

    return lambda s, b, h, q, k: s * obj.f, change


class Descriptor:
    """Gives what its owner's `x` is, times a number of its own."""

    def __init__(self) -> None:
        self.factor = 2.0

    def __get__(self, obj: Any, owner: type | None = None) -> float:
        return obj.x * self.factor


@kind
def descriptor() -> Any:
    descriptor = Descriptor()
    obj = fresh(f=descriptor)()
    change = lambda: setattr(descriptor, "factor", 3.0)
    return lambda s, b, h, q, k: s * obj.f, change


@kind
def owner_of_a_descriptor() -> Any:
    obj = fresh(f=Descriptor())()
    return lambda s, b, h, q, k: s * obj.f, lambda: setattr(obj, "x", 3.0)


@kind
def attribute_that_an_object_computes() -> Any:
    values = {"a": 2.0}
    obj = fresh(__getattr__=lambda self, name: values[name])()
    return lambda s, b, h, q, k: s * obj.a, lambda: values.update(a=3.0)


@kind
def tensor_that_an_object_computes() -> Any:
    bias = torch.rand(2, requires_grad=True)
    obj = fresh(__getattr__=lambda self, name: {"a": bias}[name])()
    return lambda s, b, h, q, k: s * obj.a[h], lambda: bias.data.add_(1), [bias]


@kind
def every_attribute_is_computed() -> Any:
    values = [2.0]

    class Computes:
        def __getattribute__(self, name: str) -> Any:
            return values[0]

    obj = Computes()
    change = lambda: values.__setitem__(0, 3.0)
    return lambda s, b, h, q, k: s * obj.anything, change


class Meta(type):
    factor = 2.0
    table: ClassVar[dict[str, float]] = {"x": 2.0}

    @property
    def computed(cls) -> float:
        return cls.table["x"] * 2

    def method(cls) -> float:
        return cls.table["x"] * 4


class OfMeta(metaclass=Meta):
    own = 2.0


@kind
def attribute_of_a_metaclass() -> Any:
    Meta.factor = 2.0
    change = lambda: setattr(Meta, "factor", 3.0)
    return lambda s, b, h, q, k: s * OfMeta.factor, change


@kind
def property_of_a_metaclass() -> Any:
    Meta.table["x"] = 2.0
    change = lambda: Meta.table.update(x=3.0)
    return lambda s, b, h, q, k: s * OfMeta.computed, change


@kind
def method_of_a_metaclass() -> Any:
    Meta.table["x"] = 2.0
    change = lambda: Meta.table.update(x=3.0)
    return lambda s, b, h, q, k: s * OfMeta.method(), change


@kind
def class_of_a_metaclass_that_computes_attributes() -> Any:
    values = {"anything": 2.0}

    class Computes(type):
        def __getattr__(cls, name: str) -> float:
            return values[name]

    class Owner(metaclass=Computes):
        pass

    change = lambda: values.update(anything=3.0)
    return lambda s, b, h, q, k: s * Owner.anything, change


@kind
def abstract_class() -> Any:
    class Abstract(abc.ABC):
        factor = 2.0

        @abc.abstractmethod
        def f(self) -> float: ...

    class Concrete(Abstract):
        def f(self) -> float:
            return self.factor

    obj = Concrete()
    change = lambda: setattr(Abstract, "factor", 3.0)
    return lambda s, b, h, q, k: s * obj.f(), change


@kind
def inherited_method_by_super() -> Any:
    class Base:
        factor = 2.0

        def f(self) -> float:
            return self.factor

    class Derived(Base):
        def f(self) -> float:
            return super().f() * 2

    obj = Derived()
    change = lambda: setattr(Base, "factor", 3.0)
    return lambda s, b, h, q, k: s * obj.f(), change


@kind
def object_that_the_mod_makes() -> Any:
    cls = fresh(f=lambda self: self.x * cls.factor, factor=2.0)
    change = lambda: setattr(cls, "factor", 3.0)
    return lambda s, b, h, q, k: s * cls(1.5).f(), change


@kind
def operators_of_an_object() -> Any:
    cls = fresh(__rmul__=lambda self, other: other * self.x)
    obj = cls()
    return lambda s, b, h, q, k: s * (1.0 * obj), lambda: setattr(obj, "x", 3.0)


@kind
def items_of_an_object() -> Any:
    obj = fresh(__getitem__=lambda self, i: self.x * i)()
    return lambda s, b, h, q, k: s * obj[2], lambda: setattr(obj, "x", 3.0)


@kind
def truth_of_an_object() -> Any:
    obj = fresh(__bool__=lambda self: self.x > 2.5)()
    return lambda s, b, h, q, k: s * 2 if obj else s, lambda: setattr(obj, "x", 3.0)


@kind
def length_of_an_object() -> Any:
    obj = fresh(__len__=lambda self: int(self.x))()
    return lambda s, b, h, q, k: s * len(obj), lambda: setattr(obj, "x", 3.0)


@kind
def iteration_over_an_object() -> Any:
    obj = fresh(__iter__=lambda self: iter([self.x]))()
    return lambda s, b, h, q, k: s * sum(obj), lambda: setattr(obj, "x", 3.0)


@kind
def membership_in_an_object() -> Any:
    obj = fresh(__contains__=lambda self, y: y == self.x)()
    change = lambda: setattr(obj, "x", 3.0)
    return lambda s, b, h, q, k: s * (3 if 3.0 in obj else 2), change


@kind
def equality_of_objects() -> Any:
    @dataclasses.dataclass
    class Config:
        x: float = 2.0

    one, two = Config(), Config()
    change = lambda: setattr(two, "x", 3.0)
    return lambda s, b, h, q, k: s * (2 if one == two else 3), change


@kind
def context_manager() -> Any:
    obj = fresh(__enter__=lambda self: self.x, __exit__=lambda self, *_: None)()

    def mod(s: Scalar, b: Any, h: Any, q: Any, k: Any) -> Any:
        with obj as x:
            return s * x

    return mod, lambda: setattr(obj, "x", 3.0)


@kind
def annotation_of_a_class() -> Any:
    cls = fresh(__annotations__={"x": 2.0})
    change = lambda: cls.__annotations__.update(x=3.0)
    return lambda s, b, h, q, k: s * cls.__annotations__["x"], change


@kind
def name_of_a_class() -> Any:
    cls = fresh()
    change = lambda: setattr(cls, "__name__", "Other")
    return lambda s, b, h, q, k: s * (2 if cls.__name__ == "Fresh" else 3), change


@kind
def subclass_of_a_list() -> Any:
    cls = type("Listed", (list,), {})
    obj = cls([2.0])
    return lambda s, b, h, q, k: s * obj[0], lambda: obj.__setitem__(0, 3.0)


@kind
def subclass_of_a_number() -> Any:
    cls = type("Number", (float,), {})
    held = types.SimpleNamespace(x=cls(2.0))
    change = lambda: setattr(held, "x", cls(3.0))
    return lambda s, b, h, q, k: s * float(held.x), change


@kind
def subclass_of_a_string() -> Any:
    cls = type("Text", (str,), {})
    held = types.SimpleNamespace(x=cls("ab"))
    change = lambda: setattr(held, "x", cls("abc"))
    return lambda s, b, h, q, k: s * len(held.x), change


@kind
def dictionary_of_an_object() -> Any:
    obj = Window()
    change = lambda: setattr(obj, "x", 3.0)
    return lambda s, b, h, q, k: s * obj.__dict__["x"], change
