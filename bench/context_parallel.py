"""A small language model trained with its sequences on two processes, and on one.

`python -m bench.context_parallel`, on the CPU. Each process has a part of the tokens of
every sequence. Attention sees the whole sequence: its window and its documents cross
from part to part, and the bias that the score mod captures gets the gradients of both.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F

import flexc
from bench.byte_model import Attend, Corpus, Sizes
from bench.train import TOLERANCE, Trainer, fused
from flexc.distributed import context_parallel_attention


def parallel(mesh: DeviceMesh, method: Any) -> Attend:
    """Attention over the parts of all processes.

    The model's bias is one of its parameters, whose gradients `step` adds up.
    """

    def attend(
        query: Tensor, key: Tensor, value: Tensor, score_mod: Any, mask_mod: Any
    ) -> tuple[Tensor, Tensor]:
        found: Any = context_parallel_attention(
            query, key, value, score_mod, mask_mod=mask_mod, mesh=mesh, method=method,
            return_lse=True, reduce_captured=False,
        )  # fmt: skip
        return found

    return attend


class ParallelTrainer(Trainer):
    """A model in training, of which each process has a copy."""

    def __init__(self, sizes: Sizes, mesh: DeviceMesh, method: str):
        super().__init__(sizes, parallel(mesh, method))
        self.rank, self.ranks = mesh.get_local_rank(), mesh.size()

    def step(self, batch: Any) -> float:
        """Learn from a batch; the loss that it had before, of all tokens."""
        self.optimizer.zero_grad()
        tokens, following = (
            t.tensor_split(self.ranks, 1)[self.rank]
            for t in (batch.tokens, batch.following)
        )
        logits = self.model(tokens, batch.documents)
        loss = F.cross_entropy(logits.mT, following, reduction="sum")
        loss = loss / batch.tokens.numel()
        loss.backward()
        total = loss.detach()
        for tensor in (total, *(p.grad for p in self.model.parameters())):
            assert tensor is not None
            dist.all_reduce(tensor)
        self.optimizer.step()
        return total.item()


def train(rank: int, ranks: int, store: str, method: str, steps: int) -> None:
    """Train on one of the processes, the first of which also trains alone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))
    sizes = Sizes()
    ours = ParallelTrainer(sizes, mesh, method)
    alone = Trainer(sizes, fused(flexc.flex_attention)) if rank == 0 else None
    if alone:
        print(f"{'step':>5}{f'{ranks} processes':>14}{'one':>9}{'difference':>12}")
    for number, batch in enumerate(Corpus.of_python().batches(sizes, steps), 1):
        loss = ours.step(batch)
        if alone is None:
            continue
        own = alone.step(batch)
        if number % 10 == 0 or number in (1, steps):
            print(f"{number:5}{loss:14.4f}{own:9.4f}{abs(loss - own):12.1e}")
        assert abs(loss - own) < TOLERANCE
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--method", default="ring")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        given = (args.ranks, store, args.method, args.steps)
        mp.spawn(train, given, nprocs=args.ranks)  # pyright: ignore


if __name__ == "__main__":
    main()
