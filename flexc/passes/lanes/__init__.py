"""What `tile-put-rows-in-lanes` is made of."""
