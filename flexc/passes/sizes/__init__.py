"""Tile sizes, for what each machine has of registers and shared memory."""
