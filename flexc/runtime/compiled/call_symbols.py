"""Fake values of a call, with symbols for lengths and for numbers that change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from flexc.frontend.call_watch import set_profiler
from flexc.frontend.guards import ExactShapeEnv, Guards, Symbols, number_guard
from flexc.frontend.walk import Capture
from flexc.runtime.inputs.wrappers import CaptureMode

Place = tuple[int, int | None]
"""The slot of a capture, and one of its dimensions, or None for a number."""


def lengths_of(captures: Sequence[Capture]) -> frozenset[Place]:
    """Return the sizes that are expected to change between calls.

    These are all sizes of plain tensors except the channels. Sizes of parameters are
    not expected to change.
    """
    places: set[Place] = set()
    for slot, capture in enumerate(captures):
        if type(capture) is Tensor:
            channels = capture.is_floating_point() and capture.dim() > 2
            places |= {(slot, d) for d in range(capture.dim() - channels)}
    return frozenset(places)


def changes(before: Sequence[Any], after: Sequence[Any]) -> frozenset[Place]:
    """Return the places of sizes and numbers that differ between two `extents`."""
    places: set[Place] = set()
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        if not isinstance(new, torch.Size):
            places |= {(slot, None)} if repr(old) != repr(new) else set()
            continue
        places |= {(slot, d) for d, n in enumerate(new) if n != old[d]}
    return frozenset(places)


def extents(captures: Sequence[Capture]) -> tuple[Any, ...]:
    """Return the numbers, and the sizes of the tensors."""
    return tuple(c.shape if isinstance(c, Tensor) else c for c in captures)


class FakeMode(CaptureMode):
    """A fake mode that disables profilers for its own code.

    Its code is slow under a profiler and is not the user's.
    """

    def __init__(self, shape_env: ShapeEnv | None):
        super().__init__(shape_env=shape_env, allow_non_fake_inputs=True)
        # With symbols, a lookup in the cache would compare symbol by symbol.
        self.cache_enabled = shape_env is None

    def __torch_dispatch__(self, *args: Any, **kwargs: Any) -> Any:
        profiler = sys.getprofile()
        set_profiler(None)
        try:
            return super().__torch_dispatch__(*args, **kwargs)
        finally:
            set_profiler(profiler)


class FakeCall:
    """Stand-ins for captures, with which a function is traced.

    Sizes and numbers at `places` are symbols. The assumptions that a trace makes about
    the symbols form a predicate on captures.
    """

    def __init__(self, captures: Sequence[Capture], places: frozenset[Place]):
        self.captures = captures
        self.symbolic = bool(places)
        env = ExactShapeEnv(
            duck_shape=False,
            allow_scalar_outputs=False,
            allow_dynamic_output_shape_ops=False,
        )
        self.mode = FakeMode(env if self.symbolic else None)
        self._symbols = Symbols(env)
        self._places = places
        self.values = [self._fake(i, c) for i, c in enumerate(captures)]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The captures that a graph takes: tensors and symbols."""
        constant = (int, float)
        return tuple(i for i, v in enumerate(self.values) if type(v) not in constant)

    def _fake(self, slot: int, value: Capture) -> Any:
        if not isinstance(value, Tensor):
            is_symbol = (slot, None) in self._places
            return self._symbols.number(slot, value) if is_symbol else value
        fake = self._tensor(slot, value)
        vars(fake)["_is_buffer"] = isinstance(value, torch.nn.Buffer)
        return fake

    def _tensor(self, slot: int, value: Tensor) -> Tensor:
        """Return a fake tensor, with symbols for its sizes at `places`."""
        dims = [d for d in range(value.dim()) if (slot, d) in self._places]
        if not dims:
            return self.mode.from_tensor(value, static_shapes=True)
        dynamic = [DimDynamic.STATIC] * value.dim()
        for d in dims:
            dynamic[d] = DimDynamic.DYNAMIC
        create = self._symbols.env.create_symbolic_sizes_strides_storage_offset
        context = StatelessSymbolicContext(dynamic_sizes=dynamic)
        source = ConstantSource(f"t{slot}")
        sizes, strides, _ = create(value, source, symbolic_context=context)
        self._symbols.note_extents(slot, sizes, strides)
        with self.mode:
            options: Any = {"dtype": value.dtype, "device": value.device}
            fake = torch.empty_strided(sizes, strides, **options)
        fake.requires_grad_(value.requires_grad)
        return torch.nn.Parameter(fake) if type(value) is not Tensor else fake

    def guards(self) -> Guards | None:
        """Return the conditions on other captures, None if they cannot be expressed."""
        symbols = self._symbols
        conditions, assumptions = self._conditions(), symbols.assumptions()
        return symbols.guards(self.captures, conditions, assumptions)

    def _conditions(self) -> Iterator[str]:
        symbols = self._symbols
        for slot, fake in enumerate(self.values):
            if type(fake) in (int, float):
                yield number_guard(slot, fake)
            elif isinstance(fake, Tensor):
                yield f"v[{slot}].shape == {_spelled(symbols, fake.shape)}"
                yield f"v[{slot}].stride() == {_spelled(symbols, fake.stride())}"
        for symbol, bounds in symbols.env.var_to_range.items():
            if symbol.name in symbols.sources and symbol.is_integer:
                low, high = bounds.lower, bounds.upper
                source = symbols.sources[symbol.name]
                yield from (f"{source} >= {low}",) if low.is_Integer else ()
                yield from (f"{source} <= {high}",) if high.is_Integer else ()


def _spelled(symbols: Symbols, extents: Sequence[Any]) -> str:
    """Return sizes or strides as the source text of a tuple."""
    texts = [str(e) if isinstance(e, int) else symbols.spell(e) for e in extents]
    return f"({''.join(f'{t}, ' for t in texts)})"
