"""Holding a backend's derivatives of generated calls to their bounds."""

from __future__ import annotations

from tests.property.gradient_cases import GradientCase
from tests.property.gradient_tolerance import Bounds, check


def check_gradients(given: GradientCase, backend: str) -> None:
    """Along cotangents of out, of lse or of both."""
    check(backend, given.gradients(backend), Bounds(given).gradients())


def check_tangents(given: GradientCase, backend: str) -> None:
    """Of out and of lse."""
    out, lse = given.jvp(backend)
    exact_out, exact_lse = Bounds(given).tangents()
    check(f"{backend}: tangent", {"out": out}, {"out": exact_out})
    check(f"{backend}: tangent", {"lse": lse}, {"lse": exact_lse})
