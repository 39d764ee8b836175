"""`flexc.flex_attention` in functions that torch.compile compiles, without a break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters
from torch.fx import symbolic_trace
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask
from torch.utils.checkpoint import checkpoint

import flexc
from flexc.errors import FlexcError
from flexc.runtime.attention import run as running
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.inputs.options import Choices
from flexc.runtime.torch_compile.graph_call import GraphCall, Operands
from flexc.runtime.torch_compile.mod_graphs import ModGraphs
from flexc.runtime.torch_compile.operators import handles
from flexc.runtime.torch_compile.operators.traced import TracedAttention
from tests.unit.runtime.training import causal, dense, gradients, tensors

COMPILERS = ("eager", "aot_eager")

BIAS = torch.randn(2, 12, 12, dtype=torch.float64, requires_grad=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def attend(*args: Any, **kwargs: Any) -> Any:
    return flexc.flex_attention(*args, backend="eager", **kwargs)


def add_bias(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + BIAS[h, q, k]


class Layer(nn.Module):
    """Attention with a mod over what the module computes, and its own attributes."""

    def __init__(self, attend: Callable[..., Any] = attend) -> None:
        super().__init__()
        self.attend = attend
        self.project = nn.Linear(16, 48)
        self.bias = nn.Parameter(torch.randn(2, 64) / 4)
        self.window = 5

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (x.size(0), x.size(1), 3, 2, 8)
        heads = self.project(x).view(shape).permute(2, 0, 3, 1, 4)
        table = self.bias.tanh()

        def capped(limit: float) -> Any:
            def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
                return torch.tanh(s / limit) * limit + table[h, (q - k).abs()]

            return score

        def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q >= k) & (q - k < self.window)

        out, aux = self.attend(
            *heads.unbind(0),
            capped(2.5),
            mask_mod=mask,
            return_aux=AuxRequest(lse=True),
        )
        return x + out.transpose(1, 2).flatten(2), aux.lse


def check(
    fn: Callable[..., Any],
    *args: Any,
    leaves: Any = (),
    backend: Any = "aot_eager",
    **options: Any,
) -> None:
    """Compiled whole, a function has the results and gradients that it has without."""
    compiled: Any = torch.compile(fn, backend=backend, fullgraph=True, **options)
    torch.testing.assert_close(compiled(*args), fn(*args))
    leaves = [*leaves, *(a for a in args if isinstance(a, Tensor) and a.requires_grad)]
    if leaves:
        torch.testing.assert_close(
            gradients(lambda: compiled(*args), leaves),
            gradients(lambda: fn(*args), leaves),
        )


@pytest.mark.parametrize("backend", [*COMPILERS, "inductor"])
def test_modules_train(backend: str) -> None:
    layer = Layer()
    x = torch.randn(2, 10, 16, requires_grad=True)
    check(layer, x, leaves=layer.parameters(), backend=backend)


def test_lengths_compile_once() -> None:
    layer = Layer()
    compiled: Any = torch.compile(
        layer, backend="aot_eager", fullgraph=True, dynamic=True
    )
    for batch, length in ((2, 9), (3, 10), (2, 17), (4, 33)):
        x = torch.randn(batch, length, 16)
        found = gradients(lambda x=x: compiled(x), list(layer.parameters()))
        expected = gradients(lambda x=x: layer(x), list(layer.parameters()))
        torch.testing.assert_close(found, expected)
    assert counters["stats"]["unique_graphs"] == 1


def test_numbers_compile_twice_at_most() -> None:
    """Once as constants, once as what changes."""

    def fn(q: Tensor, scale: float, slope: float, window: int) -> Any:
        def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (i - j).abs() <= window

        score = lambda s, b, h, i, j: s + slope * (i - j)  # noqa: E731
        return attend(q, q, q, score, mask_mod=mask, scale=scale)

    (query,) = tensors(1, 2, 12, 4, count=1)
    compiled: Any = torch.compile(fn, backend="aot_eager", fullgraph=True)
    for step in range(4):
        numbers = (0.5 + step, 0.25 * step - 1.0, step + 2)
        found = gradients(lambda n=numbers: compiled(query, *n), [query])
        expected = gradients(lambda n=numbers: fn(query, *n), [query])
        torch.testing.assert_close(found, expected)
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("backend", ["flexc", "aot_eager", "inductor"])
@pytest.mark.parametrize("masked", [True, False])
def test_numbers_that_code_around_a_call_reads(masked: bool, backend: str) -> None:
    """Dynamo passes such a float as a symbol, others as a tensor."""

    def attend(x: Tensor, gain: float) -> Any:
        def mask(b: Any, h: Any, q: Tensor, k: Tensor) -> Tensor:
            return (BIAS[h, 0, k] * gain > 0) | (q == k)

        def score(s: Tensor, b: Any, h: Any, q: Tensor, k: Tensor) -> Tensor:
            return s + BIAS[h, q, k] * gain

        mods: dict[str, Any] = {"mask_mod": mask} if masked else {"score_mod": score}
        return flexc.flex_attention(x * gain, x, x, **mods)

    compiled: Any = torch.compile(attend, backend=backend, fullgraph=True)
    x = torch.randn(1, 2, 12, 4)
    for i, gain in enumerate([1.0, 2.0, 0.3, -1.5]):
        with torch.compiler.set_stance("default" if i < 2 else "fail_on_recompile"):
            found = compiled(x, gain)
        torch.testing.assert_close(found, attend(x, gain))


@pytest.mark.parametrize("backend", COMPILERS)
def test_captures(backend: str) -> None:
    query, key, value = tensors(1, 2, 12, 4)
    sink = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    gates = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def fn(q: Tensor, k: Tensor, v: Tensor, sink: Tensor, gates: Tensor) -> Tensor:
        powers, doubled = gates.exp(), q * 2

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return add_bias(s, b, h, i, j) * powers[h] + sink * doubled[b, h, i, 0]

        def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (i >= j) & (sink > -100)

        return attend(doubled, k, v, score, mask_mod=mask)

    check(fn, query, key, value, sink, gates, leaves=[BIAS], backend=backend)


@pytest.mark.parametrize("backend", COMPILERS)
def test_block_masks(backend: str) -> None:
    query, key, value = tensors(1, 2, 200, 4)
    document = torch.arange(200) // 30

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (document[q] == document[k]) & (q >= k)

    outside = create_block_mask(same, None, None, 200, 200, "cpu", BLOCK_SIZE=64)
    own = flexc.create_block_mask(same, None, None, 200, 200, "cpu")

    def given(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        return attend(q, k, v, block_mask=mask)

    def made(q: Tensor, k: Tensor, v: Tensor) -> Any:
        size, kv_size = q.size(2), k.size(2)
        mask = flexc.create_block_mask(same, None, None, size, kv_size, "cpu")
        return attend(q, k, v, block_mask=mask)

    def closed(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attend(q, k, v, block_mask=outside)

    check(given, query, key, value, outside, backend=backend)
    check(given, query, key, value, own, backend=backend)
    check(made, query, key, value, backend=backend)
    check(closed, query, key, value, backend=backend)


def test_groups_statistics_and_broadcast_keys() -> None:
    (query,) = tensors(3, 4, 12, 4, count=1)
    key, value = tensors(1, 2, 12, 4, count=2)

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        aux = AuxRequest(lse=True, max_scores=True)
        out, found = attend(q, k, v, enable_gqa=True, return_aux=aux)
        _, lse = attend(q, k, v, enable_gqa=True, return_lse=True, mask_mod=causal)
        return out, found.lse, found.max_scores, lse

    check(fn, query, key, value)


@pytest.mark.parametrize("backend", COMPILERS)
def test_checkpoints(backend: str) -> None:
    query, key, value = tensors(1, 2, 12, 4)

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q * 2, k, v, add_bias).tanh()

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        out: Any = checkpoint(block, q, k, v, use_reentrant=False)
        return out.sum(-1)

    check(fn, query, key, value, leaves=[BIAS], backend=backend)


def test_autocast() -> None:
    query, key, value = tensors(1, 2, 12, 8, dtype=torch.float32)

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attend(q * 2, k, v, mask_mod=causal)

    check(fn, query, key, value)


def test_transforms_of_torch_func() -> None:
    query, key, value = (t.detach() for t in tensors(1, 2, 6, 4))

    def total(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, mask_mod=causal).pow(2).sum()

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        tangent = torch.func.jvp(lambda k: attend(q, k, v), (k,), (v,))[1]
        samples = torch.stack([q, k])
        each = torch.vmap(torch.func.grad(total), (0, None, None))(samples, k, v)
        return tangent, each, torch.func.grad(total, 2)(q, k, v)

    check(fn, query, key, value)


@pytest.mark.parametrize("inductor", [True, False])
@pytest.mark.parametrize("theirs", [True, False])
def test_backend_flexc_trains(theirs: bool, inductor: bool) -> None:
    query, key, value = tensors(1, 2, 12, 4)
    options: Any = {"backend": "eager", "deterministic": True}
    options["inductor"] = inductor
    mask = create_block_mask(causal, None, None, 12, 12, "cpu")

    def own(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flexc.flex_attention(q, k, v, add_bias, mask) * 2

    def of_torch(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return torch_flex.flex_attention(q, k, v, add_bias, mask) * 2  # pyright: ignore

    fn = of_torch if theirs else own
    compiled: Any = torch.compile(fn, backend="flexc", fullgraph=True, options=options)
    given = [query, key, value]
    torch.testing.assert_close(compiled(*given), own(*given))
    given.append(BIAS)
    torch.testing.assert_close(
        gradients(lambda: compiled(*given[:3]), given),
        gradients(lambda: own(*given[:3]), given),
    )


def test_no_code_is_found_that_another_process_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (query,) = tensors(1, 2, 12, 4, count=1)

    def fn(q: Tensor) -> Any:
        return torch_flex.flex_attention(q, q, q, add_bias)

    def own(q: Tensor) -> Any:
        return attend(q, q, q, add_bias)

    for _ in range(2):
        torch.compiler.reset()
        monkeypatch.setattr(handles, "_known", {})
        compiled: Any = torch.compile(fn, backend="flexc")
        found = gradients(lambda fn=compiled: fn(query), [query])
        torch.testing.assert_close(found, gradients(lambda: own(query), [query]))


def _biased_of_torch(q: Tensor) -> Any:
    return torch_flex.flex_attention(q, q, q, add_bias)


_REGIONS: dict[str, Callable[[Tensor], Any]] = {
    "checkpoint": lambda q: checkpoint(_biased_of_torch, q, use_reentrant=False),
    "branch": lambda q: torch.cond(q.sum() < 1e9, _biased_of_torch, torch.sin, (q,)),
    "region": torch.compiler.nested_compile_region(_biased_of_torch),
}


@pytest.mark.parametrize("inductor", [True, False])
@pytest.mark.parametrize("region", _REGIONS)
def test_attention_of_torch_in_regions(region: str, inductor: bool) -> None:
    """Operators that run a region hold it as a graph within the function's graph."""
    (query,) = tensors(1, 2, 12, 4, count=1)
    options: Any = {"backend": "eager", "inductor": inductor}
    compiled: Any = torch.compile(
        lambda q: _REGIONS[region](q * 2),
        backend="flexc",
        fullgraph=True,
        options=options,
    )
    found = gradients(lambda: compiled(query), [query, BIAS])
    twice = gradients(lambda: attend(*[query * 2] * 3, add_bias), [query, BIAS])
    torch.testing.assert_close(found, twice)


