"""Derivatives of single ops, at ties, zeros and infinities too, against torch's."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr, f64
from xdsl.ir import Block, Operation, Region

from flexc.dialects import flex
from flexc.dialects.flex.scalar import Ties, set_ties
from flexc.errors import GradientError
from flexc.frontend import aten_float, aten_to_arith, aten_views, fields, scalars
from flexc.passes.scalar.differentiation.partials import CONSTANT, PARTIALS
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.runtime.interpreters.scalar import CASTS, FLOAT
from tests.support.derivatives import (
    pulled,
    pushed_mod,
    run_both,
)

INF = math.inf
POINTS = torch.tensor(
    [-INF, -1000, -20.5, -3, -1.5, -1, -0.5, -1e-3, -0.0, 0.0, 1e-3, 0.5, 1, 1.5, 2, 3,
     20.5, 1000, INF],
    dtype=torch.float64,
)  # fmt: skip
PAIRS = [p.flatten() for p in torch.meshgrid(POINTS, POINTS, indexing="ij")]

UNARY: dict[type[Operation], Callable[[Tensor], Tensor]] = {
    arith.NegfOp: torch.neg,
    math_dialect.AbsFOp: torch.abs,
    math_dialect.AcosOp: torch.acos,
    math_dialect.AcoshOp: torch.acosh,
    math_dialect.AsinOp: torch.asin,
    math_dialect.AsinhOp: torch.asinh,
    math_dialect.AtanOp: torch.atan,
    math_dialect.AtanhOp: torch.atanh,
    math_dialect.CeilOp: torch.ceil,
    math_dialect.CosOp: torch.cos,
    math_dialect.CoshOp: torch.cosh,
    math_dialect.ErfOp: torch.erf,
    math_dialect.ExpOp: torch.exp,
    math_dialect.Exp2Op: torch.exp2,
    math_dialect.ExpM1Op: torch.expm1,
    math_dialect.FloorOp: torch.floor,
    math_dialect.LogOp: torch.log,
    math_dialect.Log10Op: torch.log10,
    math_dialect.Log1pOp: torch.log1p,
    math_dialect.Log2Op: torch.log2,
    math_dialect.RoundEvenOp: torch.round,
    math_dialect.RsqrtOp: torch.rsqrt,
    math_dialect.SinOp: torch.sin,
    math_dialect.SinhOp: torch.sinh,
    math_dialect.SqrtOp: torch.sqrt,
    math_dialect.TanOp: torch.tan,
    math_dialect.TanhOp: torch.tanh,
    math_dialect.TruncOp: torch.trunc,
}
BINARY: dict[type[Operation], Callable[[Tensor, Tensor], Tensor]] = {
    arith.AddfOp: torch.add,
    arith.SubfOp: torch.sub,
    arith.MulfOp: torch.mul,
    arith.DivfOp: torch.div,
    arith.MaximumfOp: torch.maximum,
    arith.MinimumfOp: torch.minimum,
    arith.MaxnumfOp: torch.fmax,
    arith.MinnumfOp: torch.fmin,
    flex.FmodOp: torch.fmod,
    math_dialect.Atan2Op: torch.atan2,
    math_dialect.CopySignOp: torch.copysign,
    math_dialect.PowFOp: torch.pow,
}
ALONE = (
    arith.BitcastOp,
    arith.ConstantOp,
    arith.ExtFOp,
    arith.SIToFPOp,
    arith.SelectOp,
    arith.TruncFOp,
    arith.UIToFPOp,
    math_dialect.CbrtOp,
    math_dialect.FmaOp,
    math_dialect.RoundOp,
)
"""Ops with a test of their own, or whose derivative is none."""

REFUSED = (math_dialect.FPowIOp,)
"""No frontend writes them."""

Build = Callable[..., Operation]


def region_of(build: Build, arity: int) -> Region:
    """One op of f64 arguments."""
    block = Block(arg_types=[f64] * arity)
    code = ScalarCode(block)
    code.yield_(code.insert(build(*block.args)))
    return Region(block)


def torch_gradients(
    fn: Callable[..., Tensor], points: Sequence[Tensor], cotangent: Tensor
) -> list[Tensor]:
    leaves = [p.clone().requires_grad_() for p in points]
    found = torch.autograd.grad(
        fn(*leaves), leaves, cotangent, allow_unused=True, create_graph=True
    )
    pairs = zip(found, leaves, strict=True)
    return [torch.zeros_like(p) if g is None else g for g, p in pairs]


def check(
    build: Build, fn: Callable[..., Tensor], points: Sequence[Tensor], **tolerance: Any
) -> None:
    """Reverse and forward mode agree with torch wherever it has an answer."""
    region = region_of(build, len(points))
    cotangent = torch.full_like(points[0], 1.5)
    expected = torch_gradients(fn, points, cotangent)
    got = run_both(pulled(region), [*points, cotangent])
    for i, want in enumerate(expected):
        want = want.detach()
        known = ~want.isnan()
        assert known.any()
        torch.testing.assert_close(
            got[i].expand_as(want)[known], want[known], **tolerance
        )
        (tangent,) = run_both(pushed_mod(region, [i]), [*points, cotangent])
        torch.testing.assert_close(
            tangent.expand_as(want)[known], want[known], **tolerance
        )


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.name)
def test_unary(op: type[Operation]) -> None:
    check(op, UNARY[op], [POINTS])


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.name)
def test_binary(op: type[Operation]) -> None:
    check(op, BINARY[op], PAIRS)


@pytest.mark.parametrize("op", [*UNARY, *BINARY], ids=lambda op: op.name)
def test_second_order(op: type[Operation]) -> None:
    """Forward mode over reverse mode, at points where functions are smooth."""
    fn: Any = UNARY.get(op) or BINARY[op]
    arity = 1 if op in UNARY else 2
    torch.manual_seed(0)
    points = [torch.rand(64, dtype=torch.float64) * 0.9 + 0.05 for _ in range(arity)]
    if op is math_dialect.AcoshOp:
        points = [p + 1.5 for p in points]
    cotangent, *tangents = torch.randn(arity + 1, 64, dtype=torch.float64)
    leaves = [p.clone().requires_grad_() for p in points]
    first = torch.autograd.grad(
        fn(*leaves), leaves, cotangent, create_graph=True, allow_unused=True
    )
    along = sum(
        (g * t).sum() for g, t in zip(first, tangents, strict=True) if g is not None
    )
    second: Sequence[Tensor | None] = [None] * arity
    if isinstance(along, Tensor) and along.requires_grad:
        second = torch.autograd.grad(along, leaves, allow_unused=True)
    region = pushed_mod(pulled(region_of(op, arity)), list(range(arity)))
    got = run_both(region, [*points, cotangent, *tangents])
    for value, want in zip(got, second, strict=True):
        want = torch.zeros_like(cotangent) if want is None else want
        torch.testing.assert_close(value.expand_as(want), want)


@pytest.mark.parametrize(
    ("op", "ties", "fn"),
    [
        (arith.MaximumfOp, Ties.HALVES, torch.maximum),
        (arith.MinimumfOp, Ties.HALVES, torch.minimum),
        (arith.MaximumfOp, Ties.LHS, lambda a, b: torch.clamp(a, min=b)),
        (arith.MinimumfOp, Ties.LHS, lambda a, b: torch.clamp(a, max=b)),
        (arith.MaximumfOp, Ties.RHS, lambda a, b: torch.where(a > b, a, b)),
        (arith.MinimumfOp, Ties.RHS, lambda a, b: torch.where(a < b, a, b)),
    ],
)
def test_ties(op: type[Operation], ties: Ties, fn: Callable[..., Tensor]) -> None:
    def build(*args: Any) -> Operation:
        made = op(*args)
        set_ties(made, ties)
        return made

    check(build, fn, PAIRS)


def test_cubes_and_products() -> None:
    cube = torch.tensor([-8.0, -1.0, 1.0, 27.0], dtype=torch.float64)
    check(
        math_dialect.CbrtOp,
        lambda x: torch.copysign(x.abs() ** (1 / 3), x),
        [cube],
    )
    torch.manual_seed(0)
    points = [torch.randn(20, dtype=torch.float64) for _ in range(3)]
    check(math_dialect.FmaOp, lambda a, b, c: a * b + c, points)


@pytest.mark.parametrize(
    "exponent", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 1.5, 0.5, -0.5, -1.0, 2.7, -3.3]
)
def test_constant_powers(exponent: float) -> None:
    def build(code: ScalarCode, block: Block) -> None:
        power = code.const(exponent, f64)
        code.yield_(code.insert(math_dialect.PowFOp(block.args[0], power)))

    block = Block(arg_types=[f64])
    build(ScalarCode(block), block)
    cotangent = torch.ones_like(POINTS)
    (got,) = run_both(pulled(Region(block)), [POINTS, cotangent])
    (want,) = torch_gradients(lambda x: torch.pow(x, exponent), [POINTS], cotangent)
    known = ~want.isnan()
    torch.testing.assert_close(got.expand_as(want)[known], want.detach()[known])


@pytest.mark.parametrize("base", [2.0, 0.5, 1.0, 0.0, -2.0])
def test_powers_of_constants(base: float) -> None:
    block = Block(arg_types=[f64])
    code = ScalarCode(block)
    number = code.const(base, f64)
    code.yield_(code.insert(math_dialect.PowFOp(number, block.args[0])))
    cotangent = torch.ones_like(POINTS)
    (got,) = run_both(pulled(Region(block)), [POINTS, cotangent])
    (want,) = torch_gradients(lambda p: torch.pow(base, p), [POINTS], cotangent)
    known = ~want.isnan()
    torch.testing.assert_close(got.expand_as(want)[known], want.detach()[known])


# Every op has a rule.


def ops_of_the_frontend() -> set[type[Operation]]:
    """The ops that the frontend's modules name."""
    dialects: dict[str, Any] = {"arith": arith, "math": math_dialect}
    found: set[type[Operation]] = {flex.LoadCaptureOp, flex.DimOp, flex.FmodOp}
    modules: list[ModuleType] = [
        aten_float, aten_to_arith, aten_views, fields, scalars
    ]  # fmt: skip
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                dialect = dialects.get(node.value.id)
                op = getattr(dialect, node.attr, None)
                if node.attr.endswith("Op") and op is not None:
                    found.add(op)
    return found


