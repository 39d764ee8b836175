"""The code of one program: blocksparse ops as tile ops, written for all targets."""
