"""Whether a call's rows are split along their keys, and into how many splits.

Few rows are few programs: decoding has one for each head. Those of a split call see a
part of the keys each, and a second kernel combines what they made of them.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_BLOCKS = 4
"""Blocks of keys that a split has at least: fewer are soon gone through."""

START = 6
"""What a program costs besides its blocks, in blocks: it starts, waits for its first
keys, and its output is written and read again in twice the bits."""

COMBINE = 10
"""What the second kernel costs, in blocks: its launch, on the host too."""

AT_ONCE = 8
"""Splits that it reads in the time of a block."""

MAX_BYTES = 1 << 27
"""Memory for the outputs of splits."""


@dataclass(frozen=True)
class Gpu:
    """What of a GPU decides."""

    multiprocessors: int
    residents: int = 1
    """Programs of this kind that share a multiprocessor."""

    @property
    def places(self) -> int:
        """Programs that run at a time."""
        return self.multiprocessors * self.residents


def choose_splits(tiles: int, gpu: Gpu, blocks: int, bytes_each: int) -> int:
    """The number of splits by which a call is done first; 1 not to split it.

    `tiles` are its programs without splits, each of which visits `blocks` blocks of
    keys at most. A split's outputs take `bytes_each`. Calls with a program for each
    multiprocessor are left alone.
    """
    if tiles >= gpu.multiprocessors:
        return 1
    most = min(blocks // MIN_BLOCKS, MAX_BYTES // bytes_each, gpu.places)
    choices = range(1, most + 1)
    return min(choices, key=lambda n: cost(tiles, gpu, blocks, n), default=1)


def cost(tiles: int, gpu: Gpu, blocks: int, splits: int) -> int:
    """How long a call takes, in blocks of keys.

    Programs run in rounds, the last of which may leave places idle.
    """
    rounds = -(-tiles * splits // gpu.places)
    time = rounds * (START + -(-blocks // splits))
    if splits > 1:
        time += COMBINE + -(-splits // AT_ONCE)
    return time
