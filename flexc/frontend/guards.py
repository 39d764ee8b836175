"""Assumptions of a trace: arithmetic on captured numbers, and guards on them.

Python integers have no width, their quotients are rounded once, and invalid operations
raise. The 64-bit numbers of a kernel behave differently. So values that depend on
numbers and sizes alone are computed by Python at each call, and are inputs of the
kernel.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, cast

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx import GraphModule, Node
from torch.fx.experimental import sym_node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import ToFloat
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.symbol import SymT, symbol_is_type

from flexc.errors import DivisionByZeroError, FlexcError, UnsupportedOpError
from flexc.frontend.locations import is_user_file, node_location

_SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)

_COMPARISONS = [getattr(operator, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")]

_DIVISIONS = ("div", "floor_divide", "fmod", "remainder")

_LONGEST_NAME = 40


@dataclass(frozen=True)
class HostNumber:
    """A number as a function of captured values. Equal code makes equal instances."""

    lines: tuple[str, ...]
    """Lines of Python over `v`, the captured values in order."""
    functions: tuple[Callable[..., Any], ...]
    """The functions that the lines call f0, f1, ..."""

    @cached_property
    def _run(self) -> Callable[[Sequence[Any]], Any]:
        scope: dict[str, Any] = {"math": math, "inf": math.inf, "nan": math.nan}
        scope["SYMBOLS"] = (torch.SymInt, torch.SymFloat)
        scope |= {f"f{i}": function for i, function in enumerate(self.functions)}
        exec("\n ".join(["def run(v):", *self.lines]), scope)
        return scope["run"]

    def __call__(self, captures: Sequence[Any]) -> Any:
        return self._run(captures)


@dataclass(frozen=True, eq=False)
class Assumption:
    """A condition on a number that a trace relies on."""

    number: HostNumber
    test: Callable[[Any], bool]
    error: FlexcError | None = None
    """The error if a call violates the condition. None if it needs another trace."""

    def holds(self, captures: Sequence[Any]) -> bool:
        return self.test(self.number(captures))


def fits(value: int | float) -> bool:
    """Return True if a number fits an argument of a kernel."""
    if isinstance(value, float):
        return math.isfinite(value)
    return -(2**63) <= value < 2**63


def is_exact(value: int) -> bool:
    """Return True if a float represents the integer exactly, as torch assumes."""
    return float(value) == value


def is_between_integers(quotient: float) -> bool:
    """Return True if a rounded quotient is not an integer.

    Its floor then equals the floor of the exact quotient, as torch assumes.
    """
    return not quotient.is_integer()


class HostNumbers:
    """The numbers of a graph that depend on captured values alone.

    `leaves` maps a captured number to an expression over `v` and a name. `spell`
    returns the expression of a size.
    """

    def __init__(
        self,
        gm: GraphModule,
        leaves: Mapping[Node, tuple[str, str]],
        spell: Callable[[Any], str],
    ):
        self.graph, self.leaves, self.spell = gm.graph, leaves, spell

    def lift(self) -> Iterator[tuple[str, torch.dtype, HostNumber]]:
        """Replace results of arithmetic by placeholders.

        Yield the name, dtype and value of each placeholder, in the same order.
        """
        placeholders: dict[HostNumber, Node] = {}
        for node in [n for n in self.graph.nodes if _is_arithmetic(n)]:
            if all(map(_is_arithmetic, node.users)):
                continue
            number, name = self.number(node), self.name(node)
            if number not in placeholders:
                placeholders[number] = add_placeholder(node, node.meta)
                is_float = isinstance(node.meta["val"], torch.SymFloat)
                yield name, torch.float64 if is_float else torch.int64, number
            node.replace_all_uses_with(
                placeholders[number], lambda user: not _is_arithmetic(user)
            )

    def assumptions(self, kind: str) -> Iterator[Assumption]:
        """Yield the conditions on the numbers of a mod, before any are lifted."""
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
        """Yield the condition that a divisor is not 0, unless the device computes it.

        Raise DivisionByZeroError for a constant 0.
        """
        divisor = node.args[1]
        captured = isinstance(divisor, Node)
        what = f"{self.name(divisor)}, which is 0 at this call" if captured else "0"
        error = DivisionByZeroError(
            f"a {kind} divides integers by {what}: expected another divisor, as torch "
            "raises here too",
            node_location(node),
        )
        if isinstance(divisor, Node):
            if is_number(divisor):
                yield Assumption(self.number(divisor), bool, error)
        elif divisor == 0:
            raise error

    def name(self, node: Any) -> str:
        """Return a readable name for a number, such as `N_mul_M_sub1`."""
        if node in self.leaves:
            return self.leaves[node][1]
        if not isinstance(node, Node):
            return str(node).replace("-", "minus")
        if not is_number(node):
            return node.name
        first, *rest = [self.name(arg) for arg in node.args]
        name = f"{first}_{_operation(node)}" + "_".join(rest)
        return name if len(name) <= _LONGEST_NAME else node.name

    def number(self, node: Node) -> HostNumber:
        """Return a node as a function of the captured values."""
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
        last = names[node]
        # A symbol stays one, where torch exports a program.
        lines.append(f"return {last} if type({last}) in SYMBOLS else {kind}({last})")
        return HostNumber(tuple(lines), tuple(functions))

    def _needed(self, node: Node) -> list[Node]:
        """Return a node and the numbers that it depends on, in order."""
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


def add_placeholder(node: Node, meta: Mapping[str, Any]) -> Node:
    """Add a placeholder with a node's name after the others of the node's graph."""
    last = node.graph.find_nodes(op="placeholder")[-1]
    with node.graph.inserting_after(last):
        placeholder = node.graph.placeholder(node.name)
    placeholder.meta = dict(meta)
    return placeholder


def is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_arithmetic(node: Node) -> bool:
    """Return True for a number computed from numbers, not read from a tensor."""
    called = node.op == "call_function" and is_number(node)
    return called and not isinstance(node.target, torch._ops.OpOverload)


def _operation(node: Node) -> str:
    """Return a word for the operation of a node. It ends in "_" if a name follows."""
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


@dataclass(frozen=True)
class Guards:
    """A conjunction of conditions on the captured values of mods."""

    conditions: tuple[str, ...] = ()
    """Python expressions over `v`, the captured values in order."""
    assumptions: tuple[Assumption, ...] = ()
    """Conditions on the results of Python's arithmetic on captured values."""
    _check: Callable[[Sequence[Any]], bool] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        text = " and ".join(f"({c})" for c in self.conditions) or "True"
        check = eval(
            f"lambda v: {text}", {"device": torch.device, "math": math, "torch": torch}
        )
        object.__setattr__(self, "_check", check)

    def hold(self, values: Sequence[Any]) -> bool:
        """Return True if the trace of these guards is valid for `values`.

        Return False if Python raises an error: a new trace then raises it at the user's
        line.
        """
        try:
            computed = all(a.holds(values) for a in self.assumptions)
            return computed and bool(self._check(values))
        except Exception:
            return False


