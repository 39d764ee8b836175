"""Compute the ranges of the integers and floats of scalar code."""
