"""Tensors whose elements are not in memory are never read: their classes see attention
as an operator, and places that operators do not have refuse them with advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import flexc
from flexc import errors
from tests.unit.runtime.training import causal

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
"""Of torch, of classes that it calls prototypes or means to drop."""

Wrap = Callable[[Tensor], Tensor]

attend: Any = flexc.flex_attention
lazy: Any = torch
theirs: Any = torch_flex.flex_attention
negated: Wrap = lazy._neg_view

Q = torch.randn(1, 2, 32, 8)
TABLE = torch.randn(2, 32)


class Wrapping(Tensor):
    """A class with its own `__torch_dispatch__` and without memory."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(
            cls, elem.size(), strides=elem.stride(), dtype=elem.dtype
        )
        made.elem = elem
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map(
            lambda x: x.elem if isinstance(x, Wrapping) else x, (args, kwargs or {})
        )
        results = func(*args, **kwargs)
        return tree_map(lambda x: cls(x) if isinstance(x, Tensor) else x, results)


class Scaled(Wrapping):
    """One with memory, which says something else than the tensor does."""

    @staticmethod
    def __new__(cls, elem: Tensor) -> Any:
        made = Tensor._make_subclass(cls, elem.clone())
        made.elem = elem * 2
        return made


class Plain(Tensor):
    """A class that changes nothing."""


