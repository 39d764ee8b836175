"""Attention as torch's autograd knows it: in reverse, forward and twice."""

from flexc.runtime.autograd.run import run_attention

__all__ = ["run_attention"]
