"""Gradients of `flexc.flex_attention`, to second order, in reverse and forward mode."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fw
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import flexc
from flexc import errors
from flexc.runtime.autograd import derivatives
from tests.unit.runtime.training import BACKENDS, causal, dense, gradients, tensors

Mods = tuple[Any, Any]


@pytest.fixture(params=BACKENDS)
def attend(request: pytest.FixtureRequest) -> Callable[..., Any]:
    backend: str = request.param

    def call(*args: Any, **kwargs: Any) -> Any:
        return flexc.flex_attention(*args, backend=backend, **kwargs)

    return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of which a gradient is computed, and what is wanted of each."""
    seen: list[Any] = []
    original = derivatives.backward

    def backward(call: Any, *args: Any) -> Any:
        seen.append((call, args[3]))
        return original(call, *args)

    monkeypatch.setattr(derivatives, "backward", backward)
    return seen


def soft_cap() -> Mods:
    return lambda s, b, h, q, k: 2 * torch.tanh(s / 2), causal


def bias_of_pairs(bias: Tensor) -> Mods:
    return lambda s, b, h, q, k: s + bias[h, q, k], causal


def relative(table: Tensor, gates: Tensor) -> Mods:
    return lambda s, b, h, q, k: s * gates[h].exp() + table[q - k + 4], None


def empty_rows(slopes: Tensor) -> Mods:
    return (
        lambda s, b, h, q, k: s + slopes[h] * (q - k),
        lambda b, h, q, k: (q >= k) & (q != 2),
    )


VARIANTS: dict[str, tuple[Callable[..., Mods], list[tuple[int, ...]]]] = {
    "plain": (lambda: (None, None), []),
    "soft-cap": (soft_cap, []),
    "bias-of-pairs": (bias_of_pairs, [(2, 4, 4)]),
    "relative": (relative, [(8,), (2,)]),
    "empty-rows": (empty_rows, [(2,)]),
}


CASES = [
    *(("eager", variant) for variant in VARIANTS if variant != "plain"),
    *(pytest.param(b, "plain", marks=pytest.mark.slow) for b in ("eager", "cpp")),
    ("cpp", "relative"),
]


@pytest.mark.parametrize(("attend", "variant"), CASES, indirect=["attend"])
def test_gradcheck(attend: Any, variant: str) -> None:
    mods, shapes = VARIANTS[variant]
    captured = [t for shape in shapes for t in tensors(*shape, count=1)]

    def results(query: Tensor, key: Tensor, value: Tensor, *captured: Tensor) -> Any:
        score, mask = mods(*captured)
        out, lse = attend(query, key, value, score, mask_mod=mask, return_lse=True)
        return out, torch.where(lse.isinf(), 0.0, lse)

    inputs = (*tensors(1, 2, 4, 3), *captured)
    options: dict[str, Any] = {"fast_mode": True}
    assert gradcheck(results, inputs, check_forward_ad=True, **options)
    assert gradgradcheck(results, inputs, check_fwd_over_rev=True, **options)


@pytest.mark.parametrize("group", [1, 2])
def test_gradients_equal_those_of_dense_attention(attend: Any, group: int) -> None:
    (query,) = tensors(2, 2 * group, 9, 4, count=1)
    key, value = tensors(2, 2, 11, 4, count=2)
    (bias,) = tensors(2 * group, 9, 11, count=1)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + bias[h, q, k].tanh() * bias[h, q, k]

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q + b >= k) & (q != 3)

    inputs = (query, key, value, bias)
    kwargs: dict[str, Any] = {"enable_gqa": True, "return_lse": True, "scale": 0.3}
    found = gradients(
        lambda: attend(query, key, value, score, mask_mod=mask, **kwargs), inputs
    )
    expected = gradients(lambda: dense(query, key, value, score, mask, 0.3), inputs)
    torch.testing.assert_close(found, expected)


CAPTURES: dict[str, Callable[[Tensor], Tensor]] = {
    "leaf": lambda t: t,
    "non-leaf": lambda t: t.exp(),
    "view": lambda t: t.view(5, 2).transpose(0, 1),
    "expanded": lambda t: t[:5].expand(2, 5),
    "slice": lambda t: torch.cat([t, t, t, t]).view(2, 5, 4)[:, :, 1],
    "half": lambda t: t.to(torch.bfloat16),
    "single": lambda t: t.float(),
}


