"""The walk over the objects that make up mods: functions, objects and their members.

The walk yields a key and the captures, in a stable order. A handler of its type visits
each value. Objects are visited through the names that the code visited so far uses.
torch's own modules are visited completely, because their code is not read.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from types import (
    BuiltinFunctionType,
    DynamicClassAttribute,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch

from flexc.errors import StateError
from flexc.frontend.code_facts import (
    BUDGET,
    BY_VALUE,
    C_DESCRIPTORS,
    DYNAMIC_CALLABLES,
    INT64_MAX,
    INT64_MIN,
    KEY_TYPES,
    KNOWN_MODULES,
    MAX_NUMBERS,
    MEMBERS_OWN,
    MISSING,
    MODULE_CALLS,
    MODULE_HOOKS,
    MODULE_LISTS,
    MODULE_TABLES,
    OBJECT,
    READING_METHODS,
    VALUE,
    code_facts,
    contents_of,
    exact,
    has_getattr,
    has_unread_code,
    implicit_methods,
    is_plain,
    is_protocol,
    is_trusted,
    is_trusted_module,
    leaks_self,
    own_attributes,
    scopes_of,
    static_lookup,
    trusted,
    trusted_class,
    uses_self,
)

Capture = torch.Tensor | int | float
Mod = Callable[..., Any]


def class_key(value: type) -> tuple[str, type]:
    """Return the key of a class. A number's type alone is the number's key."""
    return "class", value


class Walk:
    """A walk over mods. Each `visit` returns the value, or a copy in `Rebuild`."""

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.captures: list[Capture] = []
        self.sound = True
        self.static_numbers = False
        self.name = ""
        self._numbers = 0
        self._cost = 0
        self._owner: Any = None
        self._frozen = False
        self.compares_identity = False
        self.met_twice = False
        """True if a value was visited twice, of which a rebuild makes two copies."""
        self._containers: set[int] = set()
        self._entered: set[int] = set()
        """Containers that are being visited."""
        self._slots: dict[int, int] = {}
        self._seen: dict[int, tuple[int, Any]] = {}
        self._objects: list[tuple[Any, Any, bool, set[str]]] = []
        self._tables: list[tuple[Mapping[str, Any], Any, set[str]]] = []
        """Attributes of trusted modules and of tensors, with the copies of their
        owners.
        """
        self._attributes: set[str] = set()
        self._methods: dict[int, frozenset[str]] = {}
        self._used_attributes: set[str] = set()
        self._only_read: list[tuple[str, Any]] = []

    def run(self, mods: Sequence[Mod | None]) -> tuple[Mod | None, ...]:
        results = tuple([self.visit(mod) for mod in mods])
        if self._objects or self._tables:
            self._visit_attributes()
        return results

    def spend(self, cost: int) -> None:
        """Add a cost to the walk's total. Raise StateError beyond the budget."""
        self._cost += cost
        if self._cost > BUDGET:
            most = f"{BUDGET // OBJECT:,} objects or {BUDGET // VALUE:,} values"
            raise StateError(f"more than {most} in containers are within reach")

    def slot(self, slot: int, value: Capture) -> Any:
        return value

    def remake(self, value: Any, parts: Any) -> Any:
        """Return a container or partial with other parts. Overridden by `Rebuild`."""
        return value

    def begin(self, value: Any) -> Any:
        """Return a copy of a function or object, filled later as it may be cyclic."""
        return value

    def fill_function(
        self, copy: Any, cells: Any, globals_: Any, defaults: Any
    ) -> None:
        """Fill a copy of a function with its parts."""

    def fill_attribute(self, copy: Any, name: str, value: Any, table: str) -> None:
        """Set one attribute of a copy of an object."""

    def visit(self, value: Any) -> Any:
        handler = _HANDLERS.get(type(value))
        return (handler or _handler(value))(self, value)

    def visit_read(self, value: Any) -> Any:
        """Visit a value that is only used for reading its attributes."""
        handler = _HANDLERS.get(type(value)) or _handler(value)
        if handler is Walk.object:
            return self.object(value, used=False)
        if handler is Walk.cls:
            return self.cls(value, used=False)
        return self.visit(value)

    def visit_frozen(self, value: Any) -> Any:
        """Visit a value that cannot be replaced. Its numbers are keyed by value."""
        before, self._frozen = self._frozen, True
        self.visit(value)
        self._frozen = before
        return value

    def by_value(self, value: Any) -> Any:
        self.key.append(exact(value))
        return value

    def by_identity(self, value: Any) -> Any:
        self.key.append(value)
        return value

    def unknown(self, value: Any) -> Any:
        self.sound = False
        self.key.append(type(value))
        return value

    def number(self, value: int | float) -> Any:
        kind = type(value)
        plain = INT64_MIN <= value <= INT64_MAX if kind is int else isfinite(value)
        if self._frozen or not plain or self._numbers >= MAX_NUMBERS:
            return self.by_value(value)
        self._numbers += 1
        return self._capture(kind, value)

    def _capture(self, kind: type, value: Any) -> Any:
        self.key.append(kind)
        self.captures.append(value)
        return self.slot(len(self.captures) - 1, value)

    def symbol(self, value: torch.SymInt | torch.SymFloat) -> Any:
        """Visit a symbolic number in a function that is itself captured."""
        kind = int if isinstance(value, torch.SymInt) else float
        return self.unknown(value) if self._frozen else self._capture(kind, value)

    def tensor(self, value: torch.Tensor) -> Any:
        if self._frozen:
            return self.unknown(value)
        slot = self._slots.get(id(value))
        if is_new := slot is None:
            slot = self._slots[id(value)] = len(self.captures)
            self.captures.append(value)
        rank = value.dim()
        strided = value.layout is torch.strided and not value.is_nested
        unit = rank == 0 or not strided or bool(value.stride(-1) == 1)
        self.key.append((slot, value.dtype, rank, value.device.type, unit))
        copy = self.slot(slot, value)
        if is_new:
            held = value.__dict__
            learned = type(value) is torch.nn.Parameter or held.get("_is_param", False)
            self.key.append((learned, held.get("_is_buffer", False)))
            if held:
                self._tables.append((held, copy, set()))
        return copy

    def function(self, fn: FunctionType) -> Any:
        if (known := self._known(fn)) is not None:
            return known
        closure = fn.__closure__
        # By its globals: `functools.wraps` copies the name of another function's
        # module.
        foreign = is_trusted(fn)
        if foreign and closure is None:
            return self.by_identity(fn)
        code = fn.__code__
        facts = code_facts(code)
        self.key.append(code)
        copy = self._note(fn, self.begin(fn))
        self._read_attributes(fn, copy)
        if not foreign:
            self.sound &= facts.sound
            self.static_numbers |= facts.inspects_types
            self.compares_identity |= facts.compares_identity
            self._attributes |= facts.attributes
            self._used_attributes |= facts.used_attributes
        used = None if foreign else facts.used
        cells = globals_ = {}
        if closure:
            values = contents_of(closure)
            cells = self._variables(code.co_freevars, values, used)
        if not foreign and (names := facts.globals):
            held, builtins = fn.__globals__, fn.__builtins__
            values = [held[n] if n in held else builtins.get(n, MISSING) for n in names]
            globals_ = self._variables(names, values, used)
        defaults = fn.__defaults__ and self.visit(fn.__defaults__)
        keywords = self.visit(fn.__kwdefaults__) if fn.__kwdefaults__ else None
        self.fill_function(copy, cells, globals_, (defaults, keywords))
        return copy

    def _read_attributes(self, value: Any, copy: Any) -> None:
        """Visit the attributes that a user set on a function or a partial."""
        if value.__dict__:
            self._objects.append((value, copy, self._frozen, set()))

    def _variables(
        self, names: Sequence[str], values: Iterable[Any], used: frozenset[str] | None
    ) -> dict[str, Any]:
        """Visit variables, and return the values of those that have one."""
        found: dict[str, Any] = {}
        for name, value in zip(names, values, strict=True):
            self.name = name
            if value is MISSING:
                self.key.append(None)
            elif used is None or name in used:
                found[name] = self.visit(value)
            else:
                found[name] = self.visit_read(value)
        return found

    def _known(self, value: Any) -> Any:
        """Return the copy of a value visited before, and add its place to the key."""
        seen = self._seen.get(self._id(value))
        if seen is None:
            return None
        self.key.append(seen[0])
        return seen[1]

    def _note(self, value: Any, copy: Any) -> Any:
        self.spend(OBJECT)
        self.met_twice |= ~self._id(value) in self._seen
        self._seen[self._id(value)] = (len(self._seen), copy)
        return copy

    def _id(self, value: Any) -> int:
        """Return an id that differs for a frozen value, which keeps its numbers."""
        return ~id(value) if self._frozen else id(value)

    def sequence(self, value: Sequence[Any]) -> Any:
        self.spend(VALUE * len(value))
        self.key.append((type(value), len(value)))
        if not self._enter(value):
            return value
        parts = [self.visit(part) for part in value]
        return self._leave(value, parts)

    def named_tuple(self, value: Any) -> Any:
        """Visit a named tuple. Other attributes of its class are keyed by value."""
        if own_attributes(value) or has_getattr(value):
            return self.unknown(value)
        self._objects.append((value, value, True, set()))
        self._methods[id(value)] = implicit_methods(value)
        return self.sequence(value)

    def dictionary(self, value: dict[Any, Any]) -> Any:
        self.spend(VALUE * len(value))
        plain = all(type(k) in KEY_TYPES or isinstance(k, enum.Enum) for k in value)
        if not plain or not self._enter(value):
            return self.unknown(value)
        self.key.append((dict, tuple([exact(k) for k in value])))
        parts = {}
        for name, part in value.items():
            self.name = str(name)
            if type(name) not in KEY_TYPES:
                self.member(name)
            parts[name] = self.visit(part)
        return self._leave(value, parts)

    def set(self, value: Any) -> Any:
        self.spend(VALUE * len(value))
        if not KEY_TYPES.issuperset(map(type, value)):
            return self.unknown(value)
        # Equal sets may be iterated in different orders.
        self.key.append((type(value), tuple(map(exact, value))))
        return value

    def _enter(self, container: Any) -> bool:
        """Mark a container as being visited. Return False if it contains itself."""
        if id(container) in self._entered:
            self.sound = False
            return False
        self._entered.add(id(container))
        self.met_twice |= id(container) in self._containers and bool(container)
        self._containers.add(id(container))
        return True

    def _leave(self, container: Any, parts: Any) -> Any:
        self._entered.discard(id(container))
        return self.remake(container, parts)

    def partial(self, value: functools.partial[Any]) -> Any:
        self.key.append(functools.partial)
        parts = [self.visit(p) for p in (value.func, value.args, value.keywords)]
        copy = self.remake(value, parts)
        self._read_attributes(value, copy)
        return copy

    def method(self, value: MethodType) -> Any:
        self.key.append(MethodType)
        visit = self.visit if uses_self(value.__func__) else self.visit_read
        return self.remake(value, (self.visit(value.__func__), visit(value.__self__)))

    def builtin(self, value: BuiltinFunctionType) -> Any:
        self.sound &= value not in DYNAMIC_CALLABLES
        owner = value.__self__
        if isinstance(owner, ModuleType):
            known = trusted(owner.__name__)
            return self.by_identity(value) if known else self.unknown(value)
        if owner is None or isinstance(owner, type):
            return self.by_identity(value)
        return self.unknown(value)

    def module(self, value: ModuleType) -> Any:
        if not is_trusted_module(value):
            return self.object(value)
        # Functions of trusted modules are constant, unless a user replaced them.
        self.sound &= type(value) in KNOWN_MODULES
        if self._known(value) is None:
            self.by_identity(value)
            self._note(value, value)
            self._tables.append((vars(value), None, set()))
        return value

    def cls(self, value: type, used: bool = True) -> Any:
        # Code that the walk does not read checks the members of a protocol.
        self.sound &= value not in DYNAMIC_CALLABLES and not is_protocol(value)
        key = class_key(value)
        if trusted_class(value):
            self.by_identity(key)
            return value
        return self._keyed(value, key, used)

    def member(self, value: enum.Enum) -> Any:
        """Visit a member of an enumeration. It is never copied, but may change."""
        known = id(value) in self._seen or ~id(value) in self._seen
        self._keyed(value, (type(value), value._name_), True)
        if not known:
            for name, part in vars(value).items():
                self.key.append(name)
                if name not in MEMBERS_OWN:
                    self.visit_frozen(part)
        return value

    def _keyed(self, value: Any, key: Any, used: bool) -> Any:
        """Key a value that is never copied. Its attributes are keyed by value."""
        if self._known(value) is None:
            self.by_identity(key)
            self._note(value, value)
            self._objects.append((value, value, True, set()))
        if used:
            self._use(value)
        return value

    def object(self, value: Any, used: bool = True) -> Any:
        if (copy := self._known(value)) is None:
            self.by_identity(type(value))
            copy = self._note(value, self.begin(value))
            # The members of torch's own modules are all read at once.
            whole = trusted_class(type(value)) and has_unread_code(type(value))
            if isinstance(value, torch.nn.Module) and whole:
                used = True
            else:
                self._objects.append((value, copy, self._frozen, set()))
        if used:
            self._use(value)
        return copy

    def _use(self, value: Any) -> None:
        """Note that an object is used for more than reading its attributes."""
        if id(value) in self._methods:
            return
        self._methods[id(value)] = implicit_methods(value)
        if isinstance(value, enum.EnumMeta):
            for member in value.__members__.values():
                self.visit(member)
        if isinstance(value, torch.nn.Module):
            self.sound &= not any(vars(value).get(hooks) for hooks in MODULE_HOOKS)
            if has_unread_code(type(value)):
                self.whole(value, self._seen[self._id(value)][1])

    def whole(self, module: torch.nn.Module, copy: Any) -> None:
        """Visit all members of a module whose code is not read."""
        for name, part in vars(module).items():
            self.key.append(name)
            if name in MODULE_TABLES:
                self.table(copy, name, part)
            elif "hooks" in name:
                # Hooks of loading and saving do not run in a call.
                self.sound &= "state_dict" in name or not part
            elif name != "_non_persistent_buffers_set":
                self.name = name
                self.fill_attribute(copy, name, self.visit(part), "")

    def table(self, copy: Any, table: str, parts: Mapping[str, Any]) -> None:
        """Visit parameters, buffers or modules."""
        self.key.append((table, tuple(parts)))
        for name, part in parts.items():
            self.name = name
            self.fill_attribute(copy, name, self.visit(part), table)

    # Objects are read by names in visited code, until no new name is found.

    def _visit_attributes(self) -> None:
        grown = True
        while grown:
            grown = self._visit_tables()
            for name, value in self._only_read:
                if name in self._used_attributes and self._id(value) in self._seen:
                    self._use(value)
            for i, (value, copy, frozen, done) in enumerate(self._objects):
                methods = self._methods.get(id(value), READING_METHODS)
                names = sorted((self._attributes | methods) - done)
                done.update(names)
                grown |= bool(names)
                self._frozen = frozen
                self._owner = value
                self.spend(len(names))
                for name in names:
                    self.name = name
                    self._attribute(i, value, copy, name)

    def _visit_tables(self) -> bool:
        """Visit the members of tables that code names. Return True if some were new."""
        grown = False
        for held, copy, done in self._tables:
            names = (self._attributes & held.keys()) - done
            for name in sorted(names):
                self.name = name
                self.key.append(name)
                if copy is None:
                    self.visit_frozen(held[name])
                else:
                    self._frozen = False
                    part = self._part(name, held[name])
                    if copy.__dict__ is not held:
                        self.fill_attribute(copy, name, part, "")
            done.update(names)
            grown |= bool(names)
        return grown

    def _attribute(self, i: int, value: Any, copy: Any, name: str) -> None:
        mark = len(self.key)
        self.key.append((i, name))
        own = not isinstance(value, type) and self._own(value, copy, name)
        # `type(x).a` reads the class, and properties take precedence.
        found = [
            f for s in scopes_of(value) if (f := static_lookup(s, name)) is not MISSING
        ]
        for part in found:
            self._class_attribute(value, copy, name, part)
        if not own and not found:
            del self.key[mark:]
            self.sound &= not has_getattr(value)

    def _own(self, value: Any, copy: Any, name: str) -> bool:
        """Visit an object's own attribute. Return False if the object lacks it."""
        scope = own_attributes(value)
        if name in scope:
            part = self._part(name, scope[name])
            if copy is not value:
                self.fill_attribute(copy, name, part, "")
            return True
        if isinstance(value, torch.nn.Module):
            for table in MODULE_TABLES:
                if name in (held := scope.get(table, ())):
                    part = self._part(name, held[name])
                    self.fill_attribute(copy, name, part, table)
                    return True
        return False

    def _part(self, name: str, value: Any) -> Any:
        """Visit the value of an attribute."""
        if name in self._used_attributes:
            return self.visit(value)
        self._only_read.append((name, value))
        return self.visit_read(value)

    def _class_attribute(self, value: Any, copy: Any, name: str, found: Any) -> None:
        if leaks_self(found):
            self._use(value)
        if isinstance(value, torch.nn.Module):
            if is_trusted(found) and found is not vars(torch.nn.Module).get(name):
                self._use(value)
            if name in MODULE_CALLS & self._used_attributes:
                self._use(value)
            self.sound &= name not in MODULE_LISTS
        match found:
            case MemberDescriptorType() if not isinstance(value, type):
                if hasattr(value, name):
                    part = self._part(name, getattr(value, name))
                    self.fill_attribute(copy, name, part, "")
            case property() | DynamicClassAttribute():
                self.visit_frozen(found.fget)
            case staticmethod() | classmethod():
                self.visit_frozen(found.__func__)
            case functools.cached_property():
                self.visit_frozen(found.func)
            case _ if type(found) in C_DESCRIPTORS:
                self.key.append(None)
            case _:
                self.visit_frozen(found)


