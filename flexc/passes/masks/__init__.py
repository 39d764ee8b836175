"""Masks as formulas: which pairs, keys and blocks they keep."""
