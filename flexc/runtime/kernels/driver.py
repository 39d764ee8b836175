"""Compilation from captured mods to kernels; the only place where all stages meet.

`counters` counts each stage, so a test or a user can check that a call compiles
nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.convert_frame import compile_lock
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from flexc.codegen.gluon.ptxas import SPILL_LIMIT
from flexc.codegen.kernel_spec import KernelSpec
from flexc.dialects import flex
from flexc.dialects.flex.facts import MaskedOp, ScoredOp
from flexc.errors import CompilationError, PassResultError, ScheduleError
from flexc.frontend.capture import capture_mods
from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature
from flexc.frontend.import_graph import (
    AttentionCall,
    AttentionModule,
    build_attention_module,
    build_combine_module,
)
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import (
    ConvertFlexToBlocksparsePass,
    has_band,
)
from flexc.passes.flex.flex_fold_heads import FlexFoldHeadsPass
from flexc.passes.flex.flex_widen_indices import FlexWidenIndicesPass
from flexc.passes.scalar.readable import describe
from flexc.passes.targets.target import TileSizes
from flexc.runtime.inputs.options import NO_OPTIONS
from flexc.runtime.inputs.tensor_facts import check_captures
from flexc.runtime.inputs.wrappers import check_captured, is_transformed, plain
from flexc.runtime.kernels.build import Build
from flexc.runtime.kernels.captured_reads import CapturedReads
from flexc.runtime.kernels.kernel import Kernel, load_specs, store_specs
from flexc.runtime.kernels.proofs import (
    MaskReading,
    Proofs,
    Prover,
    attention_of,
    read_mask,
)
from flexc.runtime.kernels.schedules import (
    SIMPLE,
    TRITON,
    Candidates,
    Schedule,
    candidates,
    choose,
    preferred,
)
from flexc.runtime.kernels.targets import TARGETS
from flexc.runtime.process.cache import versions
from flexc.runtime.process.progress import Compilation, compiling
from flexc.runtime.process.recent import Background, Recent, without_collection

VERIFY = "FLEXC_VERIFY"
"""The environment variable that makes flexc verify a kernel's IR before printing."""

log = logging.getLogger("flexc")

counters: Counter[str] = Counter()
"""The numbers of mods traced, modules lowered, and kernels built, loaded or checked."""

_kernels: Recent[Background[Kernel]] = Recent()

_traced: Recent[CapturedMods] = Recent()


@dataclass(frozen=True)
class ProgramRows:
    """The properties of a GPU program's rows that are known before the kernel runs."""

    tile: TileSizes
    """The tile of the program under the best schedule."""
    banded: bool
    """True if rows see a band of columns of bounded width, and few other columns."""


class Proved:
    """The kernel and the analyses of a `flex` module, for calls with the same proofs.

    It does not refer to `CompiledMods`, whose last reference frees its kernels.
    """

    def __init__(self, module: ModuleOp, build: Build, proofs: Proofs):
        self.module = proofs.stated_in(module)
        """The module, which states the proved facts."""
        self.build = build
        self.proofs = proofs
        self._started: Background[Kernel] | None = None

    @property
    def kernel(self) -> Kernel:
        return self.start().get()

    def start(self) -> Background[Kernel]:
        """Start to make the kernel, unless it exists."""
        if self._started is None:
            self._started = start_kernel(self.module, self.build)
        return self._started

    @cached_property
    def simple(self) -> flex.AttentionOp:
        """The simplified attention op."""
        return simple_attention(self.module)

    @cached_property
    def mask(self) -> MaskReading:
        """The way to find the mask's blocks. The module must have no tables."""
        return read_mask(self.simple, convert_for(self.build))

    @property
    def candidates(self) -> Candidates:
        """The schedules that suit a GPU kernel."""
        return candidates(self.build, lambda: residents_of(self.simple, self.build))

    @cached_property
    def rows(self) -> ProgramRows:
        """The rows of a GPU program."""
        convert = convert_for(self.build, self.candidates.schedules[0])
        return ProgramRows(convert.tile_sizes(self.simple), has_band(self.simple))


