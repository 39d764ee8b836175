"""Run, record, replay: repeated work on tensors of equal facts.

A tape is valid for all tensors whose facts equal those at its recording (see
`equal_facts`). The second run is recorded. The first run is recorded only if it will
likely repeat, because much work is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from flexc.runtime.replay.equal_facts import FactsCache, stream_facts
from flexc.runtime.replay.stored_tapes import StoredTape
from flexc.runtime.tapes.recorder import Recorder, without_dispatch_modes
from flexc.runtime.tapes.tape import Tape

Results = tuple[Any, ...]


class TapedWork:
    """Work on tensors of equal facts, which is recorded and replayed."""

    __slots__ = ("_growing", "_is_known", "_runs", "_stored", "tape")

    def __init__(
        self,
        is_known: bool,
        stored: StoredTape | None = None,
        growing: Sequence[int] = (),
    ) -> None:
        """Make work that is recorded at its second run, or at its first if `is_known`.

        `stored` is the place of its tape on the disk, if it may be there. `growing` are
        the places of tensors whose sizes the tape is to read at each replay.
        """
        self._growing = growing
        self._is_known = is_known
        self._runs = 0
        self._stored = stored
        self.tape: Tape | None = None
        """The tape that replays the work. None before a recording, and if it is
        refused.
        """

    def __call__(
        self,
        tensors: Sequence[Any],
        device: torch.device,
        run: Callable[[], tuple[Results, bool]],
    ) -> Results:
        """Return the results of `run`, whose second result allows a recording."""
        if (tape := self.load()) is not None:
            return tape(tensors)
        # A tape is refused for good at the second run only: the first one may read on
        # the host what later runs find in caches.
        runs = self._runs
        if runs > 1 or (runs == 0 and not self._is_known):
            results, _ = run()
            self._runs = runs + 1
            return results
        with without_dispatch_modes(), Recorder(tensors, self._growing) as seen:
            results, may_repeat = run()
        self._runs = runs + 1
        if may_repeat:
            self.tape = seen.tape(results, device)
        if self._stored is not None and self.tape is not None:
            self._stored.store(self.tape)
        return results

    def load(self) -> Tape | None:
        """Return the tape of this process, else that of the disk, else None."""
        if self.tape is None and self._stored is not None:
            self.tape, _ = self._stored.load()
        return self.tape


KNOWN = FactsCache()
"""Plans of calls and tapes of operators in this process."""


def repeat(
    key: Hashable | None,
    tensors: Sequence[Any],
    device: torch.device,
    run: Callable[[], Results],
) -> Results:
    """Return the results of `run`, by a tape if the key and the tensors have one.

    The key holds everything that `run` depends on, except tensors and numbers. A key of
    None forbids tapes.
    """
    if key is None:
        return run()
    key = (key, stream_facts(device))
    found = KNOWN.find(key, tensors, device, new_work)
    return run() if found is None else found(tensors, device, lambda: (run(), True))


def new_work(tensors: Sequence[Any], facts: Hashable, is_known: bool) -> TapedWork:
    """Return a new `TapedWork`."""
    return TapedWork(is_known)


def tape_of(key: Hashable, tensors: Sequence[Any], device: torch.device) -> Tape | None:
    """Return the tape that `repeat` would replay, None if it would run."""
    found = KNOWN.find((key, stream_facts(device)), tensors, device)
    return None if found is None else found.tape
