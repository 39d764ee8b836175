"""What a loop may do an iteration later."""