class Spoken(Tensor):
    """A class with its own `__torch_function__`, over memory."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Doubling(Tensor):
    """A class of which an element is twice what lies in memory."""

    def __getitem__(self, index: Any) -> Tensor:
        return self.as_subclass(Tensor)[index] * 2


class Weight(nn.Parameter):
    """A class of parameters."""


def distributed(tensor: Tensor) -> Tensor:
    return distribute_tensor(tensor, init_device_mesh("cpu", (1,)), [Replicate()])


def masked(tensor: Tensor) -> Tensor:
    is_there = torch.ones_like(tensor, dtype=torch.bool)
    return torch.masked.masked_tensor(tensor, is_there)


def escaped(transform: Any) -> Wrap:
    """What a function under a transform of torch.func leaves behind."""

    def wrap(tensor: Tensor) -> Tensor:
        left: list[Tensor] = []
        transform(lambda x: left.append(x) or x.float().sum())(tensor[None])
        return left[0] if left[0].dim() == tensor.dim() else left[0].squeeze(0)

    return wrap


WRAPPERS: dict[str, tuple[Wrap, str]] = {
    "two": (lambda t: TwoTensor(t, t.clone()), "got a TwoTensor.*that it holds"),
    "dispatch": (Wrapping, "got a Wrapping"),
    "dispatch-with-memory": (Scaled, "got a Scaled"),
    "distributed": (distributed, r"got a DTensor.*to_local\(\)"),
    "masked": (masked, r"got a MaskedTensor.*get_data\(\)"),
    "fake": (lambda t: FakeTensorMode().from_tensor(t), "a fake tensor"),
    "functional": (lazy._to_functional_tensor, "a functional tensor"),
    "escaped": (escaped(torch.vmap), "left its torch.func transform"),
}

OTHERS: dict[str, tuple[Wrap, str]] = {
    "meta": (lambda t: t.to("meta"), "meta"),
    "sparse": (lambda t: t.to_sparse(), r"to_dense\(\)"),
    "negated": (negated, r"resolve_neg\(\)"),
    "nested": (
        lambda t: torch.nested.as_nested_tensor(list(t), layout=torch.jagged),
        "a nested one; flexc.flex_attention_varlen takes nested|a NestedTensor",
    ),
    "nested, strided": (
        lambda t: torch.nested.as_nested_tensor(list(t), layout=torch.strided),
        "a nested one; flexc.flex_attention_varlen takes nested",
    ),
}
"""What has been refused for another reason."""

QUANTIZED: dict[str, tuple[Wrap, str]] = {
    "quantized": (
        lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8),
        r"dequantize\(\)",
    ),
}

FLOATS = {**WRAPPERS, **OTHERS, **QUANTIZED}

READABLE: dict[str, Wrap] = {
    "plain": lambda t: t.as_subclass(Plain),
    "function": lambda t: t.as_subclass(Spoken),
    "parameter": lambda t: Weight(t, requires_grad=False),
    "buffer": nn.Buffer,
}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    stores: Any = dist
    store = stores.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def reads(table: Tensor) -> Any:
    return lambda s, b, h, q, k: s + table[h, k]


def sees(table: Tensor) -> Any:
    return lambda b, h, q, k: table[h, k] > 0


def with_tables(wrap: Wrap) -> BlockMask:
    made = create_block_mask(causal, None, None, 32, 32, "cpu", BLOCK_SIZE=16)
    made.kv_num_blocks = wrap(made.kv_num_blocks)
    made.kv_indices = wrap(made.kv_indices)
    return made


READ_BY_MODS = ("score", "mask", "planned", "explained")

PLACES: dict[str, Callable[[Wrap], Any]] = {
    "query": lambda wrap: attend(wrap(Q), Q, Q),
    "key": lambda wrap: attend(Q, wrap(Q), Q),
    "value": lambda wrap: attend(Q, Q, wrap(Q)),
    "all": lambda wrap: attend(*[wrap(Q)] * 3),
    "eager": lambda wrap: attend(*[wrap(Q)] * 3, backend="eager"),
    "score": lambda wrap: attend(Q, Q, Q, reads(wrap(TABLE))),
    "mask": lambda wrap: attend(Q, Q, Q, mask_mod=sees(wrap(TABLE))),
    "planned": lambda wrap: flexc.create_block_mask(
        sees(wrap(TABLE)), None, 2, 32, 32, "cpu"
    ),
    "explained": lambda wrap: flexc.explain(
        sees(wrap(TABLE)), None, 2, 32, 32, device="cpu"
    ),
    "compiled": lambda wrap: flexc.compile(theirs)(*[wrap(Q)] * 3),
    "compiled-function": lambda wrap: flexc.compile(lambda x: attend(x, x, x).sum())(
        wrap(Q)
    ),
}


CASES = [
    (kind, place)
    for kind in FLOATS
    for place in PLACES
    if (kind == "two" or place in ("query", "value", "mask", "planned"))
    and (kind not in WRAPPERS or kind == "escaped" or place in READ_BY_MODS)
]


@pytest.mark.parametrize(("kind", "place"), CASES)
def test_refused(kind: str, place: str) -> None:
    wrap, message = FLOATS[kind]
    # Repeated calls of plain tensors are remembered, and must not serve these.
    for _ in range(3):
        PLACES[place](lambda t: t)
    expected = (
        errors.ShapeError
        if kind not in ("meta", "fake")
        else (errors.ShapeError, errors.DeviceError, errors.TracingError)
    )
    with pytest.raises(expected, match=message):
        PLACES[place](wrap)


@pytest.mark.parametrize("kind", [*sorted(WRAPPERS.keys() - {"escaped"}), "sparse"])
def test_refused_tables(kind: str) -> None:
    wrap, message = FLOATS[kind]
    with pytest.raises(errors.BlockMaskError, match=message):
        attend(Q, Q, Q, block_mask=with_tables(wrap))


@pytest.mark.parametrize("place", ["score", "mask", "planned", "explained"])
@pytest.mark.parametrize("cls", [Spoken, Doubling])
def test_captures_with_operations_of_their_own(cls: Any, place: str) -> None:
    PLACES[place](lambda t: t)
    with pytest.raises(
        errors.ShapeError, match=f"{cls.__name__}, which has its own __"
    ):
        PLACES[place](lambda t: t.as_subclass(cls))


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (kind, place)
        for kind in READABLE
        for place in ("query", "key", "score", "planned")
        if kind != "function" or place in ("query", "key")
    ],
)
def test_classes_over_memory_are_read(kind: str, place: str) -> None:
    def values(result: Any) -> Tensor:
        return result.to_dense() if isinstance(result, BlockMask) else result

    found, expected = PLACES[place](READABLE[kind]), PLACES[place](lambda t: t)
    torch.testing.assert_close(values(found), values(expected), check_dtype=False)


@pytest.mark.parametrize("kind", ["two", "dispatch"])
@pytest.mark.parametrize("place", ["all", "eager", "compiled", "compiled-function"])
def test_classes_see_an_operator(kind: str, place: str) -> None:
    found = PLACES[place](WRAPPERS[kind][0])
    expected = PLACES[place](lambda t: t)
    for part in (found.a, found.b) if kind == "two" else (found.elem,):
        torch.testing.assert_close(part, expected)


def test_memory_of_a_class_is_not_read() -> None:
    found = attend(*[Scaled(Q)] * 3)
    torch.testing.assert_close(found.elem, attend(*[Q * 2] * 3) * 2)


def test_mods_of_a_class() -> None:
    table = TwoTensor(TABLE.clone(), -TABLE).requires_grad_()
    leaves = [TwoTensor(Q, Q * 2).requires_grad_() for _ in range(3)]
    sinks = torch.randn(2, 1)
    found = attend(*leaves, reads(table), mask_mod=causal)
    found = (found * TwoTensor(sinks, sinks)[..., None]).sum()
    found.backward()
    for part, own, rows in (("a", Q, TABLE), ("b", Q * 2, -TABLE)):
        given = [own.clone().requires_grad_() for _ in range(3)]
        given.append(rows.clone().requires_grad_())
        out = attend(*given[:3], reads(given[3]), mask_mod=causal)
        (out * sinks[..., None]).sum().backward()
        for leaf, plain in zip((*leaves, table), given, strict=True):
            torch.testing.assert_close(getattr(leaf.grad, part), plain.grad)


def test_tensors_without_data() -> None:
    with FakeTensorMode() as mode:
        query = mode.from_tensor(torch.randn(2, 4, 7, 8, requires_grad=True))
        key = mode.from_tensor(torch.randn(1, 2, 9, 8))
        out, lse = attend(query, key, key, enable_gqa=True, return_lse=True)
        (found,) = torch.autograd.grad(out.sum() + lse.sum(), query)
    for made, shape in ((out, (2, 4, 7, 8)), (lse, (2, 4, 7)), (found, query.shape)):
        assert isinstance(made, FakeTensor)
        assert made.shape == shape
    functional: Any = attend(lazy._to_functional_tensor(Q), Q, Q)
    expected = attend(Q, Q, Q)
    torch.testing.assert_close(lazy._from_functional_tensor(functional), expected)


def test_mixed_classes_are_refused() -> None:
    for given in ((distributed(Q), Q, Q), (Q, Q, distributed(Q))):
        with pytest.raises(errors.ShapeError, match="to be DTensors together"):
            attend(*given)
    with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors"):
        attend(FakeTensorMode().from_tensor(Q), Q, Q)


@pytest.mark.parametrize("backend", ["aot_eager", "flexc"])
def test_aot_autograd_unwraps(backend: str) -> None:
    compiled: Any = torch.compile(
        lambda x: attend(x * 2, x, x, reads(TABLE)), backend=backend
    )
    found = compiled(TwoTensor(Q, -Q))
    for part, own in ((found.a, Q), (found.b, -Q)):
        expected = attend(own * 2, own, own, reads(TABLE))
        torch.testing.assert_close(part, expected)


COTANGENTS: dict[str, Wrap] = {
    "negated": negated,
    "zeros": lambda t: lazy._efficientzerotensor(t.shape),
    "sparse": lambda t: t.to_sparse(),
}


@pytest.mark.parametrize("kind", COTANGENTS)
def test_cotangents_are_made_dense(kind: str) -> None:
    d_out = COTANGENTS[kind](torch.randn(Q.shape))
    dense = torch.zeros(Q.shape) + d_out.to_dense()
    leaf = Q.clone().requires_grad_()
    out = attend(leaf, Q, Q, reads(TABLE))
    (found,) = torch.autograd.grad(out, leaf, d_out, retain_graph=True)
    (expected,) = torch.autograd.grad(out, leaf, dense)
    torch.testing.assert_close(found, expected)
    if kind != "sparse":
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(Q, t) for t in (d_out, dense)]
            outs = [attend(d, Q, Q, reads(TABLE)) for d in duals]
            tangents = [forward_ad.unpack_dual(out).tangent for out in outs]
        zeros = torch.zeros(Q.shape)
        torch.testing.assert_close(*[zeros if t is None else t for t in tangents])


@pytest.mark.parametrize("kind", WRAPPERS)
def test_refused_cotangents(kind: str) -> None:
    wrap, message = WRAPPERS[kind]
    leaf = Q.clone().requires_grad_()
    out = attend(leaf, Q, Q, reads(TABLE))
    with pytest.raises(errors.GradientError, match=message):
        out.backward(wrap(torch.randn(Q.shape)))
