"""`tile-split-maps`: compute every value of a map at its own rank.

Within a `tile.map` each value varies along the dimensions of its operands: none, rows,
columns, or both. This pass splits a map. Uniform values become scalars, values of a row
become a map over rows, and so on. Only values that vary along both dimensions stay at
full rank. Loop-invariant code motion then hoists the parts that do not depend on a
loop: a captured load by head becomes one scalar load, a load by row becomes a vector
load before the loop. Constants are copied to each part that uses them.

`tile-hoist-from-branches`: move loop-invariant ops out of a loop's branches. Loop-
invariant code motion looks at the ops of a loop, but not at ops in a branch of its
body. This pass moves pure ops of branches before the loop if they do not depend on the
loop.

`tile-read-ahead`: read addresses an iteration ahead. Keys in pages lie where a table
says, and Triton copies half as many tiles ahead if it also has to copy the addresses.
So a loop carries what it read of the table, and reads what its next iteration needs:
there are then as many tiles in flight as without pages. The last iteration reads its
own addresses again, so no read is out of range.

`tile-launch-early`: let kernels be launched before the one before them has ended. A
kernel waits for the kernels launched before it, whose results it may read, before its
first access to memory. What comes earlier, the launch itself included, then overlaps
with their end, which short kernels, such as those of few queries, gain from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsolatedFromAbove, is_side_effect_free, is_speculatable
from xdsl.transforms.loop_invariant_code_motion import can_be_hoisted

from flexc.dialects import flex, tile
from flexc.dialects.mod_region import yielded
from flexc.dialects.tile import element_of
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import Span, result_type, variance


class MapSplitter:
    """A rewrite that splits one map into maps, lowest rank first."""

    def __init__(self, op: tile.MapOp):
        self.op = op
        self.spans = variance(op)
        self.yields = list(yielded(op.body.block))
        self.ops = [
            o
            for o in op.body.block.ops
            if not isinstance(o, arith.ConstantOp | flex.YieldOp)
        ]
        self.outer: dict[SSAValue, SSAValue] = dict(
            zip(op.body.block.args, op.inputs, strict=True)
        )
        """The value outside of the map for each value of the region that has one."""

    @property
    def full(self) -> Span:
        return frozenset(range(len(self.op.shape)))

    def groups(self) -> list[Span]:
        """Return the spans below full rank that some op has, lowest rank first."""
        found = {self.span_of(o) for o in self.ops} - {self.full}
        return sorted(found, key=lambda s: (len(s), sorted(s)))

    def span_of(self, op: Operation) -> Span:
        return self.spans[op.results[0]]

    def split(self) -> list[tile.MapOp]:
        """Return the maps that replace the op; the last has the op's results."""
        parts: list[tile.MapOp] = []
        for span in self.groups():
            ops = [o for o in self.ops if self.span_of(o) == span]
            wanted = self.used_outside(ops)
            if not wanted:
                continue  # Dead code: a pass before left it.
            part = self.build(ops, wanted, span)
            self.outer.update(zip(wanted, part.results, strict=True))
            parts.append(part)
        rest = [o for o in self.ops if self.span_of(o) == self.full]
        parts.append(self.build(rest, self.yields, self.full))
        return parts

    def used_outside(self, ops: list[Operation]) -> list[SSAValue]:
        inside = set(ops)
        results = [r for op in ops for r in op.results]
        return [r for r in results if any(u.operation not in inside for u in r.uses)]

    def build(
        self, ops: list[Operation], wanted: list[SSAValue], span: Span
    ) -> tile.MapOp:
        """Return a map over the dimensions `span` that computes `wanted` with `ops`."""
        dims = sorted(span)
        produced = {r for op in ops for r in op.results}
        needed = [v for op in ops for v in op.operands] + wanted
        inputs = [
            v for v in dict.fromkeys(needed) if v not in produced and v in self.outer
        ]
        block = Block(arg_types=[v.type for v in inputs])
        values: dict[SSAValue, SSAValue] = {}
        for value, arg in zip(inputs, block.args, strict=True):
            arg.name_hint = value.name_hint
            values[value] = arg
        constants = [o for v in needed if isinstance(o := v.owner, arith.ConstantOp)]
        code = ScalarCode(block)
        code.clone([*dict.fromkeys(constants), *ops], values)
        code.yield_(*(values[v] for v in wanted))
        shape = [self.op.shape[d] for d in dims]
        part = tile.MapOp(
            [self.outer[v] for v in inputs],
            [[dims.index(d) for d in sorted(self.spans[v])] for v in inputs],
            [result_type(element_of(v.type), shape) for v in wanted],
            Region(block),
        )
        for result, value in zip(part.results, wanted, strict=True):
            result.name_hint = value.name_hint
        return part


