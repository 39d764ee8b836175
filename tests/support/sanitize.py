"""Small calls of a CPU's kernels that check themselves.

    python -m tests.support.sanitize                  # a short sample
    python -m tests.support.sanitize --all            # dtypes, strides, gradients
    python -m tests.support.sanitize --machine avx2   # narrower vectors
    python -m tests.support.sanitize --machine amx    # a matrix unit, in plain C++

Kernels are compiled with AddressSanitizer and UBSan (`FLEXC_SANITIZE`), in a process
that has loaded the first before anything else, so that it knows where each tensor ends.
What they find ends that process. Results are held to dense attention too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import torch

from flexc.runtime.kernels.cpp_compiler import find_compiler
from tests.support.samples import (
    ALLOWED,
    Sample,
    error_of,
)

BOTH = "address,undefined"

SHORT = (
    Sample("causal", 40, 37, 133, torch.float32, kv_heads=1, strided=True),
    Sample("relative_bias", 16, 50, 67, torch.bfloat16, backward=True),
    Sample("documents", 24, 90, 90, torch.float16),
    Sample(
        "causal", 64, 70, 300, torch.bfloat16, kv_heads=1, strided=True, backward=True
    ),
)
"""Odd lengths and strides, captured tensors, planning, gradients."""

LONG = (
    *SHORT,
    Sample("causal", 64, 70, 133, torch.bfloat16, kv_heads=1, backward=True),
    Sample("dense", 64, 37, 300, torch.bfloat16, kv_heads=1, strided=True),
    *(
        Sample(case, 20, 45, 131, dtype, value_dim=9)
        for case in ("dense", "alibi", "soft_cap", "sliding_window")
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    ),
    Sample("dense", 64, 1, 300, torch.bfloat16, kv_heads=1),
    Sample("dense", 1, 3, 2, torch.float32),
    Sample("causal", 128, 129, 129, torch.float32),
    Sample("causal", 136, 70, 133, torch.bfloat16, strided=True, backward=True),
    Sample("causal", 33, 70, 70, torch.bfloat16, strided=True, backward=True),
    Sample("head_windows", 16, 140, 140, torch.float32, kv_heads=1, backward=True),
    Sample("documents", 16, 300, 300, torch.float32, tables=True),
    Sample("documents", 16, 150, 150, torch.float32, tables=True, backward=True),
    Sample("padding", 16, 60, 100, torch.float32, backward=True),
    Sample("pair_bias", 16, 60, 77, torch.float32, backward=True),
    Sample("gates", 16, 61, 78, torch.float32, value_dim=40, backward=True),
    Sample("t5_buckets", 16, 61, 78, torch.float32, backward=True),
    Sample("neighbourhood_2d", 16, 64, 64, torch.bfloat16, strided=True),
    Sample("nothing", 16, 61, 78, torch.float32, backward=True),
    Sample("dilated", 16, 161, 178, torch.float16, backward=True),
)


def run_samples(samples: Sequence[Sample]) -> int:
    """Run calls here; how many are wrong."""
    failed = 0
    for sample in samples:
        start = time.perf_counter()
        error = error_of(sample, "cpu")
        right = error <= ALLOWED
        failed += not right
        taken = time.perf_counter() - start
        verdict = "" if right else " WRONG"
        print(f"{sample}: {error:.1e}{verdict}, {taken:.1f} s", flush=True)
    return failed


def sanitized(arguments: Sequence[str], machine: str | None) -> int:
    """Run this module again where its kernels check themselves; its status."""
    with tempfile.TemporaryDirectory(prefix="flexc-sanitize-") as folder:
        environment = os.environ | {
            "FLEXC_SANITIZE": BOTH,
            "FLEXC_CACHE_DIR": os.environ.get("FLEXC_CACHE_DIR", folder),
            "LD_PRELOAD": sanitizer(),
            # Python keeps what it has; stacks hold a kernel's tiles and their guards.
            "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OMP_STACKSIZE": "64M",
        }
        if machine is not None:
            environment["FLEXC_MACHINE"] = machine
        command = [
            sys.executable,
            "-m",
            "tests.support.sanitize",
            "--here",
            *arguments,
        ]
        return subprocess.run(command, env=environment, check=False).returncode


def sanitizer() -> str:
    """The library that has to be loaded first."""
    compiler = find_compiler()
    name = "libasan.so"
    if "clang" in compiler.version:
        name = f"libclang_rt.asan-{os.uname().machine}.so"
    command = [*compiler.command, f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="calls that check themselves")
    parser.add_argument("--all", action="store_true", help="some forty calls")
    parser.add_argument("--machine", help="FLEXC_MACHINE of the calls")
    parser.add_argument("--here", action="store_true", help="run in this process")
    options = parser.parse_args(args)
    if options.here:
        return min(run_samples(LONG if options.all else SHORT), 1)
    status = sanitized(["--all"] if options.all else [], options.machine)
    print("clean" if status == 0 else f"status {status}", flush=True)
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
