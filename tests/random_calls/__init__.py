"""Random calls of attention against dense attention in double precision."""
