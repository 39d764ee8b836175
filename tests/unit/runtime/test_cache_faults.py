"""What may happen to a cache between processes: the next call is right all the same.

Each call runs in a process that is forked from one that has imported everything: a
library that was loaded before would hide what became of its file.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import flexc
from flexc.errors import FlexcError
from flexc.runtime.kernels.driver import counters
from flexc.runtime.process.cache import clear_cache
from tests.support.corpus_masks import causal_mask
from tests.support.reference import attention
from tests.unit.runtime.test_cache import DAMAGES

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])

PATIENCE = 120
"""Seconds after which a call is taken to hang."""


def rising(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s + 0.125 * (k - q)


def attend(folder: str, answer: Connection) -> None:
    """Call with a cache; answer by what is wrong and how often a module was lowered."""
    os.environ["FLEXC_CACHE_DIR"] = folder
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 40, 8).unbind()
    expected = attention(query, key, value, rising, causal_mask).out
    try:
        out = flexc.flex_attention(query, key, value, rising, mask_mod=causal_mask)
        assert isinstance(out, Tensor)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
        answer.send((None, counters["lowered"]))
    except FlexcError as error:
        answer.send((str(error), counters["lowered"]))


class Call:
    """A call in a process of its own."""

    def __init__(self, folder: Path):
        self.answers, answer = CONTEXT.Pipe(duplex=False)
        self.process: BaseProcess = CONTEXT.Process(
            target=attend, args=(str(folder), answer)
        )
        self.process.start()
        answer.close()

    def result(self) -> tuple[str | None, int]:
        """What was wrong, and how often a module was lowered."""
        if not self.answers.poll(PATIENCE):
            self.process.kill()
            pytest.fail("the call hangs")
        try:
            found = self.answers.recv()
        except EOFError:
            self.process.join()
            pytest.fail(f"the process ended with {self.process.exitcode}")
        self.process.join()
        return found


def check(folder: Path, lowered: int | None = None) -> None:
    wrong, count = Call(folder).result()
    assert wrong is None
    assert lowered in (None, count)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has all: what a test damages is made again by the test."""
    folder = tmp_path_factory.mktemp("warm") / "cache"
    check(folder, lowered=1)
    return folder


def entries(folder: Path) -> Iterator[Path]:
    for pattern in ("spec-*.json", "*.so"):
        (path,) = folder.glob(pattern)
        yield path


SLOW = pytest.mark.slow
PARTS = [pytest.param("half"), *(pytest.param(d, marks=SLOW) for d in DAMAGES)]


@pytest.mark.parametrize("damage", PARTS)
def test_every_file_damaged(warm: Path, damage: str) -> None:
    for path in entries(warm):
        others = [other for other in entries(warm) if other != path]
        shutil.copy(others[0], warm / "b.txt")
        DAMAGES[damage](path)
        check(warm)
        check(warm, lowered=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_every_file_of_somebody_else(warm: Path) -> None:
    for path in entries(warm):
        os.chown(path, 12345, -1)
    check(warm, lowered=1)
    check(warm, lowered=0)
    assert all(path.stat().st_uid == 0 for path in (*entries(warm), warm))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_somebody_else(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, 12345, -1)
    wrong, _ = Call(folder).result()
    assert wrong is not None
    assert "belongs to another user; set FLEXC_CACHE_DIR" in wrong
    os.chown(folder, 0, -1)
    check(folder)


def random_damage(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])


@pytest.mark.slow
def test_files_damaged_at_random(warm: Path) -> None:
    rng = random.Random(0)
    for _ in range(30):
        for path in entries(warm):
            random_damage(path, rng)
        check(warm)
    check(warm, lowered=0)


@pytest.mark.parametrize("many", [3, pytest.param(20, marks=SLOW)])
def test_cold_processes_at_once(folder: Path, many: int) -> None:
    calls = [Call(folder) for _ in range(many)]
    assert [call.result()[0] for call in calls] == [None] * many
    check(folder, lowered=0)
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


@pytest.mark.slow
def test_a_cache_that_is_cleared_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXC_CACHE_DIR", str(folder))
    calls = [Call(folder) for _ in range(10)]
    while any(call.process.is_alive() for call in calls):
        clear_cache()
        time.sleep(0.01)
    said = [call.result()[0] for call in calls]
    assert all(s is None or "cannot be loaded" in s for s in said), said
    check(folder)
    check(folder, lowered=0)


def kill_all(calls: list[Call], rng: random.Random) -> None:
    time.sleep(rng.random() * 4)
    for call in calls:
        call.process.kill()
        call.process.join()


@pytest.mark.slow
@pytest.mark.parametrize("many", [1, 3])
def test_killed_at_any_time(folder: Path, many: int) -> None:
    rng = random.Random(many)
    for _ in range(12):
        kill_all([Call(folder) for _ in range(many)], rng)
    check(folder)
    check(folder, lowered=0)