_HANDLERS: dict[type, Callable[[Walk, Any], Any]] = {
    **dict.fromkeys(BY_VALUE, Walk.by_value),
    int: Walk.number,
    float: Walk.number,
    torch.SymInt: Walk.symbol,
    torch.SymFloat: Walk.symbol,
    torch.Tensor: Walk.tensor,
    torch.nn.Parameter: Walk.tensor,
    torch.nn.Buffer: Walk.tensor,
    FunctionType: Walk.function,
    BuiltinFunctionType: Walk.builtin,
    MethodType: Walk.method,
    ModuleType: Walk.module,
    functools.partial: Walk.partial,
    tuple: Walk.sequence,
    list: Walk.sequence,
    dict: Walk.dictionary,
    set: Walk.set,
    frozenset: Walk.set,
}

_HANDLERS_OF_SUBCLASSES: dict[type, Callable[[Walk, Any], Any]] = {
    enum.Enum: Walk.member,
    torch.Tensor: Walk.tensor,
    type: Walk.cls,
    ModuleType: Walk.module,
    torch._ops.OpOverload: Walk.by_identity,
    torch._ops.OpOverloadPacket: Walk.by_identity,
}


def _handler(value: Any) -> Callable[[Walk, Any], Any]:
    """Return the handler for a type that `_HANDLERS` lacks."""
    cls = type(value)
    for base, handler in _HANDLERS_OF_SUBCLASSES.items():
        if isinstance(value, base):
            return handler
    if isinstance(value, tuple) and hasattr(cls, "_make"):
        return Walk.named_tuple
    if isinstance(value, torch.nn.Module):
        scripted = isinstance(value, torch.jit.ScriptModule)
        return Walk.unknown if scripted else Walk.object
    return Walk.object if cls is SimpleNamespace or is_plain(cls) else Walk.unknown
