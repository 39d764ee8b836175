"""Calls of attention at random: mods from the grammars of the property tests.

A family is a mod and a mask, drawn for its largest sizes: what they read lies inside of
its tables at all smaller ones too. So its calls, of many sizes and layouts, share a few
kernels, though what the mods read changes from call to call. A family has a number,
from which it can be drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.property.captures import LAYOUTS
from tests.property.cases import Case, Sizes
from tests.property.gradient_strategies import RESULTS, TABLES
from tests.property.strategies import cases
from tests.random_calls.calls import Call
from tests.random_calls.changes import changed
from tests.random_calls.forms import FORMS, Held

HEADS = ((1, 1), (2, 1), (3, 3), (4, 1), (4, 2), (6, 2), (6, 3), (6, 6))
EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 384, 512, 640)
ODD_LAYOUTS = ("sliced", "transposed", "offset")
CHANGEABLE = ("torch", "without q")
"""BlockMasks of which it is clear what they say of another mask."""
CPU_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
GPU_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Ranges:
    """What is drawn from, for a kind of device."""

    longest: tuple[int, ...]
    """Of positions: one of these for a family."""
    calls: int
    """Of each family. Kernels take seconds to compile, and calls some milliseconds."""
    odd_calls: int
    """Of these, how many have other dtypes and head dims."""
    dtypes: tuple[torch.dtype, ...]
    head_dims: tuple[int, ...]
    layouts: tuple[str, ...]
    odd_layouts: float
    """How often strides are such as no kernel likes."""
    block_sizes: tuple[int | tuple[int, int], ...]
    max_captured: int
    """Elements of all tensors that a family's mods capture."""


GPU = Ranges(
    longest=(*[700] * 7, 3000),
    calls=16,
    odd_calls=0,
    dtypes=GPU_DTYPES,
    head_dims=(8, 16, 24, 32, 40, 64, 64, 80, 96, 128, 128, 160, 192, 256),
    layouts=("interleaved", "contiguous", "expanded"),
    odd_layouts=0.15,
    block_sizes=(128, 128, 64, (64, 128), (128, 64), (256, 128)),
    max_captured=1 << 24,
)
CPU = Ranges(
    longest=(129, 129, 70, 33),
    calls=10,
    odd_calls=2,
    dtypes=CPU_DTYPES,
    head_dims=(1, 3, 8, 16, 20, 32, 64, 80),
    layouts=("interleaved", "contiguous", "expanded"),
    odd_layouts=0.4,
    block_sizes=(16, 32, 128, (16, 32), (64, 16)),
    max_captured=1 << 20,
)

CHECKS = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)
"""What Hypothesis need not look at."""


def ranges_of(device: str) -> Ranges:
    return CPU if device == "cpu" else GPU


def family_of(number: int, device: str) -> Case:
    """The family of a number: the same at every run."""
    found: list[Case] = []
    ranges = ranges_of(device)
    longest = ranges.longest[number % len(ranges.longest)]
    largest = st.just(Sizes(2, 6, 6, longest, longest, 64, 64))

    def is_small(case: Case) -> bool:
        sizes = (math.prod(t.shape) for t in case.tensors.values())
        return sum(sizes) <= ranges.max_captured

    drawn = cases((torch.bfloat16,), shapes=largest, varied=True).filter(is_small)

    @seed(number)
    @settings(
        max_examples=4,  # The first ones are simple.
        derandomize=False,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=CHECKS,
    )
    @given(drawn)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return replace(found[-1], device=device, block_size=None)


def calls_of(family: Case, number: int) -> Iterator[Call]:
    """Its calls, in an order of their own; each can be made without the others."""
    random, ranges = Random(number), ranges_of(family.device)
    held = Held(family, random.choice(list(FORMS)), random)
    usual, odd = (kind_of(family, held, random) for _ in range(2))
    plan = [usual] * (ranges.calls - ranges.odd_calls) + [odd] * ranges.odd_calls
    random.shuffle(plan)
    for make in plan:
        yield make(random)


def kind_of(family: Case, held: Held, random: Random) -> Callable[[Random], Call]:
    """What is the same for calls that may share a kernel."""
    ranges = ranges_of(family.device)
    head_dim = random.choice(ranges.head_dims)
    value_dim = head_dim if random.random() < 0.6 else random.choice(ranges.head_dims)
    dtype = random.choice(ranges.dtypes)
    odd = random.random() < ranges.odd_layouts
    layouts = ODD_LAYOUTS if odd else ranges.layouts
    usual = mixed(layouts, random)
    masked = family.mask_mod is not None
    planned = masked and random.random() < 0.4
    block_size = random.choice(ranges.block_sizes) if planned else None
    whole = random.random() < 0.4
    lse, max_scores = random.choice(((True, True), (True, False), (False, False)))
    through = random.choice(("flexc", "flexc", "flexc", "flexc", "compile", "eager"))
    learns = random.random() < 0.5 and family.device == "cpu"
    options: dict[str, Any] = {
        "through": through,
        "tables": random.choice(TABLES),
        "shared_keys": random.random() < 0.2,
        "results": random.choice(RESULTS),
        "wanted": random.choice((63, 63, 63, random.randint(1, 63))),
        "tile": random.choice((None, None, None, 16, 32)),
        "deterministic": random.random() < 0.3,
        "nan": random.random() < 0.3,
        "plans": random.random() < 0.5,
        "max_scores": max_scores,
        "held": held,
    }

    def make(random: Random) -> Call:
        sizes = sizes_of(family, (head_dim, value_dim), whole, random)
        case = replace(
            family,
            sizes=sizes,
            dtype=dtype,
            layouts=usual if random.random() < 0.7 else mixed(layouts, random),
            scale=random.choice((None, None, 0.3, 1.0, -0.5)),
            seed=random.getrandbits(31),
            block_size=block_size,
            **changed(family, sizes, random),
        )
        modes = ("backward", "backward", "no grad") if learns else ("no grad", "plain")
        mode = random.choice(modes)
        call = Call(
            case=case,
            mode=mode,
            lse=lse or mode == "backward",
            layouts=(random.choice(LAYOUTS), random.choice(LAYOUTS)),
            in_place=random.random() < 0.4,
            **options,
        )
        twice = random.random() < 0.3 and planned and call.tables in CHANGEABLE
        return call.changed() if twice else call

    return make


def mixed(layouts: Sequence[str], random: Random) -> tuple[str, ...]:
    """Of query, key and value."""
    return tuple(random.choice(layouts) for _ in range(3))


def sizes_of(
    family: Case, head_dims: tuple[int, int], whole: bool, random: Random
) -> Sizes:
    heads, kv_heads = random.choice(HEADS)
    q_len = length(random, family.sizes.q_len)
    kv_len = length(random, family.sizes.kv_len)
    if whole and family.sizes.kv_len >= 128:
        kv_len = max(128, kv_len // 128 * 128)
    batch = random.choice((1, 2))
    return Sizes(batch, heads, kv_heads, q_len, kv_len, *head_dims)


def length(random: Random, longest: int) -> int:
    """Often at the edge of a block."""
    if random.random() < 0.4:
        return random.choice([n for n in EDGES if n <= longest])
    return random.randint(max(1, longest // 3), longest)
