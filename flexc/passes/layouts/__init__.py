"""What `tile-assign-layouts` is made of."""
