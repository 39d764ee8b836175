"""Plans that calls of equal facts share."""