class SplitMap(RewritePattern):
    """A pattern that splits a map by rank, and drops unused operands."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.MapOp, rewriter: PatternRewriter) -> None:
        splitter = MapSplitter(op)
        idle = any(arg.first_use is None for arg in op.body.block.args)
        if not splitter.groups() and not idle:
            return
        parts = splitter.split()
        for result, old in zip(parts[-1].results, op.results, strict=True):
            result.name_hint = old.name_hint
        rewriter.replace(op, parts, parts[-1].results)


@dataclass(frozen=True)
class TileSplitMapsPass(ModulePass):
    """Split maps by the variance of their values."""

    name = "tile-split-maps"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(SplitMap(), apply_recursively=False).rewrite_module(op)


class HoistFromBranches(RewritePattern):
    """A pattern that moves invariant ops of a loop's branches before the loop."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: scf.IfOp, rewriter: PatternRewriter) -> None:
        loop = op.parent_op()
        if not isinstance(loop, scf.ForOp):
            return
        for inner in [o for r in op.regions for block in r.blocks for o in block.ops]:
            if (
                is_side_effect_free(inner)
                and is_speculatable(inner)
                and can_be_hoisted(inner, loop.body)
            ):
                inner.detach()
                rewriter.insert(inner, InsertPoint.before(loop))


@dataclass(frozen=True)
class TileHoistFromBranchesPass(ModulePass):
    """Move loop-invariant code out of a loop's branches."""

    name = "tile-hoist-from-branches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(
            HoistFromBranches(), apply_recursively=False
        ).rewrite_module(op)


READS = tile.GatherOp | tile.ReadOp


def is_address(value: SSAValue) -> bool:
    """Return True if a read of the same block has an address by this value."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, READS) and op.operands[0] is not value:
            return True
        computes = isinstance(op, tile.MapOp) or op.dialect_name() == "arith"
        if computes and any(map(is_address, op.results)):
            return True
    return False


def slice_of(read: Operation, loop: scf.ForOp) -> list[Operation] | None:
    """Return the ops of a loop that compute a read's result, the read last.

    Return None if they depend on more of the loop than the induction variable.
    """
    block = loop.body.block
    found = {read}
    for op in reversed(block.ops):
        if op not in found:
            continue
        # xDSL knows no effects of some casts, which have none.
        if op.dialect_name() != "arith" and not is_side_effect_free(op):
            return None
        # A region may use values of the loop that are no operands, unless isolated.
        if op.regions and not op.has_trait(IsolatedFromAbove):
            return None
        for operand in op.operands:
            if operand.owner is block and operand is not block.args[0]:
                return None
            if isinstance(operand.owner, Operation) and operand.owner.parent is block:
                found.add(operand.owner)
    return [op for op in block.ops if op in found]


def carry(
    loop: scf.ForOp, ops: Sequence[Operation], before: Operation | None = None
) -> scf.ForOp:
    """Return the loop, with the last of these ops computed an iteration ahead.

    An iteration computes the next one's value before an op, or at its end.
    """
    body, (result,) = loop.body.block, ops[-1].results

    def at(code: ScalarCode, index: SSAValue) -> SSAValue:
        known: dict[SSAValue, SSAValue] = {body.args[0]: index}
        code.clone(ops, known)
        return known[result]

    then, otherwise = Block(), Block()
    code = ScalarCode(then)
    code.builder.insert(scf.YieldOp(at(code, loop.lb)))
    code = ScalarCode(otherwise)
    none = code.const(0, element_of(result.type))
    if isinstance(result.type, tile.TileType):
        none = code.insert(tile.FullOp(none, result.type))
    code.builder.insert(scf.YieldOp(none))
    code = ScalarCode(InsertPoint.before(loop))
    has_any = code.cmp("slt", loop.lb, loop.ub)
    branch = scf.IfOp(has_any, [result.type], Region(then), Region(otherwise))
    first = code.insert(branch, result.name_hint)

    last = body.last_op
    assert isinstance(last, scf.YieldOp)
    code = ScalarCode(InsertPoint.before(before or last))
    after = code.add(body.args[0], loop.step, "after")
    has_more = code.cmp("slt", after, loop.ub)
    following = at(code, code.select(has_more, after, body.args[0]))
    carried = body.insert_arg(result.type, len(body.args))
    carried.name_hint = result.name_hint
    result.replace_all_uses_with(carried)
    last.operands = [*last.operands, following]
    ops[-1].detach()
    ops[-1].erase()
    given = [*loop.iter_args, first]
    moved = scf.ForOp(loop.lb, loop.ub, loop.step, given, loop.detach_region(0))
    moved.attributes |= loop.attributes
    Rewriter.replace_op(loop, moved, moved.results[:-1])
    return moved


@dataclass(frozen=True)
class TileReadAheadPass(ModulePass):
    """Read the places of keys in pages an iteration before the keys."""

    name = "tile-read-ahead"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        kernels = [o for o in op.walk() if isinstance(o, tile.KernelOp)]
        paged = [o for o in kernels if "pages" in o.attributes]
        loops = [o for k in paged for o in k.walk() if isinstance(o, scf.ForOp)]
        for loop in loops:
            for read in list(loop.body.block.ops):
                if isinstance(read, READS) and is_address(read.result):
                    ops = slice_of(read, loop)
                    loop = loop if ops is None else carry(loop, ops)


@dataclass(frozen=True)
class TileLaunchEarlyPass(ModulePass):
    """Let each kernel wait for earlier kernels itself, as its first op."""

    name = "tile-launch-early"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            if isinstance(kernel, tile.KernelOp):
                start = InsertPoint.at_start(kernel.body.block)
                Rewriter.insert_op(tile.AwaitKernelsOp(), start)
