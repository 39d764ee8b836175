"""Processes that share random families of calls, and what they tell."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.gpu.random_calls import CALLS, KINDS

MAX_FAILURES = 40
"""Of one shard, which gives up then."""


@dataclass
class Shard:
    """Families that are run one after another, in as many processes as it takes."""

    families: list[int]
    options: argparse.Namespace
    start: float
    passed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    served: Counter[str] = field(default_factory=Counter[str])
    begun: str = ""
    """The call that is under way."""

    def run(self) -> None:
        left = [f"{number}.0" for number in self.families]
        while left and self.seconds_left != 0 and len(self.failures) < MAX_FAILURES:
            rest = self.run_process(left)
            assert rest != left
            left = rest

    @property
    def seconds_left(self) -> float | None:
        """None where there is no limit."""
        if not self.options.seconds:
            return None
        return max(0.0, self.options.seconds - (time.perf_counter() - self.start))

    def run_process(self, left: Sequence[str]) -> list[str]:
        """What a process that broke left to do."""
        command = [sys.executable, "-m", "tests.gpu.random_cases", "--family", *left]
        command += ["--device", self.options.device]
        command += ["--patience", str(self.options.patience)]
        command += ["--seconds", str(self.seconds_left or 0)]
        self.begun = ""
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            assert process.stdout is not None
            for line in process.stdout:
                self.hear(line)
            if process.wait() == 0:
                return []
            errors.seek(0)
            said = errors.read()[-3000:]
        name = self.begun or left[0]
        if not any(failure["failed"] == name for failure in self.failures):
            status = f"the process ended with {process.returncode}\n{said}"
            self.failures.append({"failed": name, "error": status, "call": ""})
        return after(name, left)

    def hear(self, line: str) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            return  # What others print.
        if "begun" in told:
            self.begun = told["begun"]
        elif "passed" in told:
            self.passed += 1
        elif "failed" in told:
            self.failures.append(told)
        elif "finished" in told:
            self.served.update(told["served"])


def after(name: str, left: Sequence[str]) -> list[str]:
    """What comes after a call."""
    number, index = map(int, name.split("."))
    families = [int(n.split(".")[0]) for n in left]
    rest = list(left[families.index(number) + 1 :])
    more = index + 1 < KINDS * CALLS
    return [f"{number}.{index + 1}", *rest] if more else rest


def run_shards(families: Sequence[int], count: int, options: Any) -> int:
    """Run all families and print what came of it; 1 if anything failed."""
    start = time.perf_counter()
    count = min(count, len(families))
    shards = [Shard(list(families[i::count]), options, start) for i in range(count)]
    threads = [threading.Thread(target=shard.run) for shard in shards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures = [failure for shard in shards for failure in shard.failures]
    for failure in failures:
        command = f"python -m tests.gpu.random_cases --device {options.device}"
        print(f"\nFAILED {failure['failed']}: {failure['error']}\n{failure['call']}")
        print(f"again: {command} --only {failure['failed']}")
    served = sum((shard.served for shard in shards), Counter[str]())
    summary = {
        "passed": sum(shard.passed for shard in shards),
        "failed": [failure["failed"] for failure in failures],
        "of": len(families) * KINDS * CALLS,
        "seconds": round(time.perf_counter() - start),
        "shards": count,
        "served": dict(served.most_common()),
    }
    print(json.dumps(summary))
    return 1 if failures or not summary["passed"] else 0
