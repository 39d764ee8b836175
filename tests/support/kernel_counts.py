"""Count the kernels that calls run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from flexc.runtime.kernels.kernel import Kernel


@contextmanager
def counting(served: Counter[str]) -> Iterator[None]:
    """Count the attention kernels that run, by target and schedule: "gluon overlap".

    Count reasons to reject preferred schedules too: "not overlap: spills 64 bytes".
    """
    own = Kernel.__call__

    def counted(self: Kernel, query: Tensor, args: Sequence[Any]) -> None:
        spec: Any = self.spec
        schedule = getattr(spec, "schedule", None)
        served[f"{spec.target} {schedule}" if schedule else spec.target] += 1
        for reason in getattr(spec, "rejected", ()):
            served[f"not {reason}"[:160]] += 1
        own(self, query, args)

    Kernel.__call__ = counted
    try:
        yield
    finally:
        Kernel.__call__ = own
