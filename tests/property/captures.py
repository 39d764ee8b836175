"""Captured tensors and numbers of generated mods, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.property.values import EPS32, Bool, Int, Real

if TYPE_CHECKING:
    from tests.property.builder import Builder

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
LAYOUTS = ("contiguous", "contiguous", "transposed", "sliced", "expanded", "offset")


@dataclass(frozen=True)
class TensorSpec:
    """A captured tensor: what it holds is drawn from the case's generator."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: str
    """"exact": multiples of 1/8; "real"; "integer"; "boolean"."""
    layout: str

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

    def number(self, value: float) -> str:
        """The name of a captured Python number."""
        name = f"n{len(self.numbers)}"
        self.numbers[name] = value
        return name

    def tensor(self, builder: Builder, kind: str, dtype: torch.dtype, depth: int):
        """A new tensor, read at computed indices: the text of the read."""
        rank = builder.pick((0, 1, 1, 1, 2, 2, 3))
        places = [self.place(builder, depth) for _ in range(rank)]
        shape = tuple(size for size, _ in places)
        name = f"t{len(self.tensors)}"
        self.tensors[name] = TensorSpec(shape, dtype, kind, builder.pick(LAYOUTS))
        indices = [text for _, text in places]
        if not indices:
            return name
        style = builder.pick(("{all}", "{each}", "{each}"))
        if style == "{all}":
            return f"{name}[{', '.join(indices)}]"
        return name + "".join(f"[{i}]" for i in indices)

    def place(self, builder: Builder, depth: int) -> tuple[int, str]:
        """A dimension's size and an index that is always inside of it."""
        kind = builder.pick(("index", "index", "distance", "wrap", "negative", "clamp"))
        if kind == "index":
            a = builder.index()
            return a.high + 1, a.text
        if kind == "distance":
            rows, columns = builder.sizes["q_idx"], builder.sizes["kv_idx"]
            text = builder.let(f"q_idx - kv_idx + {columns - 1}")
            return rows + columns - 1, text
        size = builder.draw(st.integers(1, 12))
        a = builder.integer(min(depth, 1))
        text = {
            "wrap": f"{a.text} % {size}",
            "negative": f"{a.text} % {size} - {size}",
            "clamp": f"{a.text}.clamp({-size}, {size - 1})",
        }[kind]
        if builder.draw(st.booleans()):
            text = f"({text}).to(torch.int64)"
        return size, builder.let(text)

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
