"""Gradients of captured tensors, of sums over the pairs that read the same element.

A kernel reduces the adjoints of a read along what its index does not vary with, as the
read's `IndexClass` says. `sums` are the shapes of these arrays and the chunks that
large ones are made in, `places` evaluates where a read reads, `spread` adds there, and
`scatter` is what a call uses.
"""

from flexc.runtime.autograd.captured_gradients.scatter import CapturedGradient, Scatter
from flexc.runtime.autograd.captured_gradients.sums import (
    MAX_BYTES,
    Chunk,
    Sizes,
    chunks_for,
    sums_bytes,
    sums_shape,
)

__all__ = [
    "MAX_BYTES",
    "CapturedGradient",
    "Chunk",
    "Scatter",
    "Sizes",
    "chunks_for",
    "sums_bytes",
    "sums_shape",
]
