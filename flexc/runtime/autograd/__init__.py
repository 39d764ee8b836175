"""Attention as torch's autograd knows it: in reverse, forward and twice."""

from flexc.runtime.autograd.run import Results, run_attention, run_template

__all__ = ["Results", "run_attention", "run_template"]
