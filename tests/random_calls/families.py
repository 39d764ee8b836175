"""Calls of attention at random: mods from the grammars of the property tests.

A family is a mod and a mask, drawn for its largest sizes: what they read lies inside of
its tables at all smaller ones too. So its calls, of many sizes and layouts, share two
kernels. A family has a number, from which it can be drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import AuxRequest

import flexc
from tests.poison import poisoned
from tests.property.cases import Case, Sizes
from tests.property.strategies import cases
from tests.property.tolerance import check

LARGEST, LONGEST, LARGEST_ON_CPU = 700, 3000, 129
HEADS = ((1, 1), (2, 1), (3, 3), (4, 1), (4, 2), (6, 2), (6, 3), (6, 6))
HEAD_DIMS = (8, 16, 24, 32, 40, 64, 64, 80, 96, 128, 128, 160, 192, 256)
EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 384, 512, 640)
LAYOUTS = ("interleaved", "interleaved", "contiguous", "contiguous", "expanded")
ODD_LAYOUTS = ("sliced", "transposed", "offset")
BLOCK_SIZES = (128, 128, 64, (64, 128), (128, 64), (256, 128))
MAX_CAPTURED = 1 << 24
"""Elements of all tensors that a family's mods capture."""

CHECKS = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
)
"""What Hypothesis need not look at."""

KINDS, CALLS = 1, 16
"""Of each family: dtypes, head dims and so on; and sizes of each of them.

Kinds take seconds to compile, and calls some milliseconds.
"""


@dataclass(frozen=True)
class Call:
    """One call: how its mask is given, and what is asked for besides the output."""

    case: Case
    route: str
    """Who plans the mask beforehand: "torch", "flexc", or nobody."""
    lse: bool
    max_scores: bool

    def __repr__(self) -> str:
        wanted = f"lse {self.lse}, max_scores {self.max_scores}"
        return f"planned by {self.route or 'nobody'}, {wanted}\n{self.case!r}"


def family_of(number: int, device: str) -> Case:
    """The family of a number: the same at every run."""
    found: list[Case] = []
    longest = LARGEST_ON_CPU
    if device != "cpu":
        longest = LONGEST if number % 8 == 7 else LARGEST
    largest = st.just(Sizes(2, 6, 6, longest, longest, 64, 64))
    small = cases((torch.bfloat16,), shapes=largest).filter(is_small)

    @seed(number)
    @settings(
        max_examples=4,  # The first ones are simple.
        derandomize=False,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=CHECKS,
    )
    @given(small)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return replace(found[-1], device=device, block_size=None)


def is_small(case: Case) -> bool:
    """Whether its tables can be made."""
    return sum(math.prod(t.shape) for t in case.tensors.values()) <= MAX_CAPTURED


def calls_of(family: Case, number: int) -> Iterator[Call]:
    """Its calls, in an order of their own; each can be made without the others."""
    random = Random(number)
    for _ in range(KINDS):
        make = kind_of(family, random)
        for _ in range(CALLS):
            yield make(random)


def kind_of(family: Case, random: Random) -> Callable[[Random], Call]:
    """What is the same for calls that may share a kernel."""
    head_dim = random.choice(HEAD_DIMS)
    value_dim = head_dim if random.random() < 0.6 else random.choice(HEAD_DIMS)
    dtype = random.choice((torch.bfloat16, torch.float16))
    odd = random.random() < 0.15
    layouts = tuple(random.choice(ODD_LAYOUTS if odd else LAYOUTS) for _ in range(3))
    masked = family.mask_mod is not None
    route = random.choice(("", "", "", "torch", "flexc")) if masked else ""
    blocks = random.choice(BLOCK_SIZES) if route else None
    whole = random.random() < 0.4
    wanted = random.choice(((True, True), (True, True), (True, False), (False, False)))

    def make(random: Random) -> Call:
        heads, kv_heads = random.choice(HEADS)
        q_len = length(random, family.sizes.q_len)
        kv_len = length(random, family.sizes.kv_len)
        if whole:
            kv_len = max(128, kv_len // 128 * 128)
        batch = random.choice((1, 2))
        sizes = Sizes(batch, heads, kv_heads, q_len, kv_len, head_dim, value_dim)
        case = replace(
            family,
            sizes=sizes,
            dtype=dtype,
            layouts=layouts,
            seed=random.getrandbits(31),
            block_size=blocks,
        )
        # Made once for the family: its tables are those of its largest sizes.
        for name in ("source", "captured_values", "given_mods"):
            vars(case)[name] = getattr(family, name)
        return Call(case, route, *wanted)

    return make


def length(random: Random, longest: int) -> int:
    """Often at the edge of a block."""
    if random.random() < 0.4:
        return random.choice([n for n in EDGES if n <= longest])
    return random.randint(max(1, longest // 3), longest)


def check_call(call: Call, backend: str) -> None:
    """Hold a call to dense attention, in memory that shows what was not written."""
    case = call.case
    score_mod, mask_mod = case.given_mods
    given: dict[str, Any] = {"mask_mod": mask_mod}
    if call.route:
        given = {"block_mask": planned(call)}
    aux = AuxRequest(lse=call.lse, max_scores=call.max_scores)
    with torch.no_grad(), poisoned():
        result: Any = flexc.flex_attention(
            *case.inputs,
            score_mod,
            scale=case.scale,
            enable_gqa=True,
            return_aux=aux,
            backend=backend,
            **given,
        )
    out, found = result
    check(case, out, found.lse, found.max_scores)


def planned(call: Call) -> Any:
    """The mask, read beforehand by torch or by flexc."""
    case, s = call.case, call.case.sizes
    if call.route == "torch":
        return case.block_mask
    mask: Any = case.given_mods[1]
    block: Any = case.block_size
    lengths = (s.q_len, s.kv_len)
    return flexc.create_block_mask(mask, s.batch, s.heads, *lengths, case.device, block)
