"""Build segments from masks in closed form: from ranges of keys to code."""
