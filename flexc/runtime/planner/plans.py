"""Plans: the kernels of a mask, compiled once for its code and found by a key.

`Planning` runs a plan's kernels: it finds the class of each block on the device,
without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.dialects.mod_region import yielded
from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature
from flexc.frontend.import_graph import build_attention_module
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_planning import PlanPart
from flexc.passes.flex.flex_simplify_mods import FlexSimplifyModsPass
from flexc.passes.flex.planning.kernel_builder import TILE_COLUMNS, TILE_ROWS
from flexc.passes.flex.planning.summarize import TILE
from flexc.passes.scalar.variation import Along, Dependences
from flexc.passes.targets.target import Block, LoweringOptions
from flexc.runtime.inputs.listed_blocks import TablesLayout
from flexc.runtime.inputs.tensor_facts import (
    MAX_NARROW_OFFSET,
    check_captures,
    largest_offset,
    max_length,
)
from flexc.runtime.kernels.build import NO_CALL, Build, build_of
from flexc.runtime.kernels.captured_reads import CapturedReads
from flexc.runtime.kernels.driver import compile_kernel, counters, kernel_key
from flexc.runtime.kernels.kernel import Kernel, load_specs, store_specs, threads_for
from flexc.runtime.kernels.proofs import (
    Proofs,
    Prover,
    attention_of,
)
from flexc.runtime.kernels.targets import TARGETS
from flexc.runtime.process.recent import Background, Recent, without_collection

LoweredPart = PlanPart | Literal["order"]
"""A part of a mask's plan, or the module of the kernel that serves all plans."""

PARTS: dict[str, LoweredPart] = {
    "order": "order",
    "list_rows": "rows",
    "summarize": "tables",
    "list_blocks": "tables",
    "classify": "classes",
    "sample": "pairs",
    "refine": "pairs",
}
"""The part of a plan that each kernel is lowered with."""


