"""Derivatives of attention by kernels: which, and running what they are made of."""
