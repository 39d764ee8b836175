"""Run, record, replay: what is done again and again to tensors of equal facts.

A tape is right for all tensors of the facts of those that it was recorded with (see
`equal_facts`). The first time something is run as it stands; the second time it is
recorded, as much that is done once is never done again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from flexc.runtime.replay.equal_facts import Kept, stream_facts
from flexc.runtime.replay.stored_tapes import StoredTape
from flexc.runtime.tapes.modes import unseen
from flexc.runtime.tapes.recorder import Recorder
from flexc.runtime.tapes.tape import Tape

Results = tuple[Any, ...]


class Repeated:
    """One thing that is done to tensors of equal facts."""

    __slots__ = ("_is_known", "_refused", "_stored", "tape")

    def __init__(
        self, is_known: bool = False, stored: StoredTape | None = None
    ) -> None:
        """`stored` is the place of its tape on the disk, if it may be there."""
        self._is_known = is_known
        self._refused = False
        self._stored = stored
        self.tape: Tape | None = None
        """Replays it; None until it was done twice, or where it cannot be replayed."""

    def __call__(
        self,
        tensors: Sequence[Any],
        device: torch.device,
        run: Callable[[], tuple[Results, bool]],
    ) -> Results:
        """The results of `run`, which says too whether it may be repeated."""
        if (tape := self.load()) is not None:
            return tape(tensors)
        if self._refused or not self._is_known:
            found = run()[0]
            self._is_known = True
            return found
        with unseen(), Recorder(tensors) as seen:
            results, may_repeat = run()
        if may_repeat:
            self.tape = seen.tape(results, device)
        self._refused = self.tape is None
        if self._stored is not None and self.tape is not None:
            self._stored.store(self.tape)
        return results

    def load(self) -> Tape | None:
        """Return the tape of this process, else that of the disk, if there is one."""
        if self.tape is None and self._stored is not None:
            self.tape, _ = self._stored.load()
        return self.tape


KNOWN = Kept()
"""What is repeated in this process: plans of calls, and tapes of operators."""


def repeat(
    key: Hashable | None,
    tensors: Sequence[Any],
    device: torch.device,
    run: Callable[[], Results],
) -> Results:
    """The results of `run`, by a tape where the key and tensors have one.

    The key is all that `run` depends on but tensors and numbers; None forbids tapes.
    """
    if key is None:
        return run()
    key = (key, stream_facts(device))
    found = KNOWN.find(key, tensors, device, not_repeated)
    return run() if found is None else found(tensors, device, lambda: (run(), True))


def not_repeated(tensors: Sequence[Any], facts: Hashable) -> Repeated:
    """What was not done yet."""
    return Repeated()


def tape_of(key: Hashable, tensors: Sequence[Any], device: torch.device) -> Tape | None:
    """The tape that `repeat` replays; None where it would run."""
    found = KNOWN.find((key, stream_facts(device)), tensors, device)
    return None if found is None else found.tape
