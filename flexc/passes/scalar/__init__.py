"""Scalar code of mods: built, simplified, bounded, differentiated, expanded."""
