"""Results as a table: GFLOP/s of each system (of decoding GB/s) and what they say.

`of peak` is flexc's part of the highest burst of fused multiply-adds of all cells, of
decoding that of the fastest read of memory. `plan` plans its mask at each
call. `/torch`, `/blocks` and `/SDPA` are flexc's speed by theirs, of the same run, and
geometric means of them are at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bench.cpu.cells import Cell
from bench.cpu.results import Results

NAMES = {
    "flexc": "flexc",
    "flexc-mask-mod": "plan",
    "torch-flex": "torch",
    "torch-flex-blocks": "blocks",
    "sdpa": "SDPA",
}
"""Of columns, by system."""

LEGEND = """\
flexc, plan, torch, blocks, SDPA: GFLOP/s over unmasked pairs; of decoding, GB/s
  plan    flexc, planning a mask that reads tensors at each call, not once before
  torch   torch.compile(flex_attention); blocks: with a BlockMask of all blocks
ms, of peak: flexc's, and its part of the fastest FMAs here; of decoding, of reads
/plan, /torch, /blocks, /SDPA: how many times as fast flexc is
last, while it runs: flexc's largest error (that of unfused attention of the dtype)"""

OTHERS = [system for system in NAMES if system != "flexc"]
PEERS = [system for system in OTHERS if not system.startswith("flexc")]
WIDTH = 9


def table(results: Results) -> str:
    """A line for each cell, and means; a table for each number of threads."""
    parts = [results.machine, "", LEGEND]
    for threads in results.threads:
        found = results.of_threads(threads)
        parts += ["", f"{threads} threads", header()]
        parts += [line(found, cell) for cell in found.cells]
        parts += ["", *means(found)]
    return "\n".join(parts)


def header() -> str:
    names = [*NAMES.values(), "ms", "of peak", *(f"/{NAMES[s]}" for s in OTHERS)]
    cell = f"{'dtype':5} {'dir':3} {'shape':9} {'variant':9}"
    return cell + "".join(f"{name:>{WIDTH}}" for name in names)


def line(results: Results, cell: Cell) -> str:
    rows = [results.row(cell, system) for system in NAMES]
    decodes = cell.sizes.decodes
    figures = [row and (row.gbytes if decodes else row.gflops) for row in rows]
    own, fraction = rows[0], results.fraction(cell, "flexc")
    columns = [number(figure, 1 if decodes else 0) for figure in figures]
    columns.append(number(None if own is None else own.ms, 2))
    columns.append(percent(fraction))
    columns += [number(results.ratio(cell, "flexc", other), 2) for other in OTHERS]
    name = f"{cell.dtype:5} {cell.direction:3} {cell.shape:9} {cell.variant:9}"
    return name + "".join(columns)


def means(results: Results) -> list[str]:
    """Geometric means over all variants of a dtype and direction."""
    kinds = dict.fromkeys(
        (c.dtype, c.direction, c.sizes.decodes) for c in results.cells
    )
    return [found for kind in kinds for found in _means(results, *kind)]


def _means(
    results: Results, dtype: str, direction: str, decodes: bool
) -> Iterable[str]:
    cells = [
        c
        for c in results.cells
        if (c.dtype, c.direction, c.sizes.decodes) == (dtype, direction, decodes)
    ]
    what = "decode" if decodes else direction
    for other in PEERS:
        found = [results.ratio(cell, "flexc", other) for cell in cells]
        known = [ratio for ratio in found if ratio is not None]
        if known:
            yield (
                f"{dtype} {what}: flexc is {geometric_mean(known):.2f} times as fast "
                f"as {NAMES[other]} in the geometric mean of {len(known)}, "
                f"{min(known):.2f} at least"
            )


def geometric_mean(numbers: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def number(value: float | None, digits: int) -> str:
    """A number in a column; a dash if there is none."""
    return f"{'-' if value is None else f'{value:.{digits}f}':>{WIDTH}}"


def percent(value: float | None) -> str:
    return f"{'-' if value is None else f'{100 * value:.0f} %':>{WIDTH}}"
