"""Parts of a mod's region: the ops that some of its values are computed by."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FileLineColLoc, IntegerType
from xdsl.ir import Block, Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.errors import SourceLocation
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.scalar_code import ScalarCode


def needed(value: SSAValue) -> list[Operation]:
    """The ops of a region that a value is computed by, in order."""
    found: set[Operation] = set()
    left = [value]
    while left:
        owner = left.pop().owner
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            left += owner.operands
    last = value.owner
    if not isinstance(last, Operation) or last.parent is None:
        return []
    return [op for op in last.parent.ops if op in found]


def sliced(region: Region, values: Sequence[SSAValue]) -> Region:
    """The code of values of a mod that do not depend on the score.

    A region of b, h, q_idx, kv_idx and captures that yields them.
    """
    kept = [a for a in region.block.args if a.index or isinstance(a.type, IntegerType)]
    block = Block(arg_types=[a.type for a in kept])
    for old, new in zip(kept, block.args, strict=True):
        new.name_hint = old.name_hint
    code = ScalarCode(block)
    copier = Copier(code, dict(zip(kept, block.args, strict=True)))
    code.yield_(*map(copier.value, values))
    return Region(block)


def index_region(region: Region, load: flex.LoadCaptureOp) -> Region:
    """The code of a read's indices, of b, h, q_idx, kv_idx and captures.

    As the read itself, it does not say that they are in range.
    """
    return sliced(region, load.indices)


def location_of(op: Operation) -> SourceLocation | None:
    """The line of the user's function that an op was written for."""
    at = op.location
    if not isinstance(at, FileLineColLoc):
        return None
    return SourceLocation(at.filename.data, at.line.data)
