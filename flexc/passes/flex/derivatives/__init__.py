"""Derivatives of attention, taken apart into sums over pairs of positions."""
