"""Pictures of blocks: SVG by code of this module, PNG by matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import torch
from torch import Tensor

from flexc.errors import OptionError
from flexc.runtime.explain.blocks import DEAD, FULL, PARTIAL, Blocks

COLORS = {DEAD: "#ffffff", PARTIAL: "#8fb8de", FULL: "#1f4e79"}
NAMES = {FULL: "full", PARTIAL: "partial", DEAD: "skipped"}
GRID, FRAME, INK = "#dddddd", "#777777", "#222222"

MAX_SIDE = 1024
"""The most blocks drawn along a side; with more, neighbours are drawn as one."""

MAX_GRID = 64
"""The most blocks along a side for which each block has an outline."""

LONGEST, SHORTEST = 640, 160
"""The greatest and the least length of the plot's sides in pixels."""

LEFT, TOP, RIGHT, BOTTOM = 72, 64, 24, 40

TICKS = 8

Rect = tuple[int, int, int, int]
"""The x, y, width and height of a rectangle in blocks."""


@dataclass(frozen=True, eq=False)
class Plot:
    """The drawn classes of one batch and head."""

    classes: Tensor
    """The classes, of shape (rows, columns)."""
    size: tuple[int, int]
    """The rows and keys of a drawn block."""
    lengths: tuple[int, int]
    title: str
    note: str
    counts: dict[int, int]

    @property
    def pixels(self) -> tuple[float, float]:
        """The height and width of the plot, in the proportions of the lengths."""
        longest = max(self.lengths)
        height, width = (max(LONGEST * n / longest, SHORTEST) for n in self.lengths)
        return height, width


