"""Tapes on the disk: first calls of another process, and what is never stored."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

from flexc.frontend.closures import read_mods
from flexc.runtime.kernels import (
    cpp_compiler,
    driver,
)
from flexc.runtime.kernels.driver import counters
from flexc.runtime.planner import tables
from flexc.runtime.process.recent import Recent
from flexc.runtime.replay import repeats, stored_tapes
from flexc.runtime.replay.stable_text import UnstableError, stable_text
from tests.support.reference import attention
from tests.support.threads import torch_threads
from tests.unit.runtime.repeated import attend, causal, leaves, qkv

Mods = tuple[Callable[..., Any] | None, Callable[..., Any] | None]


class Process:
    """What a process knows, which another does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(stored_tapes, "MOST_MISSES", 8)
        self.another()

    def another(self) -> None:
        """Forget what calls left in memory."""
        self.monkeypatch.setattr(driver, "_kernels", Recent())
        repeats.KNOWN.clear()
        self.monkeypatch.setattr(stored_tapes, "_missed", Recent())
        driver._traced.clear()
        self.monkeypatch.setattr(tables, "_kernels", Recent())


@pytest.fixture
def process(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def tapes(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("tape-*"))


def check(mods: Mods, length: int = 40) -> int:
    """Compare a call of new tensors, and return how often it traced mods."""
    before = counters["traced"]
    query, key, value = qkv(length)
    found = attend(query, key, value, mods[0], mask_mod=mods[1])
    expected = attention(query, key, value, *mods).out.to(found.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    return counters["traced"] - before


def windowed(width: int) -> Mods:
    return None, lambda b, h, q, k: (q >= k) & (q - k < width)


def capped(cap: float) -> Mods:
    return lambda s, b, h, q, k: cap * torch.tanh(s / cap), causal


def biased(scale: float = 1.0) -> Mods:
    """A tensor is captured, of other values each time."""
    table = torch.randn(2, 2048) * scale
    return lambda s, b, h, q, k: s + table[h, k], None


def table_read_from_its_end() -> Mods:
    """Indices may be negative, so the gradient's code has the length of the table."""
    table = torch.randn(20, requires_grad=True)
    index = torch.randint(-20, 20, (2048,))
    return lambda s, b, h, q, k: s + table[index[k]], None


def documents() -> Mods:
    """Blocks are planned."""
    ids = torch.arange(1024) // 300
    return None, lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda: (None, None), 40),
        (lambda: windowed(8), 40),
        (lambda: capped(3.0), 40),
        (biased, 40),
        (documents, 1024),
    ],
    ids=["no mods", "number", "function of torch", "tensor", "planned"],
)
def test_another_process_traces_nothing(
    make: Callable[[], Mods], length: int, process: Process, tmp_path: Path
) -> None:
    assert check(make(), length) == 1
    assert not tapes(tmp_path)
    assert check(make(), length) == 0
    assert len(tapes(tmp_path)) == 1
    process.another()
    before = counters.copy()
    for _ in range(2):
        check(make(), length)
    assert counters == before


def test_other_facts_have_other_tapes(process: Process, tmp_path: Path) -> None:
    for _ in range(2):
        check(windowed(8))
    process.another()
    assert check(windowed(9)) == 1
    process.another()
    assert check(windowed(8), length=41) == 1
    process.another()
    with torch_threads(torch.get_num_threads() + 1):
        assert check(windowed(8)) == 1
    assert check(windowed(8)) == 0


