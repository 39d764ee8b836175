"""Descriptions of the facts that are proved about a call, and of failed proofs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.ir import Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.mod_region import yielded
from flexc.passes.flex.flex_infer_facts import FACTS, score_range
from flexc.passes.flex.flex_widen_indices import would_widen
from flexc.passes.masks.blocks.block_code import Summary
from flexc.passes.scalar import Proven, WhyNot
from flexc.passes.scalar.formula import Formula, Leaf, mask_formula
from flexc.passes.scalar.ranges.exact_ranges import known_of_call
from flexc.passes.scalar.ranges.index_proofs import (
    IndexWidths,
    indices_outside,
    unwrapped,
)
from flexc.passes.scalar.readable import meant, spell
from flexc.passes.scalar.variation import Along, Dependences
from flexc.runtime.explain.subject import Subject


@dataclass(frozen=True)
class Fact:
    """A property that a kernel may use if the property is proved."""

    name: str
    """The name, equal to the property of `flex.attention` if there is one."""
    proven: bool
    text: str
    """The proved fact, or the reason why the proof failed."""

    @property
    def title(self) -> str:
        """The title for people."""
        return TITLES[self.name]

    def __str__(self) -> str:
        return f"{self.title}: {'proved' if self.proven else 'not proved'}: {self.text}"


TITLES = {
    "few_rows": "few rows",
    "few_keys": "few keys",
    "pages": "keys in pages",
    "values_in_keys": "values in keys",
    "bounds": "bounds in closed form",
    "classified": "blocks classified",
    "rows_never_empty": "no empty row",
    "score_range": "scores bounded",
    "indices_fit": "indices fit int32",
    "captures_inside": "captured loads inside",
    "same_for_batches": "same for all batches",
    "same_for_heads": "same for all heads",
    "order": "longest rows first",
    "traced_once": "mods traced once",
}


def facts_of(subject: Subject) -> tuple[Fact, ...]:
    """Return all facts, in the order in which they are printed."""
    return tuple(fact for find in FINDERS for fact in find(subject))


def rows(subject: Subject) -> Iterator[Fact]:
    """Yield the fact that a program owns all rows of a few heads, if this holds."""
    if subject.few_rows is None:
        return
    heads, queries = subject.few_rows
    whose = "one head" if heads == 1 else f"{heads} heads, which share a key head"
    times = "query" if queries == 1 else f"{queries} queries"
    yield Fact("few_rows", True, f"a program's rows are the {times} of {whose}")


def keys(subject: Subject) -> Iterator[Fact]:
    """Yield the fact that rows see few keys, if programs are small for this reason."""
    tile = subject.own_tile
    if subject.simple.few_keys is not None and tile.residents > 1:
        programs = f"{tile.residents} programs of {tile.block_m} rows"
        yield Fact("few_keys", True, f"{programs} share a multiprocessor")


def pages(subject: Subject) -> Iterator[Fact]:
    """Yield the fact that keys lie in pages, and how a block's pages are found."""
    found, columns = subject.call.pages, subject.own_tile.block_n
    if found is None:
        return
    whole = found.size % columns == 0 and subject.call.computed_by.for_gpu
    how = "one page, read from the table once" if whole else "pages found key by key"
    text = f"of {found.size} keys; a block of {columns} keys lies in {how}"
    yield Fact("pages", True, text)


def values(subject: Subject) -> Iterator[Fact]:
    """Yield the fact that keys and values are read together, if this holds."""
    if subject.few_rows is not None and subject.reads_values_from_keys:
        text = "values are the first columns of keys, which are read once"
        yield Fact("values_in_keys", True, text)


def bounds(subject: Subject) -> Iterator[Fact]:
    """Yield the fact, proved or not, that the mask's keys have computed ranges."""
    name = "bounds"
    if subject.reading.is_trivial:
        yield Fact(name, True, "there is no mask: every key is live")
        return
    match subject.bounds:
        case Proven(found):
            live, dead = found.live.data, found.dead.data
            yield Fact(name, True, f"may be live: {live}\nmay be dead: {dead}")
        case WhyNot(reason):
            yield Fact(name, False, reason)


