"""From Python functions to a `flex` module: closures, capture, import."""
