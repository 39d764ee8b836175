"""Whether each wait at a barrier has something to wait for, where IR says it.

What depends on a run, such as phases, is left to the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.tile.schedule.barriers import (
    ArriveOp,
    AwaitOp,
    BarriersOp,
    ExpectOp,
)
from flexc.dialects.tile.schedule.capacity import tile_bytes
from flexc.dialects.tile.schedule.memory import CopyInOp
from flexc.dialects.tile.schedule.roles import RoleOp
from flexc.dialects.tile.schedule.shapes import constant_of
from flexc.dialects.tile.schedule.types import BarriersType, tile_of

# What a value is computed from.


def depends_on(value: SSAValue, source: SSAValue) -> bool:
    """Whether a value is computed from another, through loops and branches."""
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
    """What a value is computed from at once."""
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return _carried(loop, value.index - 1) if isinstance(loop, scf.ForOp) else ()
    assert isinstance(value, OpResult)
    op = value.op
    if isinstance(op, scf.ForOp):
        return _carried(op, value.index)
    if isinstance(op, scf.IfOp):
        blocks = [block for region in op.regions for block in region.blocks]
        return [op.cond, *(_yielded(block, value.index) for block in blocks)]
    return op.operands


def _carried(loop: scf.ForOp, index: int) -> Sequence[SSAValue]:
    """Where a loop's carried value comes from, or its counter, which is -1."""
    bounds = [loop.lb, loop.ub, loop.step]
    if index < 0:
        return bounds
    return [*bounds, loop.iter_args[index], _yielded(loop.body.block, index)]


def _yielded(block: Block, index: int) -> SSAValue:
    assert block.last_op is not None
    return block.last_op.operands[index]


Signal = ExpectOp | ArriveOp


def verify_signals(barriers: BarriersOp) -> None:
    """Waits are signalled, by as many arrivals as complete a phase."""
    users = [use.operation for use in barriers.result.uses]
    signals = [user for user in users if isinstance(user, Signal)]
    name = f"%{barriers.result.name_hint}" if barriers.result.name_hint else "barriers"
    if not signals and any(isinstance(user, AwaitOp) for user in users):
        raise VerifyException(
            f"{name} expects a tile.expect or tile.arrive, as it is awaited, got none"
        )
    assert isinstance(barriers.result.type, BarriersType)
    expected, got = arrivals(signals), barriers.result.type.arrivals.data
    if signals and expected is not None and expected != got:
        raise VerifyException(
            f"{name} expects {expected} arrivals, as many as roles arrive, got {got}"
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
    """How many arrive at one barrier in one phase, None if that depends on a run.

    A role that arrives does so once in each phase, every copy of it, unless it
    chooses among the barriers by its copy's number or arrives on some condition.
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
    """The role whose code an op is in."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, RoleOp):
        parent = parent.parent_op()
    return parent


def _is_conditional(signal: Signal) -> bool:
    parent = signal.parent_op()
    while parent is not None and not isinstance(parent, RoleOp):
        if isinstance(parent, scf.IfOp):
            return True
        parent = parent.parent_op()
    return False


def _is_repeated(signal: Signal, others: Sequence[Signal]) -> bool:
    """Whether another arrival of the same block may be in the same phase."""
    return any(
        other is not signal
        and other.parent is signal.parent
        and same_index(other.index, signal.index)
        for other in others
    )


def same_index(lhs: SSAValue, rhs: SSAValue) -> bool:
    """Whether two indices are known to be equal."""
    number = constant_of(lhs)
    return lhs is rhs or (number is not None and number == constant_of(rhs))


def _verify_bytes(name: str, expect: ExpectOp) -> None:
    """The copies that follow in the same block bring what is expected."""
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
    """Copies that an expect is for: up to the next one, of the same barrier."""
    op = expect.next_op
    while op is not None:
        if isinstance(op, ExpectOp | CopyInOp) and op.barriers is expect.barriers:
            same = same_index(op.index, expect.index)
            if same and isinstance(op, ExpectOp):
                return
            if same and isinstance(op, CopyInOp):
                yield op
        op = op.next_op
