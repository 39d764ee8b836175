"""Build segments from masks: from ranges of keys, or tables, to code."""
