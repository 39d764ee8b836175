"""Generated derivatives of generated calls, as modules with their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from xdsl.dialects.builtin import AnyFloat, ModuleOp
from xdsl.ir import Attribute

from flexc.dialects.flex import CAPTURE, AttentionOp
from flexc.dialects.flex.pair_sums import is_float_tensor
from flexc.passes import pipelines
from flexc.passes.flex.flex_differentiate import Derivative, derivative_module
from flexc.passes.flex.flex_infer_facts import FlexInferFactsPass
from flexc.runtime.interpreters import run_module
from tests.property.captures import LAYOUTS, TensorSpec
from tests.property.cases import Case, ModSource
from tests.property.lowering import changes, context, flex_module, passes
from tests.property.strategies import cases

INPUTS = ("query", "key", "value")


@dataclass(frozen=True, eq=False)
class DerivativeCase:
    """A call, which derivative of it, and how its keys are given."""

    case: Case
    kind: str
    """"backward", "jvp" or "second": the backward's tangents."""
    picks: tuple[int, ...]
    """Numbers that choose among what may vary and what is asked for."""
    d_lse: bool
    coarse_lse: bool
    """lse is rounded, and what it lost is given."""
    shared_keys: bool
    """Key and value have one batch, which all batches of the query read."""

    def __repr__(self) -> str:
        return f"{self.derivative}\nshared keys {self.shared_keys}\n{self.case!r}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"\n{self!r}")

    @cached_property
    def attention(self) -> tuple[ModuleOp, list[Any]]:
        """The call itself, and its arguments."""
        module, args = flex_module(self.case)
        if self.shared_keys:
            args[1], args[2] = args[1][:1], args[2][:1]
        return module, args

    @cached_property
    def op(self) -> AttentionOp:
        return next(o for o in self.attention[0].walk() if isinstance(o, AttentionOp))

    @cached_property
    def named(self) -> dict[str, Tensor]:
        """What has a derivative, by name."""
        args = self.attention[1]
        found: dict[str, Tensor] = {}
        found.update(zip(INPUTS, args, strict=False))
        for i, capture in enumerate(self.op.captures):
            if is_float_tensor(capture.type):
                found[f"{CAPTURE}{i}"] = args[4 + i]
        return found

    def chosen(self, start: int) -> tuple[str, ...]:
        """Some of the names, one at least."""
        names = list(self.named)
        flags = [pick % 2 for pick in self.picks[start:]]
        found = [n for n, flag in zip(names, flags, strict=False) if flag]
        return tuple(found) or (names[self.picks[start] % len(names)],)

    @cached_property
    def derivative(self) -> Derivative:
        wrt = () if self.kind == "jvp" else self.chosen(0)
        along = () if self.kind == "backward" else self.chosen(1)
        if self.kind == "second" and self.picks[0] % 3:
            along += ("d_out", *(["d_lse"] if self.d_lse else []))
        mask = self.case.block_mask
        return Derivative(
            wrt,
            along,
            d_lse=self.d_lse and self.kind != "jvp",
            lse_rest=self.coarse_lse,
            column_tables=0 if mask is None else len(self.column_tables),
            column_block=None if mask is None else exchanged(mask.BLOCK_SIZE),
        )

    @cached_property
    def column_tables(self) -> list[Tensor]:
        """A BlockMask's, of whole batches and heads of the query."""
        mask = self.case.block_mask
        assert mask is not None
        tables = (
            mask.q_num_blocks, mask.q_indices,
            mask.full_q_num_blocks, mask.full_q_indices,
        )  # fmt: skip
        leading = self.case.inputs[0].shape[:2]
        return [t.expand(*leading, *t.shape[2:]) for t in tables if t is not None]

    @cached_property
    def results(self) -> list[Tensor]:
        """Out and lse."""
        module, args = self.attention
        return run_module(module, args, compute_dtype=torch.float64)[:2]

    @cached_property
    def is_weighed(self) -> bool:
        """Whether rows are weighed by what lse lost: where scores have no bounds."""
        module = self.attention[0].clone()
        for each in (*pipelines.to_simple_flex(), FlexInferFactsPass()):
            each.apply(context(), module)
        op = next(o for o in module.walk() if isinstance(o, AttentionOp))
        return self.coarse_lse and op.score_range is None

    def rounded(self, lse: Tensor) -> tuple[Tensor, Tensor]:
        """lse and what it lost; rounded more than it need be, where that matters."""
        coarse = lse.to(torch.bfloat16).to(lse.dtype) if self.is_weighed else lse
        return coarse, torch.where(lse.isinf(), 0.0, lse - coarse)

    def cotangent(self, tensor: Tensor) -> Tensor:
        """Of a row without pairs, not even NaN counts."""
        lse = self.results[1]
        empty = (lse == -torch.inf).view(*lse.shape, *[1] * (tensor.dim() - 3))
        nan = torch.nan if self.is_weighed else 0.0
        return torch.where(empty, nan, self.like(tensor))

    def like(self, tensor: Tensor) -> Tensor:
        drawn = torch.randn(tensor.shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(tensor.dtype)

    @cached_property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.case.seed)

    @cached_property
    def module_and_args(self) -> tuple[ModuleOp, list[Any]]:
        module, args = self.attention
        d = self.derivative
        out, lse = self.results
        args = [*args, *(self.column_tables if d.column_tables else []), out]
        args += [*self.rounded(lse)] if d.lse_rest else [lse]
        args += [self.cotangent(out)] if d.wrt else []
        args += [self.cotangent(lse)] if d.d_lse else []
        of = {"d_out": out, "d_lse": lse}
        for name in d.along:
            given = self.named.get(name)
            args.append(self.cotangent(of[name]) if given is None else self.like(given))
        return derivative_module(module, d), args

    @cached_property
    def expected(self) -> list[Tensor]:
        """By torch, densely and in double precision."""
        return run_module(*self.module_and_args, compute_dtype=torch.float64)

    @cached_property
    def dense_errors(self) -> list[float]:
        """The errors of dense attention in the type of the inputs, where finite."""
        got = run_module(*self.module_and_args, compute_dtype=self.case.dtype)
        errors = map(worst, got, self.expected)
        return [error if isfinite(error) else 0.0 for error in errors]

    @property
    def is_double(self) -> bool:
        """Whether all that its mods compute is of double precision."""
        types = (r.type for o in self.op.score_mod.walk() for r in o.results)
        floats = [t for t in types if isinstance(t, AnyFloat)]
        return all(is_f64(t) for t in floats)

    def levels(self, target: str, block: int) -> Iterator[tuple[str, ModuleOp]]:
        """The module after each pass that changed it."""
        module = self.module_and_args[0].clone()
        tiles = (None, None) if self.case.block_size is not None else (block, block)
        for name in changes(module, passes(target, *tiles)):
            yield f"{name} for {target}", module


