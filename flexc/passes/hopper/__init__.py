"""Passes on the tile dialect for Hopper's tensor cores, copies and roles."""
