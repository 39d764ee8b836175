"""Calls that were made before: a CPU's kernel and its arguments, by a call's facts.

What a call is checked for and compiled for follows from its mods' signature, captured
numbers, and shapes, strides, dtypes and alignment of its tensors. Where all these are
equal nothing but addresses is new. So a call that torch does not watch (no gradient is
recorded, nothing is traced, transformed or cast) and whose blocks need no planning is
remembered as a `Launch`: arguments of the kernel, and which of them are addresses.

Without it a call takes 50 us of Python, more than many a step of decoding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flexc.frontend.closures import ModSignature
from flexc.frontend.plain_values import number_key
from flexc.runtime.autograd import Results, run_attention
from flexc.runtime.call import Attention
from flexc.runtime.cpp_loader import CppFunction
from flexc.runtime.few_rows import fold_in_place
from flexc.runtime.modes import is_watched
from flexc.runtime.tensor_facts import ALIGNMENT
from flexc.runtime.transforms import is_transformed
from flexc.runtime.wrappers import PLAIN, address_of

MAX_LAUNCHES = 1024
"""Calls remembered."""

CPU = torch.device("cpu")

_launches: dict[Hashable, Launch | None] = {}
"""None for calls that have to be looked at anew."""


@dataclass(frozen=True, slots=True)
class Output:
    """A result that is to be allocated."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: Tensor) -> Output:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def empty(self) -> Tensor:
        return torch.empty_strided(
            self.shape, self.strides, dtype=self.dtype, device=CPU
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with all its arguments but addresses."""

    function: CppFunction
    """Its library stays open as long as this does."""
    values: list[Any]
    """Arguments in order; 0 for addresses."""
    grid: tuple[int, ...]
    inputs: tuple[tuple[int, int], ...]
    """Of which argument which of (query, key, value, captures) is the address."""
    outputs: tuple[int, ...]
    """Which arguments are the addresses of results that are wanted."""
    results: tuple[Output | None, Output | None, Output | None]

    def __call__(self, tensors: Sequence[Any]) -> Results:
        values = self.values.copy()
        for place, source in self.inputs:
            values[place] = tensors[source].data_ptr()
        results = [None if r is None else r.empty() for r in self.results]
        wanted = [r.data_ptr() for r in results if r is not None]
        for place, address in zip(self.outputs, wanted, strict=True):
            values[place] = address
        self.function.launch(self.grid, values)
        return results[0], results[1], results[2]  # pyright: ignore[reportReturnType]


def attend(
    operands: tuple[Tensor, Tensor, Tensor],
    signature: ModSignature,
    rest: Hashable,
    prepare: Callable[[], Attention],
) -> Results:
    """The results of a call of (query, key, value).

    `rest` is all else that it depends on. Only a call that is not remembered is
    prepared.
    """
    tensors = (*operands, *signature.captures)
    facts = facts_of(tensors, signature, rest)
    if facts is None:
        return run_attention(prepare())
    launch = _launches.get(facts)
    if launch is not None:
        return launch(tensors)
    call = prepare()
    results = run_attention(call)
    remember(facts, call, results)
    return results


def is_plain(query: Tensor) -> bool:
    """Whether a call may be one that is remembered, going by its query."""
    return type(query) in PLAIN and query.is_cpu


def facts_of(
    tensors: Sequence[Any], signature: ModSignature, rest: Hashable
) -> Hashable | None:
    """What a call depends on; None if there may be more to it.

    `tensors` are query, key, value, and what is captured, numbers too.
    """
    if is_transformed() or is_watched() or forward_ad._current_level >= 0:
        return None
    if torch.is_autocast_enabled("cpu") or not signature.cacheable:
        return None
    facts: list[Any] = [signature.key, rest, os.environ.get("FLEXC_MACHINE")]
    recording = torch.is_grad_enabled()
    for tensor in tensors:
        if type(tensor) not in PLAIN:
            if type(tensor) not in (int, float):
                return None
            facts.append(number_key(tensor))
            continue
        if (recording and tensor.requires_grad) or not is_dense(tensor):
            return None
        address = address_of(tensor)
        if not address and tensor.numel():
            return None
        aligned = address % ALIGNMENT == 0
        facts += (tensor.shape, tensor.stride(), tensor.dtype, aligned)
    return tuple(facts)


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements are what lies in a CPU's memory at the strides."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_neg() or tensor.is_nested or tensor._is_zerotensor())
    )


def remember(facts: Hashable, call: Attention, results: Results) -> None:
    """Keep how a call that was run can be run again."""
    if facts in _launches:
        return
    if len(_launches) >= MAX_LAUNCHES:
        _launches.clear()
    _launches[facts] = launch_of(call, results)


def launch_of(call: Attention, results: Results) -> Launch | None:
    """How a call is launched; None if it takes more than one launch, or none."""
    call = call.with_traced()
    if not call.signature.cacheable or call.trace().reads_state:
        return None
    plain = call.backend == "cpp" and call.tables is None
    if not plain or call.outputs.lse_parts or not call.has_pairs:
        return None
    folded = fold_in_place(call, results)
    if folded is None:
        return None
    call, places = folded
    compiled, captures = call.compiled(), call.signature.captures
    given = compiled.attention.inputs
    if any(i.constant is not None for i in given):
        return None
    arguments = compiled.attention.arguments(captures)
    proofs = compiled.proofs(call.query, call.key, arguments)
    mask = compiled.mask(proofs)
    sizes = (*call.query.shape[:3], call.key.size(2))
    if not mask.has_bounds and call.may_plan and mask.is_planned(sizes):
        return None
    # As `call` passes them on; where each is found among operands and captures.
    wanted = [r for r in places if r is not None]
    args = [call.query, call.key, call.value, call.scale, *arguments, *wanted]
    slots = [None if i.slot is None else 3 + i.slot for i in given]
    sources = [0, 1, 2, None, *slots]
    kernel = compiled.kernel(proofs)
    values, inputs, outputs = kernel.values(args), [], {}
    for place, param in enumerate(kernel.spec.params):
        if param.role == "scalar":
            continue
        values[place] = 0
        if param.source < len(sources):
            inputs.append((place, sources[param.source]))
        else:
            outputs[param.source] = place
    return Launch(
        kernel.launcher,
        values,
        kernel.grid(*sizes[:3]),
        tuple(inputs),
        tuple(outputs[source] for source in sorted(outputs)),
        tuple(None if r is None else Output.like(r) for r in results),  # pyright: ignore
    )
