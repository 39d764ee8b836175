"""Tapes of launches: their recorder and their replay."""
