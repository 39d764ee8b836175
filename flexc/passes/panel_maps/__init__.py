"""What `tile-panel-maps` is made of."""
