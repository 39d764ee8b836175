"""Partial derivatives, by the family of ops that they are of."""
