"""Thousands of random calls against dense attention in double precision.

    python -m tests.gpu.random_cases --cases 2000
    python -m tests.gpu.random_cases --device cpu --cases 20
    python -m tests.gpu.random_cases --only 17.5

Families of calls (see `random_calls`) are spread over processes, which tell what they
do by lines of JSON. A call that hangs or breaks its process is a failure, and what
comes after it goes on in another process.
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
from collections.abc import Sequence
from typing import Any

import torch

from tests.gpu.random_calls import CALLS, KINDS, Call, calls_of, check_call, family_of
from tests.served import counting

BACKENDS = {"cpu": "cpp", "cuda": "auto"}
PER_FAMILY = KINDS * CALLS


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def run_family(
    number: int, first: int, device: str, patience: float, until: float
) -> None:
    """All calls of a family from the `first` on, while there is time."""
    served: Counter[str] = Counter()
    begin(f"{number}.{first}", patience)
    for i, call in enumerate(calls_of(family_of(number, device), number)):
        if i < first:
            continue
        if time.perf_counter() > until:
            break
        name = f"{number}.{i}"
        begin(name, patience)
        with counting(served):
            error = error_of(call, BACKENDS[device])
        if error:
            tell(failed=name, error=error, call=repr(call))
            if "CUDA error" in error:
                sys.exit(1)  # Nothing works in this process any more.
        else:
            tell(passed=name)
    tell(finished=number, served=served)


def begin(name: str, patience: float) -> None:
    tell(begun=name)
    faulthandler.dump_traceback_later(patience, exit=True)


def error_of(call: Call, backend: str) -> str:
    """What went wrong, if anything did."""
    try:
        check_call(call, backend)
        if call.case.device != "cpu":
            torch.cuda.synchronize()
    except AssertionError as error:
        return str(error) or traceback.format_exc()
    except Exception as error:
        where = traceback.format_exc().splitlines()[-8:]
        return "\n".join([f"{type(error).__name__}: {error}", *where])
    return ""


def run_families(options: argparse.Namespace) -> int:
    """What a process of its own does; `--family` may begin in the middle of one."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    until = time.perf_counter() + (options.seconds or math.inf)
    families = [tuple(map(int, name.split("."))) for name in options.family]
    for number, first in families:
        run_family(number, first, options.device, options.patience, until)
    faulthandler.cancel_dump_traceback_later()
    return 0


def run_one(name: str, device: str) -> int:
    """One call alone, told in full."""
    number, index = map(int, name.split("."))
    call = list(calls_of(family_of(number, device), number))[index]
    print(repr(call))
    served: Counter[str] = Counter()
    with counting(served):
        error = error_of(call, BACKENDS[device])
    print(f"{dict(served)}\n{error or 'passed'}")
    return 1 if error else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description="random calls against fp64")
    add = found.add_argument
    add("--cases", type=int, default=2000, help="calls; whole families are run")
    add("--seed", type=int, default=0, help="number of the first family")
    add("--shards", type=int, help="processes; as many as there are cores on a GPU")
    add("--seconds", type=float, default=0, help="begin no call after that long")
    add("--patience", type=float, default=60, help="seconds a call may take")
    add("--device", choices=BACKENDS, default="cuda")
    add("--only", metavar="FAMILY.CALL", help="run one call, and tell all about it")
    add("--family", nargs="*", default=[], help=argparse.SUPPRESS)
    return found


def main(args: Sequence[str] | None = None) -> int:
    options = parser().parse_args(args)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("random_cases needs a GPU, or --device cpu", file=sys.stderr)
        return 2
    if options.only:
        return run_one(options.only, options.device)
    if options.family:
        return run_families(options)
    from tests.gpu.shards import run_shards

    families = range(options.seed, options.seed - (-options.cases // PER_FAMILY))
    default = 1 if options.device == "cpu" else os.cpu_count() or 1
    return run_shards(list(families), options.shards or default, options)


if __name__ == "__main__":
    sys.exit(main())
