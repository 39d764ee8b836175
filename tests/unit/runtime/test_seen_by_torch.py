"""Attention in eager mode is an operator for torch's modes, tracers and transforms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import BlockMask
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import flexc
from flexc import errors
from tests.support.seen import Seen
from tests.unit.runtime.training import causal

attend: Any = flexc.flex_attention
OPERATOR: Any = torch.ops.flexc

LENGTH, HEADS, DIM = 37, 4, 8


def tensors(heads: int = HEADS, requires_grad: bool = False) -> list[Tensor]:
    shapes = ((2, heads, LENGTH, DIM), *[(2, 2, LENGTH + 3, DIM)] * 2)
    return [torch.randn(s, requires_grad=requires_grad) for s in shapes]


def biased(bias: Tensor, shift: int = 2) -> Callable[..., Any]:
    return lambda s, b, h, q, k: s + bias[h, (q - k).abs() + shift]


def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    return attend(q, k, v, biased(bias), mask_mod=causal, enable_gqa=True)


@pytest.fixture
def bias() -> Tensor:
    return torch.randn(HEADS, 2 * LENGTH, requires_grad=True)


def gradients(out: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.square().sum(), leaves)


def test_a_dispatch_mode_sees_one_operator_each_way(bias: Tensor) -> None:
    leaves = [*tensors(requires_grad=True), bias]
    expected = run(*leaves)
    right = gradients(expected, leaves)
    for _ in range(3):
        with Seen() as seen:
            out = run(*leaves)
            found = gradients(out, leaves)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(found, right)
        ours = [name for name in seen.names if name.startswith("flexc.")]
        assert ours == ["flexc.attention.default", "flexc.attention_backward.default"]


def test_a_dispatch_mode_sees_block_masks() -> None:
    query, key, value = tensors()
    mask: BlockMask = flexc.create_block_mask(
        causal, None, None, LENGTH, LENGTH + 3, "cpu", BLOCK_SIZE=16
    )
    call = partial(attend, query, key, value, block_mask=mask, enable_gqa=True)
    with Seen() as seen:
        found = call()
    assert "flexc.attention.default" in seen.names
    torch.testing.assert_close(found, call())


@pytest.mark.parametrize("saved", [True, False])
def test_policies_of_selective_checkpoints(bias: Tensor, saved: bool) -> None:
    leaves = [*tensors(requires_grad=True), bias]

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if saved and op is OPERATOR.attention.default:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    out: Any = checkpoint(run, *leaves, use_reentrant=False, context_fn=contexts)
    with Seen() as seen:  # Of what is recomputed, not of what was saved.
        found = gradients(out, leaves)
    torch.testing.assert_close(found, gradients(run(*leaves), leaves))
    assert seen.names.count("flexc.attention.default") == (not saved)


def test_a_function_mode_sees_the_function() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            return found * 2 if func is attend else found

    query, key, value = tensors()
    call = partial(attend, query, key, value, mask_mod=causal, enable_gqa=True)
    expected = call()
    with Mode():
        found = call()
    torch.testing.assert_close(found, expected * 2)


class Spoken(Tensor):
    """A class of tensors that logs functions."""

    called: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.called.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_class_sees_the_function() -> None:
    query, key, value = tensors()
    Spoken.called.clear()
    found = attend(query, key.as_subclass(Spoken), value, enable_gqa=True)
    assert attend in Spoken.called
    assert type(found) is Spoken
    expected = attend(query, key, value, enable_gqa=True)
    torch.testing.assert_close(found.as_subclass(Tensor), expected)


def mapped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    def one(*given: Tensor) -> Any:
        query, key, value = (t[None] for t in given)
        return run(query, key, value, bias)

    return torch.vmap(one)(q, k, v)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("transform", ["none", "functionalize", "grad", "vmap"])
def test_make_fx(bias: Tensor, mode: Any, transform: str) -> None:
    leaves = [*tensors(), bias.detach()]
    fn: Any = {
        "none": run,
        "functionalize": torch.func.functionalize(run),
        "grad": torch.func.grad(lambda *given: run(*given).sum(), argnums=(0, 1, 3)),  # pyright: ignore
        "vmap": mapped,
    }[transform]
    graph = make_fx(fn, tracing_mode=mode)(*leaves)
    names = [str(node.target) for node in graph.graph.nodes]
    assert "flexc.attention.default" in names
    others = [*tensors(), bias.detach() * 2]
    torch.testing.assert_close(graph(*others), fn(*others))


def test_functionalize_alone(bias: Tensor) -> None:
    leaves = [*tensors(), bias.detach()]
    found = torch.func.functionalize(run)(*leaves)
    torch.testing.assert_close(found, run(*leaves))


def test_errors_of_seen_calls_name_the_line() -> None:
    query, key, value = tensors()

    def branches(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s if q > k else -s

    with Seen(), pytest.raises(errors.FlexcError, match=r"test_seen_by_torch\.py"):
        attend(query, key, value, branches, enable_gqa=True)


def test_functions_of_the_user_have_no_gradient_here() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0]

    query, key, value = tensors(requires_grad=True)

    def mod(s: Tensor, b: Any, h: Any, q: Any, k: Any) -> Any:
        return Twice.apply(s)

    with Seen(), pytest.raises(errors.GradientError):
        attend(query, key, value, mod, enable_gqa=True)
    with Seen(), torch.no_grad():
        found = attend(query, key, value, mod, enable_gqa=True)
    scaled = [t.detach() for t in (query, key, value)]
    expected = attend(*scaled, lambda s, b, h, q, k: s * 2, enable_gqa=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("sizes", [(0, 3), (1, 0), (3, 1)])
def test_small_calls(sizes: tuple[int, int]) -> None:
    rows, keys = sizes
    query = torch.randn(2, 2, rows, DIM, requires_grad=True)
    key = torch.randn(2, 2, keys, DIM).transpose(1, 2).contiguous().transpose(1, 2)
    with Seen():
        found = attend(query, key, key, return_lse=True)
        found[0].sum().backward()
    torch.testing.assert_close(found, attend(query, key, key, return_lse=True))
    assert query.grad is not None


def test_pages_are_refused_by_dispatch_modes() -> None:
    query, (key, value) = torch.randn(1, 2, 3, DIM), torch.randn(2, 4, 2, 16, DIM)
    given: Any = {"page_table": torch.tensor([[2, 0]], dtype=torch.int32)}

    class Passed(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    with torch.no_grad():
        expected = attend(query, key, value, **given)
        with Passed():
            assert torch.equal(attend(query, key, value, **given), expected)
        with Seen(), pytest.raises(errors.OptionError, match="dispatch mode"):
            attend(query, key, value, **given)
