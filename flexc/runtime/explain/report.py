"""The results of `explain`: data for programs, text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flexc.dialects import tile
from flexc.errors import OptionError
from flexc.passes.scalar.readable import describe
from flexc.passes.targets.cpp import MACHINES
from flexc.runtime.attention.call import Attention
from flexc.runtime.explain.blocks import Blocks, Counts, Rows, Run, count, find_blocks
from flexc.runtime.explain.facts import Fact, facts_of
from flexc.runtime.explain.gradients import GradientFacts, gradients_of
from flexc.runtime.explain.picture import draw_png, draw_svg
from flexc.runtime.explain.subject import (
    BlockSource,
    ScheduleFacts,
    Subject,
    schedule_of,
)
from flexc.runtime.inputs.tensor_facts import Placement
from flexc.runtime.kernels.cpp_compiler import host_machine, lacks_tiles

WIDTH = 92
MAX_FACT_LINES = 4
FIRST_ROWS, LAST_ROWS = 6, 3
MORE = len(" and 1,000 more")

UNBROKEN = "\xa0"
MAX_UNBROKEN = 56


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The facts about one call of attention, and its visited blocks."""

    title: str
    """The mask's name and the sizes."""
    mask: str | None
    """The simplified mask as text."""
    score: str | None
    captured: dict[str, str]
    """The captured numbers and the shapes of captured tensors, by name."""
    facts: tuple[Fact, ...]
    way: BlockSource
    """The way to find the blocks: bounds, planning, given tables, or none."""
    why: str
    tile: tuple[int, int]
    """The rows and keys that the kernel computes at a time."""
    block_size: tuple[int, int]
    """The rows and keys of the blocks that are counted here."""
    counts: Counts
    blocks: Blocks
    times: int = 1
    """The number of times that a function made this call."""
    gradients: GradientFacts | None = None
    """The computation of gradients; None if autograd would not record the call."""
    schedule: ScheduleFacts | None = None
    """The schedule of a GPU's kernel; None on other devices."""
    ignored: tuple[str, ...] = ()
    """The options of torch's kernels that were given and have no effect."""
    for_gpus: tuple[str, ...] = ()
    """The options that were given and have no effect on a CPU."""
    ranks: str = ""
    """The layout and method by which ranks share the call, empty if they do not."""
    products: str = ""
    """The form of a CPU's products, and why; empty on other devices."""
    copies: str = ""
    """The rows that threads of a CPU copy, and why; empty if there are none."""

    @classmethod
    def of(
        cls,
        call: Attention,
        block_size: tuple[int, int] | None,
        times: int = 1,
        differentiated: bool = False,
    ) -> Explanation:
        """Explain a call, in blocks of `block_size` or by default in the call's own
        blocks.
        """
        subject = Subject.of(call)
        schedule = schedule_of(subject, differentiated)
        if schedule is not None:
            subject = replace(subject, schedule=schedule.chosen)
        blocks = find_blocks(subject, block_size)
        score_mod, mask_mod = call.signature.mods
        simple, tile = subject.simple, subject.tile
        return cls(
            title=title_of(subject),
            mask=None if mask_mod is None else describe(simple.mask_mod),
            score=None if score_mod is None else describe(simple.score_mod),
            captured=captured_by(subject),
            facts=facts_of(subject),
            way=subject.way,
            why=subject.why,
            tile=(tile.block_m, tile.block_n),
            block_size=blocks.size,
            counts=count(subject, blocks),
            blocks=blocks,
            times=times,
            gradients=gradients_of(subject) if differentiated else None,
            schedule=schedule,
            ignored=call.choices.ignored,
            for_gpus=call.choices.for_gpus if call.computed_by.for_cpu else (),
            products=products_of(call) if call.computed_by.for_cpu else "",
            copies=copies_of(subject, differentiated),
        )

    @property
    def classes(self) -> Tensor:
        """The classes as int8 of shape (B, H, rows, columns), on the CPU.

        0 is skipped, 1 partial, 2 full.
        """
        return self.blocks.classes

    def fact(self, name: str) -> Fact:
        """Return the fact with a name; raise OptionError if there is none."""
        for fact in self.facts:
            if fact.name == name:
                return fact
        known = ", ".join(f.name for f in self.facts)
        raise OptionError(f"fact expects one of {known}, got {name!r}")

    def intervals(self, b: int = 0, h: int = 0) -> list[Rows]:
        """Return the keys that each block of rows of a batch and head visits."""
        self._check(b, h)
        return list(self.blocks.rows(b, h))

    def to_svg(self, b: int = 0, h: int = 0) -> str:
        """Return an SVG picture of the blocks of a batch and head."""
        self._check(b, h)
        return draw_svg(self.blocks, self.title, b, h)

    def save(self, path: str | Path, b: int = 0, h: int = 0) -> None:
        """Draw a batch and head to a .svg file, or to a .png file by matplotlib."""
        self._check(b, h)
        path = Path(path)
        match path.suffix.lower():
            case ".svg":
                path.write_text(self.to_svg(b, h), "utf-8")
            case ".png":
                draw_png(self.blocks, self.title, b, h, path)
            case suffix:
                raise OptionError(f"save expects a .svg or .png file, got {suffix!r}")

    def _check(self, b: int, h: int) -> None:
        batch, heads = self.classes.shape[:2]
        if not (0 <= b < batch and 0 <= h < heads):
            raise OptionError(
                f"b and h expect 0 to {batch - 1} and 0 to {heads - 1}, got {b}, {h}"
            )

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return str(self)

    def _lines(self) -> Iterator[str]:
        yield self.title + (f", called {self.times} times" if self.times > 1 else "")
        for name, text in (("mask", self.mask), ("score", self.score)):
            if text is not None:
                yield from _wrapped(f"  {name:<6}", text)
        if self.captured:
            given = [f"{name} {value}" for name, value in self.captured.items()]
            yield from _wrapped("  with  ", ", ".join(given))
        yield ""
        yield from self._block_lines()
        if self.ranks:
            yield ""
            yield from _wrapped("ranks  ", self.ranks)
        if self.schedule is not None:
            yield ""
            yield from self._schedule_lines(self.schedule)
        for heading, proven in (("proved", True), ("not proved", False)):
            facts = [fact for fact in self.facts if fact.proven == proven]
            width = max(len(f.title) for f in self.facts) + 2
            if facts:
                yield ""
                yield heading
            for fact in facts:
                yield from _wrapped(f"  {fact.title:<{width}}", fact.text)
        if self.gradients is not None:
            yield ""
            yield from self._gradient_lines(self.gradients)
        if self.ignored:
            yield ""
            text = f"{', '.join(self.ignored)}: they steer kernels of torch"
            yield from _wrapped("ignored options  ", text)
        if self.for_gpus:
            yield ""
            text = f"{', '.join(self.for_gpus)}: of no effect on a CPU"
            yield from _wrapped("options for GPUs  ", text)
        yield ""
        yield from self._row_lines()

    def _block_lines(self) -> Iterator[str]:
        counts, (m, n), size = self.counts, self.tile, self.block_size
        own = "" if size == self.tile else f", here in blocks of {size[0]} x {size[1]}"
        yield from _wrapped("blocks  ", f"{self.way}: {self.why}")
        yield f"  tiles of {m} x {n}{own}"
        if self.products:
            yield from _wrapped("  products of ", self.products)
        if self.copies:
            yield from _wrapped("  copies of ", self.copies)
        kinds = [
            f"{getattr(counts, kind):,} {kind}"
            for kind in ("full", "partial", "skipped")
        ]
        yield f"  {', '.join(kinds)} of {counts.blocks:,}"
        inside = counts.partial_pairs
        if inside is not None and (inside.dead_blocks or inside.full_blocks):
            yield (
                f"  of the partial ones {inside.dead_blocks:,} have no live pair, and "
                f"{inside.full_blocks:,} no dead one"
            )
        live = "" if counts.live is None else f", {counts.live:.1%} are live"
        yield f"  {counts.computed:.1%} of all pairs are computed{live}"

    def _schedule_lines(self, schedule: ScheduleFacts) -> Iterator[str]:
        yield from _wrapped("schedule  ", schedule.about)
        for name, why in schedule.lines():
            yield from _wrapped(f"  {name}  ", why)

    def _gradient_lines(self, gradients: GradientFacts) -> Iterator[str]:
        yield from _wrapped("gradients  ", gradients.heading)
        lines = list(gradients.lines())
        width = max(len(name) for name, _ in lines) + 2
        for name, text in lines:
            yield from _wrapped(f"  {name:<{width}}", text)

    def _row_lines(self) -> Iterator[str]:
        rows = self.intervals()
        yield "keys of each block of rows" + (
            ", of b = 0 and h = 0" if self.classes.shape[:2] != (1, 1) else ""
        )
        width = len(f"{rows[-1].begin}..{rows[-1].end - 1}")
        skipped = len(rows) - FIRST_ROWS - LAST_ROWS
        for i, row in enumerate(rows):
            if skipped > 1 and FIRST_ROWS <= i < FIRST_ROWS + skipped:
                if i == FIRST_ROWS:
                    yield f"  ... {skipped:,} more"
                continue
            head = f"  {f'{row.begin}..{row.end - 1}':<{width}}  "
            yield head + _runs(row.runs, WIDTH - len(head))


