"""How what mods read reaches them, and how it is exchanged between two calls."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.property.cases import SIGNATURES, Case, Mods, ModSource

FORMS = {
    "closure": "{n}",
    "cells": "{n}",
    "globals": "{n}",
    "object": "held.{n}",
    "dict": "held['{n}']",
    "list": "held[{i}]",
    "partial": "held.{n}",
    "method": "self.{n}",
    "module": "self.{n}",
    "parameters": "self.{n}",
}
"""How a mod says what it reads. "closure" makes new functions of equal code."""

FIRST = {"partial": "held, ", "method": "self, ", "module": "self, "}
FIRST["parameters"] = FIRST["module"]

HELPER_SHARE = 0.15
"""Of statements that are a function of their own."""

_numbers = count()


class Held:
    """The mods of a family, and all that they read."""

    def __init__(self, family: Case, form: str, random: Random):
        self.form = form
        self.names = list(family.captured)
        self.parameters = form == "parameters"
        self.source = source_of(family, form, random)
        self.values: dict[str, Any] = {}
        filename = f"<random mods {next(_numbers)}>"
        lines = self.source.splitlines(keepends=True)
        linecache.cache[filename] = (len(self.source), None, lines, filename)
        self.scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        self.scope["live"] = lambda index, size: index
        exec(compile(self.source, filename, "exec"), self.scope)
        self.mods: Mods = (None, None)
        self.held: Any = None

    def put(self, values: Mapping[str, Any]) -> None:
        """Have the mods read these from now on."""
        first, self.values = not self.values, dict(values)
        given = [self.values[n] for n in self.names]
        match self.form:
            case "closure":
                self.mods = self.scope["make"](*given)
            case "globals":
                self.scope.update(self.values)
                self.mods = self.scope["make"]()
            case "cells" if not first:
                self.scope["put"](*given)
            case "cells":
                *mods, self.scope["put"] = self.scope["make"](*given)
                self.mods = (mods[0], mods[1])
            case "dict" | "list" if first:
                kept: Any = {} if self.form == "dict" else [None] * len(given)
                self.held = kept
                self.mods = self.scope["make"](kept)
        if self.form in ("dict", "list"):
            keys: Iterable[Any] = self.names if self.form == "dict" else range(99)
            for key, value in zip(keys, given, strict=False):
                self.held[key] = value
        elif "." in FORMS[self.form]:
            self.put_attributes(first)

    def put_attributes(self, first: bool) -> None:
        if first and self.form in ("object", "partial"):
            self.held = SimpleNamespace()
        elif first:
            self.held = self.scope["Owner"]()
        for name, value in self.values.items():
            if first and self.form == "module" and isinstance(value, Tensor):
                self.held.register_buffer(name, value)
            else:
                setattr(self.held, name, value)
        if first and self.form == "object":
            self.mods = self.scope["make"](self.held)
        elif first:
            self.mods = (self.mod("score_mod"), self.mod("mask_mod"))

    def mod(self, name: str) -> Callable[..., Tensor] | None:
        if self.form == "partial":
            found = self.scope.get(name)
            return None if found is None else partial(found, self.held)
        return getattr(self.held, name, None)


def source_of(family: Case, form: str, random: Random) -> str:
    """The text of both mods, and of what makes them."""
    names = list(family.captured)
    texts = {n: FORMS[form].format(n=n, i=i) for i, n in enumerate(names)}
    helpers: list[str] = []
    given = (("score_mod", family.score_mod), ("mask_mod", family.mask_mod))
    bodies = [
        function(name, mod, form, texts, helpers, random)
        for name, mod in given
        if mod is not None
    ]
    functions = "".join([*helpers, *bodies])
    returned = ", ".join("None" if mod is None else name for name, mod in given)
    match form:
        case "partial":
            return unindented(functions)
        case "method":
            return f"class Owner:\n    pass\n{functions}"
        case "module" | "parameters":
            return f"class Owner(torch.nn.Module):\n    pass\n{functions}"
        case "globals":
            return f"def make():\n{functions}    return {returned}\n"
        case "object" | "dict" | "list":
            return f"def make(held):\n{functions}    return {returned}\n"
    if form == "cells":
        functions += put_text(names)
        returned += ", put"
    return f"def make({', '.join(names)}):\n{functions}    return {returned}\n"


def put_text(names: Sequence[str]) -> str:
    """A function that writes to the cells that mods close over."""
    body = [f"nonlocal {', '.join(names)}", *(f"{n} = new_{n}" for n in names)]
    lines = "".join(f"        {line}\n" for line in body if names)
    parameters = ", ".join(f"new_{n}" for n in names)
    return f"    def put({parameters}):\n{lines or '        pass' + chr(10)}"


def unindented(text: str) -> str:
    return "".join(line[4:] for line in text.splitlines(keepends=True))


def function(
    name: str,
    mod: ModSource,
    form: str,
    texts: Mapping[str, str],
    helpers: list[str],
    random: Random,
) -> str:
    """The text of a mod, some of whose statements are functions beside it."""

    def renamed(text: str) -> str:
        return re.sub(r"\b[tn]\d+\b", lambda found: texts[found[0]], text)

    lines: list[str] = []
    for line in mod.lines:
        left, _, right = line.partition(" = ")
        right = renamed(right)
        if random.random() < HELPER_SHARE:
            right = moved_out(right, form, f"helper_{name}_{left}", helpers)
        lines.append(f"        {left} = {right}\n")
    body = "".join(lines) + f"        return {renamed(mod.result)}\n"
    return f"    def {name}({FIRST.get(form, '')}{SIGNATURES[name]}):\n{body}"


LOCAL = re.compile(r"(?<![\w.])(?:v\d+|score|b|h|q_idx|kv_idx)\b")


def moved_out(text: str, form: str, name: str, helpers: list[str]) -> str:
    """A call of a new helper that computes `text`."""
    used = list(dict.fromkeys(LOCAL.findall(text)))
    owner = FIRST.get(form, "")[:-2]
    parameters = ", ".join([owner, *used] if owner else used)
    helpers.append(f"    def {name}({parameters}):\n        return {text}\n")
    if owner == "self":
        return f"self.{name}({', '.join(used)})"
    return f"{name}({parameters})"
