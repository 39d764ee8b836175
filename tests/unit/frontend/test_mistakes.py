"""Mistakes in mods: the class, the user's line, what it is and what to write instead.

Each is one short message, without the exceptions of torch that led to it.
"""

from __future__ import annotations

import inspect
import math
import random
import threading
import traceback
from math import log as ln
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask

from flexc import errors
from flexc.frontend.closures import read_mods
from flexc.frontend.mistakes import random_numbers
from flexc.frontend.signatures import described
from tests.unit.frontend.evaluate import check_mask, check_score, import_mods

LONG = torch.zeros(4, 100)
TABLE = torch.ones(4, 8)
COUNTS = torch.zeros(4)
DENSE = torch.ones(8, 8, dtype=torch.bool)
BIAS = torch.zeros(2, 1, 8, 8)
COMPLEX = torch.ones(4, dtype=torch.complex64)
WEIGHTS = [1.0, 2.0]
SLOPES = np.ones(4)
BY_HEAD = {0: 1.0, 1: 2.0}
BLOCKS = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 8, 8, "cpu")
LINEAR = torch.nn.Linear(1, 1)

Branches = errors.DataDependentControlFlowError
Writes = errors.MutationError
Draws = errors.RandomNumberError
Unsupported = errors.UnsupportedOpError
Signature = errors.ModSignatureError


