"""From modules in IR to loaded kernels."""