def plot_of(blocks: Blocks, title: str, b: int, h: int) -> Plot:
    """Return the plot of one batch and head."""
    classes = blocks.classes[b, h]
    counts = {kind: int((classes == kind).sum()) for kind in NAMES}
    factor = -(-max(classes.shape) // MAX_SIDE)
    size = blocks.size[0] * factor, blocks.size[1] * factor
    note = f"blocks of {blocks.size[0]} x {blocks.size[1]}"
    if factor > 1:
        classes = coarser(classes, factor)
        note += f", drawn {factor} x {factor} as one"
    if blocks.classes.shape[:2] != (1, 1):
        note += f", b = {b}, h = {h}"
    return Plot(classes, size, blocks.lengths, title, note, counts)


def coarser(classes: Tensor, factor: int) -> Tensor:
    """Merge squares of `factor` x `factor` blocks.

    A merged block is partial unless all blocks of its square are equal.
    """
    rows, columns = classes.shape
    pad = (0, -columns % factor, 0, -rows % factor)

    def every(kind: int) -> Tensor:
        same = torch.nn.functional.pad(classes == kind, pad, value=True)
        tall, wide = same.shape
        same = same.view(tall // factor, factor, wide // factor, factor)
        return same.all(3).all(1)

    found = torch.full_like(every(DEAD), PARTIAL, dtype=torch.int8)
    return found.masked_fill(every(DEAD), DEAD).masked_fill(every(FULL), FULL)


def rectangles(classes: Tensor, kind: int) -> Iterator[Rect]:
    """Yield rectangles that cover the blocks of a kind; join equal runs of rows."""
    open_: dict[tuple[int, int], int] = {}
    rows = classes.size(0)
    marked = torch.nn.functional.pad((classes == kind).to(torch.int8), (1, 1))
    steps = marked.diff(dim=1)
    for y in range(rows + 1):
        runs: set[tuple[int, int]] = set()
        if y < rows:
            begins = (steps[y] == 1).nonzero().flatten().tolist()
            ends = (steps[y] == -1).nonzero().flatten().tolist()
            runs = set(zip(begins, ends, strict=True))
        for run in [r for r in open_ if r not in runs]:
            top = open_.pop(run)
            yield run[0], top, run[1] - run[0], y - top
        for run in sorted(runs - open_.keys()):
            open_[run] = y


def tick_step(length: int) -> int:
    """Return the tokens between ticks: a round number, or a power of two."""
    least = max(1, -(-length // TICKS))
    if length % 64 == 0:
        return 1 << (least - 1).bit_length()
    unit = 10 ** (len(str(least)) - 1)
    return next(n * unit for n in (1, 2, 5, 10) if n * unit >= least)


def tick_label(at: int, length: int) -> str:
    """Return the label of a tick; long sequences are labelled in K or M."""
    step = tick_step(length)
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if step % unit == 0 and length >= 64 * 1024:
            return f"{at // unit}{name}" if at else "0"
    return str(at)


def draw_svg(blocks: Blocks, title: str, b: int, h: int) -> str:
    """Return the SVG picture of a batch and head."""
    plot = plot_of(blocks, title, b, h)
    height, width = plot.pixels
    total_w = max(LEFT + width + RIGHT, 480)
    total_h = TOP + height + BOTTOM + 40
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {total_w:g} {total_h:g}" width="{total_w:g}" '
        f'height="{total_h:g}" font-family="sans-serif" font-size="12" '
        f'fill="{INK}">',
        f"<title>{escape(plot.title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *_heading(plot),
        f'<g transform="translate({LEFT} {TOP})">',
        *_cells(plot),
        *_grid(plot),
        f'<rect width="{width:g}" height="{height:g}" fill="none" stroke="{FRAME}"/>',
        *_ticks(plot),
        "</g>",
        *_legend(plot),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _heading(plot: Plot) -> Iterator[str]:
    name, _, sizes = plot.title.partition(": ")
    yield _text(f'x="{LEFT}" y="18"', name, 15)
    yield _text(f'x="{LEFT}" y="34"', sizes, 11)


def _cells(plot: Plot) -> Iterator[str]:
    """Yield the blocks in units of blocks; parts beyond the lengths are clipped."""
    (m, n), (height, width), (q_len, kv_len) = plot.size, plot.pixels, plot.lengths
    yield (
        f'<svg width="{width:g}" height="{height:g}" preserveAspectRatio="none" '
        f'viewBox="0 0 {kv_len / n:.8g} {q_len / m:.8g}">'
    )
    for kind in (PARTIAL, FULL):
        path = "".join(
            f"M{x} {y}h{w}v{tall}h-{w}z"
            for x, y, w, tall in rectangles(plot.classes, kind)
        )
        if path:
            yield (
                f'<path fill="{COLORS[kind]}" shape-rendering="crispEdges" d="{path}"/>'
            )
    yield "</svg>"


def _grid(plot: Plot) -> Iterator[str]:
    """Yield lines around blocks if there are few blocks, else lines at the ticks."""
    (height, width), (q_len, kv_len) = plot.pixels, plot.lengths
    if max(plot.classes.shape) <= MAX_GRID:
        steps = plot.size
    else:
        steps = tick_step(q_len), tick_step(kv_len)
    rows = [f"M0 {height * at / q_len:.6g}h{width:g}" for at in inner(q_len, steps[0])]
    columns = [
        f"M{width * at / kv_len:.6g} 0v{height:g}" for at in inner(kv_len, steps[1])
    ]
    path = "".join(rows + columns)
    if path:
        yield f'<path fill="none" stroke="{GRID}" stroke-width="0.5" d="{path}"/>'


def inner(length: int, step: int) -> range:
    """Return the multiples of a step strictly within a length."""
    return range(step, length, step)


def _ticks(plot: Plot) -> Iterator[str]:
    (height, width), (q_len, kv_len) = plot.pixels, plot.lengths
    for at in range(0, kv_len, tick_step(kv_len)):
        x = width * at / kv_len
        yield f'<path stroke="{FRAME}" d="M{x:.6g} 0v-5"/>'
        yield _text(
            f'x="{x:.6g}" y="-8" text-anchor="middle"', tick_label(at, kv_len), 10
        )
    for at in range(0, q_len, tick_step(q_len)):
        y = height * at / q_len
        yield f'<path stroke="{FRAME}" d="M0 {y:.6g}h-5"/>'
        place = f'x="-8" y="{y:.6g}" text-anchor="end" dominant-baseline="middle"'
        yield _text(place, tick_label(at, q_len), 10)
    middle = 'text-anchor="middle"'
    yield _text(f'x="{width / 2:g}" y="{height + 18:g}" {middle}', "keys", 12)
    turned = f'transform="translate(-54 {height / 2:g}) rotate(-90)"'
    yield _text(f"{turned} {middle}", "queries", 12)


def _text(place: str, text: str, size: int) -> str:
    return f'<text {place} font-size="{size}">{escape(text)}</text>'


def _legend(plot: Plot) -> Iterator[str]:
    x, y = LEFT, TOP + plot.pixels[0] + 40
    for kind, label in labels(plot):
        yield (
            f'<rect x="{x}" y="{y - 10:g}" width="12" height="12" '
            f'fill="{COLORS[kind]}" stroke="{FRAME}"/>'
        )
        yield _text(f'x="{x + 18}" y="{y:g}"', label, 11)
        x += 34 + 7 * len(label)
    yield _text(f'x="{LEFT}" y="{y + 20:g}"', plot.note, 11)


def labels(plot: Plot) -> Sequence[tuple[int, str]]:
    """Return the legend: each kind with its share of the blocks."""
    total = max(1, sum(plot.counts.values()))
    return [
        (kind, f"{name} {plot.counts[kind]:,} ({plot.counts[kind] / total:.1%})")
        for kind, name in NAMES.items()
    ]


def draw_png(blocks: Blocks, title: str, b: int, h: int, path: Path) -> None:
    """Draw the picture of `draw_svg` by matplotlib to a PNG file.

    Raise OptionError if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise OptionError(
            "to save a .png expects matplotlib; install it (pip install matplotlib), "
            "or save a .svg, which needs nothing"
        ) from error
    plot = plot_of(blocks, title, b, h)
    height, width = plot.pixels
    figure = Figure((width / 100 + 1.6, height / 100 + 2.4), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    (q_len, kv_len), (rows, columns) = plot.lengths, plot.classes.shape
    axes.imshow(
        plot.classes.numpy(),
        ListedColormap([COLORS[kind] for kind in sorted(COLORS)]),
        vmin=DEAD,
        vmax=max(COLORS),
        extent=(0, columns * plot.size[1], rows * plot.size[0], 0),
        interpolation="nearest",
        aspect="auto",
    )
    axes.set_xlim(0, kv_len)
    axes.set_ylim(q_len, 0)
    keys, queries = (range(0, n, tick_step(n)) for n in (kv_len, q_len))
    axes.set_xticks(keys, [tick_label(at, kv_len) for at in keys])
    axes.set_yticks(queries, [tick_label(at, q_len) for at in queries])
    axes.xaxis.tick_top()
    axes.tick_params(labelsize=8)
    axes.set_xlabel(f"keys\n{plot.note}", fontsize=9)
    axes.set_ylabel("queries", fontsize=9)
    name, _, sizes = plot.title.partition(": ")
    axes.set_title(f"{name}\n{sizes}", fontsize=8)
    patches = [
        Patch(facecolor=COLORS[kind], edgecolor=FRAME, label=label)
        for kind, label in labels(plot)
    ]
    figure.legend(handles=patches, loc="lower center", ncols=3, fontsize=8)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path)
