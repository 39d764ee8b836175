"""Draws random mods, one statement at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.property.captures import Captures
from tests.property.values import (
    EPS32,
    FUNCTIONS,
    MAX_GRAIN,
    MAX_INT,
    MAX_REAL,
    ROUNDING_FUNCTIONS,
    ROUNDINGS,
    Bool,
    Int,
    Real,
    either,
    rounded,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]
T = TypeVar("T")

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
LOGIC = (
    "{a} & {b}", "{a} | {b}", "{a} ^ {b}", "torch.where({a}, {b}, ~{a})",
    "torch.logical_and({a}, {b})", "torch.logical_or({a}, {b})",
)  # fmt: skip

SMALL = (-40, -3, -1, 0, 1, 2, 7, 40)
DIVISORS = (1, 2, 3, 5, 8, 16, -1, -2, -3, -8)
LIMITS = (-3, 0, 1, 17, 2.5, -0.5, 17.0, 1e10, -1e10, True, False)
NUMBERS = (0.0, -0.0, 1, -1, 2.6, -0.7, 3, True, 1e-3)
FACTORS = (0.3, -0.7, 0.0, -0.0, 1, 0, -1)
"""What captured numbers may be in other calls."""


@dataclass
class Builder:
    """The body of one mod."""

    draw: Draw
    sizes: dict[str, int]
    """How many values each index has: b, h, q_idx, kv_idx."""
    captures: Captures
    lines: list[str] = field(default_factory=list)

    def let(self, text: str) -> str:
        """Name an expression by a statement."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def pick(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    # Integers

    def index(self) -> Int:
        """One of the mod's indices."""
        name = self.pick(("b", "h", "q_idx", "kv_idx", "q_idx", "kv_idx"))
        return Int(name, 0, self.sizes[name] - 1)

    def integer(self, depth: int) -> Int:
        if depth == 0:
            return self.integer_leaf()
        kind = self.pick(("leaf", "binary", "divide", "unary", "bits", "where", "read"))
        match kind:
            case "binary":
                return self.integer_binary(depth)
            case "divide":
                return self.integer_division(depth)
            case "unary":
                return self.integer_unary(self.integer(depth - 1))
            case "bits":
                return self.integer_bits(depth)
            case "where":
                a, b = self.integer(depth - 1), self.integer(depth - 1)
                condition = self.condition(depth - 1)
                text = f"torch.where({condition.text}, {a.text}, {b.text})"
                return Int(self.let(text), min(a.low, b.low), max(a.high, b.high))
            case "read":
                return self.captures.integer(self, depth - 1)
            case _:
                return self.integer_leaf()

    def integer_leaf(self) -> Int:
        if self.draw(st.booleans()):
            return self.index()
        a, b = self.pick((("q_idx", "kv_idx"), ("kv_idx", "q_idx"), ("h", "b")))
        return Int(self.let(f"{a} - {b}"), 1 - self.sizes[b], self.sizes[a] - 1)

    def small(self) -> Int:
        """A Python number, spelled out or captured."""
        value = self.draw(st.integers(-7, 40))
        if not self.draw(st.booleans()):
            return Int(str(value), value, value)
        values = self.captures.values(value, SMALL)
        return Int(self.captures.number(value, SMALL), min(values), max(values))

    def limit(self) -> Int:
        """A Python number to compare with, which may be of another type later."""
        if not self.captures.varied or self.draw(st.booleans()):
            return self.small()
        return Int(self.captures.number(self.draw(st.integers(-7, 40)), LIMITS), 0, 0)

    def integer_binary(self, depth: int) -> Int:
        a, is_number = self.integer(depth - 1), self.draw(st.booleans())
        b = self.small() if is_number else self.integer(depth - 1)
        operator = self.pick(("+", "-", "*", "min", "max"))
        if operator in ("min", "max"):
            if is_number:
                text = f"{a.text}.clamp({operator}={b.text})"
                operator = {"min": "max", "max": "min"}[operator]
            else:
                text = f"torch.{operator}imum({a.text}, {b.text})"
            pick = min if operator == "min" else max
            return Int(self.let(text), pick(a.low, b.low), pick(a.high, b.high))
        corners = {
            "+": [a.low + b.low, a.high + b.high],
            "-": [a.low - b.high, a.high - b.low],
            "*": [x * y for x in (a.low, a.high) for y in (b.low, b.high)],
        }[operator]
        low, high = min(corners), max(corners)
        if max(abs(low), abs(high)) > MAX_INT:
            return a
        return Int(self.let(f"{a.text} {operator} {b.text}"), low, high)

    def integer_division(self, depth: int) -> Int:
        """By numbers of either sign, or by something that is never 0."""
        a = self.integer(depth - 1)
        if self.draw(st.booleans()):
            size = self.pick(DIVISORS)
            divisor, largest = str(size), abs(size)
            if self.draw(st.booleans()):
                divisor = self.captures.number(size, DIVISORS)
                largest = max(map(abs, self.captures.values(size, DIVISORS)))
        else:
            b = self.integer(depth - 1)
            largest = max(abs(b.low), abs(b.high)) + 1
            sign = self.pick(("", "-"))
            divisor = f"{sign}({b.text}.abs() + 1)"
        reach = max(abs(a.low), abs(a.high)) + 1
        text = self.pick(
            (
                "{a} // {d}",
                "{a} % {d}",
                "torch.fmod({a}, {d})",
                'torch.div({a}, {d}, rounding_mode="trunc")',
                'torch.div({a}, {d}, rounding_mode="floor")',
            )
        )
        bound = largest if "%" in text or "fmod" in text else reach
        return Int(self.let(text.format(a=a.text, d=divisor)), -bound, bound)

    def integer_unary(self, a: Int) -> Int:
        reach = max(abs(a.low), abs(a.high))
        text = self.pick(
            ("-{a}", "{a}.abs()", "~{a}", "torch.sign({a})", "{a}.to(torch.int64)")
        )
        return Int(self.let(text.format(a=a.text)), -reach - 1, reach + 1)

    def integer_bits(self, depth: int) -> Int:
        a = self.integer(depth - 1)
        reach = 1 << max(abs(a.low), abs(a.high)).bit_length()
        kind = self.pick(("&", "|", "^", "<<", ">>", "shift"))
        if kind == "shift":
            b = self.let(f"{self.index().text} & 3")
            operator = self.pick(("<<", ">>"))
            text, reach = f"{a.text} {operator} {b}", reach * 8
        elif kind in ("<<", ">>"):
            amount = self.draw(st.integers(0, 4))
            text = f"{a.text} {kind} {amount}"
            reach <<= amount if kind == "<<" else 0
        else:
            b = self.small() if self.draw(st.booleans()) else self.integer(depth - 1)
            reach = max(reach, 1 << max(abs(b.low), abs(b.high)).bit_length())
            text = f"{a.text} {kind} {b.text}"
        return Int(self.let(text), -reach, reach) if reach <= MAX_INT else a

    # Conditions

    def condition(self, depth: int) -> Bool:
        kind = self.pick(("compare", "compare", "logic", "not", "float", "read"))
        if depth == 0 or kind == "compare":
            a = self.integer(max(depth - 1, 0))
            b = self.limit() if self.draw(st.booleans()) else self.integer(0)
            operator = self.pick(COMPARISONS)
            return Bool(self.let(f"{a.text} {operator} {b.text}"))
        match kind:
            case "logic":
                a, b = self.condition(depth - 1), self.condition(depth - 1)
                text = self.pick(LOGIC)
                return Bool(self.let(text.format(a=a.text, b=b.text)))
            case "not":
                text = self.pick(("~{a}", "torch.logical_not({a})"))
                return Bool(self.let(text.format(a=self.condition(depth - 1).text)))
            case "float":
                a, b = self.exact(depth - 1), self.exact(depth - 1)
                return Bool(self.let(f"{a.text} {self.pick(COMPARISONS)} {b.text}"))
            case _:
                return self.captures.condition(self, depth - 1)

    # Reals

    def exact(self, depth: int) -> Real:
        """A real whose value is the same to the bit wherever it is computed."""
        kind = self.pick(("integer", "read", "scaled", "rounding")) if depth else "read"
        if kind == "read":
            return self.captures.real(self, max(depth - 1, 0), exact=True)
        if kind == "integer":
            a = self.integer(depth - 1)
            bound = max(abs(a.low), abs(a.high), 1)
            return Real(self.let(f"{a.text}.to(torch.float32)"), bound, grain=0)
        x = self.exact(depth - 1)
        x = x if x.is_wide else self.wide(x)
        assert x.grain is not None
        if kind == "scaled" and x.grain < MAX_GRAIN:
            return Real(self.let(f"{x.text} * 0.5"), x.bound / 2, grain=x.grain + 1)
        text = self.pick(ROUNDING_FUNCTIONS).format(x=x.text)
        return Real(self.let(text), 2 * x.bound + 3, grain=max(x.grain, 2))

    def real(self, depth: int) -> Real:
        """A real that does not depend on the score."""
        kind = self.pick(("exact", "number", "read", "binary", "unary"))
        if depth == 0 or kind == "read":
            return self.captures.real(self, max(depth - 1, 0))
        match kind:
            case "number":
                return self.number()
            case "binary":
                return self.binary(self.real(depth - 1), self.real(depth - 1))
            case "unary":
                return self.unary(self.real(depth - 1))
            case _:
                return self.bounded(self.exact(depth - 1))

    def number(self) -> Real:
        """A captured Python float times an index: rounded to float32 once."""
        value = self.draw(st.integers(-40, 40)) / 16 + 0.1
        a, x = self.index(), self.captures.number(value, NUMBERS)
        largest = max(map(abs, self.captures.values(value, NUMBERS)))
        bound = max(largest * (a.high + 1), 1)
        text = (
            f"({a.text} * {x}).to(torch.float32)"
            if self.captures.varied
            else f"{a.text} * {x}"
        )
        text = self.let(text)
        return self.bounded(Real(text, bound, ROUNDINGS * EPS32 * bound))

    def score(self, depth: int) -> Real:
        """A real that depends on the score."""
        if depth == 0:
            return Real("score", self.captures.score_bound, lip=1.0, unit=None)
        kind = self.pick(("unary", "binary", "binary", "where", "cast"))
        x = self.score(depth - 1)
        match kind:
            case "unary":
                return self.unary(x)
            case "binary":
                return self.binary(x, self.real(depth - 1))
            case "where":
                other = self.bounded(self.real(depth - 1))
                condition = self.condition(depth - 1)
                text = f"torch.where({condition.text}, {x.text}, {other.text})"
                return self.widened(either(self.let(text), x, other))
            case _:
                text = self.let(f"{x.text} + {self.condition(depth - 1).text}")
                return self.bounded(rounded(text, x.bound + 1, (x, 1)))

    def widened(self, x: Real) -> Real:
        """Of the score's type, as a choice between it and another is."""
        return replace(x, unit=None)

    def unary(self, x: Real) -> Real:
        if not x.is_wide:
            x = self.wide(x)
        functions = [f for f in FUNCTIONS if x.bound <= f.limit]
        f = self.pick(functions)
        text = self.let(f.text.format(x=x.text))
        term, tanh = (x, f.derivative(x.bound)), f.tanh(x.bound)
        return self.bounded(rounded(text, f.bound(x.bound), term, own_tanh=tanh))

    def wide(self, x: Real) -> Real:
        return replace(x, text=self.let(f"{x.text}.to(torch.float32)"), unit=EPS32)

    def binary(self, x: Real, y: Real) -> Real:
        a, b = x.text, y.text
        kind = self.pick(("+", "-", "*", "/", "maximum", "minimum", "fmax", "scaled"))
        match kind:
            case "+" | "-":
                bound, terms = x.bound + y.bound, ((x, 1.0), (y, 1.0))
                text = f"{a} {kind} {b}"
            case "*":
                bound, terms = x.bound * y.bound, ((x, y.bound), (y, x.bound))
                text = f"{a} * {b}"
            case "/":
                y = self.wide(y) if not y.is_wide else y
                bound, terms = x.bound, ((x, 1.0), (y, x.bound))
                text = f"{a} / ({y.text}.abs() + 1)"
            case "scaled":
                factor = self.captures.number(0.3, FACTORS)
                most = max(map(abs, self.captures.values(0.3, FACTORS)))
                bound, terms = x.bound + y.bound, ((x, 1.0), (y, most))
                text = f"torch.add({a}, {b}, alpha={factor})"
            case _:
                return self.bounded(either(self.let(f"torch.{kind}({a}, {b})"), x, y))
        return self.bounded(rounded(self.let(text), bound, *terms))

    def bounded(self, x: Real) -> Real:
        """Kept within moderate numbers, that exponentials may take."""
        if x.bound <= MAX_REAL and x.lip <= MAX_REAL:
            return x
        limit = 8.0
        text = self.let(f"torch.clamp({x.text}, -{limit}, {limit})")
        if x.lip <= MAX_REAL:
            return replace(x, text=text, bound=limit)
        scaled = replace(x, text=text, bound=limit, grain=None)
        text = self.let(f"{text} * {1 / 64}")
        return rounded(text, limit / 64, (scaled, 1 / 64))