def worst(got: Tensor, want: Tensor) -> float:
    """The largest error; infinite where a number is NaN on one side only."""
    error = (got.double() - want.double()).abs()
    return float(error.nan_to_num(torch.inf).max()) if error.numel() else 0.0


def exchanged(block: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = block
    return columns, rows


def is_f64(type_: Attribute) -> bool:
    return str(type_) == "f64"


READS = {
    "head": ("{t}", ()),
    "batch_and_head": ("{t}[b, h]", ("b", "h")),
    "few_heads": ("{t}[h % 2]", (2,)),
    "constant": ("{t}[1]", (2,)),
    "row": ("{t}[q_idx]", ("q_idx",)),
    "head_and_row": ("{t}[h, q_idx]", ("h", "q_idx")),
    "rows_in_pairs": ("{t}[b, q_idx // 2]", ("b", "q_idx")),
    "row_through_a_table": ("{t}[ids[q_idx] % 5]", (5,)),
    "column": ("{t}[kv_idx]", ("kv_idx",)),
    "batch_and_column": ("{t}[b, h, kv_idx]", ("b", "h", "kv_idx")),
    "column_modulo": ("{t}[h, kv_idx % 5]", ("h", 5)),
    "distance": ("{t}[h, q_idx - kv_idx + {longest}]", ("h", "both")),
    "distance_at_most": ("{t}[(q_idx - kv_idx).clamp(-3, 4) + 3]", (8,)),
    "distance_either_way": ("{t}[(kv_idx - q_idx).abs()]", ("both",)),
    "distance_out_of_range": ("{t}[h, 7 + kv_idx - q_idx]", ("h", 9)),
    "distance_wrapped": ("{t}[(q_idx - kv_idx) % 6 - 6]", (6,)),
    "pair": ("{t}[q_idx, kv_idx]", ("q_idx", "kv_idx")),
    "head_and_pair": ("{t}[h, q_idx, kv_idx]", ("h", "q_idx", "kv_idx")),
    "remainder_of_a_product": ("{t}[(q_idx * kv_idx) % 7]", (7,)),
    "pair_through_a_table": ("{t}[ids[q_idx] % 5, ids[kv_idx] % 5]", (5, 5)),
}
"""Reads of a tensor, and its shape: numbers, or of how many an index has."""

USES = (
    "{x} + {r}",
    "{x} * {r}",
    "{x} * torch.tanh({r}) + {r} * {r}",
    "torch.where({r} > 0, {x} * {r}, {x} - {r})",
    "torch.maximum({x}, {r})",
    "torch.exp(-({x} - {r}).abs())",
    "torch.where(q_idx > kv_idx + 2, {r}, {x})",
)
"""What is made of the score and what was read."""


@st.composite
def reading_cases(draw: Any, longest: int, dtypes: tuple[torch.dtype, ...]) -> Case:
    """Calls whose score_mod reads tensors by all sorts of indices."""
    case = draw(cases(dtypes, longest, depth=1))
    counts = {
        "b": case.sizes.batch,
        "h": case.sizes.heads,
        "q_idx": case.sizes.q_len,
        "kv_idx": case.sizes.kv_len,
        "both": case.sizes.q_len + case.sizes.kv_len,
    }
    table = TensorSpec((counts["both"],), torch.int64, "integer", "contiguous")
    tensors = {**case.tensors, "ids": table}
    lines: list[str] = []
    x = "score"
    names = st.lists(st.sampled_from(sorted(READS)), min_size=1, max_size=3)
    for i, name in enumerate(draw(names)):
        text, shape = READS[name]
        shape = tuple(n if isinstance(n, int) else counts[n] for n in shape)
        layout = draw(st.sampled_from(LAYOUTS)) if shape else "contiguous"
        tensors[f"t_{i}"] = TensorSpec(shape, case.dtype, "real", layout)
        read = text.format(t=f"t_{i}", longest=case.sizes.kv_len)
        use = draw(st.sampled_from(USES)).format(x=x, r=f"r_{i}")
        lines += [f"r_{i} = {read}", f"x_{i} = {use}"]
        x = f"x_{i}"
    return replace(case, score_mod=ModSource(tuple(lines), x), tensors=tensors)


@st.composite
def derivatives_of(draw: Any, calls: st.SearchStrategy[Case]) -> DerivativeCase:
    """Some derivative of a call."""
    picks = draw(st.lists(st.integers(0, 5), min_size=12, max_size=12))
    return DerivativeCase(
        case=draw(calls),
        kind=draw(st.sampled_from(("backward", "backward", "jvp", "second"))),
        picks=tuple(picks),
        d_lse=draw(st.booleans()),
        coarse_lse=draw(st.sampled_from((False, False, True))),
        shared_keys=draw(st.sampled_from((False, False, True))),
    )


def double_cases(longest: int = 33) -> st.SearchStrategy[DerivativeCase]:
    """Derivatives of calls that compute in double precision, as far as they can."""
    any_mods = cases((torch.float64,), longest, depth=2).map(widened)
    reading = reading_cases(longest, (torch.float64,)).map(widened)
    return derivatives_of(any_mods | reading)


def rounded_cases(longest: int = 33) -> st.SearchStrategy[DerivativeCase]:
    """Derivatives of calls of single and half precision."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return derivatives_of(reading_cases(longest, dtypes))


def widened(case: Case) -> Case:
    """A case with captured tensors, and casts, of double precision."""
    tensors = {
        name: replace(s, dtype=torch.float64) if s.dtype.is_floating_point else s
        for name, s in case.tensors.items()
    }
    return replace(
        case,
        tensors=tensors,
        score_mod=wide_source(case.score_mod),
        mask_mod=wide_source(case.mask_mod),
    )


def wide_source(mod: ModSource | None) -> ModSource | None:
    if mod is None:
        return None
    lines = (line.replace("torch.float32", "torch.float64") for line in mod.lines)
    return replace(mod, lines=tuple(lines))