@pytest.mark.parametrize("name", ["FLEXC_MACHINE", "CXX"])
def test_what_kernels_are_compiled_for_is_a_fact(
    name: str, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        check((None, causal))
    process.another()
    command = f"{cpp_compiler.find_command()[0]} -DANOTHER"
    monkeypatch.setenv(name, {"FLEXC_MACHINE": "portable", "CXX": command}[name])
    assert check((None, causal)) == 1


def test_what_is_gone_or_damaged_is_made_anew(process: Process, tmp_path: Path) -> None:
    for _ in range(2):
        check((None, causal))
    for path in (tmp_path / "cache").glob("*.so"):
        path.unlink()
    process.another()
    assert [check((None, causal)) for _ in range(2)] == [1, 0]
    (tape,) = tapes(tmp_path)
    tape.write_bytes(tape.read_bytes()[1:])
    process.another()
    assert [check((None, causal)) for _ in range(2)] == [1, 0]
    process.another()
    assert check((None, causal)) == 0


def test_a_cache_that_cannot_be_written_to(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise stored_tapes.FlexcError("no room")

    monkeypatch.setattr(stored_tapes, "store", refuse)
    assert [check((None, causal)) for _ in range(3)] == [1, 0, 0]


def test_the_disk_is_asked_a_few_times(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(stored_tapes, "name_of", lambda *facts: asked.append(facts))
    monkeypatch.setattr(stored_tapes, "load", lambda name: None)
    for length in range(20, 40):
        check((None, causal), length)
    assert len(asked) == stored_tapes.MOST_MISSES


class Slope:
    value = 0.5


def asks_state() -> Mods:
    table = torch.randn(2048)
    return lambda s, b, h, q, k: s + table[k] * (2 if table.requires_grad else 1), None


def reads_a_class() -> Mods:
    return lambda s, b, h, q, k: s * Slope.value, None


def is_traced_always() -> Mods:
    names = ["table"]
    table = torch.randn(2048)
    return lambda s, b, h, q, k: s + eval(names[0], {"table": table})[k], None


@pytest.mark.parametrize("make", [asks_state, reads_a_class, is_traced_always])
def test_what_a_digest_does_not_tell_is_not_stored(
    make: Callable[[], Mods], process: Process, tmp_path: Path
) -> None:
    mods = make()
    for _ in range(3):
        check(mods)
    assert not tapes(tmp_path)
    process.another()
    assert check(mods) == 1


def table_of_gradients() -> Mods:
    """Its gradients are added up by operations of torch."""
    table = torch.randn(2, 32, requires_grad=True)
    return lambda s, b, h, q, k: s + table[h, (q - k).abs().clamp(max=31)], None


def learned(mods: Mods) -> list[Tensor]:
    """Tensors of floats that mods capture."""
    captures = read_mods(*mods).captures
    return [c for c in captures if isinstance(c, Tensor) and c.requires_grad]


def check_gradients(mods: Mods, length: int = 40) -> int:
    """Compare gradients of new tensors, and return how often mods were traced."""
    before = counters["traced"]
    query, key, value = leaves(length)
    inputs = [query, key, value, *learned(mods)]
    out = attend(query, key, value, mods[0], mask_mod=mods[1])
    cotangent = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, cotangent)
    expected = torch.autograd.grad(
        attention(query, key, value, *mods).out, inputs, cotangent.double()
    )
    atol = 2e-5 * max(1.0, length / 40) ** 0.5  # Sums of so many rounded terms.
    for gradient, right in zip(found, expected, strict=True):
        right = right.to(found[0].dtype)
        torch.testing.assert_close(gradient, right, rtol=0, atol=atol)
    return counters["traced"] - before


@pytest.mark.parametrize(
    ("make", "length", "stored"),
    [
        (lambda: (None, None), 40, 2),
        (lambda: windowed(8), 40, 2),
        (lambda: capped(3.0), 40, 2),
        (biased, 40, 2),
        (table_of_gradients, 40, 2),
        (table_read_from_its_end, 40, 2),
        (documents, 1024, 3),
    ],
    ids=["no mods", "number", "function", "tensor", "table", "from the end", "planned"],
)
def test_gradients_of_another_process_trace_nothing(
    make: Callable[[], Mods],
    length: int,
    stored: int,
    process: Process,
    tmp_path: Path,
) -> None:
    assert check_gradients(make(), length) == 1
    assert not tapes(tmp_path)
    assert [check_gradients(make(), length) for _ in range(2)] == [0, 0]
    assert len(tapes(tmp_path)) == stored
    process.another()
    before = counters.copy()
    for _ in range(2):
        check_gradients(make(), length)
    assert counters == before


@pytest.mark.parametrize("make", [lambda: capped(3.0), documents, table_of_gradients])
def test_a_gradient_that_is_not_stored_is_made(
    make: Callable[[], Mods], process: Process, tmp_path: Path
) -> None:
    """The second call of a process records what the first had to prepare."""
    length = 1024 if make is documents else 40
    for _ in range(2):
        check_gradients(make(), length)
    forward = [path for path in tapes(tmp_path) if '"wants_lse"' in path.read_text()]
    for path in set(tapes(tmp_path)) - set(forward):
        path.unlink()
    process.another()
    assert [check_gradients(make(), length) for _ in range(3)] == [1, 0, 0]
    process.another()
    assert check_gradients(make(), length) == 0


def test_second_derivatives_of_a_stored_call(process: Process) -> None:
    for _ in range(2):
        check_gradients(capped(3.0))
    process.another()
    mods, inputs = capped(3.0), leaves()

    def second(out: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        total = torch.stack([g.square().sum() for g in first]).sum()
        return torch.autograd.grad(total, inputs)

    found = second(attend(*inputs, mods[0], mask_mod=mods[1]))
    repeats.KNOWN.clear()
    process.monkeypatch.setattr(stored_tapes, "MOST_MISSES", 0)  # Without the disk.
    expected = second(attend(*inputs, mods[0], mask_mod=mods[1]))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_numbers_are_those_of_the_call(process: Process) -> None:
    """Gradients that are prepared late take what mods had captured by the call."""
    for _ in range(2):
        check_gradients(capped(3.0))
    process.another()
    cap = 3.0

    def soft_cap(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return cap * torch.tanh(s / cap)

    inputs = leaves()
    query, key, value = inputs
    out = attend(query, key, value, soft_cap, mask_mod=causal)
    expected = torch.autograd.grad(
        attention(query, key, value, soft_cap, causal).out.sum(), inputs
    )
    cap = 5.0
    found = torch.autograd.grad(out.sum(), inputs)  # Its cotangent is expanded.
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), right.double(), atol=2e-5, rtol=0)


class Changing:
    """A mod whose meaning changes when `changed` is called."""

    def __init__(self, first: Any, second: Any, use: Callable[[Tensor, Any], Tensor]):
        held = first

        def score_mod(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return use(s, held)

        def changed() -> None:
            nonlocal held
            held = second

        self.score_mod, self.changed = score_mod, changed


@pytest.mark.parametrize(
    ("first", "second", "use"),
    [
        (True, False, lambda s, flag: s.tanh() if flag else s * 2),
        ("tanh", "sin", lambda s, name: s.tanh() if name == "tanh" else s.sin()),
        (torch.tanh, torch.sin, lambda s, function: function(s)),
        (3.0, 5.0, lambda s, cap: cap * torch.tanh(s / cap)),
        (torch.tensor(2.0), torch.ones(1), lambda s, t: s * t),
    ],
    ids=["bool", "str", "function", "number", "rank"],
)
@pytest.mark.parametrize("cotangent", ["dense", "expanded"])
def test_mods_that_change_before_a_gradient(
    first: Any, second: Any, use: Any, cotangent: str, process: Process
) -> None:
    """The second process prepares what has no tape: the gradient along another."""
    for _ in range(2):
        check_gradients((Changing(first, second, use).score_mod, None))
    process.another()
    mod, inputs = Changing(first, second, use), leaves()
    query, key, value = inputs
    before = counters.copy()
    out = attend(query, key, value, mod.score_mod)
    assert counters == before
    dense = attention(query, key, value, mod.score_mod).out
    along = torch.ones(() if cotangent == "expanded" else out.shape).expand_as(out)
    expected = torch.autograd.grad(dense, inputs, along.to(dense.dtype))
    mod.changed()
    found = torch.autograd.grad(out, inputs, along)
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), right.double(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("setting", ["autocast", "default dtype", "freed"])
def test_settings_that_change_before_a_gradient(setting: str, process: Process) -> None:
    """What is prepared late is what the call was."""

    def made() -> Mods:
        table = torch.randn(2, 1024)
        ids = torch.arange(1024) // 300
        score = lambda s, b, h, q, k: s + table[h, k] * (q / 7)  # noqa: E731
        return score, lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)

    for _ in range(3):
        check_gradients(made(), 1024)
    process.another()
    mods, inputs = made(), leaves(1024)
    query, key, value = inputs
    counted = counters.copy()
    out = attend(query, key, value, mods[0], mask_mod=mods[1])
    assert counters == counted
    dense = attention(query, key, value, *mods).out
    expected = torch.autograd.grad(dense.sum(), inputs)
    if setting == "freed":
        cell: Any = mods[0].__closure__[0]  # pyright: ignore
        cell.cell_contents = None
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64 if "dtype" in setting else before)
        with torch.autocast("cpu", torch.bfloat16, enabled=setting == "autocast"):
            found = torch.autograd.grad(out.sum(), inputs)
        assert torch.get_default_dtype() == (
            torch.float64 if "dtype" in setting else before
        )
    finally:
        torch.set_default_dtype(before)
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), right.double(), atol=2e-4, rtol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_autograd_runs_gradients(process: Process) -> None:
    """Dynamo traces the backward of Functions, but not flexc's."""
    query, key, value = inputs = leaves()
    expected = torch.autograd.grad(attention(query, key, value).out.sum(), inputs)
    for _ in range(4):
        for leaf in inputs:
            leaf.grad = None
        out = attend(query, key, value)
        with compiled_autograd._enable(torch.compile(backend="aot_eager")):
            out.sum().backward()
        for leaf, right in zip(inputs, expected, strict=True):
            assert leaf.grad is not None
            torch.testing.assert_close(leaf.grad, right.float(), atol=2e-5, rtol=0)


