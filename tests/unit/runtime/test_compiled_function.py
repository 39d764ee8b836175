"""`flexc.compile`: captures of functions, their keys, and what replays see."""

from __future__ import annotations

import copy
import cProfile
import functools
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
import xdsl
from torch import Tensor, nn
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

import flexc
from flexc import errors
from flexc.runtime.kernels.driver import counters
from tests.support import reference
from tests.unit.runtime.functions import (
    COMPILE,
    Block,
    causal,
    dense,
    operators,
    qkv,
    traces,
)


@pytest.fixture
def block() -> Block:
    return Block().eval()


def test_attention_itself() -> None:
    tensors = qkv()
    expected = dense(*tensors, mask_mod=causal)
    for fn in (flex_attention, flexc.flex_attention):
        compiled: Any = flexc.compile(fn)
        torch.testing.assert_close(compiled(*tensors, mask_mod=causal), expected)
        assert compiled.__name__ == "flex_attention"
        assert "mask_mod" in inspect.signature(compiled).parameters
    partial: Any = flexc.compile(functools.partial(flex_attention, scale=0.5))
    torch.testing.assert_close(partial(*tensors), dense(*tensors, scale=0.5))


def test_function_runs_the_kernels_of_direct_calls() -> None:
    tensors = qkv(length=24)

    def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(flex_attention(q, k, v), k, v)  # pyright: ignore

    flexc.flex_attention(*tensors)
    compiled = flexc.compile(twice)
    built = counters["built"]
    got = compiled(*tensors)
    torch.testing.assert_close(got, dense(dense(*tensors), *tensors[1:]))
    assert operators(compiled, *tensors) == 2
    compiled(*qkv(length=31))
    assert counters["built"] == built


def test_all_names_of_attention_are_met() -> None:
    table = {"fn": flex_attention}

    @COMPILE
    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Any:
        through_module = torch_flex.flex_attention(q, k, v)
        through_dict: Any = table["fn"](q, k, v, return_aux=AuxRequest(lse=True))
        through_compile: Any = torch.compile(flex_attention)(q, k, v)
        own: Any = flexc.flex_attention(q, k, v, mask_mod=causal)
        both = through_module + through_compile
        return {"sum": both, "aux": through_dict, "own": own}

    tensors = qkv()
    got: Any = mixed(*tensors)
    expected = reference.attention(*tensors)
    torch.testing.assert_close(got["sum"], 2 * expected.out.float())
    torch.testing.assert_close(got["aux"][1].lse, expected.lse.float())
    torch.testing.assert_close(got["own"], dense(*tensors, mask_mod=causal))
    assert got["aux"][1].max_scores is None


def test_torch_is_as_it_was() -> None:
    code = flex_attention.__code__
    compiled = COMPILE(lambda q, k, v: 1 + flex_attention(q, k, v))
    compiled(*qkv())
    assert flex_attention.__code__ is code
    with pytest.raises(errors.ShapeError):
        compiled(*qkv()[:2], torch.ones(1))
    assert flex_attention.__code__ is code


def test_module_reads_parameters_live(block: Block) -> None:
    compiled = COMPILE(block)
    x = torch.randn(2, 10, 16)
    with torch.no_grad():
        first = compiled(x)
        assert operators(compiled, x) == 1
        assert traces(lambda: compiled(x)) == 0
        block.bias.add_(torch.randn_like(block.bias))
        block.norm.weight = nn.Parameter(torch.full((16,), 3.0))
        assert traces(lambda: compiled(x)) == 0
        second = compiled(x)
        fresh = flexc.compile(block, backend="eager")(x)
    torch.testing.assert_close(second, fresh)
    assert not torch.allclose(first, second)


