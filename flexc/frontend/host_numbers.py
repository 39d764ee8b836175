"""Arithmetic among captured numbers, which Python does at each call.

Python's integers have no width, quotients of them are rounded once, and what has no
value raises; 64 bits of a kernel do none of that. So what a mod computes of numbers and
sizes alone is no part of its graph, but one more input, as a captured number is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from flexc.errors import DivisionByZeroError, FlexcError, UnsupportedOpError
from flexc.frontend.locations import node_location

_SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)

_COMPARISONS = (
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
)

_DIVISIONS = ("div", "floor_divide", "fmod", "remainder")

_LONGEST_NAME = 40


@dataclass(frozen=True)
class HostNumber:
    """A number as a function of captured values; equal for equal code."""

    lines: tuple[str, ...]
    """Python, over `v`, the captured values in order."""
    functions: tuple[Callable[..., Any], ...]
    """What the lines call f0, f1, ..."""

    @cached_property
    def _run(self) -> Callable[[Sequence[Any]], Any]:
        scope: dict[str, Any] = {"math": math, "inf": math.inf, "nan": math.nan}
        scope |= {f"f{i}": function for i, function in enumerate(self.functions)}
        exec("\n ".join(["def run(v):", *self.lines]), scope)
        return scope["run"]

    def __call__(self, captures: Sequence[Any]) -> Any:
        return self._run(captures)


@dataclass(frozen=True, eq=False)
class Assumption:
    """What a trace takes to be true of a number."""

    number: HostNumber
    test: Callable[[Any], bool]
    error: FlexcError | None = None
    """What is wrong with a call where it is not; None: with the trace alone."""

    def holds(self, captures: Sequence[Any]) -> bool:
        return self.test(self.number(captures))


@dataclass(frozen=True, eq=False)
class Lifted:
    """A number that became an input of a graph."""

    name: str
    dtype: torch.dtype
    number: HostNumber


def fits(value: int | float) -> bool:
    """Whether a kernel may be given a number, as it is given captured ones."""
    if isinstance(value, float):
        return math.isfinite(value)
    return -(2**63) <= value < 2**63


def is_exact(value: int) -> bool:
    """Whether a float holds an integer: torch compares the two as floats."""
    return float(value) == value


def is_between_integers(quotient: float) -> bool:
    """Whether a rounded quotient is no integer.

    Its floor is then the exact quotient's, which is what torch takes it for.
    """
    return not quotient.is_integer()


class HostNumbers:
    """The numbers of a graph that follow from captured values.

    `leaves` are the captured ones: expressions over `v`, and names. `spell` gives
    the expression of a size.
    """

    def __init__(
        self,
        gm: GraphModule,
        leaves: Mapping[Node, tuple[str, str]],
        spell: Callable[[Any], str],
    ):
        self.graph, self.leaves, self.spell = gm.graph, leaves, spell

    def lift(self) -> list[Lifted]:
        """Make placeholders of results of arithmetic, in the order of these."""
        placeholders: dict[HostNumber, Node] = {}
        lifted = []
        for node in [n for n in self.graph.nodes if _is_arithmetic(n)]:
            if all(map(_is_arithmetic, node.users)):
                continue
            number, name = self.number(node), self.name(node)
            if number not in placeholders:
                placeholders[number] = self._placeholder(node)
                is_float = isinstance(node.meta["val"], torch.SymFloat)
                dtype = torch.float64 if is_float else torch.int64
                lifted.append(Lifted(name, dtype, number))
            node.replace_all_uses_with(
                placeholders[number], lambda user: not _is_arithmetic(user)
            )
        return lifted

    def _placeholder(self, node: Node) -> Node:
        last = [n for n in self.graph.nodes if n.op == "placeholder"][-1]
        with self.graph.inserting_after(last):
            placeholder = self.graph.placeholder(node.name)
        placeholder.meta = dict(node.meta)
        return placeholder

    def assumptions(self, kind: str) -> Iterator[Assumption]:
        """What must hold of the numbers of a mod, before any are lifted."""
        for node in self.graph.nodes:
            if _is_integer_division(node):
                yield from self._of_divisor(kind, node)
            elif _is_arithmetic(node):
                yield from self._of_result(node)

    def _of_result(self, node: Node) -> Iterator[Assumption]:
        targets = {user.target for user in node.users}
        if not all(map(_is_arithmetic, node.users)):
            yield Assumption(self.number(node), fits)
        if node.target is torch.sym_float and not targets.isdisjoint(_COMPARISONS):
            (compared,) = node.all_input_nodes
            yield Assumption(self.number(compared), is_exact)
        if node.target is operator.truediv and math.floor in targets:
            yield Assumption(self.number(node), is_between_integers)

    def _of_divisor(self, kind: str, node: Node) -> Iterator[Assumption]:
        """A divisor is not 0, unless it is computed on the device."""
        divisor = node.args[1]
        captured = isinstance(divisor, Node)
        what = f"{self.name(divisor)}, which is 0 at this call" if captured else "0"
        error = DivisionByZeroError(
            f"a {kind} divides integers by {what}: expected another divisor, as torch "
            "raises here too",
            node_location(node),
        )
        if isinstance(divisor, Node):
            if _is_number(divisor):
                yield Assumption(self.number(divisor), bool, error)
        elif divisor == 0:
            raise error

    def name(self, node: Any) -> str:
        """What users would call a number: `N_mul_M_sub1`, say."""
        if node in self.leaves:
            return self.leaves[node][1]
        if not isinstance(node, Node):
            return str(node).replace("-", "minus")
        if not _is_number(node):
            return node.name
        first, *rest = [self.name(arg) for arg in node.args]
        name = f"{first}_{_operation(node)}" + "_".join(rest)
        return name if len(name) <= _LONGEST_NAME else node.name

    def number(self, node: Node) -> HostNumber:
        """A node as a function of the captured values."""
        names: dict[Node, str] = {}
        lines: list[str] = []
        functions: list[Callable[..., Any]] = []
        for step in self._needed(node):
            if _is_arithmetic(step):
                args = ", ".join(_spelled(arg, names) for arg in step.args)
                text = f"f{len(functions)}({args})"
                functions.append(step.target)  # pyright: ignore
            else:
                text = self._leaf(step)
            names[step] = f"t{len(names)}"
            lines.append(f"{names[step]} = {text}")
        kind = "float" if isinstance(node.meta["val"], torch.SymFloat) else "int"
        lines.append(f"return {kind}({names[node]})")
        return HostNumber(tuple(lines), tuple(functions))

    def _needed(self, node: Node) -> list[Node]:
        """A node and the numbers that it is computed of, in order."""
        found, rest = {node}, [node]
        while rest:
            step = rest.pop()
            inputs = step.all_input_nodes if _is_arithmetic(step) else []
            rest += [i for i in inputs if i not in found]
            found.update(inputs)
        return [n for n in self.graph.nodes if n in found]

    def _leaf(self, node: Node) -> str:
        if node in self.leaves:
            return self.leaves[node][0]
        if node.target not in _SIZES:
            raise UnsupportedOpError(
                f"{node.target} is no number that mods may compute with",
                node_location(node),
            )
        return self.spell(node.meta["val"])


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_arithmetic(node: Node) -> bool:
    """A number computed of others, not read from a tensor."""
    called = node.op == "call_function" and _is_number(node)
    return called and not isinstance(node.target, torch._ops.OpOverload)


def _operation(node: Node) -> str:
    """A word for what a number is computed by; a name that follows stands apart."""
    size = node.target is _SIZES[0]
    word = "size" if size else getattr(node.target, "__name__", node.name)
    follows = len(node.args) > 1 and isinstance(node.args[1], Node)
    return word.strip("_") + "_" * follows


def _is_integer_division(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.removeprefix("aten::").removesuffix("_")
    value = node.meta.get("val")
    integers = isinstance(value, torch.Tensor) and not value.dtype.is_floating_point
    return integers and name in _DIVISIONS


def _spelled(arg: Any, names: Mapping[Node, str]) -> str:
    if isinstance(arg, list | tuple):
        return "[" + ", ".join(_spelled(a, names) for a in arg) + "]"
    return names[arg] if isinstance(arg, Node) else repr(arg)
