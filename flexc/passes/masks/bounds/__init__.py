"""Find ranges of live and dead keys whose ends are computed in closed form."""
