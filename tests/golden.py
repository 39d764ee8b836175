"""The golden corpus: printed kernels of cases of the corpus, up to names of values.

`tests/golden.json` holds a digest of each kernel's normal form. To see what changed,
print the kernels of two commits and compare the folders:

    python -m tests.golden --print FOLDER
    python -m tests.golden --update
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from flexc.codegen.kernel_spec import KernelSpec
from flexc.frontend.closures import read_mods
from flexc.passes.targets.target import MachineName
from flexc.runtime.kernels import driver
from flexc.runtime.kernels.driver import trace_mods
from flexc.runtime.kernels.schedules import (
    OVERLAP,
    SIMPLE,
    Schedule,
)
from flexc.runtime.planner import plans
from flexc.runtime.planner.block_mask import checked_problem
from tests.codegen import derivative_kernels as derivatives
from tests.codegen.triton_kernels import Variant, call_of, vendor_of
from tests.support.corpus import CORPUS

FILE = Path(__file__).with_name("golden.json")

Specs = Sequence[KernelSpec]
Make = Callable[[str], Specs]

CPU = torch.device("cpu")
SIDE = 256
"""Queries and keys of masks that are planned."""


def triton(dtype: str, target: str, split: bool = False) -> Make:
    """Kernels of a forward call for a GPU without roles."""

    def make(case: str) -> Specs:
        module, build = call_of(Variant(case, target, dtype), split)
        with vendor_of(target):
            return [driver.lower(module, build)]

    return make


def gluon(schedule: Schedule, head_dim: int, program_rows: int | None = None) -> Make:
    """Kernels of a forward call for Hopper."""

    def make(case: str) -> Specs:
        variant = Variant(case, "sm90", "bf16", head_dim, program_rows=program_rows)
        return [driver.lower(*call_of(variant), schedule)]

    return make


def cpp(machine: MachineName, dtype: str = "fp32") -> Make:
    """Kernels of a forward call for a CPU."""

    def make(case: str) -> Specs:
        module, build = call_of(Variant(case, "sm90", dtype))
        build = replace(build, backend="cpp", device="cpu", machine=machine)
        return [driver.lower(module, build)]

    return make


def derivative(kind: str, on_cpu: bool) -> Make:
    """Kernels of gradients ("backward"), of tangents ("jvp") or of both ("second")."""
    lowered = derivatives.cpp_kernels if on_cpu else derivatives.triton_kernels

    def make(case: str) -> Specs:
        return lowered(Variant(case, "sm90", "fp32" if on_cpu else "bf16"), kind)

    return make


def planning(backend: str) -> Make:
    """Kernels that find the blocks of a mask."""

    def make(case: str) -> Specs:
        mask_mod = CORPUS[case].factory(2, 2, 2, SIDE, SIDE)[1]
        signature, mods = trace_mods(read_mods(None, mask_mod), torch.float32, CPU)
        problem = checked_problem((2, 2, SIDE, SIDE), 128)
        build = plans.build_for(signature, problem, CPU, backend)
        plan = plans.MaskPlan(mods, replace(build, machine="avx512"))
        return plans.lower(plan.attention.module, plan.build)

    return make


KINDS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "triton fp32": (triton("fp32", "sm80"), ("dense", "neighbourhood_2d", "gates")),
    "triton bf16": (triton("bf16", "sm80"), ("causal", "alibi_captured", "rotations")),
    "triton amd": (triton("fp16", "gfx942"), ("sliding_window", "soft_cap")),
    "triton split": (triton("bf16", "sm90", True), ("causal", "t5_buckets")),
    "gluon 64": (gluon(OVERLAP, 64), ("dense", "causal", "attention_sinks")),
    "gluon 128": (gluon(OVERLAP, 128), ("prefix_lm", "alibi", "relative_bias")),
    "gluon simple": (gluon(SIMPLE, 64), ("soft_cap", "head_windows", "modalities")),
    "gluon few": (gluon(OVERLAP, 64, 64), ("causal_bottom_right", "temperature")),
    "avx512": (cpp("avx512"), ("causal", "alibi", "t5_buckets", "dilated")),
    "avx512 bf16": (cpp("avx512_bf16", "bf16"), ("dense", "alibi", "documents")),
    "amx": (cpp("amx", "bf16"), ("causal", "soft_cap")),
    "avx2": (cpp("avx2"), ("dense", "chunked", "relative_bias", "callables")),
    "avx2 bf16": (cpp("avx2", "bf16"), ("sliding_window", "pair_bias")),
    "neon": (cpp("neon"), ("sierpinski", "graph_distance")),
    "portable": (cpp("portable"), ("symmetric_window", "integer_bias")),
    "triton backward": (
        derivative("backward", on_cpu=False),
        ("causal", "alibi_captured", "soft_cap", "pair_bias"),
    ),
    "triton jvp": (derivative("jvp", on_cpu=False), ("causal", "relative_bias")),
    "cpp backward": (
        derivative("backward", on_cpu=True),
        ("dense", "gates", "relative_bias", "graph_distance"),
    ),
    "cpp second": (derivative("second", on_cpu=True), ("causal", "temperature")),
    "triton planning": (
        planning("triton"),
        ("causal", "documents_per_batch", "boolean_table"),
    ),
    "cpp planning": (planning("cpp"), ("documents", "modalities", "pages")),
}
"""How kernels are made, and of which cases."""

ROWS = [(kind, case) for kind, (_, cases) in KINDS.items() for case in cases]


def kernels(kind: str, case: str) -> Specs:
    """The printed kernels of a row."""
    return KINDS[kind][0](case)


def digests(specs: Specs) -> list[str]:
    """For each kernel its name and a digest of its normal form and launch."""
    return [f"{spec.entry} {digest(spec)}" for spec in specs]


def digest(spec: KernelSpec) -> str:
    launch = (spec.target, spec.grid, spec.num_warps, spec.num_stages)
    params = [(p.role, p.kind, p.dtype, p.source, p.dim, p.unit) for p in spec.params]
    text = repr((normal_form(spec), launch, params, spec.max_registers))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def normal_form(spec: KernelSpec) -> str:
    """A kernel's text, in which values are numbered in the order of their names."""
    found = cpp_values(spec.source) if spec.target == "cpp" else values(spec.source)
    numbers: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[0]
        return numbers.setdefault(name, f"v{len(numbers)}") if name in found else name

    return re.sub(r"(?<![.\w])[A-Za-z_]\w*", numbered, spec.source)


