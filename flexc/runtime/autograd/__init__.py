"""Attention for torch's autograd: reverse mode, forward mode and second order."""

from flexc.runtime.autograd.functions import Results, run_attention, run_template

__all__ = ["Results", "run_attention", "run_template"]
