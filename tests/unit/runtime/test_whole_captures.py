"""Mods that compute with whole captured tensors, in graphs of torch's compilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.nn.attention import flex_attention as torch_flex

import flexc
from flexc.errors import FlexcError, MutationError, RandomNumberError
from flexc.frontend.trace_modes import IndexByScalars
from flexc.runtime.torch_compile.whole_captures import without_whole_ops

DIM = 8
LENGTH = torch.export.Dim("length", min=3, max=64)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


class Layer(nn.Module):
    """A layer that computes with whole tensors, in its mods or before them."""

    def __init__(self, attention: Any = flexc.flex_attention) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(64))
        self.table = nn.Parameter(torch.randn(64, 64))
        self.attention, self.gain, self.before = attention, 1.0, False

    def sums(self) -> Tensor:
        return self.bias.float().cumsum(0) * self.gain

    def rolled(self, length: int) -> Tensor:
        rows = self.table.roll(length // 3, 0) * self.gain
        return functional.normalize(rows) + self.table.sort().values

    def forward(self, x: Tensor) -> Any:
        length = x.size(2)
        sums, rolled = self.sums(), self.rolled(length)
        if not self.before:
            sums = rolled = None

        def score(s: Tensor, b: Any, h: Any, i: Tensor, j: Tensor) -> Tensor:
            made = self.rolled(length) if rolled is None else rolled
            return s + made[i, j] * self.table[j, i] + self.bias[i]

        def mask(b: Any, h: Any, i: Tensor, j: Tensor) -> Tensor:
            return ((self.sums() if sums is None else sums)[j] > 0) | (i == j)

        if self.attention is flexc.flex_attention:
            return flexc.flex_attention(x, x, x, score, mask_mod=mask)
        return self.attention(
            x, x, x, lambda s, *at: torch.where(mask(*at), score(s, *at), -torch.inf)
        )


def check(layer: Layer, run: Callable[[Tensor], Any], leaves: Any, length: int) -> None:
    """Compare results and gradients with those of tables made before the call."""
    x = torch.randn(1, 2, length, DIM, requires_grad=True)
    out = run(x)
    found = torch.autograd.grad(out.square().sum(), [x, *leaves])
    layer.before = True
    expected_out = layer(x)
    leaves = [x, layer.bias, layer.table]
    expected = torch.autograd.grad(expected_out.square().sum(), leaves)
    layer.before = False
    torch.testing.assert_close(out, expected_out)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("inductor", [True, False])
@pytest.mark.parametrize("theirs", [True, False])
def test_backend_flexc(theirs: bool, inductor: bool) -> None:
    attention = torch_flex.flex_attention if theirs else flexc.flex_attention
    layer = Layer(attention)
    options: dict[str, Any] = {"inductor": inductor}
    compiled: Any = torch.compile(
        layer, backend="flexc", fullgraph=True, options=options
    )
    expected = Layer()
    expected.load_state_dict(layer.state_dict())
    for length in (12, 40, 33):
        check(expected, compiled, [layer.bias, layer.table], length)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_lengths_and_numbers_compile_once_more(backend: str) -> None:
    layer = Layer()
    compiled: Any = torch.compile(layer, backend=backend, fullgraph=True)
    for i, (length, gain) in enumerate([(12, 1.0), (40, 2.0), (33, 0.3), (50, 1.5)]):
        layer.gain = gain
        with torch.compiler.set_stance("default" if i < 2 else "fail_on_recompile"):
            check(layer, compiled, [layer.bias, layer.table], length)


@pytest.mark.parametrize("strict", [True, False])
def test_export(tmp_path: Path, strict: bool) -> None:
    layer, path = Layer(), tmp_path / "program.pt2"
    x = torch.randn(1, 2, 12, DIM)
    program = torch.export.export(
        layer, (x,), dynamic_shapes=[{2: LENGTH}], strict=strict
    )
    torch.export.save(program, path)
    loaded = torch.export.load(path).module()
    for run in (program.module(), loaded):
        leaves = [run.get_parameter(name) for name in ("bias", "table")]
        for length in (12, 41):
            check(layer, run, leaves, length)


class Made(nn.Module):
    """A layer whose mod makes tensors of the length, and writes to its own result."""

    def forward(self, x: Tensor) -> Any:
        length, bias = x.size(2), BIAS.expand(3, -1).flatten()

        def score(s: Tensor, b: Any, h: Any, i: Tensor, j: Tensor) -> Tensor:
            ramp = bias[:length] * torch.arange(length) + torch.full((length,), 0.5)
            kinds = functional.one_hot((bias[:length] > 0).long(), 2)
            result = s + ramp.cumsum(0)[j] + kinds.cumsum(0)[i, 1]
            result.mul_(0.1)
            return result

        return flexc.flex_attention(x, x, x, score)

    def expected(self, x: Tensor) -> Any:
        length, bias = x.size(2), BIAS.expand(3, -1).flatten()[: x.size(2)]
        ramp = (bias * torch.arange(length) + 0.5).cumsum(0)
        kinds = (bias > 0).long().cumsum(0)
        return flexc.flex_attention(
            x, x, x, lambda s, b, h, i, j: (s + ramp[j] + kinds[i]) * 0.1
        )


@pytest.mark.parametrize("backend", ["flexc", "aot_eager"])
def test_tensors_that_mods_make_and_write(backend: str) -> None:
    layer = Made()
    compiled: Any = torch.compile(layer, backend=backend, fullgraph=True)
    for i, length in enumerate((12, 20, 33)):
        x = torch.randn(1, 2, length, DIM)
        with torch.compiler.set_stance("default" if i < 2 else "fail_on_recompile"):
            found = compiled(x)
        torch.testing.assert_close(found, layer.expected(x))


class Norms(nn.Module):
    """A layer whose mod reduces tensors of the length."""

    def forward(self, x: Tensor) -> Any:
        norms = x.norm(dim=-1)[0, 0]
        return flexc.flex_attention(
            x, x, x, lambda s, b, h, i, j: s * norms.mean() + norms.softmax(0)[j]
        )


@pytest.mark.parametrize("strict", [True, False])
def test_reductions_keep_lengths_dynamic(strict: bool) -> None:
    given, shapes = (torch.randn(1, 2, 12, DIM),), [{2: LENGTH}]
    run = torch.export.export(
        Norms(), given, dynamic_shapes=shapes, strict=strict
    ).module()
    for length in (12, 41):
        x = torch.randn(1, 2, length, DIM)
        torch.testing.assert_close(run(x), Norms()(x))


def graphs_of(mod: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """Return the ops on whole tensors that leave a mod of one table, and the rest."""
    parts: list[GraphModule] = []

    def run(part: GraphModule, given: Any) -> Any:
        parts.append(part)
        return part(*given)

    args = [torch.zeros(()), *[torch.zeros((), dtype=torch.int64)] * 4]
    table = torch.randn(16, 16, dtype=torch.bfloat16)
    with IndexByScalars():
        graph = make_fx(mod, tracing_mode="fake")(*args, table)
    rest, captures = without_whole_ops(graph, (table,), run)
    torch.testing.assert_close(rest(*args, *captures), graph(*args, table))
    left, stayed = (
        [n.name for g in graphs for n in g.graph.nodes if n.op == "call_function"]
        for graphs in (parts, [rest])
    )
    return left, stayed


def test_only_ops_on_whole_tensors_leave() -> None:
    """What kernels compute for one element stays: its table takes no memory."""
    left, stayed = graphs_of(lambda s, b, h, q, k, t: s + (t.float() * 2)[q, k])
    assert left == []
    assert stayed == ["_to_copy", "mul", "index", "add"]
    left, stayed = graphs_of(lambda s, b, h, q, k, t: s + (t.cumsum(0) * t)[q, k])
    assert left == ["cumsum"]
    assert stayed == ["mul", "index", "add"]
    left, stayed = graphs_of(lambda s, b, h, q, k, t: s + (t * 2).sort()[0][q, k])
    assert left == ["mul", "sort", "getitem"]
    assert stayed == ["index", "add"]


def writes(s: Tensor, b: Any, h: Any, i: Tensor, j: Tensor, t: Tensor) -> Tensor:
    sums = t.cumsum(0)
    sums.add_(1)
    return s + sums[j]


def draws(s: Tensor, b: Any, h: Any, i: Tensor, j: Tensor, t: Tensor) -> Tensor:
    return s + functional.dropout(t.cumsum(0))[j]


@pytest.mark.parametrize("backend", ["flexc", "aot_eager"])
@pytest.mark.parametrize(
    ("mod", "error"), [(writes, MutationError), (draws, RandomNumberError)]
)
def test_writes_and_draws_are_refused(
    mod: Any, error: type[FlexcError], backend: str
) -> None:
    bias = torch.randn(12)

    def attend(x: Tensor) -> Any:
        return flexc.flex_attention(x, x, x, lambda *args: mod(*args, bias))

    compiled: Any = torch.compile(attend, backend=backend, fullgraph=True)
    for run in (attend, compiled):
        with pytest.raises(error):
            run(torch.randn(1, 2, 12, DIM))


def test_mods_that_only_make_tensors() -> None:
    """Eager mode has no graph from which such an op could leave."""

    def mod(s: Tensor, b: Any, h: Any, i: Tensor, j: Tensor) -> Tensor:
        return s + torch.arange(12).cumsum(0)[j] * BIAS.softmax(0)[i]

    query = torch.randn(1, 2, 12, DIM)
    with pytest.raises(FlexcError, match="no meaning for one score"):
        flexc.flex_attention(query, query, query, mod)


BIAS = torch.randn(12)