class TorchLayer(Layer):
    """A layer whose attention is torch's, which has no gradients on a CPU."""

    def __init__(self) -> None:
        super().__init__(self.of_torch)

    def of_torch(self, *args: Any, mask_mod: Any, **kwargs: Any) -> Any:
        q, k = args[:2]
        mask = create_block_mask(mask_mod, None, None, q.size(2), k.size(2), "cpu")
        return torch_flex.flex_attention(*args, block_mask=mask, **kwargs)


def test_attention_of_torch_trains_at_all_lengths() -> None:
    layer, own = TorchLayer(), Layer()
    own.load_state_dict(layer.state_dict())
    options: Any = {"inductor": False}
    compiled: Any = torch.compile(
        layer, backend="flexc", fullgraph=True, dynamic=True, options=options
    )
    for batch, length in ((2, 9), (3, 10), (2, 17)):
        x = torch.randn(batch, length, 16)
        found = gradients(lambda x=x: compiled(x), list(layer.parameters()))
        expected = gradients(lambda x=x: own(x), list(own.parameters()))
        torch.testing.assert_close(found, expected)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), own(x))
    assert counters["stats"]["unique_graphs"] == 2  # with gradients and without


@pytest.mark.parametrize("lse", [True, False])
def test_attention_of_torch_returns_largest_scores(lse: bool) -> None:
    query, key, value = (torch.randn(2, 3, 20, 8, requires_grad=True) for _ in "qkv")

    def attend(function: Any) -> Any:
        asked = AuxRequest(lse=lse, max_scores=True)
        out, aux = function(query, key, value, return_aux=asked)
        return out, aux.lse, aux.max_scores

    compiled: Any = torch.compile(
        attend, backend="flexc", fullgraph=True, options={"inductor": False}
    )
    found = compiled(torch_flex.flex_attention)
    torch.testing.assert_close(found, attend(flexc.flex_attention))
    torch.autograd.grad(found[0].sum(), query)