class Slope:
    def __init__(self, slope: float):
        self.slope = slope

    def __call__(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * self.slope


def branches(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    if q > 3:  # here
        return s
    return s * 2


def matches(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    match h:
        case 0:  # here
            return s
        case _:
            return s * 2


def swallows(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    try:
        if q > k:  # here
            return s
    except Exception:
        pass
    return s * 2


def calls_item(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    x = s * 2
    return x + q.item()  # here


def loops(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    for i in range(k):  # here
        s = s + i
    return s


def unpacks(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    x, y = q  # here
    return s + x + y


def over_lines(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + math.sqrt(  # here
        q
    )


def adds_in_place(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    s += 1  # here
    return s


def writes_a_table(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    TABLE[0, 0] = 1  # here
    return s


def counts(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    COUNTS[h] += 1  # here
    return s


def writes_where(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    s[s > 0] = 0  # here
    return s


def draws(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    x = s + 1
    return x + torch.rand_like(s)  # here


def yields(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    yield s


async def waits(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s


def returns_nothing(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    _ = s * 2


SCORES: dict[str, tuple[Any, type[errors.FlexcError], str]] = {
    # Python wants a value.
    "if": (branches, Branches, "Python cannot branch on `q > 3`: write torch.where(q"),
    "match": (matches, Branches, "torch.where(condition, a, b)"),
    "try": (swallows, Branches, "torch.where(condition, a, b)"),
    "ternary": (
        lambda s, b, h, q, k: s if q > k else 0.0,
        Branches,
        "branch on `q > k`",
    ),
    "and": (
        lambda s, b, h, q, k: torch.where(q > 1 and k > 1, s, 0.0),
        Branches,
        "write `(q > 1) & (k > 1)`",
    ),
    "item": (calls_item, Branches, "use the tensor itself"),
    "tolist": (lambda s, b, h, q, k: s + q.tolist(), Branches, "the tensor itself"),
    "numpy": (lambda s, b, h, q, k: s + q.numpy(), Branches, "the tensor itself"),
    "int": (lambda s, b, h, q, k: s + int(q), Branches, "`(q).to(torch.int32)`"),
    "float": (lambda s, b, h, q, k: float(s), Branches, "the tensor itself"),
    "bool": (lambda s, b, h, q, k: s * bool(q > k), Branches, "the condition itself"),
    "round": (lambda s, b, h, q, k: round(s), Branches, "write torch.round(x)"),
    "divmod": (lambda s, b, h, q, k: divmod(q, 2)[0], Branches, "x // n and x % n"),
    "max": (lambda s, b, h, q, k: s * max(q, k), Branches, "torch.maximum(x, y)"),
    "min": (lambda s, b, h, q, k: s * min(q, 3), Branches, "x.clamp(max=number)"),
    "range": (loops, Branches, "`range(k)` gets no Python value: loop to a fixed num"),
    "unpack": (unpacks, Branches, "single numbers without elements"),
    "sum": (lambda s, b, h, q, k: s + sum(q), Branches, "numbers without elements"),
    "len": (lambda s, b, h, q, k: s + len(TABLE[h, q]), Branches, "without elements"),
    "format": (lambda s, b, h, q, k: s * len(f"{s:.2f}"), Branches, "leave it out"),
    "lines": (over_lines, Branches, "write `torch.sqrt(q)`"),
    # Functions of numbers.
    "math": (
        lambda s, b, h, q, k: s - math.log(abs(q - k) + 1),
        Branches,
        "`math.log(abs(q - k) + 1)` gets no Python value: write `torch.log(abs(q - k",
    ),
    "math-name": (lambda s, b, h, q, k: s + ln(s), Branches, "write `torch.log(s)`"),
    "np.log": (lambda s, b, h, q, k: np.log(s), Branches, "write `torch.log(s)`"),
    "np.where": (
        lambda s, b, h, q, k: np.where(q >= k, s, -np.inf),
        Branches,
        "write `torch.where(q >= k, s, -np.inf)`",
    ),
    "np.asarray": (lambda s, b, h, q, k: np.asarray(s), Branches, "the tensor itself"),
    "torch.equal": (lambda s, b, h, q, k: s * torch.equal(q, k), Branches, "`x == y`"),
    "torch.tensor": (
        lambda s, b, h, q, k: torch.tensor([s, 0.0]).max(),
        Branches,
        "torch.maximum",
    ),
    "torch.cond": (
        lambda s, b, h, q, k: torch.cond(q > k, torch.sin, torch.cos, (s,)),
        Branches,
        "write torch.where(condition, a, b)",
    ),
    "torch-number": (
        lambda s, b, h, q, k: s * torch.sqrt(2.0),  # pyright: ignore
        errors.DtypeError,
        "must be Tensor, not float: of a Python number take math's function",
    ),
    "torch.maximum": (
        lambda s, b, h, q, k: torch.maximum(s, 0.0),  # pyright: ignore
        errors.DtypeError,
        "must be Tensor, not float",
    ),
    # Containers and indices.
    "list": (
        lambda s, b, h, q, k: s * [1.0, 2.0][h],
        Branches,
        "`[1.0, 2.0][h]` gets no Python number: make the container a tensor",
    ),
    "captured-list": (lambda s, b, h, q, k: s * WEIGHTS[h], Branches, "torch.tensor"),
    "dict": (lambda s, b, h, q, k: s * BY_HEAD[h], Branches, "make the container a"),
    "ndarray": (lambda s, b, h, q, k: s + SLOPES[h], Branches, "make the container a"),
    "ndarray-product": (lambda s, b, h, q, k: (SLOPES * s)[0], Branches, "NumPy's arr"),
    "tensors": (lambda s, b, h, q, k: [TABLE][h][0, 0], Branches, "torch.stack"),
    "float-index": (
        lambda s, b, h, q, k: s + TABLE[h, q / 2],
        Branches,
        "indices are integers, as from //",
    ),
    "condition-index": (lambda s, b, h, q, k: s[s > 0], Branches, "torch.where(cond"),
    "slice": (
        lambda s, b, h, q, k: s + TABLE[h, :q].sum(),
        Branches,
        "a length cannot depend on a position",
    ),
    "mask-index": (
        lambda s, b, h, q, k: s + TABLE[TABLE > 0][0],
        Unsupported,
        "use torch.where",
    ),
    "constant-index": (
        lambda s, b, h, q, k: s + TABLE[4, 0],
        errors.CapturedIndexError,
        "reads outside of a captured tensor: index 4 is out of bounds for dimension 0",
    ),
    "wide-integer": (
        lambda s, b, h, q, k: s + 10**30,
        errors.NumberRangeError,
        "integers of tensors have 64 bits; write a float",
    ),
    "wide-negative-integer": (
        lambda s, b, h, q, k: s + (-(2**63) - 1),
        errors.NumberRangeError,
        "integers of tensors have 64 bits; write a float",
    ),
    "too-many-indices": (
        lambda s, b, h, q, k: s + TABLE[b, h, q],
        errors.ShapeError,
        "too many indices for tensor of dimension 2",
    ),
    "shapes": (
        lambda s, b, h, q, k: s + (TABLE + torch.ones(3))[0, 0],
        errors.ShapeError,
        "shapes in a score_mod do not fit",
    ),
    "linear": (lambda s, b, h, q, k: LINEAR(s), errors.ShapeError, "at least 1D"),
    # Writing.
    "+=": (adds_in_place, Writes, "add_"),
    "writes": (writes_a_table, Writes, "must not write"),
    "counts": (
        counts,
        Writes,
        "or to parts of tensors, as `C",
    ),
    "writes-where": (writes_where, Writes, "`s[s > 0] = ...`"),
    "masked_fill_": (lambda s, b, h, q, k: s.masked_fill_(q < k, 0), Writes, "masked"),
    "out": (lambda s, b, h, q, k: torch.mul(s, 2, out=s), Writes, "score = score + x"),
    # Random numbers.
    "rand_like": (draws, Draws, "as aten.rand_like.default does"),
    "randn": (lambda s, b, h, q, k: s + torch.randn(()), Draws, "draw random numbers"),
    "dropout": (lambda s, b, h, q, k: F.dropout(s, 0.1), Draws, "draw random numbers"),
    "bernoulli": (lambda s, b, h, q, k: torch.bernoulli(s), Draws, "`noise[h, q_idx]`"),
    "randint": (lambda s, b, h, q, k: s + torch.randint(3, ()), Draws, "draw random"),
    "python-random": (
        lambda s, b, h, q, k: s * random.random(),
        Draws,
        "as Python's random does",
    ),
    "python-choice": (
        lambda s, b, h, q, k: s * random.choice(WEIGHTS),
        Draws,
        "as Python's random does",
    ),
    "numpy-random": (
        lambda s, b, h, q, k: s * np.random.rand(),
        Draws,
        "as numpy.random does",
    ),
    "normal_": (lambda s, b, h, q, k: torch.empty(()).normal_(), Draws, "draw random"),
    "generator": (
        lambda s, b, h, q, k: s * torch.rand((), generator=torch.Generator()),
        Draws,
        "capture the tensor and index it",
    ),
    # Operations on more than one number.
    "mean": (lambda s, b, h, q, k: LONG[h].mean(), Unsupported, "`table[h, q_idx]`"),
    "softmax": (lambda s, b, h, q, k: s.softmax(0), Unsupported, "pointwise ops"),
    "nonzero": (
        lambda s, b, h, q, k: s + TABLE[h].nonzero().sum(),
        Unsupported,
        "aten.nonzero.default has a result whose size depends on data: keep all",
    ),
    "masked-select": (
        lambda s, b, h, q, k: s + TABLE[h].masked_select(TABLE[h] > 0).sum(),
        Unsupported,
        "torch.where(condition, x, 0)",
    ),
    "by-flags": (
        lambda s, b, h, q, k: s + TABLE[h][TABLE[h] > 0].sum(),
        Unsupported,
        "has a result whose size depends on data",
    ),
    "counted": (
        lambda s, b, h, q, k: s if len(TABLE[h].nonzero()) > 3 else -s,
        Unsupported,
        "`len(TABLE[h].nonzero())` has a result whose size depends on data",
    ),
    "trace": (
        lambda s, b, h, q, k: s + torch.outer(TABLE[h], TABLE[b]).trace(),
        Unsupported,
        "cannot compute `torch.outer(TABLE[h], TABLE[b]).trace()`: mods compute with",
    ),
    "pad": (
        lambda s, b, h, q, k: s + torch.nn.functional.pad(TABLE[h], (1, 1))[0],
        Unsupported,
        "cannot compute `torch.nn.functional.pad(TABLE[h], (1, 1))`: mods compute",
    ),
    "pool": (
        lambda s, b, h, q, k: s + torch.max_pool1d(TABLE[h][None], 2)[0, 1],
        Unsupported,
        "a score_mod cannot do this: mods compute with single numbers",
    ),
    "func-grad": (
        lambda s, b, h, q, k: s + torch.func.grad(torch.sin)(s),
        Unsupported,
        "must not differentiate, as torch.func.grad does: write the derivative out",
    ),
    "device": (
        lambda s, b, h, q, k: s.to("xpu"),
        Unsupported,
        "a score_mod computes on the device of the query and cannot move to another",
    ),
    "grad": (
        lambda s, b, h, q, k: torch.autograd.grad(s, s)[0],
        Unsupported,
        "a score_mod cannot do this: element 0 of tensors does not require grad",
    ),
    "one-float-index": (
        lambda s, b, h, q, k: s + TABLE[0][(q - k) / 2],
        Unsupported,
        "cannot index by a float: indices are integers, as from // in place of /",
    ),
    # What is called, and what it returns.
    "four-arguments": (
        lambda s, b, h, q: s,
        Signature,
        "with (score, b, h, q_idx, kv_idx), but this one takes (s, b, h, q)",
    ),
    "without-keys": (
        lambda score, b, h, q: score,
        Signature,
        "takes (score, b, h, q): kv_idx is missing",
    ),
    "without-heads": (
        lambda score, b, q_idx, kv_idx: score,
        Signature,
        "takes (score, b, q_idx, kv_idx): h is missing",
    ),
    "without-any": (
        lambda s, b, i, j: s,
        Signature,
        "takes (s, b, i, j): an argument is missing",
    ),
    "one-argument": (lambda window: None, Signature, "if it makes the mod, pass what"),
    "class": (
        Slope,
        Signature,
        "got the class Slope: pass an instance, as in Sl",
    ),
    "c-function": (torch.add, Signature, "got (!Tensor!, !Tensor!"),
    "module": (LINEAR, Signature, "this one takes (input: torch.Tensor)"),
    "returns-table": (lambda s, b, h, q, k: TABLE, Signature, "of shape (4, 8): index"),
    "returns-vector": (lambda s, b, h, q, k: TABLE[h], Signature, "shape (8,): index"),
    "returns-none": (returns_nothing, Signature, "got None: is a `return` missing?"),
    "returns-tuple": (lambda s, b, h, q, k: (s, q), Signature, "got tuple of 2"),
    "returns-function": (lambda s, b, h, q, k: lambda: s, Signature, "got function: "),
    "returns-complex": (lambda s, b, h, q, k: s * 1j, Signature, "its real part"),
    "returns-numpy": (lambda s, b, h, q, k: np.float64(2), Signature, "float64 of Num"),
    "yields": (yields, Signature, "got generator: write a plain function"),
    "async": (waits, Signature, "got coroutine: write a plain function"),
}

MASKS: dict[str, tuple[Any, type[errors.FlexcError], str]] = {
    "and": (
        lambda b, h, q, k: q >= k and q - k < 4,
        Branches,
        "Python cannot decide `q >= k and q - k < 4`: write `(q >= k) & (q - k < 4)`",
    ),
    "or-not": (
        lambda b, h, q, k: q >= k or not k > 2 or 1 < q < 3,
        Branches,
        "write `(q >= k) | (~(k > 2)) | ((1 < q) & (q < 3))`",
    ),
    "not": (lambda b, h, q, k: not q >= k, Branches, "write `~(q >= k)`"),
    "chain": (
        lambda b, h, q, k: 0 <= q - k < 4,
        Branches,
        "write `(0 <= q - k) & (q - k < 4)`",
    ),
    "in": (lambda b, h, q, k: h in (1, 2), Branches, "write `(h == 1) | (h == 2)`"),
    "precedence": (
        lambda b, h, q, k: q >= k & q - k < 4,
        Branches,
        "& and | bind tighter than comparisons, so put each in parentheses",
    ),
    "any": (lambda b, h, q, k: any([q >= k, k < 2]), Branches, "conditions by |"),
    "all": (lambda b, h, q, k: all([q >= k, k < 2]), Branches, "conditions by &"),
    "item": (
        lambda b, h, q, k: DENSE[q.item(), k.item()],
        Branches,
        "write `DENSE[q, k]`",
    ),
    "compares-item": (
        lambda b, h, q, k: True if q.item() > k.item() else q < 3,
        Branches,
        "write torch.where(q > k, a, b)",
    ),
    "random": (lambda b, h, q, k: torch.rand(()) < 0.5, Draws, "draw random numbers"),
    "sort": (lambda b, h, q, k: torch.sort(k)[0] == q, Unsupported, "aten.sort"),
    "score-mod": (
        lambda s, b, h, q, k: s,
        Signature,
        "these are the arguments of a score_mod, pass it as score_mod=",
    ),
    "row": (lambda b, h, q, k: DENSE[q], Signature, "a tensor of shape (8,): index it"),
    "number": (lambda b, h, q, k: 1.0, Signature, "got float: return a condition"),
    "integer": (lambda b, h, q, k: q - k, Signature, "compare it, as in `x != 0`"),
    "bias": (
        lambda b, h, q, k: torch.where(q >= k, 0.0, -math.inf),
        Signature,
        "got torch.float32: return a condition",
    ),
    "numpy": (lambda b, h, q, k: np.bool_(True), Signature, "of NumPy: convert it"),
    "none": (lambda b, h, q, k: None, Signature, "is a `return` missing?"),
}


@pytest.mark.parametrize("name", SCORES)
def test_mistakes_in_scores(name: str) -> None:
    mod, error, says = SCORES[name]
    with pytest.raises(error) as raised:
        import_mods(mod)
    check(raised.value, mod, says)


@pytest.mark.parametrize("name", MASKS)
def test_mistakes_in_masks(name: str) -> None:
    mod, error, says = MASKS[name]
    with pytest.raises(error) as raised:
        import_mods(None, mod)
    check(raised.value, mod, says)


def check(error: errors.FlexcError, mod: Any, says: str) -> None:
    """A short message that names the user's line, and nothing that led to it."""
    text = "".join(traceback.format_exception_only(error))
    assert says in text
    assert len(text.splitlines()) <= 6
    assert len(text) < 600
    assert "FakeTensor" not in text
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    assert len(traceback.format_exception(error)) < 20
    if not hasattr(mod, "__code__"):
        return
    location = error.location
    assert location is not None
    assert location.filename == __file__
    assert location.line == line_of(mod)
    assert str(error).count(f"{location}:") == 1


def line_of(mod: Any) -> int:
    """The line marked with "here", or the first."""
    first = mod.__code__.co_firstlineno
    lines = inspect.getsource(mod).splitlines() if mod.__name__ != "<lambda>" else []
    return first + next((i for i, line in enumerate(lines) if "# here" in line), 0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (0.5, "mask_mod expects a function of (b, h, q_idx, kv_idx), got float"),
        (DENSE, "pass mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"),
        (DENSE.int(), "kv_idx: mask[q_idx, kv_idx] != 0"),
        (DENSE[0], "mask_mod=lambda b, h, q_idx, kv_idx: mask[kv_idx]"),
        (DENSE.expand(2, 8, 8), "mask[b, q_idx, kv_idx]"),
        (BIAS, "score_mod=lambda score, b, h, q_idx, kv_idx: score + bias[b, 0, q_idx"),
        (
            DENSE.numpy(),
            "got ndarray: make it a tensor, and pass a function th",
        ),
        (
            create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 8, 8, "cpu"),
            "block_mask=",
        ),
    ],
    ids=["number", "mask", "integers", "row", "batch", "bias", "ndarray", "block-mask"],
)
def test_mods_are_functions(given: Any, says: str) -> None:
    with pytest.raises(errors.ModSignatureError) as raised:
        import_mods(None, given)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((2, 16), "mask[b, kv_idx]"),
        ((4, 16), "mask[h, kv_idx]"),
        ((8, 16), "mask[q_idx, kv_idx]"),
        ((4, 8, 16), "mask[h, q_idx, kv_idx]"),
        ((2, 1, 16), "mask[b, 0, kv_idx]"),
        ((2, 1, 1, 16), "mask[b, 0, 0, kv_idx]"),
        ((5, 5), "mask[q_idx, kv_idx]"),
    ],
)
def test_sizes_say_what_dimensions_are(shape: tuple[int, ...], says: str) -> None:
    assert says in described(torch.ones(shape, dtype=torch.bool), (2, 4, 8, 16))


def test_captured_dtypes() -> None:
    with pytest.raises(errors.DtypeError, match=r"captured COMPLEX: .*complex64; conv"):
        import_mods(lambda s, b, h, q, k: s + COMPLEX[h].real)


def test_random_numbers_of_python() -> None:
    where = errors.SourceLocation("mods.py", 3)
    error = random_numbers("score_mod", "random.random()", where)
    assert isinstance(error, errors.UnsupportedOpError)
    assert str(error).startswith(
        "mods.py:3: a score_mod must not draw random numbers, as random.random() does"
    )


def test_random_numbers_of_another_thread() -> None:
    """What a data loader draws in the meantime is not what a mod drew."""
    ends = threading.Event()

    def draw() -> None:
        while not ends.is_set():
            random.random()
            np.random.rand()

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        import_mods(lambda s, b, h, q, k: s * 2)
    finally:
        ends.set()
        thread.join()


def test_a_generator_of_another_kind() -> None:
    """The state of NumPy's own generator is that of whichever was set."""
    numbers: Any = np.random  # Stubs lack some of it.
    before = numbers.get_bit_generator()
    numbers.set_bit_generator(np.random.PCG64(0))
    try:
        import_mods(lambda s, b, h, q, k: s * 2)
        with pytest.raises(Draws, match="numpy"):
            import_mods(lambda s, b, h, q, k: s * np.random.rand())
    finally:
        numbers.set_bit_generator(before)


def test_code_without_source() -> None:
    found: dict[str, Any] = {}
    exec("def mod(s, b, h, q, k):\n    return s if q > k else -s", found)
    with pytest.raises(Branches, match=r"<string>:2: .*cannot branch on or convert"):
        import_mods(found["mod"])


def test_exceptions_of_the_user_pass() -> None:
    with pytest.raises(NameError, match="undefined"):
        import_mods(lambda s, b, h, q, k: undefined)  # noqa: F821  # pyright: ignore

    with pytest.raises(AttributeError, match="no attribute 'nope'") as noted:
        import_mods(lambda s, b, h, q, k: s.nope)
    (note,) = noted.value.__notes__
    assert note.startswith(f"{__file__}:")

    def raises(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        raise RuntimeError("too many indices")

    with pytest.raises(RuntimeError, match="too many") as raised:
        import_mods(raises)
    assert type(raised.value) is RuntimeError


def test_numbers_are_no_mistakes() -> None:
    """What Python may ask of captured numbers and of a mod's own constants."""
    head = 1

    def looks_up(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * BY_HEAD[head] + WEIGHTS[head] + math.log(head) + SLOPES[head]

    def own_constant(b: Any, h: Any, q: Any, k: Any) -> Any:
        return k < int(torch.tensor(3)) + max(head, 2)

    check_score(looks_up)
    check_mask(own_constant)
    assert read_mods(looks_up, None).captures


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
        lambda s, b, h, q, k: s.masked_fill(q < k, -math.inf),
        lambda s, b, h, q, k: s + sum(TABLE[h, i] for i in range(3)),
        lambda s, b, h, q, k: F.dropout(s, 0.5, training=False),
        lambda s, b, h, q, k: s + torch.tensor([1.0, 2.0, 3.0, 4.0])[h],
        lambda s, b, h, q, k: s * np.float32(2.0) + q.cpu() + abs(q - k),
        lambda s, b, h, q, k: s * 2.0 ** (-h) * len(TABLE[h]),
        lambda s, b, h, q, k: s * (f"{q}" != ""),
    ],
)
def test_what_eager_takes(mod: Any) -> None:
    check_score(mod)
