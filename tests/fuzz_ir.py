"""Faults put into every IR file of the tests: `flexc-opt` takes or refuses each.

    python -m tests.fuzz_ir                    # 500 mutated texts
    python -m tests.fuzz_ir --count 5000       # more
    python -m tests.fuzz_ir --seconds 20       # as many as fit
    python -m tests.fuzz_ir --first 17 --count 1 --show   # one, with its text

A text goes through the pipeline of its file's RUN line, through the pipelines to
kernels, or through any one pass. Exit status 0 and 1 are answers; a Python error that
leaves `flexc-opt` is none, nor is a text that takes too long or too much memory, nor
one that is printed so that it does not parse to the same.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import re
import resource
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from flexc import opt, universe
from flexc.passes import pipelines
from tests.support.ir_mutations import mutate, mutate_module

FILES = Path(__file__).parent / "filecheck"
MEMORY = 3 << 30
"""More than any text needs: a shape of 10**12 elements is a number, no array."""

SECONDS = 20
"""Of CPU time for one text, a hundred times what most take."""

GENERIC = "--print-op-generic"
TEST_OPTIONS = ("--split-input-file", "--verify-diagnostics", "--parsing-diagnostics")

ATTENTION = "flex.attention"
LEVELS = tuple(
    f"flexc-to-{level}{{target={target}}}"
    for level in ("blocksparse", "tile")
    for target in ("cpp", "triton", "gluon")
)
"""Pipelines that stop on the way, so that what is there is changed as well."""

Command = tuple[str, ...]


class TooLongError(BaseException):
    """No `except Exception` in what is tested stops it."""


@dataclass(frozen=True)
class Text:
    """One module of a file, and the options of `flexc-opt` in its RUN lines."""

    name: str
    text: str
    commands: tuple[Command, ...]


@dataclass(frozen=True)
class Answer:
    """What `flexc-opt` said: `status` is None where it ended in an error of Python."""

    status: int | None
    output: str
    error: str = ""


@cache
def texts() -> tuple[Text, ...]:
    """The modules of all files, without comments."""
    return tuple(t for path in sorted(FILES.rglob("*.mlir")) for t in _modules(path))


def _modules(path: Path) -> list[Text]:
    whole = path.read_text()
    commands = tuple(_commands(whole))
    name = str(path.relative_to(FILES))
    chunks = [
        re.sub(r"^\s*//.*\n?", "", c, flags=re.M) for c in re.split("// -----", whole)
    ]
    return [Text(name, chunk.strip(), commands) for chunk in chunks if chunk.strip()]


def _commands(whole: str) -> list[Command]:
    """The options of every call of `flexc-opt` in RUN lines."""
    found: list[Command] = []
    for line in re.findall(r"RUN: (.*)", whole):
        found += [()] if "ROUNDTRIP" in line else []
        for call in re.findall(r"flexc-opt ([^|>]*)", line):
            words = [w for w in shlex.split(call) if w not in ("%s", *TEST_OPTIONS)]
            if not {"%t.txt", "--help", "2"} & set(words):
                found.append(tuple(words))
    return found


@cache
def to_kernels() -> tuple[tuple[str, Command], ...]:
    """For what a text of a level has in it, the ways from there to kernels' source."""
    targets: tuple[tuple[str, pipelines.Passes], ...] = (
        ("cpp", pipelines.to_cpp()),
        ("triton", pipelines.to_triton()),
        ("gluon", pipelines.to_gluon()),
    )
    return tuple(way for target, last in targets for way in _ways(target, last))


def _ways(target: str, last: pipelines.Passes) -> list[tuple[str, Command]]:
    tile, source = pipelines.to_tile(target), ("-t", target)
    return [
        (ATTENTION, ("-p", f"flexc-to-{target}", *source)),
        (ATTENTION, ("-p", _named(pipelines.to_planning(target)))),
        ("blocksparse.", ("-p", _named((*tile, *last)), *source)),
        ("tile.kernel", ("-p", _named(last), *source)),
        ("tile.kernel", source),
    ]


def _named(passes: pipelines.Passes) -> str:
    return ",".join(str(p.spec()) for p in passes)


