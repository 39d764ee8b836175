"""Captured tensors and numbers of generated mods, and how they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.property.values import EPS32, Bool, Int, Real

if TYPE_CHECKING:
    from tests.property.builder import Builder

T = TypeVar("T", int, float)

INTEGERS = {
    torch.uint8: (0, 200),
    torch.int8: (-100, 100),
    torch.int16: (-300, 300),
    torch.int32: (-50, 50),
    torch.int64: (-50, 50),
}
FLOATS = {
    torch.float32: EPS32,
    torch.float64: EPS32,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
}
COLUMNS = "columns"
"""What a number is that is the number of keys but one."""
LARGEST_SLICE = 1024
"""Elements of `t[i]` where `t[i][j]` is read: a reference holds them for each pair."""
LAYOUTS = ("contiguous", "contiguous", "transposed", "sliced", "expanded", "offset")


@dataclass(frozen=True)
class TensorSpec:
    """A captured tensor: what it holds is drawn from the case's generator."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str
    """"exact": multiples of 1/8; "real"; "integer"; "boolean"."""
    layout: str
    spans: tuple[str, ...] = ()
    """What a dimension is as long as: an index's range, "distance", "longest", the
    number of some name, or "free" where its own size bounds what is read."""

    def make(self, generator: torch.Generator) -> Tensor:
        return laid_out(self.shape, self.layout, lambda s: self.fill(s, generator))

    def fill(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        match self.kind:
            case "exact":
                values = torch.randint(-32, 33, shape, generator=generator) / 8
            case "real":
                values = torch.randn(shape, generator=generator).clamp(-3, 3)
            case "integer":
                low, high = INTEGERS[self.dtype]
                values = torch.randint(low, high + 1, shape, generator=generator)
            case _:
                values = torch.randint(0, 2, shape, generator=generator)
        return values.to(self.dtype)


def laid_out(shape, layout, fill) -> Tensor:
    """A tensor of this shape that lies in memory in an uncommon way."""
    if not shape or layout == "contiguous":
        return fill(shape)
    match layout:
        case "transposed":
            return fill(shape[::-1]).permute(*reversed(range(len(shape))))
        case "sliced":
            return fill((*shape[:-1], 2 * shape[-1] + 1))[..., 1::2]
        case "expanded":
            return fill((1, *shape[1:])).expand(shape)
        case _:
            return fill((shape[0] + 2, *shape[1:]))[1:-1]


def moved(x: Tensor, device: str) -> Tensor:
    """On another device, lying in memory as it does here."""
    if device == "cpu":
        return x
    storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).to(device)
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


@dataclass
class Captures:
    """What the mods of one case capture; drawn as they are built."""

    score_bound: float
    bfloat16: bool = True
    tensors: dict[str, TensorSpec] = field(default_factory=dict)
    numbers: dict[str, int | float] = field(default_factory=dict)
    varied: bool = False
    """Whether later calls capture other numbers, and tensors of other sizes."""
    others: dict[str, tuple[float, ...] | str] = field(default_factory=dict)
    """Of numbers: the values that they may take, or COLUMNS."""
    names: int = 0
    """Of tensors, given away so far."""

    def number(self, value: float, others: Sequence[float] | str = ()) -> str:
        """The name of a captured Python number."""
        name = f"n{len(self.numbers)}"
        self.numbers[name] = value
        if self.varied and others:
            self.others[name] = others if isinstance(others, str) else tuple(others)
        return name

    def values(self, value: T, others: Sequence[T]) -> Sequence[T]:
        """What a captured number may be in one of the calls."""
        return [value, *others] if self.varied else [value]

    def name(self) -> str:
        """A new tensor's."""
        self.names += 1
        return f"t{self.names - 1}"

    def tensor(self, builder: Builder, kind: str, dtype: torch.dtype, depth: int):
        """A new tensor, read at computed indices: the text of the read."""
        rank = builder.pick((0, 1, 1, 1, 2, 2, 3))
        name = self.name()
        places = [self.place(builder, depth, f"{name}.size({i})") for i in range(rank)]
        shape, indices, spans = zip(*places, strict=True) if places else ((), (), ())
        layout = builder.pick(LAYOUTS)
        self.tensors[name] = TensorSpec(shape, dtype, kind, layout, spans)
        if not indices:
            return name
        style = builder.pick(("{all}", "{each}", "{each}"))
        if style == "{all}" or math.prod(shape[1:]) > LARGEST_SLICE:
            return f"{name}[{', '.join(indices)}]"
        return name + "".join(f"[{i}]" for i in indices)

    def place(self, builder: Builder, depth: int, own: str) -> tuple[int, str, str]:
        """A dimension's size, an index that is always inside of it, and its span.

        `own` reads the dimension's size.
        """
        kind = builder.pick(("index", "index", "distance", "wrap", "negative", "clamp"))
        if kind == "index":
            a = builder.index()
            return a.high + 1, a.text, a.text
        if kind == "distance":
            rows, columns = builder.sizes["q_idx"], builder.sizes["kv_idx"]
            last = self.number(columns - 1, COLUMNS) if self.varied else columns - 1
            text = builder.let(f"q_idx - kv_idx + {last}")
            return rows + columns - 1, text, "distance"
        size, span = builder.draw(st.integers(1, 12)), "free"
        if self.varied and builder.draw(st.booleans()):
            own = span = self.number(size, range(1, 13))
        size_text = own if self.varied else str(size)
        a = builder.integer(min(depth, 1))
        text = {
            "wrap": f"{a.text} % {size_text}",
            "negative": f"{a.text} % {size_text} - {size_text}",
            "clamp": f"{a.text}.clamp(-{size_text}, {size_text} - 1)",
        }[kind]
        if builder.draw(st.booleans()):
            text = f"({text}).to(torch.int64)"
        return size, builder.let(text), span

    def integer(self, builder: Builder, depth: int) -> Int:
        dtype = builder.pick(tuple(INTEGERS))
        text = self.tensor(builder, "integer", dtype, depth)
        if dtype.itemsize < 4:
            text = f"{text}.to(torch.int32)"
        return Int(builder.let(text), *INTEGERS[dtype])

    def condition(self, builder: Builder, depth: int) -> Bool:
        text = self.tensor(builder, "boolean", torch.bool, depth)
        return Bool(builder.let(text))

    def real(self, builder: Builder, depth: int, exact: bool = False) -> Real:
        dtypes = tuple(FLOATS) if self.bfloat16 else tuple(FLOATS)[:3]
        dtype = builder.pick(dtypes)
        exact = exact or builder.draw(st.booleans())
        text = self.tensor(builder, "exact" if exact else "real", dtype, depth)
        # What is stored is read exactly, of whatever precision it is.
        grain = 3 if exact else None
        return Real(builder.let(text), 4.0, unit=FLOATS[dtype], grain=grain)