def equal_guards(values: Sequence[Any]) -> tuple[str, ...]:
    """Return conditions that fix every number and the sizes of every tensor."""
    sizes = tuple(
        f"tuple(v[{i}].shape) == {tuple(value.shape)!r}"
        for i, value in enumerate(values)
        if isinstance(value, torch.Tensor)
    )
    return sizes + number_guards(values)


def number_guards(values: Sequence[Any]) -> tuple[str, ...]:
    """Return conditions that fix every number."""
    return tuple(
        number_guard(i, value)
        for i, value in enumerate(values)
        if not isinstance(value, torch.Tensor)
    )


def number_guard(place: int, value: int | float) -> str:
    """Return the condition that fixes a number. It distinguishes -0.0 from 0.0."""
    if value == 0:
        return f"repr(v[{place}]) == {repr(value)!r}"
    return f"v[{place}] == {value!r}"


class InexactError(Exception):
    """A branch depends on floats that torch simplifies as if they were exact."""


class UnlocatedShapeEnv(ShapeEnv):
    """A shape environment without the source line of guards, whose lookup is slow."""

    def _get_user_frame(self) -> None:
        return None


class ExactShapeEnv(UnlocatedShapeEnv):
    """A shape environment that branches as Python does, else raises InexactError.

    Only captured floats themselves are compared. Sums and products of floats are
    simplified instead of rounded, so they raise the error.
    """

    def evaluate_sym_node(self, node: SymNode, *args: Any, **kwargs: Any) -> Any:
        if self._may_be_rounded(node):
            raise InexactError(str(node))
        return super().evaluate_sym_node(node, *args, **kwargs)

    def _may_be_rounded(self, node: SymNode) -> bool:
        expression, written = cast("tuple[Any, Any]", (node.expr, node._expr))
        if node.pytype is float:  # A guard also treats -0.0 as 0.0.
            return not expression.is_Symbol or node.hint == 0
        if any(map(_is_float, expression.free_symbols)):
            return not all(a.is_Atom or isinstance(a, ToFloat) for a in expression.args)
        # The comparison was simplified to a constant. It may have been one of floats.
        vanished = node.pytype is bool and not written.free_symbols
        return vanished and any(map(_is_float, self.var_to_range)) and _asked_by_mod()