def test_a_stored_call_holds_no_tensor(process: Process) -> None:
    """Neither its plan nor its graph holds what mods captured."""
    for _ in range(2):
        check_gradients(biased())
    process.another()
    score_mod, _ = biased()
    (table,) = read_mods(score_mod).captures
    alive = weakref.ref(table)
    before = counters.copy()
    out = attend(*leaves(), score_mod)
    assert counters == before
    out.sum().backward()
    del table, score_mod
    gc.collect()
    assert alive() is None
    assert out.grad_fn is not None


def test_a_process_that_loads_while_another_thread_records(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread looks for the tape for so long that the other has recorded it."""
    begun, done = threading.Event(), threading.Event()
    load = stored_tapes.load

    def slow(name: str) -> bytes | None:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            assert done.wait(60)
        return load(name)

    monkeypatch.setattr(stored_tapes, "load", slow)
    thread = threading.Thread(target=lambda: check_gradients(windowed(8)))
    thread.start()
    assert begun.wait(60)
    for _ in range(2):
        check_gradients(windowed(8))
    done.set()
    thread.join()
    for _ in range(2):
        check_gradients(windowed(8))
    process.another()
    check_gradients(windowed(8))


def test_derivatives_of_many_lengths_are_stored(
    process: Process, tmp_path: Path
) -> None:
    for length in range(20, 26):
        for _ in range(2):
            check_gradients(windowed(8), length)
    assert len(tapes(tmp_path)) == 12


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found | {"rest": None},
        lambda found: (
            found | {"steps": [["call", "os.system.default", [], {}, [], True]]}
        ),
        lambda found: {},
    ],
    ids=["rest", "operation", "empty"],
)
def test_an_entry_of_another_form_is_made_anew(
    damage: Any, process: Process, tmp_path: Path
) -> None:
    for _ in range(2):
        check_gradients(windowed(8))
    for path in tapes(tmp_path):
        text = stored_tapes.load(path.name)
        assert text is not None
        stored_tapes.store(path.name, json.dumps(damage(json.loads(text))).encode())
    process.another()
    for _ in range(3):
        check_gradients(windowed(8))


def test_a_backward_that_gradients_are_recorded_of(process: Process) -> None:
    """Checkpoints run the forward again within the backward."""
    for _ in range(2):
        check_gradients(windowed(8))
    process.another()
    inputs = leaves()

    def run(*tensors: Tensor) -> Tensor:
        return attend(*tensors, mask_mod=windowed(8)[1])

    out: Any = checkpoint(run, *inputs, use_reentrant=False)
    found = torch.autograd.grad(out.sum(), inputs)
    query, key, value = inputs
    right = attention(query, key, value, *windowed(8)).out
    expected = torch.autograd.grad(right.sum(), inputs)
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.double(), right.double(), atol=2e-5, rtol=0)


def text_of(*mods: Any) -> str:
    return stable_text(read_mods(*mods).key)


def test_texts_are_those_of_code() -> None:
    def shifted(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + torch.exp2(k - 1.0)

    texts = {
        text_of(lambda s, b, h, q, k: s + 1),
        text_of(lambda s, b, h, q, k: s - 1),
        text_of(lambda s, b, h, q, k: s + 1.0),
        text_of(lambda s, b, h, q, k: s + True),
        text_of(lambda s, b, h, k, q: s + q),
        text_of(lambda s, b, h, k, q: s + k),
        text_of(lambda s, b, h, q, k: s + torch.exp(s)),
        text_of(lambda s, b, h, q, k: s + torch.exp2(s)),
        text_of(shifted),
        text_of(None, lambda s, b, h, q, k: s + 1),
    }
    assert len(texts) == 10
    assert text_of(lambda s, b, h, q, k: s + 1) in texts


def rank(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + torch.distributed.get_rank()


def rank_of_import(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    import torch.distributed as parallel

    return s + parallel.get_rank()


def threads(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + torch.get_num_threads()


def devices(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + torch.cuda.device_count()


def hashed(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + hash("name") % 7


def of_a_set(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    for name in {f"first{1}", f"second{2}"}:
        s = s * 2 + len(name)
    return s


@pytest.mark.parametrize(
    "mod", [rank, rank_of_import, threads, devices, hashed, of_a_set]
)
def test_what_differs_among_processes_has_no_text(mod: Any) -> None:
    with pytest.raises(UnstableError):
        text_of(mod)


def test_what_is_known_by_identity_has_no_text() -> None:
    for part in (object(), Slope, text_of, {1}, sys.modules[__name__], frozenset({1})):
        with pytest.raises(UnstableError):
            stable_text((1, part))


def run(program: str, **variables: str) -> str:
    """Return what another process prints."""
    command = [sys.executable, "-c", program]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, env=os.environ | paths | variables, stdout=subprocess.PIPE, check=True
    )
    return done.stdout.decode()


ATTENTION = """
import math
import sys
import torch
from flexc import flex_attention

ids = torch.arange(1024) // 300
scale = 2.0

def score(s, b, h, q, k):
    far = torch.where(q > k, s, "abcdefg".find("c") + math.pi)
    return scale * torch.nn.functional.softplus(far) + torch.tanh(s).to(torch.float64)

def mask(b, h, q, k):
    return (ids[q] == ids[k]) & (q >= k)

x = torch.ones(1, 1, 1024, 16)
for _ in range(2):
    flex_attention(x, x, x, score, mask_mod=mask)
for _ in range(2):
    y = x.clone().requires_grad_()
    flex_attention(y, x, x, mask_mod=lambda b, h, q, k: q >= k).sum().backward()
print(*sorted({"xdsl", "sympy", "torch._dynamo"} & sys.modules.keys()))
"""


def test_another_process_imports_nothing_that_compiles(tmp_path: Path) -> None:
    """Mods have the same text in all processes, whatever the hashes of strings."""
    folder = str(tmp_path / "cache")
    for seed, imported in (("1", "sympy torch._dynamo xdsl\n"), ("2", "\n")):
        assert run(ATTENTION, FLEXC_CACHE_DIR=folder, PYTHONHASHSEED=seed) == imported


COMPILED = """
import sys
import torch
from flexc import flex_attention

assert "torch._dynamo" not in sys.modules
x = torch.randn(1, 2, 40, 16)

def attend(x):
    return flex_attention(x, x, x, mask_mod=lambda b, h, q, k: q >= k)

found = torch.compile(attend, backend="aot_eager", fullgraph=True)(x)
right = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
torch.testing.assert_close(found, right)
"""


def test_dynamo_imports_what_it_traces() -> None:
    """It may meet attention before any call has imported what is in its graphs."""
    assert run(COMPILED) == ""


INSTALLED = """
from importlib import metadata

def missing(name):
    raise metadata.PackageNotFoundError(name)

metadata.distribution = missing
import flexc
flexc.flex_attention
from torch._dynamo.backends import registry
print("flexc" in registry._COMPILER_FNS)
"""


def test_a_package_that_is_not_installed_registers_its_backend() -> None:
    assert run(INSTALLED) == "True\n"


def test_what_someone_exchanged_in_torch_is_traced(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mods() -> Mods:
        softsign = torch.nn.functional.softsign
        return lambda s, b, h, q, k: softsign(s.tanh()), None

    for _ in range(2):
        check(mods())
    assert len(tapes(tmp_path)) == 1
    with monkeypatch.context() as patch:
        process.another()
        patch.setattr(torch.Tensor, "tanh", torch.Tensor.sin)
        assert check(mods()) == 1
    process.another()
    other = torch.nn.functional.softmin.__code__
    with monkeypatch.context() as patch:
        key = (torch.nn.functional.softsign,)
        before = stable_text(key)
        patch.setattr(torch.nn.functional.softsign, "__code__", other)
        assert stable_text(key) != before


def test_graphs_that_dynamo_made_are_not_stored(
    process: Process, tmp_path: Path
) -> None:
    """They name functions by their addresses."""
    run: Any = torch.compile(
        lambda q, k, v: attend(q, k, v, windowed(8)[0], mask_mod=windowed(8)[1]),
        backend="flexc",
    )
    for _ in range(3):
        run(*qkv(40))
    assert not tapes(tmp_path)
