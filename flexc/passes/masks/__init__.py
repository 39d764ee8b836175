"""Analyse masks as formulas: find the pairs, keys and blocks that they keep."""
