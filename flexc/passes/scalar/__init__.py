"""Build, simplify, bound, differentiate and expand the scalar code of mods."""
