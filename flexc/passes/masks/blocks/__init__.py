"""Masks rewritten into code that classifies blocks, by interval arithmetic."""