class CompiledMods:
    """Traced mods, their `flex` module, and a kernel for each outcome of proofs."""

    def __init__(self, mods: CapturedMods, build: Build):
        self.mods = mods
        self.attention: AttentionModule = build_attention_module(
            mods.score, mods.mask, build.call
        )
        run_asked(build.tiles.passes or (), self.attention.module)
        self.reads = CapturedReads(self.attention.module)
        """The checks of captured reads, made before heads are folded into rows."""
        if build.call.few_rows is not None:
            fold = FlexFoldHeadsPass(*build.call.few_rows)
            fold.apply(Context(), self.attention.module)
        self.build = without_unused_program_rows(self.attention.module, build)
        self.proofs = Prover(self.attention.module, build)
        """Proves facts of a call from its sizes and captured arguments."""
        self._proved: dict[Proofs, Proved] = {}

    def proved(self, sizes: Sequence[int], captures: Sequence[Any]) -> Proved:
        """Prove facts of a call, and return what is compiled for calls like it."""
        return self.under(self.proofs(sizes, captures))

    def under(self, proofs: Proofs) -> Proved:
        """Return what is compiled for calls with these proofs."""
        found = self._proved.get(proofs)
        if found is None:
            found = Proved(self.attention.module, self.build, proofs)
            self._proved[proofs] = found
        return found

    @cached_property
    def split(self) -> CompiledMods:
        """The same mods, compiled for rows that are split along their keys."""
        build = replace(self.build, call=split_call(self.build.call))
        return CompiledMods(self.mods, build)

    @cached_property
    def combine(self) -> Kernel:
        """The kernel that combines the splits of rows."""
        tiles = NO_OPTIONS._replace(schedule=TRITON.name)
        build = replace(self.build, tiles=tiles, program_rows=None)
        return kernel_for(build_combine_module(build.call), build)

    @cached_property
    def exact_module(self) -> ModuleOp:
        """The `flex` module with indices that do not overflow, for the interpreter."""
        module = self.attention.module.clone()
        FlexWidenIndicesPass().apply(Context(), module)
        return module


def run_asked(passes: pipelines.Passes, module: ModuleOp) -> None:
    """Run passes that the user asked for, and verify the result of each."""
    ctx = Context()
    for each in passes:
        each.apply(ctx, module)
        try:
            module.verify()
        except VerifyException as error:
            message = f"{each.name} made what does not verify: {error}"
            raise PassResultError(message) from error
        count = sum(isinstance(op, flex.AttentionOp) for op in module.walk())
        if count != 1:
            raise PassResultError(
                f"{each.name} left {count} flex.attention ops, where one is lowered"
            )


def split_call(call: AttentionCall) -> AttentionCall:
    """Return the call, split along its keys, with results that can be combined."""
    return replace(call, split=True, lse=False, max_scores=False, lse_rest=False)


def trace_mods(
    signature: ModSignature, score_dtype: torch.dtype, device: torch.device
) -> tuple[ModSignature, CapturedMods]:
    """Return the traced mods of a signature, from an earlier call or a new trace.

    The returned signature has additional captures: the tensors that only the trace
    found. The signature is not cacheable if the trace read state that no cache key
    covers.
    """
    if signature.cacheable:
        key = (signature.key, score_dtype, device.type)
        mods = _find_traced(key, signature) or _make_traced(
            key, signature, score_dtype, device
        )
    else:
        mods = trace(signature, score_dtype, device)
    if mods.unread is not None:
        check_captured(mods.found)
        check_captures(mods.found, device)
        captures = (*signature.captures, *mods.found)
        signature = replace(signature, captures=captures, cacheable=False)
    return _without_gradients(signature, mods), mods


def _find_traced(key: Any, signature: ModSignature) -> CapturedMods | None:
    return _traced.find(key, lambda mods: mods.guards.hold(signature.captures))


def _make_traced(
    key: Any, signature: ModSignature, score_dtype: torch.dtype, device: torch.device
) -> CapturedMods:
    """Trace mods, unless another thread has traced them: tracing has one lock."""
    with compile_lock:
        mods = _find_traced(key, signature)
        if mods is None:
            mods = trace(signature, score_dtype, device)
            if mods.unread is None:
                _traced.add(key, mods)
    return mods


