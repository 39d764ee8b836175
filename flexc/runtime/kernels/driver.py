"""From captured mods to a kernel: the only place where all stages meet.

Each stage is counted in `counters`, so that a test, or a user, can see that a
call compiled nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import StringIO

import torch
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer

from flexc.codegen.cpp.target import emit_cpp
from flexc.codegen.gluon.target import emit_gluon
from flexc.codegen.kernel_spec import KernelSpec
from flexc.codegen.triton.target import emit_triton
from flexc.dialects import flex
from flexc.frontend.capture import capture_mods
from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature
from flexc.frontend.combine_module import build_combine_module
from flexc.frontend.import_graph import (
    AttentionCall,
    AttentionModule,
    build_attention_module,
)
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.flex.flex_fold_heads import FlexFoldHeadsPass
from flexc.passes.flex.flex_widen_indices import FlexWidenIndicesPass
from flexc.passes.masks.segments.segment_builder import has_band
from flexc.passes.masks.segments.subject import SegmentSubject
from flexc.passes.scalar.describe import describe
from flexc.passes.sizes.tile_sizes import TileSizes
from flexc.runtime.inputs.options import NO_OPTIONS, is_interpreting
from flexc.runtime.kernels.build import Build
from flexc.runtime.kernels.captured_reads import CapturedReads
from flexc.runtime.kernels.kernel import Kernel
from flexc.runtime.kernels.mask_reading import MaskReading, read_mask
from flexc.runtime.kernels.proofs import (
    Proofs,
    Prover,
    attention_of,
)
from flexc.runtime.kernels.schedules import (
    SIMPLE,
    TRITON,
    Schedule,
    candidates,
    choose,
    preferred,
)
from flexc.runtime.process.beside import Beside
from flexc.runtime.process.cache import load, store
from flexc.runtime.process.collection import without_collection
from flexc.runtime.process.progress import compiling
from flexc.runtime.process.recent import Recent
from flexc.runtime.process.versions import versions
from flexc.runtime.tapes.modes import unseen

VERIFY = "FLEXC_VERIFY"
"""Where it is set, the IR of a kernel is verified before it is printed."""

counters: Counter[str] = Counter()
"""How often mods were traced, modules lowered and kernels built or loaded."""

_kernels: Recent[Beside[Kernel]] = Recent()


@dataclass(frozen=True)
class Rows:
    """What a program of a GPU's kernel does, as far as that is known before it runs."""

    tile: TileSizes
    """Its tile, if the best schedule can be had."""
    banded: bool
    """Its rows see a band of columns, however many there are, and few besides."""


class Compiled:
    """Traced mods, their `flex` module, and kernels for what is proved of calls."""

    def __init__(self, mods: CapturedMods, build: Build):
        self.mods = mods
        self.attention: AttentionModule = build_attention_module(
            mods.score, mods.mask, build.call
        )
        self.reads = CapturedReads(self.attention.module)
        """What is known of reads at the pairs of a call, heads as they were given."""
        if build.call.few_rows is not None:
            fold = FlexFoldHeadsPass(*build.call.few_rows)
            fold.apply(Context(), self.attention.module)
        self.build = without_moot_rows(self.attention.module, build)
        self.proofs = Prover(self.attention.module, build.backend)
        """What is proved of a call with a query, a key and capture arguments."""
        self._kernels: dict[Proofs, Beside[Kernel]] = {}
        self._masks: dict[Proofs, MaskReading] = {}
        self._rows: dict[Proofs, Rows] = {}

    def kernel(self, proofs: Proofs) -> Kernel:
        """The kernel for calls of which that was proved."""
        return self.start(proofs).get()

    def start(self, proofs: Proofs) -> Beside[Kernel]:
        """The same, as soon as it can be had."""
        if proofs not in self._kernels:
            module = proofs.stated_in(self.attention.module)
            self._kernels[proofs] = start_kernel(module, self.build)
        return self._kernels[proofs]

    def mask(self, proofs: Proofs) -> MaskReading:
        """How the mask of such calls is gone about, for a module without tables."""
        if proofs not in self._masks:
            module = proofs.stated_in(self.attention.module)
            self._masks[proofs] = read_mask(module, convert_for(self.build))
        return self._masks[proofs]

    def rows(self, proofs: Proofs) -> Rows:
        """What a program of a GPU's kernel does for such calls."""
        if proofs not in self._rows:
            module = proofs.stated_in(self.attention.module)
            found = candidates(self.build, lambda: crowd_of(module, self.build))
            convert = convert_for(self.build, found.schedules[0])
            op = simple_attention(module)
            banded = has_band(SegmentSubject.of(op))
            self._rows[proofs] = Rows(convert.tile_sizes(op), banded)
        return self._rows[proofs]

    @cached_property
    def split(self) -> Compiled:
        """The same mods, for rows that are split along their keys."""
        build = replace(self.build, call=split_call(self.build.call))
        return Compiled(self.mods, build)

    @cached_property
    def combine(self) -> Kernel:
        """The kernel that combines the splits of rows."""
        tiles = replace(NO_OPTIONS, schedule=TRITON.name)
        build = replace(self.build, tiles=tiles, program_rows=None)
        return kernel_for(build_combine_module(build.call), build)

    @cached_property
    def exact_module(self) -> ModuleOp:
        """The `flex` module with indices that do not overflow, to be run itself."""
        module = self.attention.module.clone()
        FlexWidenIndicesPass().apply(Context(), module)
        return module