@pytest.mark.parametrize("kind", CAPTURES)
def test_captured_tensors(attend: Any, kind: str) -> None:
    query, key, value = tensors(1, 2, 5, 3)
    (leaf,) = tensors(10, count=1)

    def results(run: Any) -> Any:
        bias = CAPTURES[kind](leaf)
        bias = bias if bias.dim() == 2 else bias.view(2, 5)

        def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return s + bias[h, k] * bias[1 - h, q]

        def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (q >= k) & (bias[h, q] > -100)

        return run(query, key, value, score, mask_mod=mask)

    inputs = (query, leaf)
    found = gradients(lambda: results(attend), inputs)
    expected = gradients(lambda: results(dense)[0], inputs)
    tolerance = 2e-2 if kind in ("half", "single") else 1e-7
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_captured_number_has_a_gradient_of_its_dtype(
    attend: Any, dtype: torch.dtype
) -> None:
    query, key, value = tensors(1, 2, 5, 4, dtype=torch.float32)
    sink = torch.tensor(0.3, dtype=dtype, requires_grad=True)
    out = attend(query, key, value, lambda s, b, h, q, k: s * sink)
    out.square().sum().backward()
    assert sink.grad is not None
    assert sink.grad.dtype is dtype
    assert sink.grad.shape == ()
    expected = gradients_of_factor(query, key, value, sink)
    torch.testing.assert_close(sink.grad, expected, rtol=1e-2, atol=1e-2)


