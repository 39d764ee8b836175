"""What a call costs besides its kernel: `python -m bench.host` (make bench-host).

`cells` says what is measured, `systems` are the contestants and the ways to call them,
`measure` lets all of a cell take turns, `cpu_kernels` times a CPU's kernels within
calls. `results` are kept in a JSON file, from which `report` makes a table.
"""
