"""Results as a picture: a panel for each dtype, direction and shape.

Bars are GFLOP/s from 0 on (of decoding GB/s); the dashed line is the machine's own
limit in the same run, and the numbers on flexc's bars its part of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.cpu.cells import SHAPES, Cell
from bench.cpu.results import Results
from bench.plots import add_legend

STYLES = {
    "flexc": ("flexc", "#c8102e"),
    "torch-flex": ("torch flex", "#5b8db8"),
    "torch-flex-blocks": ("torch flex, all blocks listed", "#9dc3e0"),
    "sdpa": ("SDPA", "#6f9f6a"),
}
"""Name and colour by system, in the order of the bars; others are not drawn."""

PANEL = (4.6, 2.6)
"""Inches."""
BAR = 0.2


def draw(results: Results, path: Path) -> None:
    """Write a PNG, of the largest number of threads that was measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    threads = max(results.threads)
    results = results.of_threads(threads)
    kinds = sorted({(c.direction != "fwd", c.dtype) for c in results.cells})
    shapes = [s for s in SHAPES if any(c.shape == s for c in results.cells)]
    counts = len(kinds), len(shapes)
    size = PANEL[0] * counts[1], PANEL[1] * counts[0] + 1.0
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(*counts, squeeze=False)
    for panels, (backward, dtype) in zip(axes, kinds, strict=True):
        for panel, shape in zip(panels, shapes, strict=True):
            direction = "bwd" if backward else "fwd"
            kind = (shape, dtype, direction)
            found = [c for c in results.cells if c[1:] == kind]
            draw_panel(panel, results, found, kind)
    about = "numbers on flexc's bars: its part of the machine's limit"
    title = f"{results.machine}, {threads} threads\n{about}"
    figure.suptitle(title, fontsize=10)
    add_legend(figure, axes, [name for name, _ in STYLES.values()])
    figure.savefig(path)


def draw_panel(
    panel: Any, results: Results, cells: list[Cell], kind: tuple[str, str, str]
) -> None:
    if not cells:
        panel.set_axis_off()
        return
    decodes = cells[0].sizes.decodes
    limit = results.best("read" if decodes else "peak")
    for place, cell in enumerate(cells):
        rows = [(s, results.row(cell, s)) for s in STYLES]
        known = [(s, r.gbytes if decodes else r.gflops) for s, r in rows if r]
        start = place - (len(known) - 1) * BAR / 2
        for i, (system, height) in enumerate(known):
            name, colour = STYLES[system]
            bar = panel.bar(
                start + i * BAR, height, BAR * 0.94, color=colour, label=name
            )
            fraction = results.fraction(cell, system)
            if system == "flexc" and fraction is not None:
                text = f"{100 * fraction:.0f} %"
                panel.bar_label(bar, [text], fontsize=6, padding=1)
    if limit is not None:
        height = limit.gbytes if decodes else limit.gflops
        label = "FMA peak; fastest read"
        panel.axhline(height, color="#555555", linestyle="--", linewidth=1, label=label)
    panel.set_title(f"{' '.join(kind)}: {cells[0].sizes.described}", fontsize=9)
    panel.set_ylabel("GB/s" if decodes else "GFLOP/s", fontsize=8)
    panel.set_xticks(range(len(cells)), [c.variant for c in cells], fontsize=7)
    panel.tick_params(axis="y", labelsize=7)
