"""Functions that `flexc.compile` compiles."""
