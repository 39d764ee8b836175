"""flexc beside torch on a CPU: `python -m bench.cpu`.

In the order of a run: `cells` says what is measured, `contest` makes the contestants of
a cell and `peak` the machine's own limits; `measure` holds flexc's results to dense
attention and lets all take turns. `results` are kept in a JSON file, from which
`report` and `plot` are made; `memory` measures what a call needs besides. `shapes` is a
contest of its own: shapes of models, also as views of a fused projection.
"""