def test_module_state_is_part_of_the_key(block: Block) -> None:
    compiled = COMPILE(block)
    x = torch.randn(2, 10, 16)
    with torch.no_grad():
        before = compiled(x)
        block.window = 2
        assert traces(lambda: compiled(x)) == 1
        assert not torch.allclose(before, compiled(x))
        block.train()
        assert traces(lambda: compiled(x)) == 1
        assert not torch.allclose(compiled(x), compiled(x))
        block.eval()
        assert traces(lambda: compiled(x)) == 0
        block.out[1] = nn.Identity()
        assert traces(lambda: compiled(x)) == 1
        hook = block.norm.register_forward_hook(lambda m, i, o: o.zero_())
        assert traces(lambda: compiled(x)) == 0
        torch.testing.assert_close(compiled(x), COMPILE(block)(x))
        hook.remove()


def test_key_of_arguments() -> None:
    @COMPILE
    def scaled(q: Tensor, factor: float, *, kind: str = "a", extra: Any = ()) -> Tensor:
        return flex_attention(q, q, q) * factor + len(kind) + sum(extra)  # pyright: ignore

    q, other = qkv()[:2]
    assert traces(lambda: scaled(q, 2.0)) == 1
    assert traces(lambda: scaled(other, 2.0)) == 0
    assert traces(lambda: scaled(q, 3.0)) == 1
    assert traces(lambda: scaled(q, 3.0, kind="bc")) == 1
    assert traces(lambda: scaled(q, 3.0, extra=[q, other])) == 1
    assert traces(lambda: scaled(other, 3.0, extra=[other, q])) == 0
    assert traces(lambda: scaled(q, 3.0, extra=(q,))) == 1
    assert traces(lambda: scaled(q.transpose(2, 3).contiguous().mT, 2.0)) == 1
    assert traces(lambda: scaled(qkv(length=13)[0], 4.0)) == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert traces(lambda: scaled(q, 2.0)) == 1
        assert scaled(q, 2.0).dtype is torch.bfloat16
    torch.testing.assert_close(
        scaled(q, 3.0, extra=[q, other]), dense(q, q, q) * 3 + 1 + q + other
    )


def test_closures_are_read_live() -> None:
    state = {"scale": 1.0, "bias": torch.zeros(1)}

    @COMPILE
    def fn(q: Tensor) -> Any:
        return flex_attention(q, q, q) * state["scale"] + state["bias"]  # pyright: ignore

    q = qkv()[0]
    attended = dense(q, q, q)
    torch.testing.assert_close(fn(q), attended)
    state["bias"] = torch.ones(1)
    assert traces(lambda: fn(q)) == 0
    torch.testing.assert_close(fn(q), attended + 1)
    state["scale"] = 2.0
    assert traces(lambda: fn(q)) == 1
    torch.testing.assert_close(fn(q), attended * 2 + 1)


@pytest.mark.parametrize("make", [create_block_mask, flexc.create_block_mask])
def test_block_masks_made_inside_and_given(make: Any) -> None:
    def inside(q: Tensor) -> Any:
        length = q.size(2)
        mask = make(causal, None, None, length, length, device="cpu")
        return flex_attention(q, q, q, block_mask=mask)

    def given(q: Tensor, mask: BlockMask) -> Any:
        return flex_attention(q, q, q, block_mask=mask)

    q, other = qkv(length=300)[:2]
    mask = make(causal, None, None, 300, 300, device="cpu")
    for compiled in (COMPILE(inside), functools.partial(COMPILE(given), mask=mask)):
        for tensor in (q, other):
            expected = dense(tensor, tensor, tensor, mask_mod=causal)
            torch.testing.assert_close(compiled(tensor), expected)
    assert traces(lambda: compiled(q)) == 0
    with pytest.raises(errors.BlockMaskError, match="made for"):
        COMPILE(given)(qkv(length=200)[0], mask)