def values(source: str) -> set[str]:
    """Names that a kernel of Triton or Gluon assigns, and those of its parameters."""
    nodes = list(ast.walk(ast.parse(source)))
    stored = {
        n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return stored | {n.arg for n in nodes if isinstance(n, ast.arg)}


DECLARED = re.compile(
    r"^[ ]+(?:for \()?(?:const )?(?:u?int\d*(?:_t)?|float|double|bool|auto|void"
    r"|(?:Vec|Buffer|Strided)<[^;=]*>)[&*]? (\w+)",
    re.M,
)
"""A value of a C++ kernel, or a parameter, where it is declared."""


def cpp_values(source: str) -> set[str]:
    """Names that a kernel of C++ declares."""
    return set(DECLARED.findall(source))


def name_of(kind: str, case: str) -> str:
    return f"{kind}: {case}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.golden", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--print", type=Path, metavar="FOLDER", dest="folder")
    parser.add_argument("--update", action="store_true", help=f"write {FILE.name}")
    options = parser.parse_args()
    found: dict[str, list[str]] = {}
    for kind, case in ROWS:
        specs = kernels(kind, case)
        found[name_of(kind, case)] = digests(specs)
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
            text = "\n".join(f"{s.grid}\n{normal_form(s)}" for s in specs)
            (options.folder / f"{kind} {case}.txt").write_text(text)
    if options.update:
        FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
