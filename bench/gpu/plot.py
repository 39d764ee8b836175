"""Results as a picture: a panel for each head dim, direction and length.

Bars are TFLOP/s from 0 on, in the same colours and on the same scale in all panels; the
dashed line is the rate of a large matrix product in the same run. A system without a
result has no bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from bench.gpu.cells import VARIANTS, Cell
from bench.gpu.results import Results
from bench.plots import add_legend

STYLES = {
    "flexc": ("flexc", "#c8102e"),
    "flexc-tables": ("flexc, torch's BlockMask", "#f0a3ae"),
    "torch-flex": ("torch flex (Triton)", "#5b8db8"),
    "torch-flex-flash": ("torch flex (FLASH)", "#9dc3e0"),
    "cudnn": ("cuDNN", "#6f9f6a"),
    "fa4": ("FA4", "#8c7aa9"),
}
"""Name and colour by system, in the order of the bars; others are not drawn."""

DIRECTION_NAMES = {"fwd": "forward", "bwd": "backward"}
PANEL = (5.6, 2.9)
"""Inches."""
CHARACTERS = 12
"""The characters of the title for each inch."""
BAR = 0.15
"""The width of a bar, of the distance between variants."""

LABEL: dict[str, Any] = {
    "xytext": (0, 2),
    "textcoords": "offset points",
    "ha": "center",
    "va": "bottom",
    "fontsize": 7,
    "zorder": 4,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
}
"""Of the figure above a bar of flexc."""


def draw(results: Results, path: Path) -> None:
    """Write a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = results.cells
    head_dims = sorted({cell.head_dim for cell in cells})
    kinds = sorted({(c.direction, c.seq) for c in cells}, key=in_order)
    shape = len(kinds), len(head_dims)
    size = PANEL[0] * shape[1], PANEL[1] * shape[0] + 1.2
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(*shape, squeeze=False, sharey=True)
    for panels, (direction, seq) in zip(axes, kinds, strict=True):
        for panel, head_dim in zip(panels, head_dims, strict=True):
            draw_panel(panel, results, head_dim, seq, direction)
        panels[0].set_ylabel("TFLOP/s")
    machine = fill(results.machine, int(CHARACTERS * size[0]))
    figure.suptitle(
        f"{machine}\nTFLOP/s over unmasked pairs, higher is better", fontsize=10
    )
    add_legend(figure, axes, [name for name, _ in STYLES.values()])
    figure.savefig(path)


def in_order(kind: tuple[str, int]) -> tuple[bool, int]:
    """Forward first, short before long."""
    return kind[0] != "fwd", kind[1]


def draw_panel(
    panel: Any, results: Results, head_dim: int, seq: int, direction: str
) -> None:
    """Bars of all variants that have any."""
    measured = {
        c.variant: c
        for c in results.cells
        if (c.head_dim, c.seq, c.direction) == (head_dim, seq, direction)
    }
    cells = [measured[name] for name in VARIANTS if name in measured]
    panel.set_title(
        f"{DIRECTION_NAMES[direction]}, head dim {head_dim}, {seq:,} tokens",
        fontsize=9,
        pad=8,
    )
    if not cells:
        panel.set_axis_off()
        return
    for i, cell in enumerate(cells):
        draw_bars(panel, results, cell, i)
    draw_peak(panel, results, cells)
    panel.set_xlim(-0.6, len(cells) - 0.4)
    panel.set_xticks(range(len(cells)), [cell.variant for cell in cells], fontsize=8)
    panel.tick_params(axis="x", length=0)
    panel.tick_params(axis="y", labelsize=8)
    panel.grid(axis="y", color="#e0e0e0", linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def draw_bars(panel: Any, results: Results, cell: Cell, place: int) -> None:
    """Those of one variant, side by side around its place."""
    found = {system: results.tflops(cell, system) for system in STYLES}
    heights = [(system, h) for system, h in found.items() if h is not None]
    start = place - (len(heights) - 1) * BAR / 2
    for i, (system, height) in enumerate(heights):
        name, colour = STYLES[system]
        panel.bar(start + i * BAR, height, BAR * 0.94, color=colour, label=name)
        if system == "flexc":
            text = f"{height:.0f}"
            panel.annotate(text, (start + i * BAR, height), **LABEL)


def draw_peak(panel: Any, results: Results, cells: Sequence[Cell]) -> None:
    """The machine's rate."""
    peaks = [results.tflops(cell, "matmul") for cell in cells]
    known = [peak for peak in peaks if peak is not None]
    if known:
        label = "matrix product, 8192^3"
        middle = sorted(known)[len(known) // 2]
        panel.axhline(middle, color="#555555", linestyle="--", linewidth=1, label=label)
