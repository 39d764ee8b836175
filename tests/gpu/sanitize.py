"""Two dozen small calls, for compute-sanitizer to look at.

    python -m tests.gpu.sanitize                                  # the calls alone
    python -m tests.gpu.sanitize --tools memcheck racecheck synccheck

The calls cover head dims, masks by bounds and by tables, gathers, grouped heads,
lengths that are no multiple of a tile, schedules, and gradients in one pass and in two
kernels. Their results are checked on the
CPU, so that few kernels but flexc's run. Without a cache of memory, what a kernel reads
outside of a tensor is seen.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from tests.support.kernel_counts import counting
from tests.support.samples import (
    ALLOWED,
    Sample,
    error_of,
)

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PROGRAM = "compute-sanitizer"
FOUND = 86
"""The exit status by which compute-sanitizer says that it found something."""


SAMPLES = (
    Sample("dense", 128, 256, 384),
    Sample("causal", 128, 300, 300),
    Sample("causal", 64, 257, 257, torch.float16),
    Sample("causal", 256, 200, 200),
    Sample("sliding_window", 128, 400, 400, kv_heads=1),
    Sample("alibi", 64, 333, 129),
    Sample("soft_cap", 128, 130, 260),
    Sample("relative_bias", 128, 190, 310),
    Sample("documents", 128, 384, 384, tables=True),
    Sample("documents", 64, 350, 350, kv_heads=1),
    Sample("gates", 192, 100, 300, value_dim=128),
    Sample("pair_bias", 96, 77, 140),
    Sample("causal", 128, 256, 256, schedule="simple"),
    Sample("soft_cap", 64, 256, 384, schedule="overlap"),
    Sample("alibi", 128, 190, 310, schedule="triton"),
    Sample("dense", 128, 256, 384, backward=True),
    Sample("causal", 128, 200, 200, backward=True),
    Sample("causal", 64, 256, 256, torch.float16, backward=True),
    Sample("sliding_window", 64, 384, 384, kv_heads=1, backward=True),
    Sample("soft_cap", 128, 256, 256, backward=True),
    Sample("documents", 128, 384, 384, tables=True, backward=True),
    Sample("relative_bias", 64, 150, 170, backward=True),
    Sample("causal", 128, 256, 256, backward=True, deterministic=True),
    Sample("causal", 64, 300, 330, kv_heads=1, backward=True, deterministic=True),
)


def run_samples(device: str, numbers: Sequence[int]) -> int:
    failed = 0
    for sample in (SAMPLES[number] for number in numbers):
        served: Counter[str] = Counter()
        with counting(served):
            error = error_of(sample, device)
        right = error <= ALLOWED
        failed += not right
        told = f"{error:.1e}{'' if right else ' WRONG'}"
        print(f"{sample}\n  {dict(served)}, {told}", flush=True)
    return 1 if failed else 0


def find_program() -> str | None:
    """compute-sanitizer of the PATH, else that of its package."""
    packages = find_spec("nvidia")
    folders = (packages and packages.submodule_search_locations) or []
    own = [p for folder in folders for p in Path(folder).glob("cu*/bin/" + PROGRAM)]
    return shutil.which(PROGRAM) or (str(own[0]) if own else None)


def run_tool(tool: str, numbers: Sequence[int]) -> int:
    """Again, under a tool of compute-sanitizer; kernels are in the caches by now."""
    program = find_program()
    if program is None:
        told = "it is part of CUDA, and of the package nvidia-cuda-sanitizer-api"
        print(f"compute-sanitizer is not on the PATH: {told}", file=sys.stderr)
        return 2
    command = [program, "--tool", tool, "--error-exitcode", str(FOUND)]
    command += ["--print-limit", "20", sys.executable, "-m", "tests.gpu.sanitize"]
    command += ["--samples", *map(str, numbers)]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    status = subprocess.run(command, env=environment, check=False).returncode
    print(f"{tool}: {'clean' if status == 0 else f'status {status}'}", flush=True)
    return status


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="small calls for compute-sanitizer")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=[])
    every = range(len(SAMPLES))
    parser.add_argument("--samples", nargs="+", type=int, choices=every, default=every)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(args)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("sanitize needs a GPU, or --device cpu", file=sys.stderr)
        return 2
    done = [run_samples(options.device, options.samples)]
    done += [run_tool(tool, options.samples) for tool in options.tools]
    return max(done)


if __name__ == "__main__":
    sys.exit(main())
