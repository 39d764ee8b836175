"""Models of transformers by each attention: prompts, training steps and generation.

`python -m bench.models` prints tokens per second. Models are small and have random
weights. Systems take turns; a dash is for what a system refuses.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.utils import logging

from bench.timing import interleaved_medians
from flexc.integrations.transformers import register

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "head_dim": 64}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", DECODER),
    "Mistral": ("MistralForCausalLM", {**DECODER, "sliding_window": 256}),
    "Gemma2": ("Gemma2ForCausalLM", {**DECODER, "sliding_window": 256}),
    "ModernBert": ("ModernBertForMaskedLM", {**SIZES, "local_attention": 256}),
}
"""The class of each model, and its config's options."""

SYSTEMS = ("eager", "sdpa", "flex_attention", "flexc")

Run = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """How much each task computes."""

    length: int = 1024
    """Tokens of a prompt and of a training step."""
    new: int = 32
    """Tokens that are generated."""
    padding: int = 0
    """Padding on the left of one of two sequences, if any."""

    @property
    def batch(self) -> int:
        return 2 if self.padding else 1

    def tokens(self) -> dict[str, Tensor]:
        tokens = torch.randint(3, SIZES["vocab_size"], (self.batch, self.length))
        if not self.padding:
            return {"input_ids": tokens}
        kept = torch.ones_like(tokens)
        kept[0, : self.padding] = 0
        return {"input_ids": tokens, "attention_mask": kept}


def build(family: str, system: str) -> Any:
    """Return a family's model with a system's attention."""
    name, options = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(**options)
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    return cls._from_config(config, attn_implementation=system).eval()


def runs_of(model: Any, given: dict[str, Tensor], work: Work) -> dict[str, Run]:
    """Return the tasks of a model."""

    @torch.no_grad()
    def prompt() -> None:
        model(**given)

    def step() -> None:
        model.zero_grad()
        model.train()
        model(**given, labels=given["input_ids"]).loss.backward()
        model.eval()

    def generate(**options: Any) -> Run:
        sizes = {"min_new_tokens": work.new, "max_new_tokens": work.new}
        return lambda: model.generate(**given, **sizes, do_sample=False, **options)

    found: dict[str, Run] = {"prompt": prompt, "training step": step}
    if model.can_generate():
        static = generate(cache_implementation="static")
        found |= {"generate": generate(), "generate, static cache": static}
    return found


REFUSALS = (ValueError, AttributeError, NotImplementedError, RuntimeError)


def works(run: Run) -> bool:
    """Run a task until it is compiled, and return False if it is refused."""
    try:
        for _ in range(2):
            run()
    except REFUSALS:
        return False
    return True


def measure(family: str, work: Work, budget: float) -> dict[str, dict[str, float]]:
    """Return the tokens per second of each task, by system."""
    given, tasks = work.tokens(), dict[str, dict[str, Run]]()
    for system in SYSTEMS:
        try:
            runs = runs_of(build(family, system), given, work)
        except REFUSALS:
            continue
        for task, run in runs.items():
            if works(run):
                tasks.setdefault(task, {})[system] = run
    found: dict[str, dict[str, float]] = {}
    for task, runs in tasks.items():
        count = work.new if task.startswith("generate") else work.length
        medians = interleaved_medians(runs, rounds=5, budget=budget)
        found[task] = {s: count * work.batch / t for s, t in medians.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.models", description=__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    parser.add_argument("--length", type=int, default=Work.length)
    parser.add_argument("--new", type=int, default=Work.new)
    parser.add_argument("--padding", type=int, default=Work.padding)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of a task")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    register()
    torch.set_default_device(args.device)
    torch.set_default_dtype(getattr(torch, args.dtype))
    work = Work(args.length, args.new, args.padding)
    print(f"tokens per second, {work}, {torch.get_num_threads()} threads")
    print(f"{'':36}" + "".join(f"{s:>16}" for s in SYSTEMS))
    for family in args.families:
        for task, speeds in measure(family, work, args.budget).items():
            cells = (
                f"{speeds[s]:16,.0f}" if s in speeds else f"{'-':>16}" for s in SYSTEMS
            )
            print(f"{family + ', ' + task:36}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