def _without_gradients(signature: ModSignature, mods: CapturedMods) -> ModSignature:
    """Detach the captures that no mod reads; these captures have no derivatives."""
    captures = signature.captures
    idle = [
        isinstance(c, Tensor) and c.requires_grad and i not in mods.slots
        for i, c in enumerate(captures)
    ]
    if not any(idle):
        return signature
    pairs = zip(captures, idle, strict=True)
    kept = [c.detach() if i and isinstance(c, Tensor) else c for c, i in pairs]
    return replace(signature, captures=tuple(kept))


def trace(
    signature: ModSignature, score_dtype: torch.dtype, device: torch.device
) -> CapturedMods:
    """Trace mods; within torch.func's transforms, trace with the wrapped tensors."""
    counters["traced"] += 1
    within = nullcontext()
    if is_transformed():
        captures = tuple(
            plain(c) if isinstance(c, Tensor) else c for c in signature.captures
        )
        signature = replace(signature, captures=captures)
        within = temporarily_clear_interpreter_stack()
    # Not seen by a recorder either: a trace computes with tensors without data.
    with within, _disable_current_modes(), without_collection():
        return capture_mods(signature, score_dtype, device.type)


def kernel_for(module: ModuleOp, build: Build) -> Kernel:
    """Return the kernel of a `flex` module; equal modules share one kernel."""
    return start_kernel(module, build).get()


def start_kernel(module: ModuleOp, build: Build) -> Background[Kernel]:
    """Start to make the kernel of a `flex` module; equal modules share one kernel.

    A separate thread runs the compiler while the caller continues. For a CPU, the
    calling thread lowers the module: lowering is pure Python, so a second thread would
    gain nothing. For a GPU, the separate thread also lowers the module, since the
    compiler's result decides which schedule is lowered next.
    """
    key = kernel_key(module, build)
    compilation = Compilation(lambda: about(module, build))

    def find() -> KernelSpec:
        with compiling(compilation), without_collection():
            counters["built"] += 1
            return find_spec(module, build, key)

    def load(spec: KernelSpec) -> Kernel:
        with compiling(compilation):
            kernel = Kernel(spec)
        compilation.log_seconds()
        return kernel

    def make() -> Background[Kernel]:
        if build.for_gpu:
            return Background(lambda: load(find()))
        spec = find()
        return Background(lambda: load(spec))

    return _kernels.get(key, make)


def about(module: ModuleOp, build: Build) -> str:
    """Describe the kernels of a `flex` module: functions, backend, dtype and mods."""
    names: list[str] = []
    mods: dict[str, str] = {}
    for op in module.walk():
        if isinstance(op, func.FuncOp):
            names.append(op.sym_name.data)
        if isinstance(op, MaskedOp):
            mods["mask"] = describe(op.mask_mod)
        if isinstance(op, ScoredOp):
            mods["score"] = describe(op.score_mod)
    said = ", ".join(f"{mod}: {text}" for mod, text in mods.items())
    dtype = str(build.call.dtype).removeprefix("torch.")
    kernels = f"{', '.join(names)} for {build.backend}, {dtype}"
    return f"{kernels} ({said})" if said else kernels


def kernel_key(module: ModuleOp, build: Build) -> str:
    """Return a digest of the canonical IR, the options and all versions."""
    target = TARGETS[build.target]
    facts = (build.backend, build.tiles, target.options(build), *target.key(build))
    parts = (canonical_text(module), versions(), *map(repr, facts))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def canonical_text(module: ModuleOp) -> str:
    """Return the text of a module without the names that come from the user."""
    clone = module.clone()
    for op in clone.walk():
        for region in op.regions:
            for block in region.blocks:
                for arg in block.args:
                    arg.name_hint = None
        for result in op.results:
            result.name_hint = None
    stream = StringIO()
    Printer(stream=stream).print_op(clone)
    return stream.getvalue()


def known_spec(module: ModuleOp, build: Build) -> KernelSpec | None:
    """Return the printed kernel of a module if it was printed before, else None."""
    key = kernel_key(module, build)
    kernel = _kernels.find(key)
    if kernel is not None:
        return kernel.get().spec
    specs = load_specs(entry_name(key))
    return None if specs is None else specs[0]


