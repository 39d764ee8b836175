"""What a code object can read, from its bytecode: names, attributes, hazards.

A fact is computed once per code object; the walk over a mod's closure, which
runs at every call, only looks it up.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
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
    }
)
"""Builtins that read or write what the bytecode does not name."""

DYNAMIC_ATTRIBUTES = frozenset(
    {
        "__builtins__",
        "__closure__",
        "__code__",
        "__dict__",
        "__getattribute__",
        "__globals__",
    }
)

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
_WRITES_STATE = frozenset(
    {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "STORE_ATTR", "DELETE_ATTR"}
)


@dataclass(frozen=True)
class CodeFacts:
    """The reads of one code object and of those nested in it."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    sound: bool
    """Nothing is read or written but what the fields above name."""
    inspects_types: bool
    """A symbolic number may change which path is taken."""


_FACTS: dict[CodeType, CodeFacts] = {}


def code_facts(code: CodeType) -> CodeFacts:
    """The facts of a code object, from a cache."""
    facts = _FACTS.get(code)
    if facts is None:
        facts = _FACTS[code] = _read(code)
    return facts


def trusted(module_name: str) -> bool:
    """Whether what a module holds may be taken as constant."""
    return module_name.partition(".")[0] in TRUSTED_PACKAGES


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _read(code: CodeType) -> CodeFacts:
    names: dict[str, None] = {}
    attributes: set[str] = set()
    sound = True
    for ins in (i for c in _nested(code) for i in dis.get_instructions(c)):
        if ins.opname in _READS_GLOBAL:
            names[ins.argval] = None
        elif ins.opname in _READS_ATTRIBUTE:
            attributes.add(_attribute_name(ins))
        elif ins.opname == "IMPORT_NAME":
            sound &= trusted(ins.argval)
        elif ins.opname in _WRITES_STATE or _writes_free_variable(ins, code):
            sound = False
    dynamic = DYNAMIC_NAMES & names.keys() or DYNAMIC_ATTRIBUTES & attributes
    return CodeFacts(
        tuple(names),
        frozenset(attributes),
        sound and not dynamic,
        bool(INSPECTING_NAMES & names.keys()),
    )


def _attribute_name(ins: dis.Instruction) -> str:
    value = ins.argval
    return value if isinstance(value, str) else str(value[-1])


def _writes_free_variable(ins: dis.Instruction, code: CodeType) -> bool:
    written = ins.opname in ("STORE_DEREF", "DELETE_DEREF")
    return written and ins.argval in code.co_freevars
