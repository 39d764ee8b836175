"""Checks, casts and facts of a call's arguments."""