def classified(subject: Subject) -> Iterator[Fact]:
    """Yield the fact, proved or not, that planning can classify blocks.

    Masks with bounds have no such fact.
    """
    name, proof = "classified", subject.reading.classifier
    if isinstance(proof, WhyNot):
        yield Fact(name, False, proof.reason)
    elif proof is not None:
        classifier = proof.value
        ends = list(dict.fromkeys(map(_summarized, classifier.summaries)))
        text = "from the positions of a block alone"
        if ends:
            text = "from the least and greatest " + ", ".join(ends)
        if classifier.unknown:
            text += "\nnot understood: " + "; ".join(classifier.unknown)
        yield Fact(name, True, text)


def _summarized(summary: Summary) -> str:
    """Return the values that a summary covers: `doc[q_idx] of each block of rows`."""
    where = "rows" if summary.axis == "row" else "keys"
    return f"{spell(yielded(summary.region.block)[0])} of each block of {where}"


def rows_never_empty(subject: Subject) -> Iterator[Fact]:
    """Yield the fact, proved or not, that each row has a live key."""
    match FACTS["rows_never_empty"](subject.simple):
        case Proven():
            yield Fact("rows_never_empty", True, "each row has a live key")
        case WhyNot(reason):
            yield Fact("rows_never_empty", False, reason)


def scores_bounded(subject: Subject) -> Iterator[Fact]:
    """Yield the fact, proved or not, that the kernel knows bounds of the scores."""
    name = "score_range"
    match score_range(subject.simple), score_range(subject.simple, subject.numbers):
        case Proven(value), _:
            yield Fact(name, True, f"scores are in {_interval(value)}")
        case _, Proven(value):
            yield Fact(
                name,
                False,
                f"scores are in {_interval(value)} with the numbers captured now, but "
                "kernels serve others too; numbers written into the mod are known",
            )
        case WhyNot(reason), _:
            yield Fact(name, False, _of_score(reason, subject))


def _interval(value: flex.FloatRangeAttr) -> str:
    lo, hi = value.bounds
    return f"[{lo:.6g}, {hi:.6g}]"


def _of_score(reason: str, subject: Subject) -> str:
    """Return a reason that names the score as the product of query and key."""
    score = subject.simple.score_mod.block.args[0]
    if reason.startswith(f"nothing bounds {score.name_hint}, "):
        return "nothing bounds the product of query and key"
    return reason


def indices_fit(subject: Subject) -> Iterator[Fact]:
    """Yield the fact, proved or not, that computed positions fit 32 bits."""
    name = "indices_fit"
    if not would_widen(subject.written):
        yield Fact(name, True, "whatever the lengths and captured numbers are")
        return
    for region in regions(subject):
        known = known_of_call(region, subject.positions, subject.known)
        widths = IndexWidths(region, known)
        if wide := widths.wide_ops():
            yield Fact(name, False, _too_wide(wide[0], widths))
            return
    yield Fact(name, True, "at these lengths, with the numbers captured now")


def _too_wide(op: Operation, widths: IndexWidths) -> str:
    values: Sequence[SSAValue] = [*op.results, *op.operands]
    value = next((v for v in values if widths.is_too_wide(v)), op.results[0])
    found = widths.ranges[value]
    return (
        f"{spell(value)} may be {found.lo:,} to {found.hi:,}; it is computed in 64 bits"
    )