def draw(index: int, seed: int) -> tuple[str, Command]:
    """A mutated text and what is done with it, the same for the same numbers."""
    random = Random(f"{seed} {index}")
    known = texts()
    name = random.choice(sorted({t.name for t in known}))
    drawn = random.choice([t for t in known if t.name == name])
    text, own = drawn.text, drawn.commands
    if ATTENTION in text and random.random() < 0.3:
        text, own = lowered(text, random.choice(LEVELS)), ()
    kernels = [c for op, c in to_kernels() if op in text]
    one = ("-p", random.choice(sorted(universe.PASSES)))
    printed = random.choice(((), (GENERIC,)))
    kinds = (own, own, kernels, [one], [printed])
    command = random.choice(random.choice([k for k in kinds if k]))
    if random.random() < 0.6 and (module := parsed(text)):
        mutate_module(random, module)
        return generic(module), command
    return mutate(random, text, [t.text for t in known]), command


@cache
def lowered(text: str, pipeline: str) -> str:
    """What a pipeline makes of a text; the text, if that is an example of an error."""
    answer = run(text, ("-p", pipeline))
    return text if answer.status else answer.output


def parsed(text: str) -> ModuleOp | None:
    """The module of a text, unless it is an example of what does not parse."""
    try:
        return Parser(context(), text).parse_module()
    except Exception:
        return None


@cache
def context() -> Context:
    """What knows all dialects."""
    return opt.FlexcOptMain("", args=[]).ctx


def generic(module: ModuleOp) -> str:
    """A module that need not verify, as text."""
    out = io.StringIO()
    Printer(out, print_generic_format=True).print_op(module)
    return out.getvalue()


def run(text: str, command: Command) -> Answer:
    """Give a text to `flexc-opt`, in this process."""
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(text)
        file.flush()
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status, error = _status([file.name, *command])
    return Answer(status, out.getvalue(), error or err.getvalue())


def _status(args: Sequence[str]) -> tuple[int | None, str]:
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    faulthandler.dump_traceback_later(30 * SECONDS, exit=True, file=2)
    try:
        return opt.main(args), ""
    except (Exception, TooLongError):
        return None, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        faulthandler.cancel_dump_traceback_later()


def fault_of(text: str, command: Command) -> tuple[str, str]:
    """What is wrong with the answers to a text: a kind and a report, or "ok"."""
    answer = run(text, command)
    if answer.status is None:
        return _kind(answer.error), answer.error
    if answer.status:
        made = "made what does not verify" in answer.error
        return "pass result" if made else "refused", answer.error
    if "-t" in command:
        return "ok", answer.output
    form = (GENERIC,) if GENERIC in command else ()
    again = run(answer.output, form)
    if again.status is None:
        return _kind(again.error), again.error
    if again.output != answer.output:
        return "round trip", f"{answer.output}\n{again.output}\n{again.error}"
    if not command and run(text, (GENERIC,)) != run(again.output, (GENERIC,)):
        return "round trip", f"{run(text, (GENERIC,)).output}\n{again.output}"
    return "ok", answer.output


def _kind(error: str) -> str:
    last = error.rstrip().rpartition("\n")[2]
    for name, kind in (("TooLongError", "hang"), ("MemoryError", "memory")):
        if name in last:
            return kind
    return "traceback"


def fuzz(indices: Sequence[int], seed: int, seconds: float, show: bool) -> Counter[str]:
    """Try texts one after another, until the time is over; print every fault."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for index in indices:
        if time.monotonic() > end:
            break
        text, command = draw(index, seed)
        kind, report = fault_of(text, command)
        counts[kind] += 1
        if show or kind not in ("ok", "refused"):
            print(f"--- {kind}: flexc-opt {shlex.join(command)}")
            print(f"python -m tests.fuzz_ir --seed {seed} --first {index} --show")
            print(f"{text if show else ''}\n{report}", flush=True)
    return counts


def main(args: Sequence[str] | None = None) -> int:
    """Print what was found, and the counts; 1 where there are faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args(args)

    def too_long(*_: object) -> None:
        raise TooLongError

    signal.signal(signal.SIGVTALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    count = options.count or (1 if options.show else 500)
    indices = range(options.first, options.first + count)
    counts = fuzz(indices, options.seed, options.seconds, options.show)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    return int(bool(counts.keys() - {"ok", "refused"}))


if __name__ == "__main__":
    sys.exit(main())