@dataclass(frozen=True)
class PlanningProblem:
    """The sizes for which a mask is planned."""

    batches: int
    heads: int
    q_len: int
    kv_len: int
    q_block: int
    kv_block: int
    derivative_block: Block | None = None
    """The rows and columns of a block of the tables for derivatives, None if all tables
    have the same blocks.
    """

    @property
    def of_derivatives(self) -> PlanningProblem | None:
        """The problem for the blocks of derivatives, if they are others."""
        if self.derivative_block is None:
            return None
        q_block, kv_block = self.derivative_block
        return replace(self, q_block=q_block, kv_block=kv_block, derivative_block=None)

    @cached_property
    def rows(self) -> int:
        return -(-self.q_len // self.q_block)

    @cached_property
    def columns(self) -> int:
        return -(-self.kv_len // self.kv_block)


class PlanKernels:
    """The kernels of a plan, each compiled at first use, its part lowered then."""

    def __init__(self, module: ModuleOp, build: Build):
        self._module = module
        self.build = build
        self._specs: Recent[list[KernelSpec]] = Recent()
        self._begun: Recent[Background[Kernel]] = Recent()

    def spec(self, name: str) -> KernelSpec | None:
        """Return the kernel of a name, or None if the mask needs no such kernel."""
        part = PARTS[name]
        find = partial(find_specs, self._module, self.build, part)
        found = self._specs.get(part, find)
        return next((spec for spec in found if spec.entry == name), None)

    def __contains__(self, name: str) -> bool:
        return self.spec(name) is not None

    def start(self, *names: str) -> None:
        """Start to compile the kernels of these names, as far as they exist."""
        for name in names:
            spec = self.spec(name)
            if spec is not None:
                self._begun.get(name, partial(begun, spec, self.build))

    def __getitem__(self, name: str) -> Kernel:
        self.start(name)
        found = self._begun.find(name)
        assert found is not None
        return found.get()

    @cached_property
    def summaries(self) -> tuple[torch.dtype, ...]:
        """The dtypes of the outputs of `summarize`."""
        spec = self.spec("summarize")
        params: Sequence[ParamSpec] = () if spec is None else spec.params
        names = {"i32": torch.int32, "i64": torch.int64, "f64": torch.float64}
        return tuple(
            names.get(p.dtype, torch.float32) for p in params if p.role == "output"
        )


def begun(spec: KernelSpec, build: Build) -> Background[Kernel]:
    """Start to compile a printed kernel."""
    counters["built"] += 1
    return Background(partial(compile_kernel, spec, build))


class MaskPlan:
    """A traced mask, with kernels for each outcome of proofs."""

    def __init__(self, mods: CapturedMods, build: Build):
        self.mods = mods
        self.build = build
        self.attention = build_attention_module(None, mods.mask, build.call)
        self._prove = Prover(self.attention.module, build)
        self._reads = CapturedReads(self.attention.module)
        self._kernels: dict[Proofs, PlanKernels] = {}

    @cached_property
    def along(self) -> Along:
        """The arguments that the mask depends on.

        Planning runs once for all values of the other arguments.
        """
        module = self.attention.module.clone()
        FlexSimplifyModsPass().apply(Context(), module)
        mask = attention_of(module).mask_mod
        return Dependences(mask)[yielded(mask.block)[0]]

    def kernels(self, problem: PlanningProblem, captures: Sequence[Any]) -> PlanKernels:
        sizes = (problem.batches, problem.heads, problem.q_len, problem.kv_len)
        self._reads.check(sizes, captures)
        proofs = self._prove(sizes, captures)
        if proofs not in self._kernels:
            module = proofs.stated_in(self.attention.module)
            self._kernels[proofs] = PlanKernels(module, self.build)
        return self._kernels[proofs]


def find_plan(
    signature: ModSignature,
    mods: CapturedMods,
    problem: PlanningProblem,
    device: torch.device,
    backend: str,
) -> MaskPlan:
    """Return the plan for a call, from an earlier call or new.

    `mods` is the trace of the signature.
    """
    check_captures(signature.captures, device)
    build = build_for(signature, problem, device, backend)
    if (MaskPlan, build) not in mods.compiled:
        mods.compiled[MaskPlan, build] = MaskPlan(mods, build)
    return mods.compiled[MaskPlan, build]


def build_for(
    signature: ModSignature,
    problem: PlanningProblem,
    device: torch.device,
    backend: str,
) -> Build:
    """Return the build of a plan's kernels, with the facts that affect the kernels."""
    tensors = [c for c in signature.captures if isinstance(c, Tensor)]
    blocks = problem.batches * problem.heads * problem.rows * problem.columns
    is_narrow = blocks <= MAX_NARROW_OFFSET and all(
        largest_offset(t) <= MAX_NARROW_OFFSET for t in tensors
    )
    call = replace(
        NO_CALL,
        index_width=32 if is_narrow else 64,
        max_length=max_length(problem.q_len, problem.kv_len),
    )
    return build_of(call, device, backend)


def find_specs(module: ModuleOp, build: Build, part: LoweredPart) -> list[KernelSpec]:
    """Return the printed kernels of a part of a plan, from the disk or the pipeline."""
    name = f"plan-{part}-{kernel_key(module, build)}.json"
    stored = load_specs(name)
    if stored is not None:
        counters["loaded"] += 1
        return stored
    counters["lowered"] += 1
    with without_collection():
        specs = lower(module.clone(), build, part)
    store_specs(name, specs)
    return specs


def lower(
    module: ModuleOp, build: Build, part: LoweredPart = "all"
) -> list[KernelSpec]:
    """Run the pipeline of a backend in place, and print a plan's kernels."""
    target = TARGETS[build.target].codegen
    if part == "order":
        passes = pipelines.to_planned_tile()
    else:
        passes = pipelines.to_planning(target.name, part)
    passes += target.passes(LoweringOptions(machine=build.machine))
    pipelines.run(passes, Context(), module)
    module.verify()
    return target.print_kernels(module)


@dataclass(frozen=True, eq=False)
class Planning:
    """A plan applied to one problem.

    `whole` holds the numbers of blocks of rows and of columns that may be full.
    """

    problem: PlanningProblem
    kernels: PlanKernels
    captures: Sequence[Any]
    device: torch.device
    whole: tuple[int, int]
    refine: bool
    """True if the pairs of unknown blocks are evaluated."""

    @classmethod
    def of(
        cls,
        plan: MaskPlan,
        signature: ModSignature,
        problem: PlanningProblem,
        device: torch.device,
        whole: tuple[int, int],
        refine: bool = False,
    ) -> Planning:
        """Collapse batches and heads with equal masks."""
        captures = plan.attention.arguments(signature.captures)
        kernels = plan.kernels(problem, captures)
        problem = collapsed(problem, plan.along)
        return cls(problem, kernels, captures, device, whole, refine)

    def start_classes(self) -> None:
        """Start to compile the kernels of `classify`."""
        self.kernels.start("summarize", "classify", *("sample",) * self.refine)

    def start_tables(self, layout: TablesLayout) -> None:
        """Start to compile the kernels of `list_blocks`."""
        if self.summarizes_itself(layout):
            self.kernels.start("list_rows")
        else:
            self.kernels.start("summarize", "list_blocks")

    def summarizes_itself(self, layout: TablesLayout) -> bool:
        """Return True if each program summarizes all columns."""
        return not layout.both and self.problem.columns <= MOST_SUMMARIZED

    def list_blocks(self, layout: TablesLayout, memory: Tensor) -> None:
        """Fill the tables of live blocks, in memory that starts with them."""
        if self.summarizes_itself(layout):
            self.run("list_rows", layout.programs, [*self.arguments(0), memory])
        else:
            args = [*self.arguments(0), None, None, *self.summaries, memory]
            self.run("list_blocks", layout.programs, args)

    @cached_property
    def summaries(self) -> tuple[Tensor, ...]:
        """The least and greatest captured values of blocks of rows and columns."""
        problem, dtypes = self.problem, self.kernels.summaries
        if not dtypes:
            return ()
        blocks = max(problem.rows, problem.columns)
        shape = (problem.batches, problem.heads, blocks)
        tensors = tuple(
            torch.empty(shape, dtype=dtype, device=self.device) for dtype in dtypes
        )
        args = [*self.arguments(0), None, None, *tensors]
        self.run("summarize", -(-blocks // TILE), args)
        return tensors

    def classify(self, first: int, count: int) -> Tensor:
        """Return the classes of `count` rows of blocks from row `first` on.

        The shape is (batches, heads, count, columns), the dtype int8.
        """
        lead, columns = self.lead, self.problem.columns
        tiles = -(-columns // TILE_COLUMNS)
        classes = torch.empty(
            (*lead, count, columns), dtype=torch.int8, device=self.device
        )
        flags = torch.empty(
            (*lead, tiles, count), dtype=torch.int32, device=self.device
        )
        args = [*self.arguments(first), classes, flags, *self.summaries]
        self.run("classify", -(-count // TILE_ROWS) * tiles, args)
        for name in ("sample", "refine") if self.refine else ():
            # On a GPU, checking the flags would wait for the device, so always
            # evaluate.
            is_open = self.device.type != "cpu" or bool(flags.any())
            if is_open and name in self.kernels:
                self.run(name, count * tiles, args)
        return classes

    @property
    def lead(self) -> tuple[int, int]:
        """The numbers of batches and of heads with masks of their own."""
        return self.problem.batches, self.problem.heads

    def arguments(self, first: int) -> list[Any]:
        """Return the arguments that all kernels take before the classes.

        The numbers are in the order of `NUMBERS`.
        """
        p = self.problem
        sizes = (p.q_len, p.kv_len, p.q_block, p.kv_block)
        return [*self.captures, *sizes, first, *self.whole, *self.lead]

    def run(self, name: str, programs: int, args: Sequence[Any]) -> None:
        b, h = self.problem.batches, self.problem.heads
        threads = None
        if self.kernels.build.for_cpu and name != "refine":
            threads = threads_for(b * h * programs)
        self.kernels[name].run(b, h, programs, args, threads=threads)


MOST_SUMMARIZED = 64
"""The most columns that every program of a launch summarizes, to save a launch."""

MOST_ORDERED = 1 << 16
"""The most blocks for which a CPU makes tables with one entry per column.

With more blocks, tables are as wide as the fullest row.
"""


def layouts_of(problem: PlanningProblem, both: bool) -> list[TablesLayout]:
    """Return the layouts of all tables of a problem, one after the other in memory.

    With `both`, the last one has tables of columns.
    """
    derived = problem.of_derivatives if both else None
    first = TablesLayout(_shape(problem), both and derived is None)
    if derived is None:
        return [first]
    return [first, TablesLayout(_shape(derived), True, first.end)]


def _shape(problem: PlanningProblem) -> tuple[int, int, int, int]:
    return problem.batches, problem.heads, problem.rows, problem.columns


def is_ordered(problem: PlanningProblem, device: torch.device) -> bool:
    """Return True if the tables have one entry per column and lie in one tensor."""
    blocks = problem.batches * problem.heads * problem.rows * problem.columns
    return device.type != "cpu" or blocks <= MOST_ORDERED


def collapsed(problem: PlanningProblem, along: Along) -> PlanningProblem:
    """Return the problem with one batch, or head, if all have the same mask."""
    batches = problem.batches if Along.BATCH in along else 1
    heads = problem.heads if Along.HEAD in along else 1
    return replace(problem, batches=batches, heads=heads)


def whole_blocks(problem: PlanningProblem) -> tuple[int, int]:
    """Return the numbers of blocks of rows and columns that torch may call full.

    A block that extends past the lengths is never full: torch pads the mask with dead
    pairs.
    """
    return problem.q_len // problem.q_block, problem.kv_len // problem.kv_block


def expanded(tables: list[Tensor], problem: PlanningProblem) -> list[Tensor]:
    """Expand tables with one batch or head to all batches and heads of a problem.

    Each expanded table has memory of its own, as in torch, since some users take views
    of tables.
    """
    lead = (problem.batches, problem.heads)
    if tables[0].shape[:2] == lead:
        return tables
    return [t.expand(*lead, *t.shape[2:]).contiguous() for t in tables]
