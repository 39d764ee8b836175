"""Rewrite masks as code that classifies blocks by interval arithmetic."""
