"""What a code object can read, from its bytecode: names, attributes, hazards.

A fact is computed once per code object; the walk over a mod's closure, which
runs at every call, only looks it up.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from types import CodeType

DYNAMIC_NAMES = frozenset(
    {
        "delattr",
        "eval",
        "exec",
        "getattr",
        "globals",
        "input",
        "locals",
        "open",
        "setattr",
        "vars",
        "__import__",
        "attrgetter",
        "hasattr",
        "methodcaller",
        "super",
    }
)
"""Functions that read or write what the bytecode does not name."""

_DYNAMIC = """
    annotations base bases builtins class closure code defaults dict doc func
    getattribute globals kwdefaults members module mro name qualname self slots
    subclasses weakref wrapped
"""
DYNAMIC_ATTRIBUTES = frozenset(
    {f"__{name}__" for name in _DYNAMIC.split()}
    | {"attrgetter", "methodcaller", "f_globals", "f_locals", "gi_frame", "mro"}
    | {"format", "format_map"}
)
"""Attributes of functions, classes and frames that lead to what no name says."""

INSPECTING_NAMES = frozenset({"isinstance", "issubclass", "type"})
"""Builtins that tell a symbolic number from a Python one."""

TRUSTED_PACKAGES = frozenset(
    {
        "builtins",
        "cmath",
        "enum",
        "functools",
        "itertools",
        "math",
        "operator",
        "torch",
        "typing",
    }
)
"""Packages whose contents do not change while a program runs."""

_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_READS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_READS_NO_VALUE = _READS_ATTRIBUTE | {"LOAD_CLOSURE", "LOAD_CONST"}
_READS_UNNAMED = frozenset({"IMPORT_STAR", "MATCH_CLASS"})
_WRITES_STATE = frozenset(
    {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "STORE_ATTR", "DELETE_ATTR"}
)


@dataclass(frozen=True)
class CodeFacts:
    """The reads of one code object and of those nested in it."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    used: frozenset[str]
    """Variables that more is done with than reading attributes."""
    used_attributes: frozenset[str]
    """Attributes whose values more is done with than reading attributes."""
    sound: bool
    """Nothing is read or written but what the fields above name."""
    inspects_types: bool
    """A symbolic number may change which path is taken."""
    asks_instances_only: bool
    """Nothing but `isinstance` looks at types."""
    compares_identity: bool
    """Objects are compared by identity."""
    uses_self: bool
    """Of a method: more is done with its object than reading attributes."""

    @cached_property
    def is_plain(self) -> bool:
        """Whether what it reads is all that it depends on."""
        return self.sound and not (self.inspects_types or self.compares_identity)


MAX_CODES = 16_384
"""Code objects whose facts are remembered."""


def trusted(module_name: object) -> bool:
    """Whether what a module holds may be taken as constant.

    Some classes written in C have a descriptor for a `__module__`.
    """
    return not isinstance(module_name, str) or _in_trusted_package(module_name)


@lru_cache(4096)
def _in_trusted_package(module_name: str) -> bool:
    return module_name.partition(".")[0].lstrip("_") in TRUSTED_PACKAGES


def nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and those within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)


@lru_cache(MAX_CODES)
def code_facts(code: CodeType) -> CodeFacts:
    """The facts of a code object."""
    names: dict[str, None] = {}
    attributes: set[str] = set()
    used: set[str] = set()
    used_attributes: set[str] = set()
    sound, matches, identity = True, False, False
    for ins, then in (pair for c in nested(code) for pair in _steps(c)):
        only_read = then is not None and then.opname in _READS_ATTRIBUTE
        if ins.opname in _READS_GLOBAL:
            names[ins.argval] = None
        if ins.opname in _READS_ATTRIBUTE:
            attributes.add(name := _attribute_name(ins))
            used_attributes |= set() if only_read else {name}
        matches |= ins.opname == "MATCH_CLASS"
        if then is not None and then.opname in ("CONTAINS_OP", "IS_OP"):
            # Constants and classes are never copied.
            identity |= ins.opname != "LOAD_CONST" and ins.argval != "__class__"
        if ins.opname == "IMPORT_NAME":
            sound &= trusted(ins.argval)
        elif ins.opname in _WRITES_STATE | _READS_UNNAMED or _writes_free_variable(
            ins, code
        ):
            sound = False
        elif "LOAD_" in ins.opname and ins.opname not in _READS_NO_VALUE:
            used.update(_variables(ins)[: -1 if only_read else None])
    dynamic = DYNAMIC_NAMES & names.keys() or DYNAMIC_ATTRIBUTES & attributes
    return CodeFacts(
        tuple(names),
        frozenset(attributes),
        frozenset(used),
        frozenset(used_attributes),
        sound and not dynamic,
        bool(INSPECTING_NAMES & names.keys()) or matches,
        INSPECTING_NAMES & names.keys() == {"isinstance"} and not matches,
        identity,
        code.co_argcount == 0 or code.co_varnames[0] in used,
    )


def _steps(code: CodeType) -> Iterator[tuple[dis.Instruction, dis.Instruction | None]]:
    """Each instruction, and the one that follows it."""
    return pairwise([*dis.get_instructions(code), None])  # pyright: ignore


def _variables(ins: dis.Instruction) -> tuple[str, ...]:
    """What an instruction loads; some load two variables."""
    value = ins.argval
    names = value if isinstance(value, tuple) else (value,)
    return tuple(n for n in names if isinstance(n, str))


def _attribute_name(ins: dis.Instruction) -> str:
    value = ins.argval
    return value if isinstance(value, str) else str(value[-1])


def _writes_free_variable(ins: dis.Instruction, code: CodeType) -> bool:
    written = ins.opname in ("STORE_DEREF", "DELETE_DEREF")
    return written and ins.argval in code.co_freevars
