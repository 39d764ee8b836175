"""Compiling printed Gluon kernels, for a GPU that need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from flexc.codegen.gluon.compiled_check import problems
from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.runtime import triton_compiler
from flexc.runtime.assembler_log import assembler_log
from flexc.runtime.recent import Recent
from flexc.runtime.triton_compiler import (
    TRITON_TYPES,
    WARP,
    Entry,
    OneAtATime,
    bare_source,
    build_launcher,
    excess,
    load_jit_function,
    refusal,
)

if TYPE_CHECKING:
    from flexc.runtime.build import Build

ELEMENTS = {"bf16": gl.bfloat16, "f16": gl.float16}
"""Of tensors that are copied a tile at a time."""

_checked: Recent[Any] = Recent()
"""Kernels that were compiled to be checked, until they are loaded."""


class GluonSource(OneAtATime, GluonASTSource):
    """The source of a Gluon kernel."""


def find_problems(spec: KernelSpec, build: Build) -> list[str]:
    """What is wrong with the compiled kernel of a spec."""
    assert build.capability is not None
    with assembler_log() as said:
        kernel = compile_kernel(spec, build.capability)
    found = problems("\n".join(said)) + excess(kernel, build)
    if not found:
        build_launcher(*expanded_facts(kernel, spec))
        _checked.add((spec.digest, build.capability), kernel)
    return found


def take_kernel(spec: KernelSpec, capability: int, entry: Entry | None = None) -> Any:
    """The compiled kernel of a spec, nobody else's: it is loaded to one device."""
    kernel = _checked.take((spec.digest, capability))
    if kernel is None and entry is not None:
        kernel = entry.load(bare_source(spec, signature_type))
    return compile_kernel(spec, capability) if kernel is None else kernel


def compile_kernel(spec: KernelSpec, capability: int) -> Any:
    """Triton's kernel, compiled or found in Triton's cache."""
    function = load_jit_function(spec)
    names = [p.name for p in spec.params]
    assert names == function.arg_names
    signature = dict(zip(names, map(signature_type, spec.params), strict=True))
    target = GPUTarget("cuda", capability, WARP)
    source = GluonSource(function, signature)
    try:
        return triton.compile(source, target=target, options=options(spec))
    except Exception as error:
        raise refusal(error) from error


def options(spec: KernelSpec) -> Mapping[str, Any]:
    found = {"num_warps": spec.num_warps, "enable_fp_fusion": True}
    if spec.max_registers is not None:
        found["maxnreg"] = spec.max_registers
    return found


def signature_type(param: ParamSpec) -> str:
    """A parameter's type, as Triton spells it."""
    if param.kind != "descriptor":
        return triton_compiler.signature_type(param)
    name = TRITON_TYPES.get(param.dtype, param.dtype)
    box, layouts = list(param.box), cast(Any, gl.NVMMASharedLayout)
    layout = layouts.get_default_for(box, ELEMENTS[param.dtype])
    return f"tensordesc<{name}{box},{layout!r}>"


def expanded(kernel: Any, spec: KernelSpec) -> Any:
    """A kernel that takes maps, sizes and strides where it took descriptors.

    So maps that were made before can be passed again: Triton's own launcher makes
    them at every launch. The launcher is made when the kernel is first loaded.
    """
    kernel.src, kernel.metadata = expanded_facts(kernel, spec)
    return kernel


def expanded_facts(kernel: Any, spec: KernelSpec) -> tuple[Any, Any]:
    """The signature and metadata of an expanded kernel, as its launcher takes them."""
    types: list[str] = []
    for param, type_ in zip(spec.params, kernel.src.signature.values(), strict=True):
        rank = len(param.box)
        of_map = ["nvTmaDesc", *["i32"] * rank, *["i64"] * rank]
        types += of_map if param.kind == "descriptor" else [type_]
    signature = {str(i): t for i, t in enumerate(types)}
    source = SimpleNamespace(fn=kernel.src.fn, constants={}, signature=signature)
    return source, kernel.metadata._replace(tensordesc_meta=[])
