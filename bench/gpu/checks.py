"""Whether gradients are right, on a smaller problem than the one that is measured."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from bench.errors import Errors, gradient_errors, worst
from bench.gpu.cells import Cell
from bench.gpu.problem import Setup, problem_of
from bench.gpu.systems import by_flexc

SMALL_HEADS, SMALL_SEQ = 2, 1024
"""Of the problem that errors of gradients are measured on."""


@cache
def backward_errors(variant: str, head_dim: int, setup: Setup) -> Errors:
    """Of a smaller problem: of the input whose gradient is worst beside unfused code's.

    Errors are relative to the largest element of each gradient.
    """
    small = replace(setup, heads=SMALL_HEADS)
    problem = problem_of(Cell(variant, head_dim, SMALL_SEQ, "bwd"), small)
    found = gradient_errors(problem, by_flexc(problem).forward())
    return worst(found, setup.dtype)