def captures_inside(subject: Subject) -> Iterator[Fact]:
    """Yield the fact, proved or not, that captured loads need no guards."""
    name = "captures_inside"
    loads = [
        o
        for r in regions(subject)
        for o in r.walk()
        if isinstance(o, flex.LoadCaptureOp)
    ]
    if not loads:
        yield Fact(name, True, "nothing is loaded from captured tensors")
        return
    for region in regions(subject):
        for found in indices_outside(region, subject.positions, subject.known):
            index = meant(unwrapped(found.load.indices[found.axis]))
            what = f"index {spell(index)} of {spell(found.load.result)}"
            guarded = "it is guarded, and reads 0 outside"
            match index.owner:
                case arith.FPToSIOp():
                    why, then = "is made of a float", guarded
                case flex.LoadCaptureOp():
                    why, then = "is itself loaded", f"suspicious; {guarded}"
                case _:
                    why = f"may be {found.found.lo:,} to {found.found.hi:,}"
                    then = (
                        "suspicious; a call raises CapturedIndexError if lengths show "
                        "that a live pair reads outside, else it reads 0"
                    )
            size = f"the size there is {found.size:,}"
            yield Fact(name, False, f"{what} {why}, and {size}: {then}")
            return
    names = dict.fromkeys(spell(load.tensor) for load in loads)
    yield Fact(name, True, f"all indices of {', '.join(names)}, at these lengths")


def independent(subject: Subject) -> Iterator[Fact]:
    """Yield the facts, proved or not, that all batches or heads have the same mask."""
    mask = subject.simple.mask_mod
    along = Dependences(mask)
    for what, arg, flag in (
        ("batches", "b", Along.BATCH),
        ("heads", "h", Along.HEAD),
    ):
        name = f"same_for_{what}"
        reads = [
            spell(leaf.value)
            for leaf in leaves(mask_formula(mask))
            if flag in along[leaf.value]
        ]
        if reads:
            yield Fact(name, False, f"{reads[0]} reads {arg}")
        else:
            yield Fact(name, True, f"the mask does not read {arg}")


def leaves(formula: Formula) -> Iterator[Leaf]:
    """Yield the comparisons and flags of a formula."""
    if isinstance(formula, Leaf):
        yield formula
    else:
        for part in formula.parts:
            yield from leaves(part)


def order(subject: Subject) -> Iterator[Fact]:
    """Yield the fact, proved or not, that some blocks of rows have more work.

    These blocks start first.
    """
    name, reading = "order", subject.reading
    if subject.way in ("tables", "planned"):
        text = (
            "the last blocks of rows start first, as masks tend to have more keys there"
        )
        yield Fact(name, True, text)
    elif isinstance(subject.bounds, Proven) and not reading.is_trivial:
        match subject.bounds.value.growth.data:
            case "positive":
                yield Fact(
                    name, True, "later rows have more keys: the last start first"
                )
            case "negative":
                yield Fact(
                    name, True, "later rows have fewer keys: the first start first"
                )
            case _:
                text = "the number of keys does not grow or shrink from row to row"
                yield Fact(name, False, text)
    else:
        yield Fact(name, False, "all rows visit all keys")


def traced_once(subject: Subject) -> Iterator[Fact]:
    """Yield the fact, proved or not, that equal mods are traced once."""
    name = "traced_once"
    if subject.call.signature.cacheable:
        yield Fact(name, True, "all that the mods read is known before they run")
        return
    other = "an object with __getattr__, made in C, or reached by getattr"
    unread = subject.call.trace().unread or other
    text = f"not known before the mods run: {unread}; each call traces them"
    yield Fact(name, False, text + ", which takes milliseconds")


def regions(subject: Subject) -> tuple[Region, Region]:
    """Return the score and mask regions before simplification."""
    return subject.written.score_mod, subject.written.mask_mod


FINDERS: tuple[Callable[[Subject], Iterator[Fact]], ...] = (
    rows,
    keys,
    pages,
    values,
    bounds,
    classified,
    rows_never_empty,
    scores_bounded,
    indices_fit,
    captures_inside,
    independent,
    order,
    traced_once,
)
