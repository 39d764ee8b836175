"""Hypothesis strategies: attention problems with mods as Python functions.

A mod is source text, so that a failing case reads as something a user could have
written. Masks compute with integers alone, and score mods are continuous in the
score (they may be anything in the indices): no rounding error can flip them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from tests.property.builder import Builder
from tests.property.captures import LAYOUTS, Captures, TensorSpec
from tests.property.cases import Case, ModSource, Sizes
from tests.property.values import Bool, Real

SCORE_BOUND = 8.0
"""Bound of |query . key * scale|: cases scale their queries and keys to keep it."""

ALL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LENGTHS = (1, 2, 3, 7, 16, 17, 31, 33, 48, 64, 65, 79, 100, 129)
HEAD_DIMS = (1, 3, 8, 16, 20, 64)


@st.composite
def sizes(draw: Any, longest: int = 129) -> Sizes:
    lengths = st.sampled_from([n for n in LENGTHS if n <= longest])
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)]))
    return Sizes(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=draw(lengths),
        kv_len=draw(lengths),
        head_dim=draw(st.sampled_from(HEAD_DIMS)),
        value_dim=draw(st.sampled_from(HEAD_DIMS)),
    )


@st.composite
def cases(
    draw: Any,
    dtypes: tuple[torch.dtype, ...] = ALL_DTYPES,
    longest: int = 129,
    depth: int = 3,
    shapes: st.SearchStrategy[Sizes] | None = None,
    varied: bool = False,
) -> Case:
    """A whole call of attention; a `varied` one can be made again with other sizes."""
    shape = draw(sizes(longest) if shapes is None else shapes)
    captures = Captures(SCORE_BOUND, torch.bfloat16 in dtypes, varied=varied)
    counts = {
        "b": shape.batch,
        "h": shape.heads,
        "q_idx": shape.q_len,
        "kv_idx": shape.kv_len,
    }
    mask = draw(st.sampled_from(("none", "causal", "simple", "random", "random")))
    mask_source = None
    if mask != "none":
        builder = Builder(draw, counts, captures)
        condition = mask_condition(builder, mask, depth)
        mask_source = ModSource(tuple(builder.lines), condition.text)
    score_source, score = None, Real("score", SCORE_BOUND, lip=1.0, unit=None)
    if draw(st.sampled_from((True, True, False))):
        builder = Builder(draw, counts, captures)
        score = score_value(builder, depth, mask == "causal")
        score_source = ModSource(tuple(builder.lines), score.text)
    with_blocks = mask_source is not None and draw(st.booleans())
    return Case(
        sizes=shape,
        dtype=draw(st.sampled_from(dtypes)),
        layouts=tuple(draw(st.sampled_from(INPUT_LAYOUTS)) for _ in range(3)),
        scale=draw(st.sampled_from((None, None, 0.3, 1.0, -0.5))),
        seed=draw(st.integers(0, 2**31 - 1)),
        score_mod=score_source,
        mask_mod=mask_source,
        score=score,
        tensors=captures.tensors,
        numbers=captures.numbers,
        others=captures.others,
        block_size=draw(st.sampled_from(BLOCK_SIZES)) if with_blocks else None,
    )


INPUT_LAYOUTS = (*LAYOUTS, "interleaved")
BLOCK_SIZES = (16, 32, 128, (16, 32), (64, 16))


def mask_condition(builder: Builder, kind: str, depth: int) -> Bool:
    if kind == "causal":
        causal = Bool(builder.let("q_idx >= kv_idx"))
        if builder.draw(st.booleans()):
            return causal
        other = builder.condition(depth - 1)
        return Bool(builder.let(f"{causal.text} & {other.text}"))
    if kind == "random":
        return builder.condition(depth)
    captures = builder.captures
    longest = max(builder.sizes["q_idx"], builder.sizes["kv_idx"])
    drawn = builder.draw(st.integers(1, longest))
    size = captures.number(drawn, [1, 2, 3, longest // 3 + 1, longest - 1, longest])
    text = builder.pick(
        (
            "(q_idx - kv_idx).abs() <= {size}",
            "(q_idx >= kv_idx) & (q_idx - kv_idx < {size})",
            "(kv_idx < {size}) | (q_idx >= kv_idx)",
            "q_idx // {size} == kv_idx // {size}",
            "(q_idx - kv_idx) % {size} == 0",
            "{ids}[q_idx] == {ids}[kv_idx]",
            "({ids}[b, q_idx] == {ids}[b, kv_idx]) & (q_idx >= kv_idx)",
            "kv_idx < {lengths}[b]",
            "(q_idx % 3 != 0) & (kv_idx <= q_idx)",
            "(h > 0) & (q_idx >= kv_idx)",
            "kv_idx < 0",
            "kv_idx >= 0",
        )
    )
    ids = lengths = ""
    if "{ids}" in text:
        ids = captures.name()
        shape, spans = (longest,), ("longest",)
        if "[b, " in text:
            shape, spans = (builder.sizes["b"], longest), ("b", "longest")
        spec = TensorSpec(shape, torch.int64, "integer", "contiguous", spans)
        captures.tensors[ids] = spec
    if "{lengths}" in text:
        lengths, shape = captures.name(), (builder.sizes["b"],)
        spec = TensorSpec(shape, torch.int32, "integer", "contiguous", ("b",))
        captures.tensors[lengths] = spec
    return Bool(builder.let(text.format(size=size, ids=ids, lengths=lengths)))


def score_value(builder: Builder, depth: int, causal: bool) -> Real:
    """The value that a score_mod returns."""
    x = builder.score(depth)
    kind = builder.draw(st.sampled_from(("plain", "plain", "hidden", "dead")))
    if kind == "hidden":
        # -inf from a score_mod masks a pair as well as a mask does.
        condition = builder.condition(1)
        text = builder.let(f'torch.where({condition.text}, {x.text}, -float("inf"))')
        return replace(x, text=text, unit=None, grain=None)
    if kind == "dead" and causal:
        # Outside of the table wherever the mask is false.
        shape, name = (builder.sizes["q_idx"],), builder.captures.name()
        spec = TensorSpec(shape, torch.float32, "real", "contiguous", ("q_idx",))
        builder.captures.tensors[name] = spec
        text = builder.let(f"{x.text} + {name}[live(q_idx - kv_idx, {name}.size(0))]")
        eps, bound = x.eps + 6 * (x.bound + 4), x.bound + 4
        return replace(x, text=text, bound=bound, eps=eps, unit=None, grain=None)
    return x
