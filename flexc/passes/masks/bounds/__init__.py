"""Masks whose live and dead keys are ranges with computed ends."""
