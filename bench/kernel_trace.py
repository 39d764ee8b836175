"""What a GPU ran, by torch's profiler: kernels, who launched them, the time busy."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCH = ("cuda_runtime", "cuda_driver")

ATTENTION = re.compile(r"attention|flash|fmha|sdpa")
"""Kernels that compute attention or its gradients, and operators that launch them."""
PLANNING = re.compile(
    r"^(summarize|list_rows|list_blocks|classify|sample|refine|order)(_|$)"
)
"""Kernels of flexc that find a mask's blocks."""

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Launched:
    """One kernel, copy or fill of a GPU's memory; times are microseconds."""

    name: str
    start: float
    taken: float
    is_within: bool = False
    """An operator of attention was under way, on the thread that launched it."""

    @property
    def computes(self) -> bool:
        """Whether it is attention, and neither planning nor a copy for it."""
        return bool(ATTENTION.search(self.name))

    @property
    def is_attention(self) -> bool:
        """Whether it would not be there without attention.

        What a CUDA graph launches has its own name alone to show that.
        """
        return self.is_within or self.computes or bool(PLANNING.search(self.name))


def traced(run: Callable[[], object], count: int) -> list[Launched]:
    """What so many runs launch. A first run under the profiler warms it."""
    activities = torch.profiler.ProfilerActivity
    for times in (1, count):
        torch.cuda.synchronize()
        with torch.profiler.profile(
            activities=[activities.CPU, activities.CUDA]
        ) as profiler:
            for _ in range(times):
                run()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return launched(json.loads(path.read_text())["traceEvents"])


def launched(events: Iterable[Event]) -> list[Launched]:
    """The device's events of a trace, in their order."""
    known = [event for event in events if event.get("ph") == "X"]
    launches = {
        event["args"]["correlation"]: event
        for event in known
        if event.get("cat") in LAUNCH and "correlation" in event.get("args", {})
    }
    operators = [
        event
        for event in known
        if event.get("cat") == "cpu_op" and ATTENTION.search(event["name"])
    ]
    found: list[Launched] = []
    for event in known:
        if event.get("cat") not in DEVICE:
            continue
        launch = launches.get(event.get("args", {}).get("correlation"))
        is_within = launch is not None and any(
            contains(operator, launch) for operator in operators
        )
        times = float(event["ts"]), float(event["dur"])
        found.append(Launched(event["name"], *times, is_within))
    return sorted(found, key=lambda kernel: kernel.start)


def contains(operator: Event, launch: Event) -> bool:
    """Whether an operator was under way, on the same thread."""
    begin, end = operator["ts"], operator["ts"] + operator["dur"]
    return operator["tid"] == launch["tid"] and begin <= launch["ts"] <= end


def busy(kernels: Iterable[Launched]) -> float:
    """Microseconds in which anything ran: what runs side by side counts once."""
    total, until = 0.0, float("-inf")
    for kernel in kernels:
        end = kernel.start + kernel.taken
        total += max(0.0, end - max(kernel.start, until))
        until = max(until, end)
    return total


def counts(kernels: Iterable[Launched]) -> Counter[str]:
    """Launches by name."""
    return Counter(kernel.name for kernel in kernels)


def times(kernels: Iterable[Launched]) -> dict[str, float]:
    """Microseconds by name."""
    found: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        found[kernel.name] += kernel.taken
    return found