def gradients_of_factor(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    out, _ = dense(q, k, v, lambda s, *_: s * sink)
    return torch.autograd.grad(out.square().sum(), sink)[0]


def test_masks_have_no_gradients(attend: Any) -> None:
    query, key, value = tensors(1, 2, 5, 4)
    (limit,) = tensors(2, count=1)
    out = attend(query, key, value, mask_mod=lambda b, h, q, k: limit[h] < q + k)
    found = torch.autograd.grad(out.sum(), (query, limit), allow_unused=True)
    assert found[0] is not None
    assert found[1] is None


def test_rows_without_keys_give_nothing_even_of_nan(attend: Any) -> None:
    query, key, value = tensors(1, 1, 4, 3)
    (table,) = tensors(4, count=1)
    out, lse = attend(
        query,
        key,
        value,
        lambda s, b, h, q, k: s * table[q],
        mask_mod=lambda b, h, q, k: (q != 1) & (q >= k),
        return_lse=True,
    )
    d_out, d_lse = torch.ones_like(out), torch.ones_like(lse)
    d_out[:, :, 1], d_lse[:, :, 1] = torch.nan, torch.nan
    found = torch.autograd.grad((out, lse), (query, key, value, table), (d_out, d_lse))
    assert all(f.isfinite().all() for f in found)
    assert not found[0][:, :, 1].any()
    assert not found[3][1]


def test_only_what_is_needed_is_computed(attend: Any, calls: list[Any]) -> None:
    query, key, value = (t.detach() for t in tensors(1, 2, 5, 4))
    table, frozen = (t.detach() for t in tensors(5, count=2))
    positions = torch.arange(5)

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + table[q] + frozen[positions[k]]

    for needing in (query, value, table):
        needing.requires_grad_()
        attend(query, key, value, score).sum().backward()
        needing.requires_grad_(False)
    wanted = [w for _, w in calls]
    slots = [
        i for i, c in enumerate(calls[0][0].signature.captures) if c.data_ptr() == 0
    ]
    assert not slots
    assert wanted[0] == (True, False, False, False, False, False)
    assert wanted[1] == (False, False, True, False, False, False)
    assert sum(wanted[2]) == sum(wanted[2][3:]) == 1


def test_expanded_and_strided(attend: Any) -> None:
    (query,) = tensors(3, 5, 2, 4, count=1)
    key, value = tensors(1, 2, 6, 4, count=2)
    inputs = (query, key, value)

    def results(run: Any) -> Tensor:
        wide = [t.expand(3, -1, -1, -1) for t in (key, value)]
        out = run(query.transpose(1, 2), *wide, mask_mod=causal)
        out = out[0] if isinstance(out, tuple) else out
        return out.transpose(1, 3)[:, ::2]

    torch.testing.assert_close(
        gradients(lambda: results(attend), inputs),
        gradients(lambda: results(dense), inputs),
    )
    out = attend(query.transpose(1, 2), key, value)
    total = torch.autograd.grad(out.sum(), inputs)
    assert [t.shape for t in total] == [t.shape for t in inputs]


def test_block_masks(attend: Any) -> None:
    query, key, value = tensors(1, 2, 70, 4)
    block_mask = create_block_mask(causal, None, None, 70, 70, "cpu", BLOCK_SIZE=32)
    own = flexc.create_block_mask(causal, None, None, 70, 70, "cpu", BLOCK_SIZE=32)
    inputs = (query, key, value)
    expected = gradients(lambda: dense(*inputs, None, causal)[0], inputs)
    for given in (block_mask, own):
        found = gradients(lambda m=given: attend(*inputs, block_mask=m), inputs)
        torch.testing.assert_close(found, expected)


def test_statistics(attend: Any) -> None:
    query, key, value = tensors(1, 2, 5, 4)
    aux = AuxRequest(lse=True, max_scores=True)
    out, found = attend(query, key, value, return_aux=aux)
    assert out.requires_grad
    assert found.lse.requires_grad
    assert not found.max_scores.requires_grad
    expected = gradients(lambda: dense(query, key, value)[1], (query, key))
    found = gradients(
        lambda: attend(query, key, value, return_aux=aux)[1].lse, (query, key)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("sizes", [(0, 4, 4), (2, 0, 4), (2, 4, 0)])
def test_gradients_of_empty_inputs(attend: Any, sizes: tuple[int, int, int]) -> None:
    batch, rows, columns = sizes
    (query,) = tensors(batch, 2, rows, 4, count=1)
    key, value = tensors(batch, 2, columns, 4, count=2)
    (table,) = tensors(4, count=1)
    out = attend(query, key, value, lambda s, b, h, q, k: s + table[q])
    for found in torch.autograd.grad(out.sum(), (query, key, value, table)):
        assert not found.any()


def test_third_derivatives_are_refused(attend: Any) -> None:
    query, key, value = tensors(1, 1, 4, 3)
    total = attend(query, key, value).pow(3).sum()
    for _ in range(2):
        (total,) = (
            g.pow(2).sum() for g in torch.autograd.grad(total, query, create_graph=True)
        )
    with pytest.raises(errors.GradientError, match="up to the second order"):
        torch.autograd.grad(total, query)


def test_gradient_penalty(attend: Any) -> None:
    query, key, value = tensors(1, 2, 5, 4)
    (table,) = tensors(2, count=1)
    inputs = (query, key, value, table)

    def penalty(run: Any) -> Tensor:
        out = run(query, key, value, lambda s, b, h, q, k: s * table[h])
        out = out[0] if isinstance(out, tuple) else out
        found = torch.autograd.grad(out.pow(2).sum(), inputs, create_graph=True)
        return torch.stack([f.square().sum() for f in found]).sum().sqrt()

    found = torch.autograd.grad(penalty(attend), inputs)
    expected = torch.autograd.grad(penalty(dense), inputs)
    torch.testing.assert_close(found, expected)


def test_dual_tensors(attend: Any) -> None:
    query, key, value = (t.detach() for t in tensors(1, 2, 5, 4))
    tangent, table = torch.randn_like(query), torch.randn(5, dtype=torch.float64)

    def results(run: Any) -> tuple[Tensor, Tensor]:
        with fw.dual_level(), torch.no_grad():
            dual = fw.make_dual(query, tangent)
            bias = fw.make_dual(table, table * 2)
            out = run(dual, key, value, lambda s, b, h, q, k: s + bias[k])
            primal, t_out = fw.unpack_dual(out[0] if isinstance(out, tuple) else out)
            assert t_out is not None
            return primal, t_out

    torch.testing.assert_close(results(attend), results(dense))


def test_checkpoints(attend: Any) -> None:
    query, key, value = tensors(1, 2, 6, 4)
    (bias,) = tensors(2, 6, 6, count=1)

    def block(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # A function of its own for each kind of checkpoint: the first call traces.
        return attend(query * 2, key, value, lambda s, b, h, q, k: s + bias[h, q, k])

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.PREFER_RECOMPUTE

    inputs = (query, key, value, bias)
    for options in (
        {"use_reentrant": False},
        {
            "use_reentrant": False,
            "context_fn": lambda: create_selective_checkpoint_contexts(policy),
        },
    ):
        found = gradients(lambda o=options: checkpoint(block, *inputs[:3], **o), inputs)
        torch.testing.assert_close(found, gradients(lambda: block(*inputs[:3]), inputs))
    out: Any = checkpoint(block, *inputs[:3], use_reentrant=True)
    out.square().sum().backward()
    expected = torch.autograd.grad(block(*inputs[:3]).square().sum(), inputs)
    torch.testing.assert_close(tuple(t.grad for t in inputs), expected)


def test_nothing_but_what_was_saved_is_kept(attend: Any) -> None:
    query, key, value = tensors(1, 2, 6, 4)
    (leaf,) = tensors(6, count=1)
    packed: list[Tensor] = []

    def run() -> tuple[Tensor, Any]:
        table = leaf * 2

        def pack(tensor: Tensor) -> int:
            packed.append(tensor.detach().clone())
            return len(packed) - 1

        with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
            out = attend(query, key, value, lambda s, b, h, q, k: s + table[k])
        return out, weakref.ref(table)

    out, table = run()
    gc.collect()
    assert table() is None
    assert len(packed) == 6, "query, key, value, table, out and lse"
    out.sum().backward()
    assert leaf.grad is not None


def test_what_was_written_to_is_noticed(attend: Any) -> None:
    query, key, value = tensors(1, 2, 6, 4)
    table = torch.randn(6, dtype=torch.float64)
    out = attend(query, key, value, lambda s, b, h, q, k: s + table[k])
    table.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_autocast(attend: Any) -> None:
    query, key, value = tensors(1, 2, 6, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(query, key, value, mask_mod=causal)
        assert out.dtype is torch.bfloat16
        found = torch.autograd.grad(out.float().square().sum(), (query, key, value))
    out, _ = dense(query, key, value, None, causal)
    expected = torch.autograd.grad(out.square().sum(), (query, key, value))
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)


def test_hooks_see_each_gradient_once(attend: Any) -> None:
    """As those of DistributedDataParallel, which reduces what they see."""
    query, key, value = tensors(1, 2, 6, 4)
    (table,) = tensors(6, count=1)
    seen: list[Tensor] = []
    for leaf in (query, key, value, table):
        leaf.register_post_accumulate_grad_hook(seen.append)
    out = attend(query, key, value, lambda s, b, h, q, k: s + table[k] * table[q])
    out.sum().backward()
    assert len(seen) == 4


def test_determinism_is_passed_on(calls: list[Any]) -> None:
    query, key, value = tensors(1, 1, 4, 3)
    asked: dict[str, Any] = {"kernel_options": {"deterministic": True}}
    compiled: Any = flexc.compile(
        flexc.flex_attention, backend="eager", options={"deterministic": True}
    )
    attend: Any = flexc.flex_attention
    for run in (
        lambda: attend(query, key, value, backend="eager"),
        lambda: attend(query, key, value, backend="eager", **asked),
        lambda: compiled(query, key, value),
    ):
        run().sum().backward()
    out: Any = attend(query, key, value, backend="eager")
    torch.use_deterministic_algorithms(True)
    try:
        out.sum().backward()
        assert [call.deterministic for call, _ in calls] == [True, True, True, True]
    finally:
        torch.use_deterministic_algorithms(False)
    assert [call.deterministic for call, _ in calls] == [False, True, True, False]


def test_compiled_functions_train(attend: Any) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(8, 24)
            self.bias = torch.nn.Parameter(torch.randn(2, 6, 6))

        def attend(self, x: Tensor) -> Tensor:
            heads = self.project(x).view(1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
            table = self.bias.tanh()
            out = attend(
                *heads.unbind(0),
                lambda s, b, h, q, k: s + table[h, q, k],
                mask_mod=causal,
            )
            return out.transpose(1, 2).reshape(1, 6, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.attend(x)

    class Checkpointed(Layer):
        def forward(self, x: Tensor) -> Any:
            return checkpoint(super().forward, x, use_reentrant=False)

    x = torch.randn(1, 6, 8)
    for kind in (Layer, Checkpointed):
        layer = kind()
        parameters = list(layer.parameters())
        expected = gradients(lambda m=layer: m(x), parameters)
        found = gradients(lambda m=layer: flexc.compile(m)(x), parameters)
        torch.testing.assert_close(found, expected)


def test_tables_made_in_inference_mode() -> None:
    query = torch.randn(1, 2, 6, 8, requires_grad=True)
    key, value = torch.randn(2, 1, 2, 6, 8)
    with torch.inference_mode():
        table = torch.randn(2, 6)

    def attend(bias: Tensor) -> Tensor:
        out: Any = flexc.flex_attention(
            query, key, value, lambda s, b, h, q, k: s + bias[h, k]
        )
        return torch.autograd.grad(out.square().sum(), query)[0]

    torch.testing.assert_close(attend(table), attend(table.clone()))
