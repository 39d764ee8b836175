"""`canonicalize` and `cse`: drop the unused and duplicate ops that passes leave.

The results are those of xDSL's passes of these names. xDSL's passes look up the traits
of each op many times, which is slow. These passes do so once for each class of ops.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.folder import Folder
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriterListener,
    PatternRewriteWalker,
    RewritePattern,
)
from xdsl.rewriter import Rewriter
from xdsl.traits import (
    ConstantLike,
    HasCanonicalizationPatternsTrait,
    HasFolder,
    IsolatedFromAbove,
    IsTerminator,
    MemoryEffect,
    MemoryEffectKind,
    NoMemoryEffect,
    SymbolOpInterface,
    is_side_effect_free,
    only_has_effect,
)
from xdsl.transforms.common_subexpression_elimination import (
    has_other_side_effecting_op_in_between,
)
from xdsl.transforms.dead_code_elimination import result_only_effects


@dataclass(frozen=True)
class Kind:
    """The traits of a class of ops."""

    terminates: bool
    isolated: bool
    stays: bool
    """True if the op is kept even without uses of its results."""
    pure: bool
    """True if the op has no effects, for any operands."""
    folds: bool
    pattern: RewritePattern | None
    """The pattern that brings the op to its canonical form."""


@cache
def kind_of(op: type[Operation]) -> Kind:
    """Return the kind of all ops of a class."""
    effects = op.get_traits_of_type(MemoryEffect)
    terminates = op.has_trait(IsTerminator, value_if_unregistered=False)
    symbol = op.has_trait(SymbolOpInterface, value_if_unregistered=False)
    constant = op.has_trait(ConstantLike)
    return Kind(
        terminates,
        op.has_trait(IsolatedFromAbove),
        terminates or symbol or not effects,
        bool(effects) and all(isinstance(e, NoMemoryEffect) for e in effects),
        op.has_trait(HasFolder, value_if_unregistered=False) and not constant,
        pattern_of(op),
    )


def pattern_of(op: type[Operation]) -> RewritePattern | None:
    """Return a pattern with all canonicalizations of a class of ops, or None."""
    traits = op.get_traits_of_type(HasCanonicalizationPatternsTrait)
    patterns = [p for trait in traits for p in trait.get_patterns(op)]
    if len(patterns) > 1:
        return GreedyRewritePatternApplier(patterns, dce_enabled=False)
    return patterns[0] if patterns else None


def is_dead(op: Operation) -> bool:
    """Return True if an op can be erased: it has no uses and no effects."""
    if any(result.first_use is not None for result in op.results):
        return False
    kind = kind_of(type(op))
    return not kind.stays and (kind.pure or result_only_effects(op))


@dataclass
class Canonicalize(RewritePattern):
    """A pattern that erases a dead op, folds an op, or applies its patterns."""

    folder: Folder

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if is_dead(op):
            rewriter.erase(op)
            return
        kind = kind_of(type(op))
        if kind.folds and (folded := self.folder.try_fold(op)) is not None:
            values, constants = folded
            rewriter.replace(op, constants, values)
        elif kind.pattern is not None:
            kind.pattern.match_and_rewrite(op, rewriter)


def erase_dead(region: Region, listener: PatternRewriterListener | None = None) -> bool:
    """Erase the dead ops of a region, users first; return True if there were any."""
    found = False
    for block in reversed(region.blocks):
        for op in reversed(block.ops):
            if is_dead(op):
                if listener is not None:
                    listener.handle_operation_removal(op)
                block.erase_op(op)
                found = True
            else:
                for inner in op.regions:
                    found |= erase_dead(inner, listener)
    return found


@dataclass(frozen=True)
class TidyCanonicalizePass(ModulePass):
    """A pass that brings ops to their canonical form and erases dead ops."""

    name = "canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        # The dialect writes the constants that ops are folded to.
        if ctx.get_optional_dialect(arith.Arith.name) is None:
            ctx.load_dialect(arith.Arith)
        pattern = Canonicalize(Folder(ctx))
        PatternRewriteWalker(pattern, post_walk_func=erase_dead).rewrite_module(op)


@dataclass(frozen=True)
class TidyCsePass(ModulePass):
    """A pass that replaces each op by an equal op that precedes it, if any."""

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        merger = Merger()
        merger.visit_regions(op, {})
        merger.erase()


Known = dict[Hashable, list[Operation]]
"""The visited ops, by `key_of`."""


@dataclass
class Merger:
    """A merger of the equal ops of a module."""

    done: list[Operation] = field(default_factory=list[Operation])
    """Ops without uses, operands before users."""

    def erase(self) -> None:
        """Erase the ops without uses."""
        for op in reversed(self.done):
            Rewriter.erase_op(op)

    def visit_regions(self, op: Operation, known: Known) -> None:
        """Visit the regions of an op and merge their ops with those in `known`."""
        seen: Known = {} if kind_of(type(op)).isolated else known
        for region in op.regions:
            if len(region.blocks) == 1:
                self.visit_block(region.block, dict(seen))

    def visit_block(self, block: Block, known: Known) -> None:
        """Merge the ops of a block with each other and with those in `known`."""
        for op in block.ops:
            if op.regions:
                self.visit_regions(op, known)
            if not kind_of(type(op)).terminates:
                self.visit(op, known)

    def visit(self, op: Operation, known: Known) -> None:
        """Replace an op by an equal one in `known`, or add the op to `known`."""
        if is_dead(op):
            self.done.append(op)
            return
        if any(len(region.blocks) > 1 for region in op.regions):
            return
        kind = kind_of(type(op))
        if kind.stays:
            return
        free = kind.pure or is_side_effect_free(op)
        if not free and not only_has_effect(op, MemoryEffectKind.READ):
            return
        key = key_of(op)
        equal = [o for o in known.get(key, ()) if has_equal_regions(o, op)]
        if equal and (free or reads_the_same(equal[-1], op)):
            for old, new in zip(op.results, equal[-1].results, strict=True):
                old.replace_all_uses_with(new)
            self.done.append(op)
        else:
            known[key] = [*known.get(key, ()), op]


def key_of(op: Operation) -> Hashable:
    """Return a key that is equal for ops that are equal except for their regions."""
    return (
        op.name,
        tuple(op.operands),
        tuple(op.result_types),
        frozenset(op.properties.items()),
        frozenset(op.attributes.items()),
    )


def has_equal_regions(one: Operation, other: Operation) -> bool:
    """Return True if the regions of two ops hold the same code."""
    pairs = zip(one.regions, other.regions, strict=True)
    return all(a.is_structurally_equivalent(b) for a, b in pairs)


def reads_the_same(first: Operation, second: Operation) -> bool:
    """Return True if no op writes to memory between two reads in one block."""
    same_block = first.parent is second.parent
    return same_block and not has_other_side_effecting_op_in_between(first, second)
