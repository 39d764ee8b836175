"""Programs that torch exports: they mean the same in a process that traced nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flexc
from flexc.errors import TracingError
from flexc.runtime.torch_compile.operators import handles
from tests.support.pairwise import in_turn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
"""Of torch, as it loads trees of arguments."""

exporting: Any = torch.export
HEADS, DIM = 2, 8
LENGTH = exporting.Dim("length", min=3, max=4096)


class Layer(nn.Module):
    """A layer whose mods capture a parameter, a buffer, numbers and the length."""

    def __init__(self, rows: int = 64) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(HEADS, rows))
        self.documents = nn.Buffer(torch.arange(4096) // 300)
        self.gain = 0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        length = q.size(2)

        def mod(s: Tensor, b: Any, h: Any, i: Tensor, j: Tensor) -> Tensor:
            return torch.tanh(s + self.bias[h, j % 64] * self.gain) * (length - i)

        def mask(b: Any, h: Any, i: Tensor, j: Tensor) -> Tensor:
            return (i >= j) & (self.documents[i] == self.documents[j])

        return flexc.flex_attention(
            q, k, v, mod, mask_mod=mask, enable_gqa=True, return_lse=True
        )


def tensors(length: int) -> tuple[Tensor, ...]:
    return tuple(torch.randn(1, heads, length, DIM) for heads in (HEADS, 1, 1))


def exported(layer: nn.Module, length: int, strict: bool) -> Any:
    shapes = [{2: LENGTH}] * 3
    given = tensors(length)
    return exporting.export(layer, given, dynamic_shapes=shapes, strict=strict)


LOADS = """
import sys
import torch
import flexc

flexc.register_operators()
kind, program, given, found = sys.argv[1:]
if kind == "program":
    fn = torch.export.load(program).module()
else:
    fn = torch._inductor.aoti_load_package(program)
with torch.no_grad():
    results = [fn(*given) for given in torch.load(given)]
torch.save(results, found)
"""


def in_another_process(kind: str, program: Path, given: Any, folder: Path) -> Any:
    places = [folder / "given.pt", folder / "found.pt"]
    torch.save(given, places[0])
    command = [sys.executable, "-W", "ignore", "-c", LOADS, kind, program, *places]
    subprocess.run(list(map(str, command)), check=True, timeout=300)
    return torch.load(places[1])


@pytest.mark.parametrize(("length", "strict"), in_turn([40, 2304], [True, False]))
def test_saved_programs(tmp_path: Path, strict: bool, length: int) -> None:
    layer, path = Layer(), tmp_path / "program.pt2"
    program = exported(layer, length, strict)
    names = [str(node.target) for node in program.graph.nodes]
    assert "flexc.attention.default" in names
    assert ("flexc.plan.default" in names) == (length == 2304)
    exporting.save(program, path)
    given = [tensors(length + more) for more in (0, 7)]
    expected = [tuple(t.detach() for t in layer(*each)) for each in given]
    found = in_another_process("program", path, given, tmp_path)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_train(strict: bool) -> None:
    layer, given = Layer(), [t.requires_grad_() for t in tensors(40)]
    program = exported(layer, 12, strict).module()
    leaves = [*given, program.get_parameter("bias")]
    found = torch.autograd.grad(program(*given)[0].sum(), leaves)
    expected = torch.autograd.grad(layer(*given)[0].sum(), [*given, layer.bias])
    torch.testing.assert_close(found, expected)


def test_packages_of_aot_inductor(tmp_path: Path) -> None:
    layer, path = Layer(), tmp_path / "package.pt2"
    with torch.no_grad():
        program = exported(layer, 2304, strict=False)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        given = [tensors(2304), tensors(2311)]
        expected = [layer(*each) for each in given]
    found = in_another_process("package", path, given, tmp_path)
    torch.testing.assert_close([tuple(each) for each in found], expected)


def test_decompositions_keep_the_operator() -> None:
    layer = Layer()
    program = exported(layer, 40, strict=False).run_decompositions()
    given = tensors(33)
    torch.testing.assert_close(program.module()(*given), layer(*given))


CACHED = """
import torch
from torch._dynamo.utils import counters
import flexc

bias = torch.ones(2, 64)

def fn(q):
    return flexc.flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[h, j])

torch.manual_seed(0)
q = torch.randn(1, 2, 64, 8)
expected = fn(q)
torch.testing.assert_close(torch.compile(fn, fullgraph=True)(q), expected)
print(counters["inductor"]["fxgraph_cache_hit"])
"""


def test_another_process_hits_the_cache_of_inductor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-W", "ignore", "-c", CACHED]
    hits = [
        int(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(2)
    ]
    assert hits == [0, 1]


def handle_of(layer: nn.Module) -> str:
    program = exported(layer, 12, strict=False)
    (found,) = [
        node.args[-1]
        for node in program.graph.nodes
        if str(node.target) == "flexc.attention.default"
    ]
    return found


def test_handles_are_read_again() -> None:
    handle = handle_of(Layer())
    assert handles.read(handle).handle == handle
    assert handle == handle_of(Layer(65))


def changed(handle: str, old: str, new: str) -> str:
    assert old in handle
    return handle.replace(old, new)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"format":1', '"format":2'), "export the program again"),
        (("aten.tanh.default", "aten.resize_.default"), "operations of pairs"),
        (("aten.tanh.default", "aten.nothing.default"), "cannot be read"),
        (('"slots"', '"places"'), "cannot be read"),
        (('"options":{}', '"options":{"X":1}'), "kernel_options"),
    ],
)
def test_damaged_handles(change: tuple[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        handles.lookup(changed(handle_of(Layer()), *change))


def test_unknown_handles() -> None:
    with pytest.raises(TracingError, match="a process that traced it"):
        handles.lookup("0" * 64)
    with pytest.raises(TracingError, match="cannot be read"):
        handles.lookup("{")