def has_float_result(op: type[Operation]) -> bool:
    """Whether an op is one of floats, by what the interpreter knows of it."""
    casts = (arith.ExtFOp, arith.TruncFOp, arith.SIToFPOp, arith.UIToFPOp)
    others = (arith.SelectOp, arith.BitcastOp, arith.ConstantOp)
    return op in FLOAT or op in casts or op in others


def test_every_op_of_the_frontend_has_a_rule() -> None:
    found = ops_of_the_frontend()
    assert len(found) > 60
    assert {op for op in found if has_float_result(op)} <= set(PARTIALS)


def test_every_float_op_has_a_rule_or_is_refused() -> None:
    known = {op for op in (*FLOAT, *CASTS) if has_float_result(op)}
    assert known == {op for op in (*PARTIALS, *REFUSED) if op in known}
    tested = {*UNARY, *BINARY, *ALONE}
    assert set(PARTIALS) == tested


def test_constant_ops_are_those_without_partials() -> None:
    none = {op for op, rule in PARTIALS.items() if rule.__name__ == "constant"}
    assert none == {*CONSTANT}


def test_what_has_no_derivative_names_its_line() -> None:
    block = Block(arg_types=[f64])
    code = ScalarCode(block)
    power = math_dialect.FPowIOp(block.args[0], code.const(3))
    power.location = FileLineColLoc(StringAttr("mods.py"), IntAttr(7), IntAttr(0))
    code.yield_(code.insert(power))
    region = Region(block)
    for differentiate in (pulled, lambda r: pushed_mod(r, [0])):
        with pytest.raises(GradientError, match=r"^mods.py:7: math.fpowi has no"):
            differentiate(region)
