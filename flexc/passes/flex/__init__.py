"""Passes on the flex dialect, and its lowering to blocksparse."""