def test_own_block_masks_made_inside_read_what_is_given() -> None:
    """No capture knows the values by which blocks are classified."""

    @COMPILE
    def packed(q: Tensor, document: Tensor) -> Any:
        def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return document[i] == document[j]

        n = q.size(2)
        mask = flexc.create_block_mask(same, None, None, n, n, "cpu", BLOCK_SIZE=16)
        return flex_attention(q, q, q, block_mask=mask)

    for n in (40, 70):
        q, document = qkv(length=n)[0], torch.arange(n) // 20

        def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor, d: Any = document) -> Any:
            return d[i] == d[j]

        torch.testing.assert_close(packed(q, document), dense(q, q, q, mask_mod=same))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_profile_goes_on_after_a_trace(compiled: bool) -> None:
    """Traces have a profiler of their own. Only one can be active in Python 3.11."""

    def fn(q: Tensor) -> Any:
        return flexc.flex_attention(q, q, q, mask_mod=mask, backend="eager")

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j

    def work() -> None:
        pass

    q = qkv()[0]
    with cProfile.Profile() as profile:
        (COMPILE(fn) if compiled else fn)(q)
        work()
    assert sys.getprofile() is None
    called = {entry.code for entry in profile.getstats()}
    assert {fn.__code__, work.__code__} - called == (
        {fn.__code__} if compiled else set()
    )


def test_inputs_are_written_to() -> None:
    @COMPILE
    def with_cache(q: Tensor, cache: Tensor, at: int) -> Any:
        cache[:, :, at : at + q.size(2)] = q
        return flex_attention(q, cache, cache), cache

    q, cache = torch.ones(1, 2, 3, 8), torch.zeros(1, 2, 9, 8)
    out, same = with_cache(q, cache, 2)
    assert same is cache
    assert cache.sum() == q.sum()
    torch.testing.assert_close(out, dense(q, cache, cache))


def test_decorated_methods_and_nested_compiled_functions() -> None:
    @flexc.compile(backend="eager", options={"kernel_options": {"BLOCK_M": 32}})
    def inner(q: Tensor) -> Any:
        return flex_attention(q, q, q)

    class Model:
        factor = 2.0

        @COMPILE
        def attend(self, q: Tensor) -> Any:
            return inner(q) * self.factor

    model, q = Model(), qkv()[0]
    torch.testing.assert_close(model.attend(q), dense(q, q, q) * 2)
    model.factor = 3.0
    torch.testing.assert_close(model.attend(q), dense(q, q, q) * 3)
    torch.testing.assert_close(COMPILE(model.attend)(q), dense(q, q, q) * 3)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"backend": "gpu"}, "backend expects one of auto"),
        ({"options": {"tiles": 1}}, "The keys are kernel_options, det"),
        ({"options": {"deterministic": 1}}, "option deterministic expects True or"),
        ({"options": {"kernel_options": {"X": 1}}}, "kernel_options has no key"),
        ({"fn": 3}, "compile expects a function, got int"),
    ],
)
def test_refused_options(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.OptionError, match=message):
        flexc.compile(**{"fn": flex_attention, **kwargs})


class Layer(torch.nn.Module):
    def forward(self, x: Tensor) -> Any:
        return flexc.flex_attention(x, x, x, score_mod=lambda s, b, h, q, k: s * 2)


def test_pickled_after_a_call() -> None:
    x = torch.randn(1, 1, 4, 8)
    compiled = flexc.compile(Layer())
    expected = compiled(x)
    torch.testing.assert_close(pickle.loads(pickle.dumps(compiled))(x), expected)


@flexc.compile
def decorated(x: Tensor) -> Any:
    return flexc.flex_attention(x, x, x)


class Decorated:
    @flexc.compile
    def method(self, x: Tensor) -> Any:
        return flexc.flex_attention(x, x, x)


def test_decorated_functions_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.deepcopy(decorated) is decorated
    x = torch.randn(1, 1, 4, 8)
    method = pickle.loads(pickle.dumps(Decorated().method))
    torch.testing.assert_close(method(x), decorated(x))


def test_libraries_may_lie_anywhere(tmp_path: Path) -> None:
    """A call is captured where xDSL is in no folder of installed packages."""
    (tmp_path / "xdsl").symlink_to(Path(xdsl.__file__).parent)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch, flexc, xdsl\n"
        "assert xdsl.__file__.startswith(sys.argv[1])\n"
        "attend = flexc.compile(lambda x: flexc.flex_attention(x, x, x))\n"
        "assert attend.graph(torch.randn(1, 1, 8, 16)) is not None\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
