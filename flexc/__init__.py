"""flexc: a compiler for attention."""
