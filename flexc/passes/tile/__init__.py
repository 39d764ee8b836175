"""Passes on the tile dialect that more than one target needs."""