def test_other_backends_keep_what_torch_refuses() -> None:
    query = torch.randn(1, 2, 12, 4, requires_grad=True)
    largest: Any = torch.compile(
        lambda q: torch_flex.flex_attention(
            q, q, q, return_aux=AuxRequest(max_scores=True)
        ),
        backend="aot_eager",
    )
    with pytest.raises(Exception, match="max scores is not supported on CPU"):
        largest(query.detach())
    compiled: Any = torch.compile(torch_flex.flex_attention, backend="aot_eager")
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        compiled(query, query, query)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        torch_flex.flex_attention(query, query, query)


def test_compiled_autograd() -> None:
    layer, own = TorchLayer(), Layer()
    own.load_state_dict(layer.state_dict())
    options: Any = {"inductor": False}
    compiled: Any = torch.compile(
        layer, backend="flexc", fullgraph=True, options=options
    )
    x = torch.randn(2, 10, 16)
    expected = gradients(lambda: own(x), list(own.parameters()))
    with dynamo_config.patch(compiled_autograd=True):
        found = gradients(lambda: compiled(x), list(layer.parameters()))
    torch.testing.assert_close(found, expected)


def test_compiled_attention_in_compiled_code() -> None:
    query, key, value = tensors(1, 2, 12, 4)
    compiled: Any = flexc.compile(
        torch_flex.flex_attention, backend="eager", options={"deterministic": True}
    )

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return compiled(q, k, v, add_bias, kernel_options={"BLOCK_M": 16})

    check(fn, query, key, value, leaves=[BIAS])


