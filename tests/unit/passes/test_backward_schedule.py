"""Kernels with roles that compute gradients, against the `flex` module."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, f32, i64
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import InterpretationError

from flexc.dialects import flex, tile
from flexc.dialects.constants import int_constant
from flexc.dialects.tile import element_of
from flexc.dialects.tile.schedule import (
    ArriveOp,
    AwaitCopiesOp,
    AwaitOp,
    FenceCopiesOp,
    RoleOp,
)
from flexc.errors import ScheduleError
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.flex.flex_differentiate import Derivative, derivative_module
from flexc.passes.hopper.tile_split_loops import TileSplitLoopsPass
from flexc.passes.targets.target import WIDE, LoweringOptions, OnePass
from flexc.runtime.autograd.gradient_kernels import roles_of
from flexc.runtime.autograd.gradient_programs import expand
from flexc.runtime.interpreters import run_module
from tests.support.corpus import CORPUS
from tests.support.flex_modules import make_call, make_module
from tests.support.pairwise import in_turn

LENGTHS = 200, 150
"""Several blocks of queries, two of keys; the last ones are not whole."""

WHOLE = 256, 128

WITHOUT_ROLES = {"nothing"}
"""Cases of which some kernel has no schedule with roles."""

INPUTS = ("query", "key", "value")


def backward(
    case: str,
    heads: tuple[int, int] = (2, 1),
    dim: int = 64,
    lengths: tuple[int, int] = LENGTHS,
    dtype: torch.dtype = torch.bfloat16,
    one_pass: OnePass = "keys",
    trusted: bool = False,
    ordered: bool = False,
    per_query_head: bool = False,
    batches: tuple[int, int] = (1, 1),
) -> tuple[ModuleOp, list[object], list[Tensor]]:
    """Return a case's backward in kernels of `flex`, its arguments and gradients.

    `heads`, `lengths` and `batches` are those of queries and of keys.
    """
    sizes = (batches[0], *heads, *lengths)
    score_mod, mask_mod = CORPUS[case].factory(*sizes)
    draw = torch.Generator().manual_seed(0)
    of_queries, of_keys = zip(batches, heads, lengths, strict=True)
    query, key, value, d_out = (
        torch.randn(*shape, dim, generator=draw).to(dtype)
        for shape in (of_queries, of_keys, of_keys, of_queries)
    )
    call = make_call((query, key, value), score_mod, mask_mod, 0.125)
    module, args = make_module(call)
    out, lse = run_module(module, args)[:2]
    facts: list[tuple[str, Attribute]] = [("score_growth_bounded", UnitAttr())]
    if lengths == WHOLE:
        facts.append(("q_len_multiple", IntegerAttr(128, i64)))
    is_paired = heads[0] == heads[1] and batches[0] == batches[1]
    if is_paired:
        facts.append(("paired_heads", UnitAttr()))
    if ordered:
        facts.append(("ordered", UnitAttr()))
    if per_query_head or (ordered and not is_paired):
        facts.append(("per_query_head", UnitAttr()))
    for op in module.walk() if trusted else ():
        if isinstance(op, flex.AttentionOp):
            op.captures_inside = op.indices_fit = UnitAttr()
    derivative = Derivative(INPUTS, (), False, False, 0, None, tuple(facts))
    module = derivative_module(module, derivative)
    expand(module, one_pass)
    args += [out.to(dtype), lse, d_out]
    return module, args, run_module(module, args)


def scheduled(module: ModuleOp, overlap: bool = True) -> ModuleOp:
    """Return a module with schedules for the kernels over pairs."""
    module = module.clone()
    for function in list(module.ops):
        if isinstance(function, func.FuncOp) and sums_matrices(function):
            inner = ModuleOp([function.clone()])
            convert = ConvertFlexToBlocksparsePass("gluon")
            passes = (
                *pipelines.to_blocksparse(convert),
                *pipelines.to_tile("gluon"),
                *pipelines.to_schedule(LoweringOptions(overlap=overlap)),
            )
            for each in passes:
                each.apply(Context(), inner)
            inner.verify()
            for op in list(inner.ops):
                op.detach()
                module.body.block.insert_op_before(op, function)
            module.body.block.erase_op(function)
    return module


def sums_matrices(function: func.FuncOp) -> bool:
    sums = (op for op in function.walk() if isinstance(op, flex.PairSumsOp))
    return any(roles_of(op) != "cannot" for op in sums)


def check(got: list[Tensor], wanted: list[Tensor]) -> None:
    """Compare gradients; P and dS are rounded to bf16 before their products."""
    for x, y in zip(got, wanted, strict=True):
        error = (x.double() - y.double()).norm()
        assert error <= 2**-7 * y.double().norm()


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)], ids=str)
@pytest.mark.parametrize("lengths", [LENGTHS, WHOLE], ids=str)
@pytest.mark.parametrize("case", ["causal", "dense"])
def test_no_loop_has_a_branch(
    case: str, lengths: tuple[int, int], heads: tuple[int, int]
) -> None:
    """Partial blocks come first, of all heads, or all blocks of a program are."""
    kernel = scheduled(backward(case, heads=heads, lengths=lengths)[0])
    TileSplitLoopsPass().apply(Context(), kernel)
    loops = [op for op in kernel.walk() if isinstance(op, scf.ForOp)]
    kinds = {str(loop.attributes.get("segment")) for loop in loops}
    wanted = ["full"] if (case, lengths) == ("dense", WHOLE) else ["partial", "full"]
    assert kinds >= {f"#blocksparse<kind {kind}>" for kind in wanted}
    assert not any(isinstance(op, scf.IfOp) for loop in loops for op in loop.walk())


@pytest.mark.parametrize("case", ["causal", "dense", "sliding_window"])
def test_loops_over_heads_of_several_batches(case: str) -> None:
    """The first batch follows the last one where full blocks follow partial ones."""
    some_are_full = 400, 150
    module, args, wanted = backward(
        case, heads=(4, 2), batches=(3, 1), lengths=some_are_full
    )
    kernel = scheduled(module)
    TileSplitLoopsPass().apply(Context(), kernel)
    check(run_module(kernel, args, interleaving=1), wanted)


@pytest.mark.parametrize(("case", "overlap"), in_turn(list(CORPUS), [True, False]))
def test_the_corpus(case: str, overlap: bool) -> None:
    module, args, wanted = backward(case)
    try:
        kernel = scheduled(module, overlap)
    except ScheduleError:
        return
    assert sum(isinstance(op, RoleOp) for op in kernel.walk()) == 2
    for interleaving in (None, 1):
        check(run_module(kernel, args, interleaving=interleaving), wanted)


@pytest.mark.parametrize(
    ("case", "dim", "lengths", "heads"),
    [
        *(
            pytest.param(
                case, 64, LENGTHS, (2, 1), marks=[] if i % 2 else pytest.mark.slow
            )
            for i, case in enumerate(CORPUS)
        ),
        *((case, 256, WHOLE, (2, 2)) for case in ("causal", "alibi", "sliding_window")),
        ("causal", 192, LENGTHS, (2, 1)),
    ],
)
def test_a_kernel_for_each_side(
    case: str, dim: int, lengths: tuple[int, int], heads: tuple[int, int]
) -> None:
    module, args, wanted = backward(case, heads, dim, lengths, one_pass="none")
    try:
        kernels = scheduled(module)
    except ScheduleError:
        assert case in WITHOUT_ROLES
        return
    consumers = sum(isinstance(op, RoleOp) for op in kernels.walk()) // 2
    assert consumers == (3 if dim > WIDE else 2)
    check(run_module(kernels, args, interleaving=1), wanted)


@pytest.mark.parametrize(
    ("case", "has_branch"), [("dense", False), ("causal", True), ("alibi", True)]
)
def test_whole_lengths_test_no_positions(case: str, has_branch: bool) -> None:
    module, args, wanted = backward(case, heads=(2, 2), lengths=WHOLE)
    kernel = scheduled(module)
    check(run_module(kernel, args), wanted)
    branches = [op for op in kernel.walk() if isinstance(op, scf.IfOp)]
    assert bool(branches) == has_branch
    lengths = {"row_len", "column_len"}
    tested = [op for b in branches for op in b.walk() if isinstance(op, tile.MapOp)]
    assert not lengths & {v.name_hint for op in tested for v in op.operands}


@pytest.mark.parametrize("case", ["causal", "alibi"])
def test_heads_that_share_keys_have_one_loop(case: str) -> None:
    module, args, wanted = backward(case, heads=(6, 2))
    kernel = scheduled(module)
    check(run_module(kernel, args), wanted)
    for role in (op for op in kernel.walk() if isinstance(op, RoleOp)):
        assert sum(isinstance(op, scf.ForOp) for op in role.walk()) == 1


SHARED = ["causal", "alibi", "documents_per_batch", "soft_cap"]


@pytest.mark.parametrize(("case", "one_pass"), in_turn(SHARED, ["keys", "none"]))
@pytest.mark.parametrize("keys", [150, 256])
def test_query_heads_add_to_shared_sums(
    case: str, one_pass: OnePass, keys: int
) -> None:
    lengths = 200, keys
    _, _, wanted = backward(case, (6, 2), lengths=lengths, one_pass=one_pass)
    module, args, found = backward(
        case, (6, 2), lengths=lengths, one_pass=one_pass, per_query_head=True
    )
    check(found, wanted)
    kernels = scheduled(module)
    assert len(added_sums(kernels)) == 2
    check(run_module(kernels, args, interleaving=1), wanted)


def added_sums(kernels: ModuleOp) -> list[tile.AddToOp]:
    """Return the additions of sums, which are atomic, to sums of other programs.

    They are not rounded: where sums cancel, rounded ones would be far off.
    """
    found = [op for op in kernels.walk() if isinstance(op, tile.AddToOp)]
    assert all(op.atomic is not None for op in found)
    assert all(element_of(op.value.type) == f32 for op in found)
    return found


def test_programs_of_queries_add_to_no_shared_sums() -> None:
    module, _, _ = backward("causal", (6, 2), one_pass="queries", per_query_head=True)
    sums = [op for op in module.walk() if isinstance(op, flex.PairSumsOp)]
    assert sums
    assert all(op.per_query_head is None for op in sums)


@pytest.mark.parametrize("one_pass", ["none", "keys"])
def test_sums_without_order_are_not_shared_if_bits_must_be_equal(
    one_pass: OnePass,
) -> None:
    module, _, _ = backward("causal", (6, 2), one_pass=one_pass, ordered=True)
    sums = [op for op in module.walk() if isinstance(op, flex.PairSumsOp)]
    assert [op.per_query_head is not None for op in sums] == [
        op.ordered is not None for op in sums
    ]
    assert any(op.ordered is not None for op in sums) == (one_pass == "keys")


@pytest.mark.parametrize("ordered", [False, True])
def test_a_mask_that_keeps_no_pair(
    ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k < 4) & (k > 5)

    case = SimpleNamespace(factory=lambda *_: (None, nobody))
    monkeypatch.setitem(CORPUS, "none", case)
    module, args, wanted = backward("none", (2, 2), ordered=ordered)
    with pytest.raises(ScheduleError, match="read after the next"):
        scheduled(module)
    check(run_module(scheduled(module, overlap=False), args), wanted)


@pytest.mark.parametrize("case", ["causal", "alibi"])
def test_fp16(case: str) -> None:
    module, args, wanted = backward(case, dtype=torch.float16)
    check(run_module(scheduled(module), args), wanted)


SIGNALS = (AwaitOp, ArriveOp, FenceCopiesOp, AwaitCopiesOp)


def signals(kernel: ModuleOp) -> list[Operation]:
    """Return the ops of the roles that order the accesses to shared memory."""
    roles = [op for op in kernel.walk() if isinstance(op, RoleOp)]
    return [op for role in roles for op in role.walk() if isinstance(op, SIGNALS)]


IMPLIED = "d_out_tile_empty"
"""The barriers whose wait another wait implies.

