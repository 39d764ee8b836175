"""One query over keys and values of 8 bits: beside bf16, and beside a copy.

    python -m bench.narrow_keys [--tiles]

32 query and 8 key heads of head dim 128, queries of bf16. us a call in a CUDA graph of
calls, TB/s of keys and values, and the largest difference from attention in double
precision of the numbers that keys and values stand for. `--tiles` tries other tiles.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import torch
from torch import Tensor

import flexc
from bench.decode import DIM, HEADS, KV_HEADS, Run, graph_medians

SIZES = ((1, 8192), (16, 8192), (1, 131072))
NARROW = {
    "int8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
TILES = ((64, 4, 3), (64, 8, 4), (128, 4, 3), (128, 4, 4), (128, 8, 3), (128, 8, 4))
"""The columns, warps and stages that `--tiles` tries."""


def narrowed(x: Tensor, dtype: torch.dtype, per_key: bool) -> tuple[Tensor, Tensor]:
    """Return numbers of 8 bits and their scale, of each head or of each key."""
    largest = x.abs().amax(3 if per_key else (2, 3)).float()
    is_int = dtype == torch.int8
    scale = largest / (127.0 if is_int else torch.finfo(dtype).max)
    exact = x.float() / factors(scale)
    return (exact.round() if is_int else exact).to(dtype), scale


def factors(scale: Tensor) -> Tensor:
    return scale.view(*scale.shape, *[1] * (4 - scale.dim()))


def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return attention in double precision, a batch at a time."""
    found: list[Tensor] = []
    for q, k, v in zip(query.double(), key, value, strict=True):
        rows = q.unflatten(0, (KV_HEADS, -1)).flatten(1, 2)
        weights = (rows @ k.double().mT / DIM**0.5).softmax(-1)
        found.append((weights @ v.double()).view(HEADS, -1, DIM))
    return torch.stack(found)


class Contest:
    """The calls of one size, and how far each is from the exact result."""

    def __init__(self, batch: int, length: int):
        options: Any = {"device": "cuda", "dtype": torch.bfloat16}
        self.query = torch.randn(batch, HEADS, 1, DIM, **options)
        shape = (batch, KV_HEADS, length, DIM)
        self.key, self.value = (torch.randn(shape, **options) for _ in range(2))
        self.calls: dict[str, Run] = {}
        self.errors: dict[str, float] = {}

    def add(self, name: str, exact: Tensor, **given: Any) -> None:
        """Add a call, run once; one that cannot be had is left out."""
        call = attend(self.query, **given)
        try:
            out: Any = call()
        except flexc.errors.FlexcError as error:
            print(f"{name}: {error}")
            return
        self.calls[name] = call
        self.errors[name] = (out - exact).abs().max().item()

    def fill(self, tiles: bool) -> None:
        self.add(
            "bf16",
            dense(self.query, self.key, self.value),
            key=self.key,
            value=self.value,
        )
        for (name, dtype), per_key in product(NARROW.items(), (False, True)):
            (k, ks), (v, vs) = (
                narrowed(t, dtype, per_key) for t in (self.key, self.value)
            )
            meant = (t.float() * factors(s) for t, s in ((k, ks), (v, vs)))
            exact = dense(self.query, *meant)
            given: Any = {"key": k, "value": v, "key_scale": ks, "value_scale": vs}
            label = f"{name}, scale of each {'key' if per_key else 'head'}"
            self.add(label, exact, **given)
            for n, warps, stages in (
                TILES if tiles and name != "e5m2" and not per_key else ()
            ):
                tile = {"BLOCK_N": n, "num_warps": warps, "num_stages": stages}
                self.add(
                    f"{name} {n} {warps} {stages}", exact, **given, kernel_options=tile
                )


def attend(query: Tensor, **given: Any) -> Run:
    return lambda: flexc.flex_attention(query, **given, enable_gqa=True)


def copy_bandwidth() -> float:
    """Return the bytes a second that a copy of a gigabyte reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    taken = graph_medians({"copy": lambda: target.copy_(source)}, 1.0)["copy"]
    return 2 * source.numel() / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", action="store_true", help="try other tiles")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds a table")
    given = parser.parse_args()
    torch.manual_seed(0)
    print(f"copy: {copy_bandwidth() / 1e12:.2f} TB/s")
    for batch, length in SIZES:
        contest = Contest(batch, length)
        with torch.no_grad():
            contest.fill(given.tiles)
            taken = graph_medians(contest.calls, given.budget)
        print(f"\nB={batch}, {length} keys")
        for name, seconds in taken.items():
            width = 2 if name == "bf16" else 1
            rate = 2 * width * contest.key.numel() / seconds / 1e12
            speed = taken["bf16"] / seconds
            error = contest.errors[name]
            print(
                f"{name:28} {seconds * 1e6:8.1f} us {rate:5.2f} TB/s {speed:5.2f} "
                f"x bf16, error {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
