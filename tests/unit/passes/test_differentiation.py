"""What is differentiated by what, at what cost, and what is exactly zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from xdsl.dialects.builtin import f32, f64, i1
from xdsl.ir import Region

from flexc.dialects import flex
from flexc.passes.scalar.canonicalization import simplify_region
from flexc.passes.scalar.differentiation.modes import pull_back, push_forward
from tests.support.derivatives import (
    SCORE,
    Copy,
    Imported,
    Points,
    pushed_mod,
    result_type,
    reversed_mod,
    run_both,
)

Mod = Callable[..., Any]

TABLE = torch.linspace(-1, 1, 8)
OTHER = torch.linspace(1, 2, 8)


def backward_of(mod: Mod, dtype: torch.dtype = torch.float32) -> Region:
    """The simplified code of a mod's adjoints without the mod's own result."""
    region = reversed_mod(Imported(mod, dtype).region).region
    simplify_region(region, {})
    return region


def ops_of(region: Region) -> list[str]:
    """The ops but constants and the yield."""
    names = [op.name.split(".")[1] for op in region.block.ops]
    return [n for n in names if n not in ("constant", "yield")]


CAP = 20.0
CHEAP: list[tuple[Mod, list[str]]] = [
    (lambda s, b, h, q, k: s + 3, []),
    (lambda s, b, h, q, k: s + (q - k), []),
    (lambda s, b, h, q, k: torch.where(q >= k, s, -math.inf), ["cmpi", "select"]),
    # c * tanh(s / c), with the c of neither.
    (
        lambda s, b, h, q, k: CAP * torch.tanh(s / CAP),
        ["truncf", "divf", "tanh", "mulf", "subf", "mulf"],
    ),
    (
        lambda s, b, h, q, k: torch.sigmoid(s),
        ["negf", "exp", "addf", "divf", "subf", "mulf", "negf", "mulf"],
    ),
    (lambda s, b, h, q, k: torch.exp(s), ["exp", "mulf"]),
    (lambda s, b, h, q, k: s * 2 * 3 / 6, []),
    (lambda s, b, h, q, k: s / 4 - s, ["mulf"]),
    (lambda s, b, h, q, k: F.relu(s), ["cmpf", "select"]),
    (lambda s, b, h, q, k: torch.clamp(s, -1, 1), ["maximumf", "cmpf", "cmpf"]),
    (lambda s, b, h, q, k: s * s, ["mulf", "mulf"]),
    (lambda s, b, h, q, k: torch.where(q > k, 2 * s, s), ["cmpi", "select", "mulf"]),
    (lambda s, b, h, q, k: torch.where(q > k, s, s), []),
]


@pytest.mark.parametrize(("mod", "expected"), CHEAP)
def test_cost(mod: Mod, expected: list[str]) -> None:
    found = ops_of(backward_of(mod))
    if expected and expected[-1] == "cmpf":
        assert found.count("mulf") == 0
        assert found.count("select") <= 2
    else:
        assert found == expected


def test_the_functions_own_value_is_read() -> None:
    for fn in (torch.tanh, torch.exp, torch.exp2, torch.sigmoid, torch.sqrt, F.silu):
        names = ops_of(backward_of(lambda s, b, h, q, k, fn=fn: fn(s)))
        for once in ("tanh", "exp", "exp2", "sqrt"):
            assert names.count(once) <= 1


def read_two(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s * TABLE[q] + torch.exp(OTHER[k] * s)


def test_only_what_is_wanted_is_computed() -> None:
    region = Imported(read_two, torch.float32).region
    copy = Copy.of(region, [f32])
    (result,) = copy.results
    before = len(copy.ops)
    table, other = copy.tensors
    adjoints = pull_back(copy.code, copy.ops, {result: copy.extra[0]}, [table])
    assert [load.tensor for load, _ in adjoints.reads] == [table]
    assert adjoints[copy.args[SCORE]] is None
    # One product, of the cotangent and the score.
    assert len(copy.ops) - before == 1
    assert other is not table


def test_nothing_is_computed_of_what_does_not_vary() -> None:
    region = Imported(read_two, torch.float32).region
    copy = Copy.of(region, [])
    (result,) = copy.results
    before = len(copy.ops)
    tangents = push_forward(copy.code, copy.ops, {copy.args[SCORE]: None})
    assert tangents[result] is None
    assert len(copy.ops) == before


def test_adjoints_of_values_in_between() -> None:
    region = Imported(lambda s, b, h, q, k: torch.exp(s) * 3, torch.float32).region
    copy = Copy.of(region, [f32])
    (result,) = copy.results
    exp = next(op for op in copy.ops if op.name == "math.exp").results[0]
    adjoints = pull_back(copy.code, copy.ops, {result: copy.extra[0]}, [exp])
    adjoint = adjoints[exp]
    assert adjoint is not None
    assert adjoints[exp] is adjoint
    assert adjoints[copy.args[SCORE]] is None
    done = copy.finish(adjoint)
    args = [torch.tensor(2.0), *[torch.tensor(0, dtype=torch.int32)] * 4]
    assert run_both(done, [*args, torch.tensor(5.0)])[0].item() == 15


def test_cotangents_of_several_values_add_up() -> None:
    region = Imported(lambda s, b, h, q, k: torch.exp(s) * s, torch.float64).region
    copy = Copy.of(region, [f64, f64])
    (result,) = copy.results
    exp = next(op for op in copy.ops if op.name == "math.exp").results[0]
    given = {result: copy.extra[0], exp: copy.extra[1]}
    adjoint = pull_back(copy.code, copy.ops, given)[copy.args[SCORE]]
    assert adjoint is not None
    score = torch.tensor(0.5, dtype=torch.float64)
    args = [score, *[torch.tensor(0, dtype=torch.int32)] * 4]
    first, second = torch.tensor([2.0, 3.0], dtype=torch.float64)
    (got,) = run_both(copy.finish(adjoint), [*args, first, second])
    e = score.exp()
    torch.testing.assert_close(got, first * (e * score + e) + second * e)


# What is exactly zero.

SCORES = torch.tensor([-math.inf, -1e3, -1.0, 0.0, 2.0, 1e3, math.inf])
UNSAFE: list[Mod] = [
    lambda s, b, h, q, k: torch.where(s > 0, torch.log(s), 0.0),
    lambda s, b, h, q, k: torch.where(s > 0, torch.sqrt(s), s),
    lambda s, b, h, q, k: torch.where(s < 9, torch.exp(s) * torch.exp(s), 0.0),
    lambda s, b, h, q, k: torch.where(s != 0, 1 / s, 0.0).clamp(-1, 1),
    lambda s, b, h, q, k: torch.where(s > 20, s, torch.log(1 + torch.exp(s))),
    lambda s, b, h, q, k: torch.where(s > 0, torch.where(s < 9, s**-3, s), 0 * b),
    lambda s, b, h, q, k: torch.where(s > 0, s / TABLE[3 + q] * TABLE[q], 0.0),
    lambda s, b, h, q, k: F.mish(s) + F.silu(-s) + F.softplus(s) + F.elu(s),
]


@pytest.mark.parametrize("mod", UNSAFE)
def test_branches_not_taken_are_zero(mod: Mod) -> None:
    imported = Imported(mod, torch.float32)
    finite = SCORES[1:-1]
    zero = torch.zeros(len(finite), dtype=torch.int64)
    points, ones = Points(finite, [zero] * 4), torch.ones_like(finite)
    score, *_ = imported.pulled_back(points, ones)
    assert score.isfinite().all()
    tangents = [ones, *(torch.zeros_like(t) for t in imported.tensors.values())]
    assert imported.pushed_forward(points, tangents).isfinite().all()
    score, *_ = imported.second_order(points, ones, ones, tangents)
    assert score.isfinite().all()


def test_dead_pairs_are_zero() -> None:
    """However infinite a mod's derivative is there."""
    imported = Imported(lambda s, b, h, q, k: torch.log(TABLE[q]) * s, torch.float32)
    copy = Copy.of(imported.region, [f32])
    (result,) = copy.results
    live = copy.code.cmpf("ogt", copy.args[SCORE], copy.code.const(0.0, f32))
    wanted = [copy.args[SCORE], *copy.tensors]
    given = {result: copy.extra[0]}
    adjoints = pull_back(copy.code, copy.ops, given, wanted, where=live)
    values = [v for _, v in adjoints.reads]
    score = adjoints[copy.args[SCORE]]
    assert score is not None
    region = copy.finish(score, *values)
    table = torch.tensor([0.0, 2.0])
    zero = torch.zeros(2, dtype=torch.int32)
    rows = torch.arange(2, dtype=torch.int32)
    scores = torch.tensor([-math.inf, 3.0])
    args = [scores, zero, zero, rows, zero, table, torch.tensor([0.0, 1.0])]
    got = run_both(region, args)
    assert got[0].tolist() == [0.0, pytest.approx(math.log(2))]
    assert got[1].tolist() == [0.0, 1.5]


