"""Tapes of launches: what records them and what replays them."""
