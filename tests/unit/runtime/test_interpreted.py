"""Calls of the backend for Triton, run by Triton's interpreter."""

from __future__ import annotations

from tests.support.interpreted import run_interpreted

test_in_a_process_that_interprets = run_interpreted
