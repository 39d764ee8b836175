"""A step of a GPT's training: flexc beside torch's flex attention, whole models.

    python -m bench.train_gpt --steps 60 --profile
    python -m bench.train_gpt --cuda-graphs trees

Each system has a model of its own with the same weights, which sees the same batches;
systems take turns of a few steps, and a turn ends when the device has done its work.
BlockMasks are made beforehand and are not timed, unless `--plan` says so; a `mask_mod`
is planned in the step. `no-attention` passes values on: what other systems launch and
take beyond it is what attention costs them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

import torch

from bench.gpt import Sizes, batches
from bench.gpt_systems import DEFAULT, SYSTEMS
from bench.gpt_trainer import PLAIN, TREES, WHOLE, Trainer
from bench.kernel_trace import Launched, busy, counts, times, traced
from bench.timing import wait


def trainers(options: argparse.Namespace) -> list[Trainer]:
    """Of the systems asked for, each with masks of its own for the same batches."""
    found: list[Trainer] = []
    for name in options.systems:
        given = batches(options.sizes, options.batches, options.document)
        moved = [batch.to(options.device) for batch in given]
        for batch in moved:
            batch.block_mask = SYSTEMS[name].block_mask(batch)
        found.append(Trainer(name, options, moved))
    return found


def train(options: argparse.Namespace) -> list[Trainer]:
    """Compile, then let all take turns; each turn another is first."""
    found = trainers(options)
    for trainer in found:
        start = time.perf_counter()
        for _ in range(options.warmup):
            trainer.step()
        wait(options.device)
        taken = time.perf_counter() - start
        print(f"{trainer.name}: {options.warmup} steps to warm up, {taken:.1f} s")
    for i in range(-(-options.steps // options.turn)):
        first = i % len(found)
        for trainer in found[first:] + found[:first]:
            trainer.turn(options.turn)
    return found


def report(found: Sequence[Trainer]) -> Iterator[str]:
    """Milliseconds a step, ratios to the first system, and how far losses are apart."""
    first = found[0]
    yield (
        f"{'system':15}{'ms/step':>9}{'host ms':>9}{'/' + first.name:>13}"
        f"{'first loss':>12}{'last loss':>11}{'apart':>10}"
    )
    own = torch.stack(first.losses).double().cpu()
    for trainer in found:
        wall, host = (1e3 * statistics.median(t) for t in (trainer.wall, trainer.host))
        ratio = wall / (1e3 * statistics.median(first.wall))
        losses = torch.stack(trainer.losses).double().cpu()
        apart = (losses - own).abs().max().item()
        yield (
            f"{trainer.name:15}{wall:9.2f}{host:9.2f}{ratio:13.3f}"
            f"{losses[0]:12.5f}{losses[-1]:11.5f}{apart:10.1e}"
        )


def losses(found: Sequence[Trainer], every: int) -> Iterator[str]:
    """A line for every so many steps."""
    for i in range(0, found[0].count, every):
        values = "".join(f"{trainer.losses[i].item():12.5f}" for trainer in found)
        yield f"{'step ' + str(i):>15}{values}"


def profile(trainer: Trainer, steps: int) -> Iterator[str]:
    """The device's part of a step, and attention's kernels for each layer."""
    kernels = traced(trainer.step, steps)
    own = [kernel for kernel in kernels if kernel.is_attention]
    layers = trainer.options.sizes.layers
    yield (
        f"\n{trainer.name}: busy {busy(kernels) / steps / 1e3:.2f} ms a step, "
        f"{len(kernels) / steps:.0f} kernels; attention {busy(own) / steps / 1e3:.2f} "
        f"ms, {len(own) / steps:.0f} kernels, {len(own) / steps / layers:.2f} a layer"
    )
    yield from by_name(own, steps, layers)


def by_name(kernels: Sequence[Launched], steps: int, layers: int) -> Iterator[str]:
    taken = times(kernels)
    launches = counts(kernels)
    for name in sorted(taken, key=lambda name: -taken[name]):
        microseconds = taken[name] / launches[name]
        each = launches[name] / steps
        yield (
            f"  {each / layers:6.2f} a layer {each:7.1f} a step "
            f"{microseconds:9.1f} us each  {name[:90]}"
        )


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="bench.train_gpt", description=__doc__)
    found.formatter_class = argparse.RawDescriptionHelpFormatter
    device, sizes = "cuda" if torch.cuda.is_available() else "cpu", Sizes()
    add = found.add_argument
    add("--systems", nargs="+", choices=SYSTEMS, default=list(DEFAULT), metavar="NAME")
    add("--steps", type=int, default=60, help="that are timed, of each")
    add("--turn", type=int, default=4, help="steps of a turn")
    add("--warmup", type=int, default=5, help="steps that are not timed")
    add("--layers", type=int, default=sizes.layers)
    add("--heads", type=int, default=sizes.heads)
    add("--tokens", type=int, default=sizes.tokens)
    add("--batch", type=int, default=sizes.batch)
    add("--vocabulary", type=int, default=sizes.vocabulary)
    add("--document", type=int, default=1024, help="tokens of one, on average")
    add("--batches", type=int, default=8, help="different ones")
    kinds = ["autocast", "bf16", "fp32"]
    about = "weights of fp32 under autocast, of bf16, or all in fp32"
    add("--precision", choices=kinds, default=kinds[0], help=about)
    add("--backend", default="inductor", help="of torch.compile")
    graphs = 'none, those of mode="reduce-overhead", or one of a whole step'
    add("--cuda-graphs", choices=[PLAIN, TREES, WHOLE], default=PLAIN, help=graphs)
    add("--plan", action="store_true", help="make BlockMasks at each step")
    add("--profile", action="store_true", help="count kernels, after the turns")
    add("--every", type=int, default=10, help="steps of a printed loss")
    add("--device", choices=["cuda", "cpu"], default=device)
    return found


def run(options: argparse.Namespace) -> list[Trainer]:
    options.sizes = Sizes(
        layers=options.layers,
        heads=options.heads,
        vocabulary=options.vocabulary,
        batch=options.batch,
        tokens=options.tokens,
    )
    found = train(options)
    print("", *losses(found, options.every), "", *report(found), sep="\n")
    if options.profile:
        for trainer in found:
            print(*profile(trainer, steps=3), sep="\n")
    return found


def main(args: Sequence[str] | None = None) -> int:
    options = parser().parse_args(args)
    if options.device == "cpu" and (options.profile or options.cuda_graphs != PLAIN):
        print("kernels and graphs are those of a GPU: --device cuda", file=sys.stderr)
        return 2
    run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
