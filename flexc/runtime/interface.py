"""`flex_attention`: torch's signature, compiled when it is called.

The first call that traces, lowers or compiles imports the modules for it. A call with a
tape on the disk does not need them, and their import would take most of its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._compile import _disable_dynamo
from torch.compiler import is_dynamo_compiling
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask
from torch.overrides import handle_torch_function, has_torch_function_variadic

from flexc.errors import DtypeError, OptionError
from flexc.frontend.closures import freeze, read_key
from flexc.frontend.code_facts import number_key
from flexc.runtime.autograd.functions import is_differentiated, run_attention
from flexc.runtime.call_plans import Operands, attend, is_plain
from flexc.runtime.inputs.arguments import (
    NARROW,
    Outputs,
    cast_and_check,
    mask_of,
    read_pages,
    read_scale,
    read_scales,
    split_block_mask,
)
from flexc.runtime.inputs.options import (
    Choices,
    read_choices,
    read_flag,
    resolve_backend,
)
from flexc.runtime.inputs.wrappers import is_transformed
from flexc.runtime.interception import (
    Regions,
    check_not_captured,
    compiled_for_flexc,
    current_scope,
    is_seen,
    redirect_to,
)
from flexc.runtime.process.cache import has_entry_point
from flexc.runtime.process.recent import without_collection

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention

if not has_entry_point():
    from flexc.runtime.torch_compile.dynamo import register

    register()

OUTPUTS = {(a, b): Outputs(a, b) for a in (False, True) for b in (False, True)}

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Result = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    mask_mod: MaskMod | None = None,
    backend: str = "auto",
    page_table: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> Result:
    """Compute attention, with scores and masks given by Python functions.

    The arguments and results are those of
    `torch.nn.attention.flex_attention.flex_attention`, with the additional `mask_mod`.
    A kernel is compiled when mods are first seen. Later calls with mods of equal code
    run it, or one of a few that lengths and captured numbers choose.

    Out and lse have derivatives by query, key, value and every float tensor that
    `score_mod` captures: in reverse and forward mode, to the second order, under
    `torch.func` and in code that `torch.compile` compiles.

    Args:
        query: (B, Hq, Sq, E), float32, bfloat16 or float16, on a CPU also float64.
        key: (B or 1, Hkv, Skv, E), on the query's device. Key and value are cast to
            the query's dtype, unless they are int8, float8_e4m3fn or float8_e5m2.
            Narrow keys and values have no gradients.
        value: (B or 1, Hkv, Skv, Ev). Head dims E and Ev are 1 to 1024.
        score_mod: `score_mod(score, b, h, q_idx, kv_idx)` returns a new score for a
            pair, given its scaled score. All arguments are 0-d tensors: the
            score is float32 (float64 for float64 inputs), the others are int32.
        block_mask: a BlockMask made for these lengths. Only its blocks are visited.
        scale: the factor on scores, 1 / sqrt(E) by default.
        enable_gqa: let Hq be a multiple of Hkv: head h reads h // (Hq / Hkv).
        return_lse: also return the log-sum-exp of each row's scores, (B, Hq, Sq)
            in natural units. It is -inf for a row without live keys, whose output is 0.
            torch deprecates this argument: use `return_aux`.
        kernel_options: torch's BLOCK_M, BLOCK_N, num_warps and num_stages choose
            the tile, and FLOAT32_PRECISION a GPU's products of fp32 ("tf32x3" by
            default). torch's others are ignored; `explain` lists them. `{"schedule":
            "overlap"}`, "simple" or "triton" chooses how a GPU's warps share the work
            (see the README), or raises ScheduleError.
            `{"split_keys": True}` lets a GPU split a row's keys if programs are few,
            as by default for few queries. `{"deterministic": True}` asks for equal bits
            of gradients, as `torch.use_deterministic_algorithms(True)` does.
        return_aux: `AuxRequest(lse=..., max_scores=...)`: also return an AuxOutput.
        mask_mod: `mask_mod(b, h, q_idx, kv_idx)` returns True for a live pair.
        backend: "auto" (by device), "triton", "cpp", or "eager": the dense
            definition, for debugging, in memory of order Sq * Skv.
        page_table: the pages of each sequence, (B, pages), int32, where `key` is (P,
            Hkv, page size, E) and `value` likewise: key n of sequence b is row
            n % page size of page page_table[b, n // page size]. Mods and masks know of
            positions only; a mask says how many keys there are. No gradients.
        key_scale: the factor of keys, float32, broadcastable to (B, Hkv), or (B, Hkv,
            n) where n divides Skv: a number for each head, key, or block of keys.
        value_scale: the factor of values, likewise.

    Returns:
        The output, (B, Hq, Sq, Ev) of the query's dtype; with `return_lse` a pair
        (output, lse), with `return_aux` a pair (output, AuxOutput).

    Raises:
        FlexcError: a class of `flexc.errors`, with a message that says what to do.
    """
    is_stored = (
        page_table is not None or key_scale is not None or value_scale is not None
    )
    dtypes = getattr(key, "dtype", None), getattr(value, "dtype", None)
    is_special = is_stored or dtypes[0] in NARROW or dtypes[1] in NARROW
    rest = score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options
    given = (KeyStorage(page_table, key_scale, value_scale),) if is_special else ()
    run = _runner(query, key, value, is_special)
    return run(query, key, value, *rest, return_aux, mask_mod, backend, *given)


def _runner(query: Tensor, key: Tensor, value: Tensor, is_special: bool) -> Any:
    """Return the function that runs a call here, captured or not."""
    if is_dynamo_compiling():
        from flexc.runtime.torch_compile.operators.higher_order import in_graphs

        return in_graphs if in_graphs and not is_special else _hidden
    if has_torch_function_variadic(query, key, value):
        return _overridden
    return _run if get_eval_frame_callback() is None else _hidden


class KeyStorage(NamedTuple):
    """The page table of keys and values, and the scales of narrow ones."""

    page_table: Tensor | None = None
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    def is_given(self) -> bool:
        """Return True if keys lie in pages or have scales."""
        return any(t is not None for t in self)

    def check(self, call: Attention) -> None:
        """Check that the keys of a call may be stored so."""
        if not self.is_given() and not call.is_narrow:
            return
        own = [] if call.pages is None else [t.dtype for t in call.pages[:2]]
        if any(t not in (call.query.dtype, *NARROW) for t in own):
            raise DtypeError(
                "key and value in pages expect the dtype of the query, "
                f"{call.query.dtype} after autocast, got {own[0]} and {own[1]}"
            )
        gradients = any(t.requires_grad for t in call.scales.given)
        if is_differentiated(call) or (gradients and torch.is_grad_enabled()):
            raise OptionError(
                f"{SPECIAL_KEYS} expect no gradients: call within torch.no_grad()"
            )


CONTIGUOUS = KeyStorage()


def _overridden(*args: Any) -> Any:
    """Let torch's function modes, or a class's `__torch_function__`, run a call."""
    named = dict(zip(("return_aux", "mask_mod", "backend"), args[9:12], strict=True))
    for storage in args[12:]:
        named.update(storage._asdict())
    return handle_torch_function(flex_attention, args[:3], *args[:9], **named)


class Preparation(NamedTuple):
    """A function that prepares a call, given query, key and value."""

    mods: tuple[ScoreMod | None, BlockMask | None, MaskMod | None]
    rest: tuple[bool, float | None, Outputs, Choices]
    storage: KeyStorage = CONTIGUOUS
    sees_data: bool = True
    """False if the tensors may have no memory of their own."""

    def __call__(self, operands: Operands) -> Attention:
        """Return the call of these tensors, checked and ready to run."""
        with without_collection():
            from flexc.runtime.attention.call import Attention, read_signature

        score_mod, block_mask, mask_mod = self.mods
        enable_gqa, scale, outputs, choices = self.rest
        (page_table, key_scale, value_scale), pages = self.storage, None
        if page_table is not None:
            pages = read_pages(*operands, page_table)
            operands = operands[0], *pages.in_sequence()
        query, key, value = cast_and_check(*operands, enable_gqa)
        resolved = resolve_backend(choices.backend, query.device)
        mask, tables = split_block_mask(block_mask, mask_mod, query, key)
        call = Attention(
            query,
            key,
            value,
            1.0 / math.sqrt(query.size(3)) if scale is None else scale,
            tables,
            read_signature(score_mod, mask, query.device),
            outputs,
            resolved,
            choices,
            pages=pages,
            scales=read_scales(key_scale, value_scale, query, key),
        )
        self.storage.check(call)
        if self.sees_data:
            call.check_memory()
        return call

    def frozen(self) -> Preparation | None:
        """Return a copy that may outlive the call, None if mods cannot be copied."""
        score_mod, block_mask, mask_mod = self.mods
        mask = mask_mod if block_mask is None else mask_of(block_mask)
        found = freeze(score_mod, mask)
        if found is None:
            return None
        return self._replace(mods=(found[0], None, found[1]))


SPECIAL_KEYS = "a page_table, keys and values of 8 bits, and their scales"


def check_not_recorded(recorded_by: Any) -> None:
    """Refuse a call with pages or narrow keys that others capture, change or see."""
    check_not_captured(SPECIAL_KEYS)
    if recorded_by is not None or is_transformed():
        raise OptionError(
            f"{SPECIAL_KEYS} expect plain tensors, and no torch.func, dispatch mode or "
            "context_parallel around the call: call flexc.flex_attention itself"
        )


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None,
    block_mask: BlockMask | None,
    scale: float | None,
    enable_gqa: bool,
    return_lse: bool,
    kernel_options: Mapping[str, Any] | None,
    return_aux: AuxRequest | None,
    mask_mod: MaskMod | None,
    backend: str,
    storage: KeyStorage | None = None,
) -> Result:
    """Run a call outside of Dynamo."""
    if return_lse and return_aux is not None:
        raise OptionError(
            "give return_lse or return_aux, not both: return_aux=AuxRequest(lse=True)"
        )
    if return_aux is not None and not isinstance(return_aux, AuxRequest):
        raise OptionError(f"return_aux expects an AuxRequest, got {return_aux!r}")
    if scale is not None and type(scale) is not float:  # Any float is a factor.
        scale = read_scale(scale)
    scope = current_scope()
    choices = read_choices(backend, kernel_options)
    if scope is not None:
        choices = scope.choices.merge(choices)
    elif Regions.have_options and (asked := compiled_for_flexc()) is not None:
        choices = asked.merge(choices)
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    wants_max = return_aux is not None and return_aux.max_scores
    outputs = OUTPUTS[bool(wants_lse), bool(wants_max)]
    given = query, key, value
    run = None if scope is None else scope.run
    if run is None and is_seen(query, key, value):
        from flexc.runtime.torch_compile.operators.higher_order import run_seen as run
    if storage is not None:
        check_not_recorded(None if scope is not None and scope.watches else run)
    rest = enable_gqa, scale, outputs, choices
    mods = score_mod, block_mask, mask_mod
    prepare = Preparation(mods, rest, storage or CONTIGUOUS)
    if CHECKS_READS.get() and run is None and not is_transformed():
        from flexc.runtime.attention.run import check_all_pairs

        check_all_pairs(prepare(given))
    if run is None and is_plain(query, block_mask, mask_mod):
        mask = mask_mod if block_mask is None else mask_of(block_mask)
        mods_key, captures = read_key(score_mod, mask)
        facts = (choices, outputs, number_key(scale), enable_gqa)
        if storage is not None:
            facts = (*facts, "storage", *(t is not None for t in storage))
            captures = (*captures, *(t for t in storage if t is not None))
        found = attend(given, mods_key, captures, facts, prepare, block_mask)
    elif run is None:
        found = run_attention(prepare(given))
    else:
        found = run(prepare._replace(sees_data=False)(given))
    out, lse, max_scores = found
    if return_aux is not None:
        return out, AuxOutput(lse=lse, max_scores=max_scores)
    if return_lse:
        assert lse is not None
        return out, lse
    return out


CHECKS_READS: ContextVar[bool] = ContextVar("checks_reads", default=False)


class debug:
    """Check calls of this thread more thoroughly, from now on or in a `with`.

    `check_reads=True` evaluates the mods of each call outside of compiled functions,
    graphs and transforms of torch.func for all pairs before its kernel runs. It raises
    CapturedIndexError for a read out of range, also where the index is loaded, and
    NotANumberError for a score that is made NaN or infinite. Both name the mod's line.
    This is slow.
    """

    def __init__(self, *, check_reads: bool):
        self._before = CHECKS_READS.get()
        self._checks = read_flag("check_reads", check_reads)
        CHECKS_READS.set(self._checks)

    def __enter__(self) -> None:
        CHECKS_READS.set(self._checks)

    def __exit__(self, *exception: object) -> None:
        CHECKS_READS.set(self._before)


_hidden = _disable_dynamo(_run)
"""`_run`, hidden from Dynamo.

torch's private function imports Dynamo at the first call only. Dynamo reads the
attributes, which are those of `torch.compiler.disable(reason=...)`, where it breaks a
graph.
"""

vars(_hidden).update(
    _torchdynamo_disable=True,
    _torchdynamo_disable_msg="flexc.flex_attention launches its own kernels. A graph "
    f"captures a call without {SPECIAL_KEYS}, if this torch can; otherwise compile "
    "without fullgraph=True",
)

redirect_to(flex_attention)
