"""Passes on the blocksparse dialect, and its lowering to tile."""