def split_call(call: AttentionCall) -> AttentionCall:
    """The same call, split along its keys: its kernel gives what is combined."""
    return replace(call, split=True, lse=False, max_scores=False, lse_rest=False)


def trace(
    signature: ModSignature, score_dtype: torch.dtype, device: str
) -> CapturedMods:
    """Trace mods, on behalf of a device type."""
    counters["traced"] += 1
    with unseen(), without_collection():
        return capture_mods(signature, score_dtype, device)


def kernel_for(module: ModuleOp, build: Build) -> Kernel:
    """The kernel of a `flex` module; equal modules share one."""
    return start_kernel(module, build).get()


def start_kernel(module: ModuleOp, build: Build) -> Beside[Kernel]:
    """The kernel of a `flex` module, as soon as it can be had.

    A thread of its own runs the compiler, beside what comes next. For a CPU it is
    lowered here: that is Python's alone, and threads would only take turns at it. For a
    GPU it is lowered by that thread, as what compilers make of it decides what is next.
    """
    key = kernel_key(module, build)
    begun = time.monotonic()

    def what() -> str:
        return f"{about(module)} for {build.backend}"

    def find() -> KernelSpec:
        with compiling(what, begun), without_collection():
            counters["built"] += 1
            return find_spec(module, build, key)

    def load(spec: KernelSpec) -> Kernel:
        with compiling(what, begun):
            return Kernel(spec)

    def make() -> Beside[Kernel]:
        if build.backend != "cpp":
            return Beside(lambda: load(find()))
        spec = find()
        return Beside(lambda: load(spec))

    return _kernels.get(key, make)


def about(module: ModuleOp) -> str:
    """What the kernel of a `flex` module computes, in words."""
    names: list[str] = []
    for op in module.walk():
        if isinstance(op, flex.AttentionOp):
            mask, score = describe(op.mask_mod), describe(op.score_mod)
            return f"attention (mask: {mask}, score: {score})"
        if isinstance(op, func.FuncOp):
            names.append(op.sym_name.data)
    return ", ".join(names)


def kernel_key(module: ModuleOp, build: Build) -> str:
    """A digest of the canonical IR, the options and the versions of everything."""
    parts = [canonical_text(module), build.backend, tanh_of(build), versions()]
    parts += [f"{k}={v}" for k, v in sorted(asdict(build.tiles).items())]
    if build.backend == "triton":
        parts += [build.f32_precision, reads_of(build), str(build.shared_memory)]
        parts += [str(build.capability), str(build.derivative), assembler()]
        parts.append(str(build.program_rows))
    if build.backend == "cpp":
        parts.append(build.machine)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def canonical_text(module: ModuleOp) -> str:
    """A module's text with names that do not come from the user."""
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
    """The printed kernel of a module, if it was printed before."""
    key = kernel_key(module, build)
    kernel = _kernels.find(key)
    return kernel.get().spec if kernel is not None else _stored_spec(key)


def find_spec(module: ModuleOp, build: Build, key: str) -> KernelSpec:
    """The printed kernel, from the disk or from the pipeline."""
    spec = _stored_spec(key)
    if spec is not None:
        counters["loaded"] += 1
        return spec
    spec = make_spec(module, build)
    store(_spec_name(key), spec.to_json().encode())
    return spec


