"""Lookup of tapes for calls of equal facts, in memory and on the disk."""
