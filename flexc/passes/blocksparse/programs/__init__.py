"""What one program computes: blocksparse ops as tile code, written for all targets."""