def test_kernels_train() -> None:
    layer = Layer(flexc.flex_attention)
    x = torch.randn(2, 10, 16, requires_grad=True)
    check(layer, x, leaves=layer.parameters())


def test_export() -> None:
    query, key, value = (t.detach() for t in tensors(1, 2, 12, 4))

    class Module(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return attend(q, k, v, mask_mod=causal)

    exported = torch.export.export(Module(), (query, key, value), strict=True)
    found = exported.module()(query, key, value)
    torch.testing.assert_close(found, dense(query, key, value, None, causal)[0])


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "heads": ("key expects 4 heads as the query has, got 2", {}),
    "option": ("kernel_options has no key", {"kernel_options": {"X": 1}}),
    "backend": ("backend expects one of auto", {"backend": "gpu"}),
    "two-masks": (
        "give block_mask or mask_mod, not both",
        {
            "mask_mod": causal,
            "block_mask": create_block_mask(causal, None, None, 12, 12, "cpu"),
        },
    ),
    "lengths": (
        r"block_mask was made for \(q_len, kv_len\) = \(13, 12\)",
        {"block_mask": create_block_mask(causal, None, None, 13, 12, "cpu")},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_why(case: str) -> None:
    message, kwargs = REFUSED[case]
    query, key = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 12, 8)
    group = {} if case == "heads" else {"enable_gqa": True}
    fn: Any = torch.compile(
        lambda q, k: flexc.flex_attention(q, k, k, **group, **kwargs),
        backend="eager",
        fullgraph=True,
    )
    with pytest.raises(Exception, match=message):
        fn(query, key)


def test_operators_keep_the_rules_of_torch() -> None:
    query, key, value = tensors(1, 2, 6, 4, dtype=torch.float32)
    table = torch.randn(2, requires_grad=True)
    graph = symbolic_trace(lambda s, b, h, q, k, table: s * 2 + table[h] * (q - k))
    outputs, choices = Outputs(lse=True), Choices("eager")
    call = GraphCall(ModGraphs.of((graph, None), ((0,), ())), outputs, choices)
    operands = Operands(query, key, value, None, (), (6, 6), (0, 0), (table,))
    recorded = TracedAttention.of(call, operands).arguments()
    ops = torch.ops.flexc
    torch.library.opcheck(ops.attention.default, recorded)
    detached = operands._replace(
        query=query.detach(),
        key=key.detach(),
        value=value.detach(),
        captures=(table.detach(),),
    )
    arguments = TracedAttention.of(call, detached).arguments()
    out, lse = ops.attention(*arguments)
    point = (*arguments, out, lse)
    d_out, along = torch.randn_like(out), [torch.randn(2)]
    given, wanted = [False, False, False, True], [True, False, True, True]
    for op, args in (
        (ops.attention_backward, (*point, d_out, None, wanted)),
        (ops.attention_jvp, (*point, along, given)),
        (
            ops.attention_backward_jvp,
            (*point, d_out, None, d_out, lse, along, given, wanted),
        ),
    ):
        torch.library.opcheck(op.default, args)


def test_operators_are_differentiated_twice() -> None:
    query, key, value = tensors(1, 2, 6, 4)
    table = torch.randn(2, dtype=torch.float64, requires_grad=True)
    graph = symbolic_trace(lambda s, b, h, q, k, table: s * table[h])
    outputs, choices = Outputs(lse=True), Choices("eager")
    call = GraphCall(ModGraphs.of((graph, None), ((0,), ())), outputs, choices)

    def run(query: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        operands = Operands(query, key, value, None, (), (6, 6), (0, 0), (table,))
        arguments = TracedAttention.of(call, operands).arguments()
        return tuple(torch.ops.flexc.attention(*arguments))

    assert torch.autograd.gradcheck(run, (query, table), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (query, table), fast_mode=True)


def scaled(factor: float) -> Any:
    """A mod of its own code, so that Dynamo compiles anew for it."""
    names: dict[str, Any] = {}
    exec(f"def mod(s, b, h, q, k): return s * {factor} + TABLE[q, k]", names)
    names["TABLE"] = torch.linspace(-1, 1, 144).view(12, 12)
    return names["mod"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """The calls of attention that flexc ran."""
    found: list[Attention] = []
    run = running.run

    def noted(call: Attention) -> Any:
        found.append(call)
        return run(call)

    monkeypatch.setattr(running, "run", noted)
    return found


# torch warns before its operator runs, of what it does not come to.
UNFUSED = pytest.mark.filterwarnings("ignore:flex_attention called without")


@UNFUSED
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("theirs", [True, False])
def test_frames_that_dynamo_gives_up_on(
    theirs: bool, direct: bool, ran: list[Attention]
) -> None:
    """They end in flexc, with the options that torch.compile was given."""
    query, key, value = (t.detach().float() for t in tensors(1, 2, 12, 4))
    function: Any = torch_flex.flex_attention if theirs else flexc.flex_attention
    mask = create_block_mask(causal, None, None, 12, 12, "cpu", BLOCK_SIZE=4)

    def fn(q: Tensor, k: Tensor, v: Tensor, score: Any) -> Any:
        aux = AuxRequest(lse=True)
        return function(q, k, v, score, mask, scale=0.5, return_aux=aux)

    options = {"backend": "eager", "deterministic": True}
    compiled: Any = torch.compile(
        function if direct else fn, backend="flexc", options=options
    )
    with dynamo_config.patch(recompile_limit=2):
        for i in range(5):
            score = scaled(i + 0.5)
            args = (query, key, value, score)
            rest = (mask, 0.5) if direct else ()
            found = compiled(*args, *rest)
            expected = fn(*args) if not theirs else attend_eagerly(*args, mask)
            torch.testing.assert_close(found, expected[0] if direct else expected)
    mine = [call for call in ran if call.choices.deterministic]
    assert len(mine) == 5
    assert all(call.backend == "eager" and call.tables is not None for call in mine)


def attend_eagerly(q: Tensor, k: Tensor, v: Tensor, score: Any, mask: Any) -> Any:
    aux = AuxRequest(lse=True)
    return attend(q, k, v, score, mask, scale=0.5, return_aux=aux)


@UNFUSED
def test_other_compilers_keep_torch(ran: list[Attention]) -> None:
    """Only what torch.compile compiles with flexc ends there."""
    query = torch.randn(1, 2, 12, 4)
    function: Any = torch_flex.flex_attention
    torch.compile(function, backend="flexc")(query, query, query, scaled(1.0))
    assert len(ran) == 1
    with dynamo_config.patch(recompile_limit=1):
        other: Any = torch.compile(function, backend="eager")
        for i in range(3):
            other(query, query, query, scaled(i + 2.0))
    function(query, query, query, scaled(1.0))
    assert len(ran) == 1


def branches(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    if q > k:
        return s
    return -s


def unsupported(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    doubled = s * 2
    return doubled + BIAS[h, q].sort().values[k]


def unindexed(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return BIAS[h, q]


def few(s: Tensor, b: Tensor) -> Tensor:
    return s


FAULTS: dict[Any, tuple[int, str]] = {
    branches: (1, "Python cannot branch"),
    unsupported: (2, "sort.default has no meaning"),
    unindexed: (1, "returns a scalar, got a tensor"),
    few: (0, "this one takes"),
}
"""Mods, the line that is at fault, and what is said of it."""


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "flexc", "theirs"])
@pytest.mark.parametrize("mod", FAULTS, ids=lambda mod: mod.__name__)
def test_errors_name_the_line(mod: Any, backend: str) -> None:
    query = torch.randn(1, 2, 12, 4)
    ours = backend != "theirs"
    function: Any = flexc.flex_attention if ours else torch_flex.flex_attention
    compiled: Any = torch.compile(
        lambda q: function(q, q, q, mod), backend=backend if ours else "flexc"
    )
    line, message = FAULTS[mod]
    with pytest.raises(FlexcError, match=message) as caught:
        compiled(query)
    place, first = caught.value.location, mod.__code__.co_firstlineno
    assert place is not None
    assert place.filename == __file__
    # Where a graph ends is all that is known of its result.
    assert place.line in (first, first + line) if mod is unindexed else (first + line,)


def test_graphs_within_graphs_are_told_apart_by_what_they_compute() -> None:
    """Not by their addresses: another graph may lie where one was."""

    def digest(factor: float) -> str:
        inner = symbolic_trace(lambda x: x * factor)
        outer = symbolic_trace(lambda s, b, h, q, k: s)
        outer.add_submodule("inner", inner)
        with outer.graph.inserting_before(list(outer.graph.nodes)[-1]):
            outer.graph.get_attr("inner")
        return ModGraphs.of((outer, None), ((), ())).digest

    assert digest(2.0) == digest(2.0) != digest(3.0)


def test_zeros_of_both_signs_are_two_scales() -> None:
    def fn(x: Tensor, scale: float) -> Any:
        def sign(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return torch.where(torch.signbit(s), k * 1.0, 0.0)

        return flexc.flex_attention(x, x, x, sign, scale=scale)

    x = torch.rand(1, 1, 32, 16)
    for scale in (0.0, -0.0):
        torch.compiler.reset()
        compiled = torch.compile(fn, fullgraph=True)
        for _ in range(3):
            torch.testing.assert_close(compiled(x, scale), fn(x, scale))


def test_a_capture_costs_its_storage_while_tracing() -> None:
    """An expanded tensor has more elements than could be written one by one."""
    table = torch.arange(12, dtype=torch.float64).expand(2**30, 12)
    query = torch.randn(1, 1, 12, 8, dtype=torch.float64)
    mods: Any = {
        "score_mod": lambda s, b, h, q, k: s + table[q, k],
        "mask_mod": lambda b, h, q, k: q >= k,
    }

    def layer(x: Tensor) -> Any:
        return flexc.flex_attention(x, x, x, **mods)

    compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(query), layer(query))
