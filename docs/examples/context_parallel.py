"""A small model trained with each of its sequences on two processes, on the CPU.

    python docs/examples/context_parallel.py

Each process has half of the positions of a sequence: the first and the last quarter, or
those between, so that both have as many pairs of a causal mask. All but attention is
computed from a token alone, so a process needs only its own.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F

from flexc.distributed import Layout, context_parallel_attention

RANKS, LENGTH, TOKENS, WIDTH, HEADS = 2, 256, 32, 64, 4


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


class Model(nn.Module):
    """Tokens to logits of the tokens that follow them."""

    def __init__(self, mesh: DeviceMesh, layout: Layout):
        super().__init__()
        self.mesh, self.layout = mesh, layout
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Parameter(torch.zeros(HEADS, LENGTH))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        bias = self.bias

        def relative(score, b, h, q_idx, kv_idx):  # Positions in the whole sequence.
            return score + bias[h, (q_idx - kv_idx).abs()]

        x = self.embed(tokens)
        parts = self.project(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        out = context_parallel_attention(
            *parts.unbind(2), relative, mask_mod=causal, mesh=self.mesh,
            layout=self.layout, reduce_captured=False,  # Reduced with the rest, below.
        )  # fmt: skip
        return self.head(x + out.transpose(1, 2).flatten(2))


def train(rank: int, store: str, steps: int) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("cp",))
    torch.set_num_threads(max(1, torch.get_num_threads() // RANKS))  # They share cores.
    layout = Layout.zig_zag(LENGTH, RANKS)
    torch.manual_seed(0)  # All processes have equal models, and draw equal batches.
    model = Model(mesh, layout)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for step in range(steps):
        # Each token repeats one before: what follows is learnt through attention.
        batch = torch.randint(TOKENS, (8, 16)).repeat(1, LENGTH // 16 + 1)[
            :, : LENGTH + 1
        ]
        tokens, following = (
            layout.shard(t, rank, dim=1) for t in (batch[:, :-1], batch[:, 1:])
        )
        loss = F.cross_entropy(model(tokens).mT, following, reduction="sum")
        loss = loss / (8 * LENGTH)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach()
        for tensor in (total, *(p.grad for p in model.parameters())):
            dist.all_reduce(tensor)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3}  loss {total:.3f}", flush=True)
    dist.destroy_process_group()


def main(steps: int = 101) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (f"file://{folder}/store", steps), nprocs=RANKS)


if __name__ == "__main__":
    main()