class Explanations(tuple[Explanation, ...]):
    """The explanations of the distinct attention calls of a function, in call order."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(f"[{i}] {explanation}" for i, explanation in enumerate(self))


def title_of(subject: Subject) -> str:
    """Return the mask's name, the sizes, and the backend."""
    batch, heads, q_len, kv_len = subject.sizes
    call = subject.call
    score_mod, mask_mod = call.signature.mods
    mods = (mask_mod, "mask"), (score_mod, "score")
    names = [name_of(mod, kind) for mod, kind in mods if mod is not None]
    dtype = str(call.query.dtype).removeprefix("torch.")
    machine = f" for {host_machine()}" if call.computed_by.for_cpu else ""
    return (
        f"{' with '.join(names) or 'dense'}: {q_len:,} queries x {kv_len:,} keys, "
        f"B={batch}, H={heads}, {dtype}, head dim {call.query.size(3)}, {call.backend}"
        f"{machine}"
    )


def products_of(call: Attention) -> str:
    """Return the form in which a CPU multiplies a call's matrices, and why."""
    machine, packed = host_machine(), MACHINES[host_machine()].packed
    dtype = str(call.query.dtype).removeprefix("torch.")
    if call.query.dtype.itemsize > 2:
        return f"vectors of {dtype}"
    if packed is None or call.query.dtype != torch.bfloat16:
        return f"vectors of float32: {machine} has none of {dtype}{lacks_tiles()}"
    if packed.is_of_unit:
        return f"tiles of {dtype}, on the matrix unit of {machine}"
    return f"pairs of {dtype}, which {machine} has{lacks_tiles()}"


