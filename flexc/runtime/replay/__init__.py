"""Tapes found again for calls of equal facts, in memory and on the disk."""
