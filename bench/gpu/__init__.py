"""flexc beside its peers on a GPU: `python -m bench.gpu` (make bench).

In the order of a run: `cells` says what is measured and what first, `warm` compiles it
in processes of its own, `problem` and `systems` make the contestants of a cell,
`checks` holds flexc's results to dense attention, `measure` lets all take turns.
`results` are kept in a JSON file, from which `report` and `plot` are made.
"""
