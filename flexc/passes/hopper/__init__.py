"""Passes on the tile dialect for Hopper's tensor cores, async copies and roles."""
