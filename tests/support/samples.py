"""Small calls that tools look at: their definitions, results and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import flexc
from tests.support.corpus import CORPUS, Mods
from tests.support.dense_gradients import attention

ALLOWED = 2.0**-5
"""Coarse: other tests are about digits. NaN is none of them."""


@dataclass(frozen=True)
class Sample:
    """A call of a case of the corpus, with two heads of the query."""

    case: str
    head_dim: int
    q_len: int
    kv_len: int
    dtype: torch.dtype = torch.bfloat16
    value_dim: int | None = None
    kv_heads: int = 2
    tables: bool = False
    backward: bool = False
    strided: bool = False
    """Rows of the query lie apart, elements of the key do."""
    schedule: str | None = None
    """Of the output's kernel; None for flexc's choice."""
    deterministic: bool = False

    @property
    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = {"deterministic": self.deterministic}
        return found if self.schedule is None else found | {"schedule": self.schedule}


def mods(sample: Sample, device: str) -> Mods:
    sizes = (1, 2, sample.kv_heads, sample.q_len, sample.kv_len)
    return CORPUS[sample.case].factory(*sizes, device)


def inputs(sample: Sample) -> list[Tensor]:
    value_dim = sample.value_dim or sample.head_dim
    shapes = (
        (1, 2, sample.q_len, sample.head_dim),
        (1, sample.kv_heads, sample.kv_len, sample.head_dim),
        (1, sample.kv_heads, sample.kv_len, value_dim),
    )
    query, key, value = (torch.randn(shape).to(sample.dtype) for shape in shapes)
    if sample.strided:
        query = query.transpose(1, 2).contiguous().transpose(1, 2)
        key = key.mT.contiguous().mT
    return [query, key, value]


def results(sample: Sample, given: Sequence[Tensor], dense: bool) -> list[Tensor]:
    """The output, and gradients if they are asked for."""
    device = given[0].device.type
    leaves = [t.detach().requires_grad_(sample.backward) for t in given]
    query, key, value = leaves
    score_mod, mask_mod = mods(sample, device)
    if dense:
        out = attention(query, key, value, score_mod, mask_mod).out
    else:
        others: dict[str, Any] = {"mask_mod": mask_mod}
        if sample.tables:
            make: Any = flexc.create_block_mask
            made = make(mask_mod, None, None, sample.q_len, sample.kv_len, device)
            others = {"block_mask": made}
        others |= {"enable_gqa": True, "kernel_options": sample.options}
        out: Any = flexc.flex_attention(query, key, value, score_mod, **others)
    if not sample.backward:
        return [out]
    return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def error_of(sample: Sample, device: str) -> float:
    """The largest error, relative to the largest element of each result."""
    torch.manual_seed(0)
    given = inputs(sample)
    got = results(sample, [t.to(device) for t in given], dense=False)
    exact = results(sample, [t.double() for t in given], dense=True)
    return max(
        relative_error(a.detach().cpu().double(), b.detach())
        for a, b in zip(got, exact, strict=True)
    )


def relative_error(got: Tensor, exact: Tensor) -> float:
    return float((got - exact).abs().max() / exact.abs().max().clamp(min=1e-3))
