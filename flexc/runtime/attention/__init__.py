"""One call of attention, from its checked arguments to its kernel."""
