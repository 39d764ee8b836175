"""`create_block_mask`: torch's function, without evaluating all pairs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask

from flexc.errors import DeviceError, OptionError, ShapeError
from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature, read_mods
from flexc.frontend.signatures import check_callable
from flexc.runtime.inputs.notes import sign
from flexc.runtime.inputs.options import resolve_backend
from flexc.runtime.inputs.tensor_facts import check_captures
from flexc.runtime.inputs.wrappers import check_captured, check_runs, tracing
from flexc.runtime.kernels.driver import trace_mods
from flexc.runtime.planner.plans import (
    Planning,
    PlanningProblem,
    expanded,
    find_plan,
    whole_blocks,
)
from flexc.runtime.planner.tables import ordered, start_order
from flexc.runtime.replay.repeats import repeat

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

MAX_LENGTH = 2**31 - 2**20
"""The greatest length.

Positions are i32 and need room for rounding up to a block.
"""


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
    *,
    refine: bool = True,
) -> BlockMask:
    """Create torch's BlockMask of a mask, without evaluating all pairs.

    Blocks are classified by interval arithmetic on the mask's code and on the least and
    greatest captured values of each block of rows and columns. Time and memory grow
    with the number of blocks, not of pairs. Nothing waits for a GPU.

    Args:
        mask_mod: `mask_mod(b, h, q_idx, kv_idx)`; returns true for pairs to keep.
        B: the number of batches, or None if the mask is the same for all batches.
        H: the number of query heads, or None if the mask is the same for all heads.
        Q_LEN: the number of queries.
        KV_LEN: the number of keys.
        device: the device of captured tensors and of the tables; by default the
            accelerator, or the CPU if there is none.
        BLOCK_SIZE: the rows and columns of a block, or one number for both.
        _compile: ignored; kernels are always compiled, once for a mask's code.
        separate_full_blocks: list blocks of live pairs only apart, where kernels need
            not compute the mask. Otherwise all blocks count as partial.
        compute_dq_write_order: ignored, as is `dq_kv_order`: an order of torch's FLASH
            kernels. Ask for equal bits with the kernel option "deterministic".
        refine: evaluate all pairs of the blocks that remain unknown. The result is
            then equal to torch's. Otherwise unknown blocks count as partial, which
            is always correct, but slower in attention.

    Returns:
        `torch.nn.attention.flex_attention.BlockMask`, for torch's flex_attention
        and for flexc's.

    Raises:
        FlexcError: one of the classes of `flexc.errors`.

    Code that `torch.compile` or another tracer of torch captures calls torch's own
    function instead. A function of `flexc.compile` that makes a BlockMask is run.
    """
    in_dynamo = torch.compiler.is_dynamo_compiling()
    if not in_dynamo:
        check_runs("flexc.create_block_mask")
    # Kernels would write to tensors without data.
    if in_dynamo or tracing() is not None:
        device = str(default_device(device))
        made = torch_flex.create_block_mask(
            mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE
        )
    else:
        made = _create(mask_mod, (B, H, Q_LEN, KV_LEN), device, BLOCK_SIZE, refine)
    return made if separate_full_blocks else as_partial(made)


def as_partial(mask: BlockMask) -> BlockMask:
    """Return a BlockMask that lists full blocks among the partial ones."""
    counts, indices = mask.kv_num_blocks, mask.kv_indices
    full_counts, full_indices = mask.full_kv_num_blocks, mask.full_kv_indices
    assert full_counts is not None
    assert full_indices is not None
    columns = indices.size(-1)
    place = torch.arange(columns, device=counts.device)
    listed = [
        torch.where(place < n[..., None], at, columns)
        for n, at in ((counts, indices), (full_counts, full_indices))
    ]
    # Unused places are last after sorting. They hold a valid block.
    both = torch.cat(listed, -1).sort(-1).values[..., :columns]
    return BlockMask.from_kv_blocks(
        (counts + full_counts).to(torch.int32),
        torch.where(both < columns, both, 0).to(torch.int32),
        BLOCK_SIZE=mask.BLOCK_SIZE,
        mask_mod=mask.mask_mod,
        seq_lengths=mask.seq_lengths,
    )


@torch.compiler.disable(reason="flexc.create_block_mask launches its own kernels")
def _create(
    mask_mod: MaskMod,
    sizes: tuple[int | None, int | None, int, int],
    device: torch.device | str | None,
    block_size: int | tuple[int, int],
    refine: bool,
) -> BlockMask:
    """Create a BlockMask outside of Dynamo."""
    b, h, q_len, kv_len = sizes
    whole = (1 if b is None else b, 1 if h is None else h, q_len, kv_len)
    problem = checked_problem(whole, block_size)
    place = default_device(device)
    check_gpu(place)
    return plan_block_mask(mask_mod, problem, place, refine=refine)


def plan_block_mask(
    mask_mod: MaskMod,
    problem: PlanningProblem,
    device: torch.device,
    backend: str = "auto",
    refine: bool = True,
) -> BlockMask:
    """Return the BlockMask for checked arguments."""
    sizes = (problem.batches, problem.heads, problem.q_len, problem.kv_len)
    check_callable("mask_mod", mask_mod, sizes)
    signature = read_mods(None, mask_mod)
    check_captured(signature.captures)
    check_captures(signature.captures, device)
    signature, mods = trace_mods(signature, torch.float32, device)
    backend = resolve_backend(backend, device)
    key = (mods, problem, device, backend, refine)
    tables = repeat(
        key if signature.cacheable else None,
        signature.captures,
        device,
        lambda: planned_tables(signature, mods, problem, device, backend, refine),
    )
    blocks = (problem.q_block, problem.kv_block)
    made = BlockMask(sizes[2:], *tables, BLOCK_SIZE=blocks, mask_mod=mask_mod)
    # A mask that is not cacheable may change before the call: add no notes.
    return sign(made, signature.captures) if signature.cacheable else made


def planned_tables(
    signature: ModSignature,
    mods: CapturedMods,
    problem: PlanningProblem,
    device: torch.device,
    backend: str,
    refine: bool,
) -> tuple[Tensor, ...]:
    """Return the eight tables of a mask; run one kernel after another."""
    plan = find_plan(signature, mods, problem, device, backend)
    whole = whole_blocks(problem)
    planning = Planning.of(plan, signature, problem, device, whole, refine)
    planning.start_classes()
    start_order(device, backend)
    classes = planning.classify(0, problem.rows)
    return tuple(expanded(ordered(classes, backend, both=True), problem))


def checked_problem(
    sizes: tuple[int, int, int, int], block_size: int | tuple[int, int]
) -> PlanningProblem:
    names = ("B", "H", "Q_LEN", "KV_LEN")
    for name, size in zip(names, sizes, strict=True):
        if type(size) is not int or not 1 <= size <= MAX_LENGTH:
            raise ShapeError(
                f"{name} expects an integer of 1 to {MAX_LENGTH}, got {size!r}"
            )
    pair = (block_size, block_size) if isinstance(block_size, int) else block_size
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not is_pair or not all(type(n) is int and 1 <= n <= 1 << 20 for n in pair):
        raise OptionError(
            "BLOCK_SIZE expects an integer of 1 to 1048576, or a pair of them for rows "
            f"and columns, got {block_size!r}"
        )
    return PlanningProblem(*sizes, *pair)


def check_gpu(device: torch.device) -> None:
    """Raise DeviceError if `device` is a GPU but torch sees none."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f'device expects "cpu" where torch sees no GPU, got {device}')


def read_device(device: torch.device | str) -> torch.device:
    """Return the device of a name. Raise DeviceError if there is no such device."""
    if not isinstance(device, torch.device | str):
        raise DeviceError(f"device expects a torch.device or a name, got {device!r}")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise DeviceError(
            f'device expects a name such as "cpu" or "cuda:0", got {device!r}'
        ) from error


def default_device(device: torch.device | str | None) -> torch.device:
    """Return `device`, by default the accelerator or the CPU.

    A GPU gets its index; the CPU, which has only one, loses it.
    """
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    device = read_device(device)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    return device
