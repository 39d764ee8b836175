"""What is proved of one call before its kernel is chosen.

A proof depends on lengths and captured numbers, a kernel does not: it is keyed
on what was proved. So the same code has at most one kernel for each outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects import flex
from flexc.passes.analysis.capture_bounds import captures_inside
from flexc.passes.analysis.intervals import Interval

MAX_KNOWN = 4096
"""Outcomes remembered; a decoding loop has a new length at every step."""


class CaptureProver:
    """Answers, and remembers, whether a module's captured loads are in range."""

    def __init__(self, module: ModuleOp):
        self.attention = next(
            op for op in module.walk() if isinstance(op, flex.AttentionOp)
        )
        self.has_loads = any(
            isinstance(op, flex.LoadCaptureOp) for op in self.attention.walk()
        )
        self.known: dict[Any, bool] = {}

    def __call__(self, query: Tensor, key: Tensor, captures: Sequence[Any]) -> bool:
        """For a call's query and key, and its capture arguments in order."""
        if not self.has_loads:
            return False
        facts = tuple(map(_describe, captures))
        sizes = (*query.shape[:3], key.size(2))
        what = (sizes, facts)
        if what not in self.known:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            positions = [Interval(0, n - 1) for n in sizes]
            regions = (self.attention.score_mod, self.attention.mask_mod)
            self.known[what] = all(
                captures_inside(region, positions, facts) for region in regions
            )
        return self.known[what]


def _describe(capture: Any) -> int | tuple[int, ...] | None:
    if isinstance(capture, Tensor):
        return tuple(capture.shape)
    return capture if isinstance(capture, int) else None
