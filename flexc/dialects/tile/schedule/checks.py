"""Checks of a kernel's schedule as a whole: roles, and signals of barriers.

These checks cover what is known without running the kernel. The phase of a barrier
depends on the run; the interpreter checks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import scf
from xdsl.ir import (
    BlockArgument,
    Operation,
    OpResult,
    Region,
    SSAValue,
)
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import parents, yielded
from flexc.dialects.tile.schedule.memory import (
    ArriveOp,
    AwaitOp,
    BarriersOp,
    CopyInOp,
    ExpectOp,
    SharedOp,
)
from flexc.dialects.tile.schedule.products import ROWS, WARP_GROUP, IssueDotOp
from flexc.dialects.tile.schedule.roles import RoleOp, RolesOp
from flexc.dialects.tile.types import BarriersType, PendingType, tile_bytes, tile_of


def depends_on(value: SSAValue, source: SSAValue) -> bool:
    """Return True if a value is computed from another, through loops and branches."""
    seen: set[SSAValue] = set()
    todo = [value]
    while todo:
        current = todo.pop()
        if current is source:
            return True
        if current not in seen:
            seen.add(current)
            todo.extend(_sources(current))
    return False


def _sources(value: SSAValue) -> Sequence[SSAValue]:
    """Return the values that a value is directly computed from."""
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return _carried(loop, value.index - 1) if isinstance(loop, scf.ForOp) else ()
    assert isinstance(value, OpResult)
    op = value.op
    if isinstance(op, scf.ForOp):
        return _carried(op, value.index)
    if isinstance(op, scf.IfOp):
        blocks = [block for region in op.regions for block in region.blocks]
        return [op.cond, *(yielded(block)[value.index] for block in blocks)]
    return op.operands


def _carried(loop: scf.ForOp, index: int) -> Sequence[SSAValue]:
    """Return the sources of a loop's carried value, or of its counter (index -1)."""
    bounds = [loop.lb, loop.ub, loop.step]
    if index < 0:
        return bounds
    return [*bounds, loop.iter_args[index], yielded(loop.body.block)[index]]


Signal = ExpectOp | ArriveOp


def verify_signals(barriers: BarriersOp) -> None:
    """Verify that awaited barriers are signalled, by the right number of arrivals."""
    users = [use.operation for use in barriers.result.uses]
    signals = [user for user in users if isinstance(user, Signal)]
    name = f"%{barriers.result.name_hint}" if barriers.result.name_hint else "barriers"
    if not signals and any(isinstance(user, AwaitOp) for user in users):
        raise VerifyException(
            f"{name} expects a tile.expect or tile.arrive, as it is awaited, got none"
        )
    if barriers.by_warps and any(isinstance(s, ExpectOp) for s in signals):
        raise VerifyException(
            f"{name} expects arrivals of warps, got a tile.expect, which is one arrival"
        )
    assert isinstance(barriers.result.type, BarriersType)
    expected, got = arrivals(signals), barriers.result.type.arrivals.data
    if signals and expected is not None and expected != got:
        raise VerifyException(
            f"{name} has {expected} arrivals of its roles in a phase, but expects {got}"
        )
    for copy in users:
        if isinstance(copy, CopyInOp) and not any(
            isinstance(signal, ExpectOp) for signal in signals
        ):
            raise VerifyException(
                f"{name} expects a tile.expect, as a copy completes there, got none"
            )
    for signal in signals:
        if isinstance(signal, ExpectOp):
            _verify_bytes(name, signal)


def arrivals(signals: Sequence[Signal]) -> int | None:
    """Return the arrivals at a barrier in a phase, or None if unknown before the run.

    Every copy of a role arrives once in each phase. It is unknown if a role chooses the
    barrier by its copy's number, arrives under a condition, or may arrive repeatedly.
    """
    roles: dict[RoleOp | None, list[Signal]] = {}
    for signal in signals:
        roles.setdefault(role_of(signal), []).append(signal)
    total = 0
    for role, own in roles.items():
        copies = 1 if role is None else role.copies.value.data
        if any(_is_conditional(s) or _is_repeated(s, own) for s in own):
            return None
        if role is not None and copies > 1:
            number = role.body.block.args[0]
            if any(depends_on(s.index, number) for s in own):
                return None
        total += copies
    return total


def role_of(op: Operation) -> RoleOp | None:
    """Return the role whose code contains an op, or None."""
    return next((p for p in parents(op) if isinstance(p, RoleOp)), None)


def _is_conditional(signal: Signal) -> bool:
    return any(isinstance(parent, scf.IfOp) for parent in parents(signal))


def _is_repeated(signal: Signal, others: Sequence[Signal]) -> bool:
    """Return True if another arrival in the block is known to have the same index."""
    return any(
        other is not signal
        and other.parent is signal.parent
        and same_index(other.index, signal.index)
        for other in others
    )


def same_index(lhs: SSAValue, rhs: SSAValue) -> bool:
    """Return True if two indices are known to be equal."""
    number = int_constant(lhs)
    return lhs is rhs or (number is not None and number == int_constant(rhs))


def _verify_bytes(name: str, expect: ExpectOp) -> None:
    """Verify that an expect's bytes are those of the copies after it in the block."""
    copies = list(_copies_after(expect))
    if not copies:
        return
    expected = sum(tile_bytes(tile_of(copy.view.type)) for copy in copies)
    if expected != expect.bytes.value.data:
        raise VerifyException(
            f"{name} expects {expected} bytes, as the copies after it bring, got "
            f"{expect.bytes.value.data}"
        )


def _copies_after(expect: ExpectOp) -> Iterator[CopyInOp]:
    """Yield the copies that an expect is for: those before the next expect.

    Only copies and expects of the same barrier count.
    """
    op = expect.next_op
    while op is not None:
        if isinstance(op, ExpectOp | CopyInOp) and op.barriers is expect.barriers:
            same = same_index(op.index, expect.index)
            if same and isinstance(op, ExpectOp):
                return
            if same and isinstance(op, CopyInOp):
                yield op
        op = op.next_op


def verify_schedule(body: Region) -> None:
    """Verify a kernel's body: at most one set of roles, and barriers."""
    own = set(body.block.ops)
    roles: list[RolesOp] = []
    for op in body.walk():
        if isinstance(op, RolesOp | SharedOp | BarriersOp) and op not in own:
            raise VerifyException(
                f"{op.name} expects to be in the kernel's block, not in a region of it"
            )
        if isinstance(op, RolesOp):
            roles.append(op)
        if isinstance(op, BarriersOp):
            verify_signals(op)
        if isinstance(op, IssueDotOp):
            _verify_warps(op)
    if len(roles) > 1:
        raise VerifyException(f"expects one tile.roles at most, got {len(roles)}")


def _verify_warps(issue: IssueDotOp) -> None:
    role = role_of(issue)
    if role is not None and role.warps.value.data % WARP_GROUP:
        raise VerifyException(
            f"role {role.label} expects a multiple of 4 warps, as it issues "
            f"products, got {role.warps.value.data}"
        )
    assert isinstance(issue.result.type, PendingType)
    tile = issue.result.type.tile
    if role is not None and tile.get_layout() is not None:
        rows = ROWS * role.warps.value.data // WARP_GROUP
        if tile.get_shape()[0] % rows:
            raise VerifyException(
                f"role {role.label} expects products of a multiple of {rows} rows, "
                f"got {tile}"
            )
