"""How vmap maps attention and its derivatives: in one larger batch, or in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["static", "row", "capture", "table", "whole"]
"""What an argument is: no tensor; a tensor with the batch as its first dimension; a
captured tensor, or a tangent of one; a table, with the batch first too; tables of a
whole call in one tensor."""


def map_slices(
    function: Callable[..., Any],
    info: Any,
    in_dims: Sequence[int | None],
    kinds: Sequence[Kind],
    args: Sequence[Any],
    folds: bool,
) -> tuple[Any, Any]:
    """What a Function's vmap returns: results, and where their new dimension is.

    `folds` says that results for a larger batch are those for its parts, where all
    parts share captures and tables.
    """
    shared = zip(kinds, in_dims, strict=True)
    folds = folds and "whole" not in kinds
    if folds and all(kind == "row" or dim is None for kind, dim in shared):
        results = _fold(function, info.batch_size, in_dims, kinds, args)
    else:
        results = _loop(function, info.batch_size, in_dims, args)
    return results, tuple(0 if isinstance(r, Tensor) else None for r in results)


def _fold(
    function: Callable[..., Any],
    size: int,
    in_dims: Sequence[int | None],
    kinds: Sequence[Kind],
    args: Sequence[Any],
) -> tuple[Any, ...]:
    folded = [
        _merged(arg, dim, size)
        if isinstance(arg, Tensor) and kind in ("row", "table")
        else arg
        for arg, dim, kind in zip(args, in_dims, kinds, strict=True)
    ]
    results = function(*folded)
    return tuple(
        r.unflatten(0, (size, -1)) if isinstance(r, Tensor) else r for r in results
    )


def _merged(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The mapped dimension merged with the batch, before it."""
    if dim is None:
        tensor = tensor.expand(size, *tensor.shape)
    else:
        tensor = tensor.movedim(dim, 0)
    return tensor.flatten(0, 1)


def _loop(
    function: Callable[..., Any],
    size: int,
    in_dims: Sequence[int | None],
    args: Sequence[Any],
) -> tuple[Any, ...]:
    slices = [
        function(
            *(
                arg if dim is None else arg.select(dim, i)
                for arg, dim in zip(args, in_dims, strict=True)
            )
        )
        for i in range(size)
    ]
    return tuple(
        torch.stack(parts) if isinstance(parts[0], Tensor) else None
        for parts in zip(*slices, strict=True)
    )