SAFE: list[tuple[Mod, bool]] = [
    (lambda s, b, h, q, k: s + TABLE[q], True),
    (lambda s, b, h, q, k: s - (q - k) * 0.5, True),
    (lambda s, b, h, q, k: CAP * torch.tanh(s / CAP), True),
    (lambda s, b, h, q, k: torch.where(q > k, s, -math.inf), True),
    (lambda s, b, h, q, k: torch.sigmoid(s), True),
    (lambda s, b, h, q, k: torch.tanh(TABLE[q] * s), False),
    (lambda s, b, h, q, k: s * TABLE[q], False),
    (lambda s, b, h, q, k: torch.exp(s), False),
    (lambda s, b, h, q, k: torch.log(s), False),
]


@pytest.mark.parametrize(("mod", "is_safe"), SAFE)
def test_dead_pairs_cost_nothing_where_no_factor_is_infinite(
    mod: Mod, is_safe: bool
) -> None:
    copy = Copy.of(Imported(mod, torch.float32).region, [f32, i1])
    (result,), (cotangent, live) = copy.results, copy.extra
    score = copy.args[SCORE]
    adjoints = pull_back(copy.code, copy.ops, {result: cotangent}, [score], live)
    assert adjoints[score] is not None
    assert (not any(True for _ in live.uses)) == is_safe


