"""Fake values of a call, in which lengths and changing numbers are symbols."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from flexc.frontend.guards import (
    ExactShapeEnv,
    Guards,
    SourcePrinter,
    number_guard,
    rounded,
)
from flexc.frontend.walk import Capture

Place = tuple[int, int | None]
"""A capture and its dimension; None for a number."""


def lengths_of(captures: Sequence[Capture]) -> frozenset[Place]:
    """The sizes that are expected to change: none of parameters, nor of channels."""
    places: set[Place] = set()
    for slot, capture in enumerate(captures):
        if type(capture) is Tensor:
            channels = capture.is_floating_point() and capture.dim() > 2
            places |= {(slot, d) for d in range(capture.dim() - channels)}
    return frozenset(places)


def changes(before: Sequence[Any], after: Sequence[Any]) -> frozenset[Place]:
    """Where sizes and numbers, as `extents` has them, are not those of another call."""
    places: set[Place] = set()
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        if not isinstance(new, torch.Size):
            places |= {(slot, None)} if repr(old) != repr(new) else set()
            continue
        places |= {(slot, d) for d, n in enumerate(new) if n != old[d]}
    return frozenset(places)


def extents(captures: Sequence[Capture]) -> tuple[Any, ...]:
    """Numbers, and the sizes of tensors."""
    return tuple(c.shape if isinstance(c, Tensor) else c for c in captures)


class FakeMode(FakeTensorMode):
    """A mode whose own code no profiler watches: it is slow, and none of the user's."""

    def __init__(self, shape_env: ShapeEnv | None):
        super().__init__(shape_env=shape_env, allow_non_fake_inputs=True)
        # What is found there has to be compared, symbol by symbol.
        self.cache_enabled = shape_env is None

    def __torch_dispatch__(self, *args: Any, **kwargs: Any) -> Any:
        profiler = sys.getprofile()
        sys.setprofile(None)
        try:
            return super().__torch_dispatch__(*args, **kwargs)
        finally:
            sys.setprofile(profiler)


class FakeCall:
    """Stand-ins for captures, to trace a function with.

    Sizes and numbers at `places` are symbols. What a trace assumes of them all is
    a predicate on captures.
    """

    def __init__(self, captures: Sequence[Capture], places: frozenset[Place]):
        self.captures = captures
        self.symbolic = bool(places)
        self._env = ExactShapeEnv(
            duck_shape=False,
            allow_scalar_outputs=False,
            allow_dynamic_output_shape_ops=False,
        )
        self.mode = FakeMode(self._env if self.symbolic else None)
        self._sources: dict[str, str] = {}
        self._places = places
        self.values = [self._fake(i, c) for i, c in enumerate(captures)]

    @property
    def inputs(self) -> tuple[int, ...]:
        """Which captures a graph takes: all tensors, and numbers that are symbols."""
        constant = (int, float)
        return tuple(i for i, v in enumerate(self.values) if type(v) not in constant)

    def _fake(self, slot: int, value: Capture) -> Any:
        if not isinstance(value, Tensor):
            return self._number(slot, value)
        fake = self._tensor(slot, value) if self.symbolic else None
        fake = (
            self.mode.from_tensor(value, static_shapes=True) if fake is None else fake
        )
        vars(fake)["_is_buffer"] = isinstance(value, torch.nn.Buffer)
        return fake

    def _number(self, slot: int, value: int | float) -> Any:
        if (slot, None) not in self._places:
            return value
        source = ConstantSource(f"n{slot}")
        make = self._env.create_unspecified_symbol
        symbol = make(value, source, DimDynamic.DYNAMIC)
        self._sources[str(symbol)] = f"v[{slot}]"
        kind = "int" if isinstance(value, int) else "float"
        node = getattr(self._env, f"create_sym{kind}node")
        return node(symbol, hint=value, source=source)

    def _tensor(self, slot: int, value: Tensor) -> Tensor | None:
        """A fake tensor with symbols for sizes; None where it has none."""
        dims = [d for d in range(value.dim()) if (slot, d) in self._places]
        if not dims:
            return None
        dynamic = [DimDynamic.STATIC] * value.dim()
        for d in dims:
            dynamic[d] = DimDynamic.DYNAMIC
        sizes, strides, _ = self._env.create_symbolic_sizes_strides_storage_offset(
            value,
            ConstantSource(f"t{slot}"),
            symbolic_context=StatelessSymbolicContext(dynamic_sizes=dynamic),
        )
        for what, found in (("shape", sizes), ("stride()", strides)):
            for d, extent in enumerate(found):
                if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                    name = extent.node.expr.name
                    self._sources.setdefault(name, f"v[{slot}].{what}[{d}]")
        with self.mode:
            options: Any = {"dtype": value.dtype, "device": value.device}
            fake = torch.empty_strided(sizes, strides, **options)
        fake.requires_grad_(value.requires_grad)
        return torch.nn.Parameter(fake) if type(value) is not Tensor else fake

    def guards(self) -> Guards | None:
        """What must hold of other captures; None where Python cannot say it."""
        try:
            conditions = dict.fromkeys(self._conditions())
            assumed = rounded(self._env, self._sources)
            guards = Guards(tuple(conditions), tuple(assumed))
        except Exception:  # An expression that the printer does not know.
            return None
        return guards if guards.hold(self.captures) else None

    def _conditions(self) -> Iterator[str]:
        printer = SourcePrinter(self._sources)
        for slot, fake in enumerate(self.values):
            if type(fake) in (int, float):
                yield number_guard(slot, fake)
            elif isinstance(fake, Tensor):
                yield f"v[{slot}].shape == {_spelled(printer, fake.shape)}"
                yield f"v[{slot}].stride() == {_spelled(printer, fake.stride())}"
        for symbol, bounds in self._env.var_to_range.items():
            if symbol.name in self._sources and symbol.is_integer:
                low, high = bounds.lower, bounds.upper
                source = self._sources[symbol.name]
                yield from (f"{source} >= {low}",) if low.is_Integer else ()
                yield from (f"{source} <= {high}",) if high.is_Integer else ()
        for guard in self._env.guards:
            yield printer.doprint(guard.expr)


def known_value(capture: Any) -> Any:
    """A capture with the values that its symbols have in the call that is traced."""
    if isinstance(capture, torch.SymInt | torch.SymFloat):
        return capture.node.hint
    if not (isinstance(capture, FakeTensor) and has_symbols(capture)):
        return capture
    extents = [
        [known_value(n) for n in what] for what in (capture.shape, capture.stride())
    ]
    options: Any = {"dtype": capture.dtype, "device": capture.device}
    with FakeTensorMode():
        known = torch.empty_strided(*extents, **options)
    known.requires_grad_(capture.requires_grad)
    return torch.nn.Parameter(known) if vars(capture).get("_is_param") else known


def has_symbols(tensor: Tensor) -> bool:
    extents = (*tensor.shape, *tensor.stride())
    return any(isinstance(n, torch.SymInt) for n in extents)


def _spelled(printer: SourcePrinter, extents: Sequence[Any]) -> str:
    """Sizes or strides as a tuple of Python."""
    texts = [str(e) if isinstance(e, int) else printer.spell(e) for e in extents]
    return f"({''.join(f'{t}, ' for t in texts)})"