def make_spec(module: ModuleOp, build: Build) -> KernelSpec:
    """The printed kernel, on a GPU of the best schedule that it can have."""
    counters["lowered"] += 1
    if build.backend != "triton":
        return lower(module.clone(), build)
    return choose(
        build,
        lambda schedule: lower(module.clone(), build, schedule),
        lambda spec: problems_of(spec, build),
        lambda: crowd_of(module, build),
    )


def crowd_of(module: ModuleOp, build: Build) -> int:
    """How many programs would share a multiprocessor if products do not overlap."""
    return convert_for(build, SIMPLE).tile_sizes(simple_attention(module)).residents


def without_moot_rows(module: ModuleOp, build: Build) -> Build:
    """A build without `program_rows` if programs have the same tile without."""
    if build.program_rows is None:
        return build
    op, without = simple_attention(module), replace(build, program_rows=None)
    tile, other = (convert_for(b).tile_sizes(op) for b in (build, without))
    return without if tile == other else build


def simple_attention(module: ModuleOp) -> flex.AttentionOp:
    """The attention of a module as the pass that chooses tiles will see it."""
    simple = module.clone()
    pipelines.run(pipelines.to_simple_flex(), Context(), simple)
    return attention_of(simple)


def problems_of(spec: KernelSpec, build: Build) -> list[str]:
    """What is wrong with a kernel once it is compiled."""
    counters["checked"] += 1
    if spec.target == "triton":
        from flexc.runtime.kernels.triton_compiler import find_problems
    else:
        from flexc.runtime.kernels.gluon_compiler import find_problems
    return find_problems(spec, build)


def _stored_spec(key: str) -> KernelSpec | None:
    data = load(_spec_name(key))
    return None if data is None else KernelSpec.from_json(data.decode())


def _spec_name(key: str) -> str:
    return f"spec-{key}.json"


def convert_for(
    build: Build, schedule: Schedule | None = None
) -> ConvertFlexToBlocksparsePass:
    """The pass that decides tiles and segments, for a schedule or the best."""
    sizes, memory = build.tiles.sizes, build.shared_memory
    target, overlap = "cpp" if build.backend == "cpp" else "triton", False
    steps = 0
    if build.backend == "triton":
        schedule = schedule or preferred(build)
        target, overlap = schedule.target, schedule.overlap
        steps = schedule.smaller
        sizes["block_m"] = schedule.rows or sizes["block_m"]
    chosen = ConvertFlexToBlocksparsePass(
        target,
        shared_memory=memory,
        overlap=overlap,
        program_rows=build.program_rows,
        smaller=steps,
        machine=build.machine,
    )
    return replace(chosen, **sizes)


def lower(module: ModuleOp, build: Build, schedule: Schedule = TRITON) -> KernelSpec:
    """Run the pipeline of a backend, on a GPU that of a schedule; print its kernel."""
    convert = convert_for(build, schedule)
    passes = (*pipelines.to_blocksparse(convert), *pipelines.to_tile(convert.target))
    match convert.target:
        case "triton":
            emit = emit_triton
            tanh, reads = tanh_of(build), reads_of(build)
            passes += pipelines.to_triton(tanh, build.f32_precision, reads)
        case "gluon":
            emit = emit_gluon
            tanh, reads, memory = tanh_of(build), reads_of(build), build.shared_memory
            passes += pipelines.to_gluon(tanh, reads, schedule.overlap, memory)
        case "cpp":
            emit = emit_cpp
            passes += pipelines.to_cpp(build.machine)
    pipelines.run(passes, Context(), module)
    if os.environ.get(VERIFY):
        module.verify()
    return emit(module)[0]


def tanh_of(build: Build) -> pipelines.Tanh:
    """How tanh is computed: 16-bit inputs are coarser than a fast tanh is."""
    if build.backend != "triton" or is_interpreting():
        return "exact"
    if build.call.dtype not in (torch.bfloat16, torch.float16):
        return "exact"
    return "exp2" if torch.version.hip else "nvidia"


def reads_of(build: Build) -> pipelines.Reads:
    """How gathers are loaded: by NVIDIA's own instructions, where they exist."""
    nvidia = build.backend == "triton" and not torch.version.hip
    return "in_place" if nvidia and not is_interpreting() else "coalesced"


def assembler() -> str:
    """The assembler that Triton is told to use, in the place of its own."""
    return os.environ.get("TRITON_PTXAS_PATH", "")
