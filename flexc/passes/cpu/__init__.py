"""Passes on the tile dialect for a CPU's vectors."""