def _is_float(symbol: Any) -> bool:
    return symbol_is_type(symbol, SymT.FLOAT)


def _asked_by_mod() -> bool:
    """Return True if Python code of a mod, not of torch, evaluates a condition."""
    frame, asking = sys._getframe(), ""
    while frame.f_code.co_filename in _ASKING and frame.f_back is not None:
        frame, asking = frame.f_back, frame.f_code.co_name
    return asking == "__bool__" and is_user_file(frame.f_code.co_filename)


_ASKING = (__file__, torch.__file__, sym_node.__file__)
"""Files whose frames lie between a condition and the code that evaluates it."""


class Symbols(PythonPrinter):
    """Symbolic numbers and sizes of captures, and their expressions in Python.

    Expressions are over `v`, the captured values in order.
    """

    def __init__(self, env: ShapeEnv):
        super().__init__()
        self.env = env
        self.sources: dict[str, str] = {}

    def number(self, slot: int, value: int | float) -> Any:
        """Return a symbol for a captured number."""
        source = ConstantSource(f"n{slot}")
        make = self.env.create_unspecified_symbol
        symbol = make(value, source, DimDynamic.DYNAMIC)
        self.sources[str(symbol)] = f"v[{slot}]"
        if isinstance(value, int):
            return self.env.create_symintnode(symbol, hint=value, source=source)
        return self.env.create_symfloatnode(symbol, hint=value, source=source)

    def note_extents(
        self, slot: int, shape: Sequence[Any], strides: Sequence[Any]
    ) -> None:
        """Record the sources of symbols in a captured tensor's sizes and strides."""
        for what, extents in (("shape", shape), ("stride()", strides)):
            for d, extent in enumerate(extents):
                if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                    name = extent.node.expr.name
                    self.sources.setdefault(name, f"v[{slot}].{what}[{d}]")

    def spell(self, number: Any) -> str:
        """Return the expression of a symbolic number."""
        return self.doprint(number.node.expr)

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return self.sources[expr.name]

    def assumptions(self) -> Iterator[Assumption]:
        """Yield the assumptions of guards: integers are exact where they become floats.

        Python compares an integer and a float exactly.
        """
        for guard in self.env.guards:
            for conversion in guard.expr.atoms(ToFloat):
                text = f"return {self.doprint(conversion.args[0])}"
                yield Assumption(HostNumber((text,), ()), is_exact)

    def guards(
        self,
        values: Sequence[Any],
        conditions: Iterable[str],
        assumptions: Iterable[Assumption],
    ) -> Guards | None:
        """Return guards of the conditions and of the trace, None if not expressible.

        `values` are the captures that were traced, for which the guards must hold.
        """
        try:
            recorded = (self.doprint(guard.expr) for guard in self.env.guards)
            texts = tuple(dict.fromkeys(chain(conditions, recorded)))
            guards = Guards(texts, tuple(assumptions))
        except Exception:  # An expression that the printer does not know.
            return None
        return guards if guards.hold(values) else None