def find_spec(module: ModuleOp, build: Build, key: str) -> KernelSpec:
    """Return the printed kernel, from the disk or from the pipeline."""
    specs = load_specs(entry_name(key))
    if specs is None:
        specs = make_specs(module, build)
        store_specs(entry_name(key), specs)
    else:
        counters["loaded"] += 1
    if not specs:
        raise ScheduleError("no schedule suits the kernel")
    return specs[0]


def make_specs(module: ModuleOp, build: Build) -> list[KernelSpec]:
    """Return the printed kernel; none if it needs roles and has no good schedule."""
    try:
        return [make_spec(module, build)]
    except ScheduleError as error:
        if build.roles != "must":
            raise
        log.info("one visit to each pair: %s", error)
        return []


def entry_name(key: str) -> str:
    return f"kernel-{key}.json"


def make_spec(module: ModuleOp, build: Build) -> KernelSpec:
    """Lower and print a kernel; on a GPU, with the best schedule that works."""
    counters["lowered"] += 1
    if not build.for_gpu:
        return lower(module.clone(), build)
    return choose(
        build,
        lambda schedule: lower(module.clone(), build, schedule),
        lambda spec, most_spilled: problems_of(spec, build, most_spilled),
        lambda: residents_of(simple_attention(module), build),
    )


def residents_of(op: flex.AttentionOp, build: Build) -> int:
    """Return how many programs share a multiprocessor if products do not overlap."""
    return convert_for(build, SIMPLE).tile_sizes(op).residents


def without_unused_program_rows(module: ModuleOp, build: Build) -> Build:
    """Return the build without `program_rows` if the field does not change the tile.

    The resulting build shares its kernel with more calls.
    """
    if build.program_rows is None:
        return build
    op, without = simple_attention(module), replace(build, program_rows=None)
    tile, other = (convert_for(b).tile_sizes(op) for b in (build, without))
    return without if tile == other else build


def simple_attention(module: ModuleOp) -> flex.AttentionOp:
    """Return the simplified attention op, with its key ranges stated."""
    simple = module.clone()
    pipelines.run(pipelines.to_key_ranges(), Context(), simple)
    return attention_of(simple)


def problems_of(
    spec: KernelSpec, build: Build, most_spilled: int = SPILL_LIMIT
) -> list[str]:
    """Compile a printed GPU kernel and return its problems.

    To spill more than `most_spilled` bytes is one.
    """
    counters["checked"] += 1
    return TARGETS[spec.target].find_problems(spec, build, most_spilled)


def compile_kernel(spec: KernelSpec, build: Build) -> Kernel:
    """Compile and load a printed kernel.

    A GPU's kernel would otherwise be compiled at its first launch.
    """
    found = problems_of(spec, build) if build.for_gpu else ()
    if found:
        raise CompilationError(f"a program of {spec.entry} {'; '.join(found)}")
    return Kernel(spec)


def convert_for(
    build: Build, schedule: Schedule | None = None
) -> ConvertFlexToBlocksparsePass:
    """Return the pass that chooses tiles and segments.

    On a GPU, the pass is for `schedule`, by default the preferred schedule of the
    build.
    """
    sizes, memory = build.tiles.sizes, build.shared_memory
    target, overlap = build.target, False
    steps = 0
    if build.for_gpu:
        schedule = schedule or preferred(build)
        target, overlap = schedule.target, schedule.overlap
        steps = schedule.smaller
        sizes["block_m"] = schedule.rows or sizes["block_m"]
    chosen = ConvertFlexToBlocksparsePass(
        target,
        shared_memory=memory,
        overlap=overlap,
        program_rows=build.program_rows,
        f32_precision=build.f32_precision,
        smaller=steps,
        machine=build.machine,
    )
    return replace(chosen, **sizes)


def lower(module: ModuleOp, build: Build, schedule: Schedule = TRITON) -> KernelSpec:
    """Run the passes of a target on a module, in place, and print the kernel.

    `schedule` matters on a GPU only.
    """
    convert = convert_for(build, schedule)
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile(convert.target))
    target = TARGETS[convert.target]
    options = replace(
        target.options(build),
        overlap=schedule.overlap,
        recomputes=schedule.recomputes,
    )
    passes += target.codegen.passes(options)
    pipelines.run(passes, Context(), module)
    if os.environ.get(VERIFY):
        module.verify()
    return target.codegen.print_kernels(module)[0]
