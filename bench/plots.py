"""What plots of results share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LABEL_WIDTH = 1.6
"""The room for a label of a legend, in inches."""


def add_legend(figure: Any, axes: Any, first: Iterable[str]) -> None:
    """One for all panels, below them, with the labels of `first` in that order."""
    found: dict[str, Any] = {}
    for panel in axes.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    order = [name for name in first if name in found]
    order += [name for name in found if name not in order]
    figure.legend(
        [found[name] for name in order],
        order,
        loc="outside lower center",
        ncols=max(1, min(len(found), int(figure.get_figwidth() // LABEL_WIDTH))),
        fontsize=9,
        frameon=False,
    )
