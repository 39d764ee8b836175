"""Compilation of IR modules to loaded kernels."""
