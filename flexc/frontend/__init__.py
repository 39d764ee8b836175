"""Conversion of Python functions to a `flex` module: closures, capture, import."""
