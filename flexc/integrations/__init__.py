"""flexc in other libraries: a module for each, named as the library is."""