def copies_of(subject: Subject, differentiated: bool) -> str:
    """Return the rows of which threads of a CPU keep copies, empty if there are none.

    `NearRows` in flexc_memory.h decides. A forward of packed products keeps values
    transposed.
    """
    call = subject.call
    programs = -(-subject.sizes[2] // subject.tile.block_m)
    packed = MACHINES[host_machine()].packed and call.query.dtype == torch.bfloat16
    later = programs >= tile.NearRowsOp.REPEATING_PROGRAMS * torch.get_num_threads()
    is_repeated = differentiated or later
    if not call.computed_by.for_cpu or call.pages or not is_repeated:
        return ""
    placement = call.placement or Placement.of(*call.operands)
    sides = zip(("keys", "values"), (call.key, call.value), placement.far, strict=True)
    far = [name for name, t, is_far in sides if is_far and t.element_size() > 1]
    if packed and not differentiated:
        far = [name for name in far if name == "keys"]
    if not far:
        return ""
    why = "rows lie apart or fall on few sets of a cache"
    return f"{' and '.join(far)} that a thread reads again, up to 2.25 MB each: {why}"


def captured_by(subject: Subject) -> dict[str, str]:
    """Return descriptions of the captures, by their names in the mods' text."""
    args = subject.written.mask_mod.block.args
    names = args[len(args) - len(subject.captures) :]
    return {
        arg.name_hint or "?": f"of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else f"= {value:g}"
        for arg, value in zip(names, subject.captures, strict=True)
    }


def name_of(mod: Any, kind: str) -> str:
    """Return the name of a mod, or its kind if the mod has no name."""
    name = getattr(mod, "__name__", None) or getattr(
        getattr(mod, "func", None), "__name__", type(mod).__name__
    )
    return kind if name == "<lambda>" else name


def _wrapped(head: str, text: str) -> Iterator[str]:
    """Yield a text after its heading, wrapped and cut after `MAX_FACT_LINES` lines."""
    width = WIDTH - len(head)
    lines = [line for part in text.split("\n") for line in _lines_of(part, width)]
    if len(lines) > MAX_FACT_LINES:
        lines = [*lines[:MAX_FACT_LINES], "..."]
    for i, line in enumerate(lines):
        yield (head if i == 0 else " " * len(head)) + line


def _lines_of(text: str, width: int) -> list[str]:
    """Return the lines of a text, without breaks within short brackets."""
    text = _unbroken(text)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(UNBROKEN, " ") for line in lines]


def _unbroken(text: str) -> str:
    """Replace the spaces within short brackets by unbreakable spaces."""
    result, opened = list(text), list[int]()
    for at, character in enumerate(text):
        if character in "([":
            opened.append(at)
        elif character in ")]" and opened:
            begin = opened.pop()
            if at - begin < MAX_UNBROKEN:
                result[begin:at] = text[begin:at].replace(" ", UNBROKEN)
    return "".join(result)


def _runs(runs: tuple[Run, ...], width: int) -> str:
    """Return as many runs as fit, at least one, and the number of further runs."""
    text = ""
    for i, run in enumerate(runs):
        part = f"{', ' if i else ''}{run.begin}..{run.end - 1} {run.kind}"
        more = MORE if i + 1 < len(runs) else 0
        if i and len(text) + len(part) > width - more:
            return f"{text} and {len(runs) - i:,} more"
        text += part
    return text or "none"
