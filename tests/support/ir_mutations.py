"""Texts and modules with faults put in: what a fuzzer gives to `flexc-opt`.

Of a text, tokens and lines change, which seldom parses; of a module, what ops hold,
which always does and often verifies. A mutation changes what it is given in place;
where there is nothing of its kind to change, all stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    i1,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

TOKEN = re.compile(
    r'"[^"\n]*"|[%@#!^]?[A-Za-z_][\w.$-]*|[%^]\d+|\d+\.\d+(?:e[+-]?\d+)?|-?\d+|->|\S'
)
NUMBER = re.compile(r"(?<![\w.%#^])-?\d+(?:\.\d+(?:e[+-]?\d+)?)?|(?<=x)\d+|\d+(?=x)")
TYPE = re.compile(
    r"(?:![\w.]+|tensor|memref|vector)<(?:[^<>]|<[^<>]*>)*>|\b(?:i\d+|f\d+|bf16|index)\b"
)
ENTRY = re.compile(r"[\w.]+ = (?:[^,{}\[\]()<>]|<[^<>]*>|\[[^\[\]]*\])+(?:, )?")
NAME = re.compile(r"[%@]\w+")
WORD = re.compile(r"(?<![%@\w.])[a-z][\w.]+")

NUMBERS = ("0", "-1", "1", "2", "3", "7", "2147483648", "1000000000000", "1.5", "-0.0")
TYPES = (
    *("i1", "i7", "i8", "i32", "i64", "i128", "si32", "index", "none", "f16", "bf16"),
    *("f32", "f64", "f80", "tensor<f32>", "tensor<?xf32>", "tensor<4x4xf32>"),
    *("tensor<?x?x?x?xbf16>", "tensor<*xf32>", "tensor<?xindex>", "memref<?x?xf32>"),
    *("!tile.tile<4xf32>", "!tile.tile<64x32xf32>", "!tile.tile<32xi1>"),
    *("!tile.tile<1000000x1000000xf32>", "!tile.view<!tile.tile<64x32xf32>>"),
)

Lines = list[str]
Mutation = Callable[[Random, Lines, Sequence[str]], None]


def mutate(random: Random, text: str, others: Sequence[str]) -> str:
    """A text with one to three faults."""
    lines = text.split("\n")
    for _ in range(_few(random)):
        if lines:
            random.choice(MUTATIONS)(random, lines, others)
    return "\n".join(lines)


def mutate_module(random: Random, module: ModuleOp) -> None:
    """Put one to three faults into a module."""
    for _ in range(_few(random)):
        ops = [op for op in module.walk() if op is not module]
        if ops:
            random.choice(MODULE_MUTATIONS)(random, random.choice(ops), ops)


def _few(random: Random) -> int:
    return random.choice((1, 1, 1, 2, 3))


def _replace(random: Random, lines: Lines, pattern: re.Pattern[str], new: str) -> None:
    """Put a text in place of one match, chosen among those of all lines."""
    found = [(i, m) for i, line in enumerate(lines) for m in pattern.finditer(line)]
    if found:
        i, match = random.choice(found)
        lines[i] = lines[i][: match.start()] + new + lines[i][match.end() :]


def _any(random: Random, lines: Sequence[str], pattern: re.Pattern[str]) -> str:
    """One of the matches in all lines, or nothing."""
    found = [m.group() for line in lines for m in pattern.finditer(line)]
    return random.choice(found) if found else ""


def _other(random: Random, others: Sequence[str]) -> list[str]:
    return random.choice(others).split("\n")


def number(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """Another number: 0, a negative or huge one, the next one."""
    old = _any(random, lines, NUMBER)
    if not old:
        return
    new = random.choice(NUMBERS)
    if random.random() < 0.5 and old.lstrip("-").isdecimal():
        value = int(old)
        new = str(random.choice((value - 1, value + 1, 2 * value, value // 2, -value)))
    same = re.compile(
        rf"(?<![\w.%#^]){re.escape(old)}(?![\w.])|(?<=x){old}\b|{old}(?=x)"
    )
    _replace(random, lines, same, new)


def every_number(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """Another number everywhere: sizes that agree with one another."""
    old, new = _any(random, lines, NUMBER), random.choice(NUMBERS)
    if old:
        same = re.compile(
            rf"(?<![\w.%#^]){re.escape(old)}(?![\w.])|(?<=x){old}\b|\b{old}(?=x)"
        )
        lines[:] = [same.sub(new, line) for line in lines]


def type_(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """Another type, of these lines or of any."""
    new = _any(random, lines, TYPE) if random.random() < 0.5 else random.choice(TYPES)
    _replace(random, lines, TYPE, new)


def every_type(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """Another type for all values of a type."""
    old, new = _any(random, lines, TYPE), random.choice(TYPES)
    if old:
        lines[:] = [line.replace(old, new) for line in lines]


def drop_attribute(random: Random, lines: Lines, others: Sequence[str]) -> None:
    _replace(random, lines, ENTRY, "")


def add_attribute(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """An entry of some other op before one of these."""
    here = _any(random, lines, ENTRY)
    new = _any(random, _other(random, others), ENTRY) if random.random() < 0.7 else here
    _replace(random, lines, re.compile(re.escape(here)), f"{new.rstrip(', ')}, {here}")


def operand(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """One value's name in place of another's."""
    _replace(random, lines, NAME, _any(random, lines, NAME))


def swap_operands(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """Two names of one line, exchanged."""
    wide = [i for i, line in enumerate(lines) if len(NAME.findall(line)) > 1]
    if wide:
        i = random.choice(wide)
        one, two = sorted(
            random.sample(list(NAME.finditer(lines[i])), 2), key=lambda m: m.start()
        )
        line = lines[i]
        between = line[one.end() : two.start()]
        parts = (line[: one.start()], two[0], between, one[0], line[two.end() :])
        lines[i] = "".join(parts)


def word(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """Another op, keyword or name of an attribute."""
    source = lines if random.random() < 0.5 else _other(random, others)
    _replace(random, lines, WORD, _any(random, source, WORD) or "nothing")


def token(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """A token is left out, written twice or exchanged for any other."""
    here = _any(random, lines, TOKEN)
    new = random.choice(("", f"{here} {here}", _any(random, lines, TOKEN)))
    _replace(random, lines, re.compile(re.escape(here)), new)


def drop_line(random: Random, lines: Lines, others: Sequence[str]) -> None:
    del lines[random.randrange(len(lines))]


def drop_lines(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """A few lines are left out."""
    start = random.randrange(len(lines))
    del lines[start : start + random.randint(2, 8)]


def double_line(random: Random, lines: Lines, others: Sequence[str]) -> None:
    i = random.randrange(len(lines))
    lines.insert(i, lines[i])


def swap_lines(random: Random, lines: Lines, others: Sequence[str]) -> None:
    i, j = (random.randrange(len(lines)) for _ in range(2))
    lines[i], lines[j] = lines[j], lines[i]


def splice(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """A few lines of another text, with names of this one."""
    source = _other(random, others)
    start = random.randrange(len(source))
    taken = source[start : start + random.randint(1, 4)]
    if random.random() < 0.7:
        taken = [NAME.sub(lambda _: _any(random, lines, NAME), line) for line in taken]
    i = random.randrange(len(lines))
    lines[i:i] = taken


def cut(random: Random, lines: Lines, others: Sequence[str]) -> None:
    """The text ends early."""
    del lines[random.randrange(len(lines)) :]


MUTATIONS: tuple[Mutation, ...] = (
    *(number, number, number, every_number, every_number, type_, type_, every_type),
    *(drop_attribute, drop_attribute, add_attribute, operand, operand, swap_operands),
    *(word, token, drop_line, drop_line, drop_lines, double_line, swap_lines),
    *(splice, splice, cut),
)
"""Those that leave a text that parses are there more often."""


def _value_before(random: Random, op: Operation, like: Attribute) -> SSAValue | None:
    """A value that an op may use: most often one of the type."""
    found: list[SSAValue] = []
    here: Operation | None = op
    while here is not None and (block := here.parent) is not None:
        found += block.args
        before = here.prev_op
        while before is not None:
            found += before.results
            before = before.prev_op
        here = block.parent_op()
    same = [v for v in found if v.type == like]
    return random.choice(same or [None] if random.random() < 0.8 else found or [None])


def other_operand(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """An operand is another value."""
    if op.operands:
        i = random.randrange(len(op.operands))
        if new := _value_before(random, op, op.operands[i].type):
            op.operands[i] = new


def fewer_operands(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """An operand is left out or there twice."""
    if op.operands:
        i = random.randrange(len(op.operands))
        twice = random.choice(([], [op.operands[i]] * 2))
        op.operands = [*op.operands[:i], *twice, *op.operands[i + 1 :]]


def erase(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """An op is left out, and what used it uses other values."""
    if op.parent is None:
        return
    for result in op.results:
        new = _value_before(random, op, result.type)
        if new is None and result.first_use:
            return
        if new is not None:
            result.replace_all_uses_with(new)
    op.detach()
    op.erase(safe_erase=False)


def copy(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """An op is there twice, the second time where others may be its users."""
    if op.parent is not None:
        new = op.clone()
        op.parent.insert_op_after(new, op)
        if random.random() < 0.5:
            for old, result in zip(op.results, new.results, strict=True):
                old.replace_uses_with_if(result, lambda use: use.operation is not new)


def move(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """An op is elsewhere in its block, or in another."""
    near = [o for o in ops if o.parent is op.parent] if random.random() < 0.8 else ops
    before = random.choice([o for o in near if o is not op] or [op])
    inside = {id(o) for o in op.walk()}
    if op.parent is not None and before.parent is not None and id(before) not in inside:
        op.detach()
        before.parent.insert_op_before(op, before)


def change_attribute(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """A property or attribute says something else."""
    held = op.properties if op.properties else op.attributes
    if held:
        name = random.choice(sorted(held))
        same = [
            a for o in ops for a in o.properties.values() if type(a) is type(held[name])
        ]
        other = random.choice(same or [held[name]])
        held[name] = random.choice((other, _changed(random, held[name])))


def _changed(random: Random, old: Attribute) -> Attribute:
    """An attribute like another, of other numbers and parts."""
    if isinstance(old, IntegerAttr) and old.type == i1:
        return BoolAttr.from_bool(not old.value.data)
    if isinstance(old, IntegerAttr):
        n = old.value.data
        values = (n - 1, n + 1, 2 * n, -n, 0, 1, -1, 2**31 - 1, 2**31, 10**12)
        try:
            return IntegerAttr(random.choice(values), old.type)
        except VerifyException:
            return IntegerAttr(1, old.type)
    if isinstance(old, StringAttr):
        return StringAttr(random.choice(("", "query", "key", "out", "a b", "x" * 300)))
    if isinstance(old, ArrayAttr):
        return ArrayAttr(
            _changed_items(random, old.data, lambda a: _changed(random, a))
        )
    if isinstance(old, DenseArrayBase):
        numbers = _changed_items(
            random, old.get_values(), lambda n: n + random.choice((-1, 1, 1000))
        )
        return DenseArrayBase.from_list(old.elt_type, numbers)
    return old


def _changed_items(
    random: Random, items: Sequence[Any], change: Callable[[Any], Any]
) -> list[Any]:
    if not items:
        return []
    i = random.randrange(len(items))
    new = random.choice(([], [change(items[i])], [change(items[i])], [items[i]] * 2))
    return [*items[:i], *new, *items[i + 1 :]]


def drop_property(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    held = op.properties if op.properties else op.attributes
    if held:
        del held[random.choice(sorted(held))]


def add_property(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """A property that another op has."""
    source = random.choice(
        [o for o in ops if type(o) is type(op) or random.random() < 0.1]
    )
    held = source.properties | source.attributes
    if held:
        name = random.choice(sorted(held))
        places = (op.properties, op.attributes)
        # xDSL prints comparisons without their attributes.
        is_comparison = isinstance(op, arith.CmpiOp | arith.CmpfOp)
        place = random.choice(places[:1] if is_comparison else places)
        place[name] = held[name]


def other_type(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """A result or argument, or all of its type, have another type of the module."""
    known = list(dict.fromkeys(v.type for o in ops for v in _values(o)))
    mine = _values(op)
    if mine:
        old, new = random.choice(mine), random.choice(known)
        values = [v for o in ops for v in _values(o) if v.type == old.type]
        if random.random() < 0.5:
            values = [old]
        for value in values:
            value._type = new


def _values(op: Operation) -> list[SSAValue]:
    blocks = [b for r in op.regions for b in r.blocks]
    return [*op.results, *(a for b in blocks for a in b.args)]


def empty_region(random: Random, op: Operation, ops: Sequence[Operation]) -> None:
    """A region is without blocks, or its block without ops."""
    regions = [r for r in op.regions if r.blocks]
    if regions:
        region = random.choice(regions)
        block = region.blocks[0]
        for inner in reversed(list(block.ops)):
            inner.detach()
            inner.erase(safe_erase=False)
        if random.random() < 0.5:
            region.detach_block(block).erase(safe_erase=False)


ModuleMutation = Callable[[Random, Operation, Sequence[Operation]], None]

MODULE_MUTATIONS: tuple[ModuleMutation, ...] = (
    *(other_operand, other_operand, other_operand, fewer_operands, erase, erase),
    *(
        copy,
        move,
        change_attribute,
        change_attribute,
        change_attribute,
        change_attribute,
    ),
    *(drop_property, add_property, other_type, other_type, empty_region),
)