The producer waits for the slot of a query before that of its d_out, and consumers
return the query's slot last.
"""


def is_implied(op: Operation) -> bool:
    """Return True for a wait that another implies, and for that of a first tile.

    So is the return of a slot after the last addition: nobody fills it again. That the
    writer awaits consumers' additions is seen in how programs run beside each other
    (`test_ordered_sums`).
    """
    role = op.parent_op()
    if isinstance(role, RoleOp) and role.label.data == "writer":
        is_wait = isinstance(op, AwaitCopiesOp) and op.written is None
        is_turn = isinstance(op, AwaitOp) and op.barriers.name_hint == "added"
        return is_wait or is_turn or isinstance(op, ArriveOp)
    if not isinstance(op, AwaitOp):
        return False
    is_first = isinstance(op.parent_op(), RoleOp) and int_constant(op.parity) == 1
    return is_first or op.barriers.name_hint == IMPLIED


@pytest.mark.parametrize(
    ("heads", "overlap", "ordered"),
    [
        pytest.param((4, 1), True, False, id="overlap"),
        pytest.param((2, 2), True, True, id="in order"),
        pytest.param((2, 1), True, True, id="in order of heads"),
        pytest.param((4, 1), False, False, id="simple", marks=pytest.mark.slow),
    ],
)
def test_no_signal_can_be_left_out(
    heads: tuple[int, int], overlap: bool, ordered: bool
) -> None:
    queries = 500 if ordered else 200
    module, args, _ = backward("causal", heads, lengths=(queries, 150), ordered=ordered)
    kernel = scheduled(module, overlap)
    for number, op in enumerate(signals(kernel)):
        if is_implied(op):
            continue
        changed = kernel.clone()
        signal = signals(changed)[number]
        signal.detach()
        signal.erase()
        with pytest.raises(InterpretationError):
            run_in_turns(changed, args)


def run_in_turns(kernel: ModuleOp, args: list[object]) -> None:
    """Run a kernel with several interleavings of its roles."""
    for interleaving in (None, *range(8)):
        run_module(kernel, args, interleaving=interleaving)


@pytest.mark.parametrize("one_pass", ["none", "keys"])
@pytest.mark.parametrize("case", ["pair_bias", "documents"])
def test_trusted_reads_of_rows_beyond_the_last(case: str, one_pass: OnePass) -> None:
    module, args, wanted = backward(
        case, lengths=(130, 200), one_pass=one_pass, trusted=True
    )
    check(run_module(scheduled(module), args), wanted)
