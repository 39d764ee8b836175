"""Tapes on the disk: a GPU's first calls in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = """
import sys
import torch
from flexc import flex_attention
from flexc.runtime.kernels.driver import counters
from tests.support.reference import attention

torch.manual_seed(0)
LENGTH = 1024
ids = torch.arange(LENGTH, device="cuda") // 300
table = torch.randn(2, LENGTH, device="cuda", requires_grad=True)
mods = {
    "none": (None, None),
    "causal": (None, lambda b, h, q, k: q >= k),
    "documents": (None, lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)),
    "learned": (lambda s, b, h, q, k: s + table[h, k], None),
}[sys.argv[1]]

def values():
    return torch.randn(4, 1, 2, LENGTH, 64, device="cuda", dtype=torch.bfloat16)

def check():
    *inputs, cotangent = values()
    inputs = [t.clone().requires_grad_() for t in inputs]
    right = [t.detach().double().requires_grad_() for t in inputs]
    if sys.argv[1] == "learned":
        inputs.append(table)
        right.append(table)
    with torch.no_grad():
        alone = flex_attention(*inputs[:3], mods[0], mask_mod=mods[1])
    out = flex_attention(*inputs[:3], mods[0], mask_mod=mods[1])
    found = torch.autograd.grad(out, inputs, cotangent)
    dense = attention(*right[:3], *mods).out
    expected = torch.autograd.grad(dense, right, cotangent.double())
    pairs = [(alone, dense), (out, dense), *zip(found, expected)]
    for one, other in pairs:
        error = (one.double() - other.double()).norm() / other.double().norm()
        assert error < 2**-6, error

for _ in range(4):
    check()
print(sum(counters.values()))
"""


@pytest.mark.parametrize("name", ["none", "causal", "documents", "learned"])
def test_another_process_traces_and_lowers_nothing(name: str, tmp_path: Path) -> None:
    """It checks what both processes compute against dense attention."""

    def run() -> int:
        command = [sys.executable, "-c", PROGRAM, name]
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        variables = {"FLEXC_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            command,
            env=os.environ | paths | variables,
            stdout=subprocess.PIPE,
            check=True,
        )
        return int(done.stdout)

    first, second = run(), run()
    assert first > 0
    assert second == 0
