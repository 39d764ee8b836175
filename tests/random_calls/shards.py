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

from tests.random_calls.families import ranges_of

MAX_FAILURES = 40
"""Of one shard, which gives up then."""

SAID_EVERY = 100
"""Calls between two lines about how far it is."""


@dataclass
class Shard:
    """Families that are run one after another, in as many processes as it takes."""

    families: list[int]
    options: argparse.Namespace
    start: float
    verdicts: Counter[str] = field(default_factory=Counter[str])
    told: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What was not right."""
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
    def failures(self) -> list[dict[str, Any]]:
        return [told for told in self.told if not is_refused(told)]

    @property
    def seconds_left(self) -> float | None:
        """None where there is no limit."""
        if not self.options.seconds:
            return None
        return max(0.0, self.options.seconds - (time.perf_counter() - self.start))

    def run_process(self, left: Sequence[str]) -> list[str]:
        """What a process that broke left to do."""
        command = [sys.executable, "-m", "tests.random_calls", "--family", *left]
        command += ["--device", self.options.device]
        command += ["--backend", self.options.backend]
        command += ["--patience", str(self.options.patience)]
        command += ["--seconds", str(self.seconds_left or 0)]
        self.begun = ""
        with tempfile.TemporaryFile("w+") as errors:
            pipe = subprocess.PIPE
            with subprocess.Popen(
                command, stdout=pipe, stderr=errors, text=True
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    self.hear(line)
            if process.returncode == 0:
                return []
            errors.seek(0)
            said = errors.read()[-3000:]
        name = self.begun or left[0]
        if not any(told["done"] == name for told in self.told):
            verdict = "hung" if "Timeout (" in said else "crashed"
            error = f"the process ended with {process.returncode}\n{said}"
            self.note({"done": name, "verdict": verdict, "error": error, "call": ""})
        return after(name, left, ranges_of(self.options.device).calls)

    def hear(self, line: str) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            return  # What others print.
        if "begun" in told:
            self.begun = told["begun"]
        elif "done" in told:
            self.note(told)
        elif "finished" in told:
            self.served.update(told["served"])

    def note(self, told: dict[str, Any]) -> None:
        """What became of a call; what fails is printed at once."""
        verdict = told["verdict"]
        self.verdicts[verdict] += 1
        if self.verdicts.total() % SAID_EVERY == 0:
            print(f"so far {dict(self.verdicts)}", file=sys.stderr, flush=True)
        if verdict == "right":
            return
        self.told.append(told)
        if verdict != "refused":
            given = f"--device {self.options.device} --backend {self.options.backend}"
            again = f"again: python -m tests.random_calls {given} --only {told['done']}"
            title = f"{verdict.upper()} {told['done']}"
            print(f"\n{title}: {told['error']}\n{told['call']}\n{again}", flush=True)


def after(name: str, left: Sequence[str], calls: int) -> list[str]:
    """What comes after a call, where families have so many."""
    number, index = map(int, name.split("."))
    families = [int(n.split(".")[0]) for n in left]
    rest = list(left[families.index(number) + 1 :])
    return [f"{number}.{index + 1}", *rest] if index + 1 < calls else rest


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
    told = [told for shard in shards for told in shard.told]
    refused = Counter(t["error"].splitlines()[0] for t in told if is_refused(t))
    for error, times in refused.most_common():
        print(f"refused {times} times: {error}")
    verdicts = sum((shard.verdicts for shard in shards), Counter[str]())
    served = sum((shard.served for shard in shards), Counter[str]())
    summary = {
        **verdicts,
        "failed": [t["done"] for t in told if not is_refused(t)],
        "of": len(families) * ranges_of(options.device).calls,
        "seconds": round(time.perf_counter() - start),
        "processes": count,
        "served": dict(served.most_common()),
    }
    print(json.dumps(summary))
    return 1 if summary["failed"] or not verdicts["right"] else 0


def is_refused(told: dict[str, Any]) -> bool:
    return told["verdict"] == "refused"
