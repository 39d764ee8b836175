"""Fair timing: contestants take turns, so that drift and clocks hit them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch

Run = Callable[[], object]

SLEEP_CYCLES = 3_000_000
"""Some 1.5 ms of a GPU: no call of attention takes the host that long."""


BURST, UNTIMED = 10, 2
"""Calls between two waits for the device, where the host is timed: few, as a full queue
would hold it up. What follows a wait is slower, and does not count."""

LOOP, LOOP_SECONDS = 40, 0.05
"""Calls behind one another that are timed as one: fewer where they take long."""

FEWEST = 5
"""Rounds that are played whatever the budget."""

LONG = 0.2
"""Seconds beside which it is nothing to wake threads."""


def seconds_of(run: Run) -> float:
    """Wall time of one call, on the CPU."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved_seconds(
    runs: Mapping[str, Run], rounds: int = 15, budget: float = 2.0
) -> dict[str, list[float]]:
    """Seconds of each run on the CPU; all take turns, round by round.

    In each round a contestant runs twice and the second run counts: the first
    wakes its own threads and puts those of the one before it to sleep. That is
    nothing to a run that takes `LONG`, which runs once. Rounds end early, but not
    before the third, when `budget` seconds are spent.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    start = time.perf_counter()
    for i in range(rounds):
        if i >= 3 and time.perf_counter() - start > budget:
            break
        for name, run in runs.items():
            taken = seconds_of(run)
            times[name].append(taken if taken > LONG else seconds_of(run))
    return times


def interleaved_medians(
    runs: Mapping[str, Run], rounds: int = 15, budget: float = 2.0
) -> dict[str, float]:
    """Median seconds of each run on the CPU, see `interleaved_seconds`."""
    times = interleaved_seconds(runs, rounds, budget)
    return {name: statistics.median(taken) for name, taken in times.items()}


def interleaved_gpu_medians(
    runs: Mapping[str, Run],
    rounds: int = 40,
    warmup: int = 2,
    budget: float | None = None,
) -> dict[str, float]:
    """Median seconds of each run by CUDA events, with a cold cache every time.

    All rounds are queued before the first time is read, and the GPU sleeps before
    each run until the host has queued it: the host's own speed is not measured.
    Rounds are fewer, but five at least, where all would take longer than `budget`.
    """
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")

    def play(rounds: int) -> dict[str, list[float]]:
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]]
        events = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                begin = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                flush.zero_()
                torch.cuda._sleep(SLEEP_CYCLES)
                begin.record()
                run()
                end.record()
                events[name].append((begin, end))
        torch.cuda.synchronize()
        return {n: [b.elapsed_time(e) for b, e in pairs] for n, pairs in events.items()}

    play(warmup)
    start = time.perf_counter()
    play(1)
    if budget is not None:
        once = time.perf_counter() - start
        rounds = max(min(rounds, int(budget / once)), min(rounds, 5))
    return {name: statistics.median(ms) / 1e3 for name, ms in play(rounds).items()}


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def turns(runs: Mapping[str, Run], rounds: int, budget: float) -> Iterator[str]:
    """Whose turn it is, round by round; each round another begins.

    Rounds end early, but not before the fifth, when `budget` seconds are spent.
    """
    names, start = list(runs), time.perf_counter()
    for i in range(rounds):
        if i >= FEWEST and time.perf_counter() - start > budget:
            return
        first = i % max(len(names), 1)
        yield from names[first:] + names[:first]


def interleaved_host_medians(
    runs: Mapping[str, Run], device: str, rounds: int = 40, budget: float = 1.0
) -> dict[str, float]:
    """Median seconds until a call returns, whether or not the device is done."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in turns(runs, rounds, budget):
        wait(device)
        times[name] += [seconds_of(runs[name]) for _ in range(BURST)][UNTIMED:]
    wait(device)
    return {name: statistics.median(taken) for name, taken in times.items()}


def loop_seconds(run: Run, device: str, calls: int) -> float:
    """Of each of so many calls, from nothing under way until the device is done."""
    wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        run()
    wait(device)
    return (time.perf_counter() - start) / calls


def interleaved_loop_medians(
    runs: Mapping[str, Run],
    device: str,
    rounds: int = 15,
    budget: float = 1.0,
    calls: int = LOOP,
) -> dict[str, float]:
    """Median seconds of a call back to back: of many, until the device is done.

    What takes the host or the device longer shows, as it does in a program. Of long
    calls there are fewer than `calls`.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in turns(runs, rounds, budget):
        once = loop_seconds(runs[name], device, 1)
        fitting = max(1, int(LOOP_SECONDS / once))
        times[name].append(loop_seconds(runs[name], device, min(calls, fitting)))
    return {name: statistics.median(taken) for name, taken in times.items()}