def test_detached_values_have_no_derivative() -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * TABLE.detach()[q] + s.detach() * OTHER[k]

    names = [load.tensor.name_hint for load in reads_of(mod)]
    assert names == ["OTHER"]


@pytest.mark.parametrize("enabled", [True, False])
def test_values_computed_without_grad_have_no_derivative(enabled: bool) -> None:
    """Whether the mod is first traced with gradients enabled or not."""

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        with torch.no_grad():
            factor = torch.exp(TABLE[q])
        return s * factor + OTHER[k]

    with torch.set_grad_enabled(enabled):
        names = [load.tensor.name_hint for load in reads_of(mod)]
    assert names == ["OTHER"]


def reads_of(mod: Mod) -> list[flex.LoadCaptureOp]:
    copy = Copy.of(Imported(mod, torch.float32).region, [f32])
    (result,) = copy.results
    wanted = [copy.args[SCORE], *copy.tensors]
    adjoints = pull_back(copy.code, copy.ops, {result: copy.extra[0]}, wanted)
    return [load for load, _ in adjoints.reads]


def test_detached_values_survive_simplification() -> None:
    region = Imported(lambda s, b, h, q, k: s.detach() * s, torch.float32).region
    simplify_region(region, {})
    names = ops_of(pushed_mod(region, [SCORE]))
    assert names == ["bitcast", "mulf", "mulf"]


def test_ties_survive_simplification_and_printing() -> None:
    built = Imported(lambda s, b, h, q, k: F.relu(s) + s.clamp(max=2), torch.float32)
    simplify_region(built.region, {})
    marked = {
        op.name: op.attributes["flex.ties"]
        for op in built.region.block.ops
        if "flex.ties" in op.attributes
    }
    assert {k: str(v) for k, v in marked.items()} == {
        "arith.maximumf": '"rhs"',
        "arith.minimumf": '"lhs"',
    }
    (relu,) = (op for op in built.region.block.ops if op.name == "arith.maximumf")
    assert '{flex.ties = "rhs"}' in str(relu)


def test_tangents_of_reads_in_range_are_read_so() -> None:
    region = Imported(lambda s, b, h, q, k: s + TABLE[q], torch.float32).region
    for op in region.block.ops:
        if isinstance(op, flex.LoadCaptureOp):
            op.properties["inside"] = flex.LoadCaptureOp(
                op.tensor, op.indices, inside=True
            ).properties["inside"]
    pushed = pushed_mod(region, [5])
    loads = [op for op in pushed.block.ops if isinstance(op, flex.LoadCaptureOp)]
    assert [op.inside is not None for op in loads] == [True, True]


def test_derivatives_are_computed_in_single_precision_at_least() -> None:
    table = TABLE.to(torch.bfloat16)
    region = Imported(lambda s, b, h, q, k: s + table[q] * table[k], torch.float32)
    copy = Copy.of(region.region, [f32])
    (result,) = copy.results
    adjoints = pull_back(copy.code, copy.ops, {result: copy.extra[0]}, copy.tensors)
    assert [v.type for _, v in adjoints.reads] == [f32, f32]
    assert result_type(region.region) == f32
