"""Thousands of random calls against dense attention in double precision.

    python -m tests.random_calls --calls 5000 --seed 0
    python -m tests.random_calls --device cuda --calls 2000
    python -m tests.random_calls --backend eager    # no kernels: how mods are read
    python -m tests.random_calls --only 17.5

Families of calls (see `families`) are spread over processes, which tell what they do
by lines of JSON. A call that hangs or breaks its process is a failure, and what comes
after it goes on in another process. What flexc refuses, with an error of its own, is
counted and listed apart.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from flexc.errors import FlexcError
from flexc.runtime.autograd import gradient_kernels
from tests.random_calls.calls import Call
from tests.random_calls.families import calls_of, family_of, ranges_of
from tests.support.kernel_counts import counting

DEVICES = ("cpu", "cuda")
LEAST_WORK = gradient_kernels.LEAST_WORK
BACKENDS = ("auto", "cpp", "triton", "eager")


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def run_family(
    number: int, first: int, options: argparse.Namespace, until: float
) -> None:
    """All calls of a family from the `first` on, while there is time."""
    served: Counter[str] = Counter()
    choose_work(number)
    begin(f"{number}.{first}", options.patience)
    for i, call in enumerate(made(number, options)):
        if i < first:
            continue
        if time.perf_counter() > until:
            break
        name = f"{number}.{i}"
        begin(name, options.patience)
        with counting(served):
            verdict, error = verdict_of(call, options.backend)
        said = {"error": error, "call": repr(call)} if error else {}
        tell(done=name, verdict=verdict, **said)
        if "CUDA error" in error:
            sys.exit(1)  # Nothing works in this process any more.
    tell(finished=number, served=served)


def choose_work(number: int) -> None:
    """Let every other family compute parts of sums, as long calls do."""
    gradient_kernels.LEAST_WORK = 0 if number % 2 else LEAST_WORK


def made(number: int, options: argparse.Namespace) -> Iterator[Call]:
    return calls_of(family_of(number, options.device), number)


def begin(name: str, patience: float) -> None:
    tell(begun=name)
    faulthandler.dump_traceback_later(patience, exit=True)


def verdict_of(call: Call, backend: str = "auto") -> tuple[str, str]:
    """ "right", "refused", "untyped" or "wrong", and what was said."""
    if backend == "eager":
        call = replace(call, through=backend)
    try:
        found = call.make(backend)
        if call.case.device != "cpu":
            torch.cuda.synchronize()
    except FlexcError as error:
        known = str(error).strip()
        return "refused" if known else "untyped", f"{type(error).__name__}: {error}"
    except Exception:
        return "untyped", traceback.format_exc()
    try:
        call.check(found)
    except AssertionError as error:
        return "wrong", str(error) or traceback.format_exc()
    except Exception:
        return "untyped", traceback.format_exc()
    return "right", ""


def run_families(options: argparse.Namespace) -> int:
    """What a process of its own does; `--family` may begin in the middle of one."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    until = time.perf_counter() + (options.seconds or math.inf)
    families = [tuple(map(int, name.split("."))) for name in options.family]
    for number, first in families:
        run_family(number, first, options, until)
    faulthandler.cancel_dump_traceback_later()
    return 0


def run_one(name: str, options: argparse.Namespace) -> int:
    """One call alone, told in full; after those before it if it is right alone."""
    number, index = map(int, name.split("."))
    choose_work(number)
    call = list(made(number, options))[index]
    print(repr(call))
    served: Counter[str] = Counter()
    with counting(served):
        verdict, error = verdict_of(call, options.backend)
    print(f"{dict(served)}\nalone: {verdict}\n{error}")
    if error:
        return 1
    for i, call in enumerate(made(number, options)):
        verdict, error = verdict_of(call, options.backend)
        print(f"{number}.{i}: {verdict} {error}")
        if i == index:
            break
    return 1 if error else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        "python -m tests.random_calls", description="random calls against fp64"
    )
    add = found.add_argument
    add("--calls", type=int, default=5000, help="whole families are run")
    add("--seed", type=int, default=0, help="number of the first family")
    add("--processes", type=int, help="by default 1, on a GPU one for each core")
    add("--seconds", type=float, default=0, help="begin no call after that long")
    add("--patience", type=float, default=120, help="seconds a call may take")
    add("--device", choices=DEVICES, default="cpu")
    add("--backend", choices=BACKENDS, default="auto", help="of most calls")
    add("--only", metavar="FAMILY.CALL", help="run one call, and tell all about it")
    add("--family", nargs="*", default=[], help=argparse.SUPPRESS)
    return found


def main(args: Sequence[str] | None = None) -> int:
    options = parser().parse_args(args)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("random calls need a GPU, or --device cpu", file=sys.stderr)
        return 2
    if options.only:
        return run_one(options.only, options)
    if options.family:
        return run_families(options)
    from tests.random_calls.shards import run_shards

    count = -(-options.calls // ranges_of(options.device).calls)
    families = range(options.seed, options.seed + count)
    default = 1 if options.device == "cpu" else os.cpu_count() or 1
    return run_shards(list(families), options.processes or default, options)


if __name__ == "__main__":
    sys.exit(main())
