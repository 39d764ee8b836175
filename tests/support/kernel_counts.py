"""Count the kernels that calls run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flexc.runtime.kernels.kernel import Kernel


@contextmanager
def counting(served: Counter[str]) -> Iterator[None]:
    """Count kernels of attention and gradients by target and schedule: "gluon overlap".

    Count reasons to reject preferred schedules too: "not overlap: spills 64 bytes".
    """
    own = Kernel.run

    def count(spec: Any) -> None:
        schedule = getattr(spec, "schedule", None)
        served[f"{spec.target} {schedule}" if schedule else spec.target] += 1
        for reason in getattr(spec, "rejected", ()):
            served[f"not {reason}"[:160]] += 1

    def counted(self: Kernel, *args: Any, **options: Any) -> None:
        if self.spec.entry.startswith("attention"):
            count(self.spec)
        own(self, *args, **options)

    Kernel.run = counted
    try:
        yield
    finally:
        Kernel.run = own
