"""`flexc.flex_attention` under torch.func: grad, vmap, jvp, and each of the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

import flexc
from flexc import errors
from flexc.runtime.autograd import functions
from tests.unit.runtime.training import BACKENDS, causal, dense

Attend = Callable[..., Tensor]

SIZES = (2, 2, 4, 3)


def score_of(bias: Tensor) -> Callable[..., Tensor]:
    return lambda s, b, h, q, k: torch.tanh(s) * 2 + bias[h, q, k]


def reference(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return dense(query, key, value, score_of(bias), causal)[0]


@pytest.fixture(params=BACKENDS)
def attend(request: pytest.FixtureRequest) -> Attend:
    backend: str = request.param

    def call(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Any:
        score = score_of(bias)
        return flexc.flex_attention(
            query, key, value, score, mask_mod=causal, backend=backend
        )

    return call


def inputs(*batch: int) -> list[Tensor]:
    """Query, key, value and a bias, each with more dimensions before its own.

    They are the same at every call.
    """
    shapes = [*[SIZES] * 3, (2, 4, 4)]
    generator = torch.Generator().manual_seed(sum(batch))
    sizes = [(*batch, *shape) for shape in shapes]
    return [torch.randn(*s, dtype=torch.float64, generator=generator) for s in sizes]


def loss(attend: Attend) -> Callable[..., Tensor]:
    return lambda *args: attend(*args).pow(2).sum()


def third(attend: Attend) -> Callable[..., Tensor]:
    return lambda *args: attend(*args).pow(3).sum()


ALL = (0, 1, 2, 3)


def pulled_back(attend: Attend) -> Any:
    found: Any = vjp(attend, *inputs())
    out, pull = found
    return pull(out)


def tangents_of_samples(attend: Attend, query: Tensor, *rest: Tensor) -> Any:
    *others, tangents = rest

    def along(tangent: Tensor) -> Any:
        return jvp(lambda q: attend(q, *others), (query,), (tangent,))[1]

    return vmap(along)(tangents)


TRANSFORMS: dict[str, Callable[[Attend], Any]] = {
    "grad": lambda f: grad(loss(f), ALL)(*inputs()),
    "vjp": lambda f: pulled_back(f),
    "jvp": lambda f: jvp(f, tuple(inputs()), tuple(inputs())),
    "jvp-of-one": lambda f: jvp(
        lambda k: f(*inputs()[:1], k, *inputs()[2:]), (inputs()[1],), (inputs()[0],)
    ),
    "jacrev": lambda f: jacrev(f, (0, 3))(*inputs()),
    "jacfwd": lambda f: jacfwd(f, (1, 3))(*inputs()),
    "hessian": lambda f: hessian(loss(f), (0, 3))(*inputs()),
    "jacrev-jacrev": lambda f: jacrev(jacrev(loss(f), 1), 3)(*inputs()),
    "jacrev-jacfwd": lambda f: jacrev(jacfwd(loss(f), 3), 0)(*inputs()),
    "grad-grad": lambda f: grad(lambda *args: grad(third(f), 2)(*args).sum(), ALL)(
        *inputs()
    ),
    "jvp-grad": lambda f: jvp(grad(third(f), ALL), tuple(inputs()), tuple(inputs())),
    "grad-jvp": lambda f: grad(
        lambda *args: jvp(f, args, tuple(inputs()))[1].pow(2).sum(), ALL
    )(*inputs()),
    "vmap": lambda f: vmap(f, (0, 0, 0, None))(*inputs(3)[:3], inputs()[3]),
    "vmap-other-dims": lambda f: vmap(f, (2, 0, None, None), out_dims=1)(
        inputs(3)[0].movedim(0, 2), inputs(3)[1], *inputs()[2:]
    ),
    "vmap-captures": lambda f: vmap(f)(*inputs(3)),
    "vmap-captures-only": lambda f: vmap(f, (None, None, None, 0))(
        *inputs()[:3], inputs(3)[3]
    ),
    "vmap-vmap": lambda f: vmap(vmap(f, (0, None, None, None)), (None, 0, 0, None))(
        *inputs(3)[:3], inputs()[3]
    ),
    "per-sample": lambda f: vmap(grad(loss(f), ALL), (0, 0, 0, None))(
        *inputs(3)[:3], inputs()[3]
    ),
    "per-sample-chunks": lambda f: vmap(
        grad(loss(f), (0, 3)), (0, 0, 0, None), chunk_size=2
    )(*inputs(3)[:3], inputs()[3]),
    "grad-vmap": lambda f: grad(
        lambda *args: vmap(f, (0, 0, 0, None))(*args).pow(2).sum(), ALL
    )(*inputs(3)[:3], inputs()[3]),
    "vmap-jvp": lambda f: tangents_of_samples(f, *inputs(), *inputs(3)[:1]),
}


OF_KERNELS = (
    "grad",
    "jvp",
    "hessian",
    "grad-jvp",
    "vmap",
    "vmap-captures",
    "per-sample",
)
"""Each other transform takes kernels of its own, and the same Functions."""

CASES = [
    *(("eager", name) for name in TRANSFORMS),
    *(("cpp", name) for name in OF_KERNELS),
]


@pytest.mark.parametrize(("attend", "name"), CASES, indirect=["attend"])
def test_transforms(attend: Attend, name: str) -> None:
    transform = TRANSFORMS[name]
    torch.testing.assert_close(transform(attend), transform(reference))


def test_gradients_of_what_autograd_records(attend: Attend) -> None:
    query, key, value, bias = inputs()
    query.requires_grad_()

    def penalty(attend: Attend) -> Tensor:
        inner = grad(loss(attend), 1)(query, key, value, bias)
        return torch.autograd.grad(inner.pow(2).sum(), query)[0]

    torch.testing.assert_close(penalty(attend), penalty(reference))


def test_samples_are_one_batch_where_they_can_be(
    attend: Attend, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[int] = []
    original = functions._loop

    def loop(function: Any, size: int, *rest: Any) -> Any:
        loops.append(size)
        return original(function, size, *rest)

    monkeypatch.setattr(functions, "_loop", loop)
    query, key, value, bias = inputs(3)
    vmap(grad(loss(attend)), (0, 0, 0, None))(query, key, value, bias[0])
    assert not loops
    vmap(grad(loss(attend), 3), (0, 0, 0, None))(query, key, value, bias[0])
    assert loops == [3], "each has a gradient of the captured tensor"


@pytest.mark.parametrize("sizes", [(0,), (2, 0), (0, 2)])
def test_a_map_over_nothing_has_no_results(attend: Attend, sizes: Any) -> None:
    query, key, value, bias = inputs()
    queries = query.new_zeros(*sizes, *query.shape).requires_grad_()
    biases = bias.new_zeros(*sizes, *bias.shape).requires_grad_()
    of_query: Any = lambda q: attend(q, key, value, bias)  # noqa: E731
    of_bias: Any = lambda b: attend(query, key, value, b)  # noqa: E731
    for fn, given in ((of_query, queries), (of_bias, biases)):
        slope: Any = grad(lambda x, fn=fn: fn(x).sum())
        for _ in sizes:
            fn, slope = vmap(fn), vmap(slope)
        assert fn(given).shape == (*sizes, *query.shape[:3], value.shape[3])
        assert slope(given).shape == given.shape
        fn(given).sum().backward()
        assert given.grad is not None


def test_mods_that_read_the_batch() -> None:
    query, key, value, _ = inputs(3)
    table = torch.randn(2, dtype=torch.float64)

    def run(attend: Any) -> Callable[..., Tensor]:
        def call(*tensors: Tensor) -> Tensor:
            out = attend(*tensors, lambda s, b, h, q, k: s * table[b])
            return out[0] if isinstance(out, tuple) else out

        return call

    found = vmap(run(flexc.flex_attention))(query, key, value)
    torch.testing.assert_close(found, vmap(run(dense))(query, key, value))


def test_block_masks_under_vmap() -> None:
    tensors = inputs(3)[:3]
    mask = flexc.create_block_mask(causal, None, None, 4, 4, "cpu", BLOCK_SIZE=2)

    def blocks(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flexc.flex_attention(q, k, v, block_mask=mask)

    def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense(q, k, v, None, causal)[0]

    torch.testing.assert_close(vmap(blocks)(*tensors), vmap(expected)(*tensors))


def test_forward_over_forward_is_refused() -> None:
    query, key, value, bias = inputs()

    def total(query: Tensor) -> Any:
        mod = score_of(bias)
        out: Any = flexc.flex_attention(query, key, value, mod, backend="eager")
        return out.sum()

    with pytest.raises(errors.GradientError, match="no forward mode over forward"):
        jacfwd(jacfwd(total))(query)
    with pytest.raises(errors.GradientError, match="up to the second order"):
        grad(lambda q: grad(lambda q: grad(total)(q).sum())(q).sum())(query)


def test_compiled_functions_with_transforms_run_as_they_are() -> None:
    query, key, value, bias = inputs(3)

    @flexc.compile
    def per_sample(*args: Tensor) -> Any:
        return vmap(grad(loss(of_backend), (0, 3)))(*args)

    def of_backend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Any:
        return flexc.flex_attention(query, key, value, score_of(bias), mask_mod=causal)

    found: Any = per_sample(query, key, value, bias)
    expected = vmap(grad(loss(reference), (0, 3)))(query, key, value, bias)
    torch.testing.assert_close(found, expected)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(3, 9, dtype=torch.float64)
        self.bias = torch.nn.Parameter(torch.randn(2, 4, 4, dtype=torch.float64))
        self.attend: Attend = attend_eagerly

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        return self.attend(query, key, value, self.bias)


def attend_eagerly(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Any:
    score = score_of(bias)
    return flexc.flex_attention(
        query, key, value, score, mask_mod=causal, backend="eager"
    )


def test_parameters_of_modules() -> None:
    """Per-sample gradients, and an ensemble, of what a module's mods capture."""
    layers = [Layer() for _ in range(3)]
    (x,) = inputs()[:1]
    stacked, _ = stack_module_state(cast(Any, layers))
    parameters: Any = dict(layers[0].named_parameters())

    def loss(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(layers[0], parameters, (sample[None],)).pow(2).sum()

    def results() -> Any:
        each = vmap(lambda p: functional_call(layers[0], p, (x,)))(stacked)
        return each, vmap(grad(loss), (None, 0))(parameters, x)

    found = results()
    for layer in layers:
        layer.attend = reference
    torch.testing.assert_close(found, results())


def test_transforms_of_compiled_functions() -> None:
    layer = Layer()
    x, tangent, *_ = inputs()
    compiled: Any = flexc.compile(layer)

    def results(fn: Any) -> Any:
        total = grad(lambda x: fn(x).pow(2).sum())(x)
        return total, jvp(fn, (x,), (tangent,)), vmap(fn)(x[:, None])

    found = results(compiled)
    assert compiled.graph(x) is not None
    layer.attend = reference
    torch.testing.assert_close(found, results(layer))
