"""Models of transformers by each attention: prompts, training steps and generation.

Prompts of "new lengths" are shorter at each turn, so that caches have lengths that no
call has had before. In other rows of generation lengths repeat.

`python -m bench.models` prints tokens per second. Models have random weights and are
small, unless `--width` and `--layers` say more. Systems take turns, and each turn ends
when the device is done; a dash is for what a system refuses.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
import torch._dynamo
import transformers
from transformers.utils import logging

from bench.timing import interleaved_loop_medians
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

WINDOWED: dict[str, Any] = {**DECODER, "sliding_window": 256}
EXPERTS: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1}
ENCODER_DECODER: dict[str, Any] = {
    **{"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4},
    **{"vocab_size": 512, "dropout_rate": 0.0, "decoder_start_token_id": 0},
}
PATCH, COLUMNS = 16, 32
IMAGES: dict[str, Any] = {
    **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "patch_size": PATCH},
}
WIDE = (
    *("hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "d_model", "d_ff", "num_heads"),
)
"""The options of configs that grow with `Work.width`."""

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", DECODER),
    "Mistral": ("MistralForCausalLM", "MistralConfig", WINDOWED),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", WINDOWED),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", WINDOWED),
    "GPT-OSS": ("GptOssForCausalLM", "GptOssConfig", WINDOWED | EXPERTS),
    "ModernBert": (
        *("ModernBertForMaskedLM", "ModernBertConfig"),
        {**SIZES, "local_attention": 256},
    ),
    "T5": ("T5ForConditionalGeneration", "T5Config", ENCODER_DECODER),
    "ViT": ("ViTForImageClassification", "ViTConfig", IMAGES),
}
"""The classes of each model and its config, and the config's options."""

SYSTEMS = ("eager", "sdpa", "flex_attention", "flexc")

Run = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """How much each task computes, and where."""

    length: int = 1024
    """Tokens of a prompt and of a training step."""
    new: int = 32
    """Tokens that are generated."""
    padding: int = 0
    """Padding on the left of one of two sequences, if any."""
    width: int = 1
    """The factor on hidden sizes and numbers of heads."""
    layers: int = 2
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def batch(self) -> int:
        return 2 if self.padding else 1

    @property
    def image(self) -> tuple[int, int]:
        """The rows and columns of an image with a patch for each token."""
        return PATCH * (self.length // COLUMNS), PATCH * COLUMNS

    def config(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a model's config, with this size."""
        layers = "num_layers" if "num_layers" in options else "num_hidden_layers"
        found = {n: v * self.width if n in WIDE else v for n, v in options.items()}
        found[layers] = self.layers
        return found | {"image_size": self.image} if "patch_size" in found else found

    def inputs(self, model: Any) -> dict[str, Any]:
        """Return the inputs of a model: tokens or images."""
        if model.main_input_name == "pixel_values":
            images = torch.randn(self.batch, 3, *self.image)
            return {"pixel_values": images.to(self.device, self.dtype)}
        shape = self.batch, self.length
        tokens = torch.randint(3, SIZES["vocab_size"], shape, device=self.device)
        if not self.padding:
            return {"input_ids": tokens}
        kept = torch.ones_like(tokens)
        kept[0, : self.padding] = 0
        return {"input_ids": tokens, "attention_mask": kept}


def build(family: str, system: str, work: Work) -> Any:
    """Return a family's model with a system's attention."""
    name, config_name, size = FAMILIES[family]
    config = getattr(transformers, config_name)(**work.config(size))
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    # A cast of the model would round the frequencies of its rotations too.
    options = {"attn_implementation": system, "dtype": work.dtype}
    with torch.device(work.device):
        model = cls._from_config(config, **options)
    return model.eval()


def runs_of(model: Any, given: dict[str, Any], work: Work) -> dict[str, Run]:
    """Return the tasks of a model."""
    tokens = given.get("input_ids")
    labels = tokens
    if labels is None:
        labels = torch.zeros(work.batch, dtype=torch.int64, device=work.device)
    decoded = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}

    @torch.no_grad()
    def prompt() -> Any:
        return model(**given, **decoded)

    def step() -> None:
        model.zero_grad()
        model.train()
        model(**given, labels=labels).loss.backward()
        model.eval()

    sizes = {"min_new_tokens": work.new, "max_new_tokens": work.new}
    shorter = count()

    def generate(**options: Any) -> Any:
        return model.generate(**(given | options), **sizes, do_sample=False)

    def generate_anew() -> Any:
        cut = next(shorter) * work.new % work.length
        return generate(**{name: tensor[:, cut:] for name, tensor in given.items()})

    found: dict[str, Run] = {"prompt": prompt, "training step": step}
    if model.can_generate():
        found |= {
            "generate": generate,
            "generate, new lengths": generate_anew,
            "generate, static cache": partial(generate, cache_implementation="static"),
        }
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


def measure(
    family: str, work: Work, budget: float, named: Sequence[str] = ("",)
) -> dict[str, dict[str, float]]:
    """Return the tokens per second of each task whose name contains one of `named`,
    by system.
    """
    torch._dynamo.reset()
    given = work.inputs(build(family, "eager", work))
    tasks: dict[str, dict[str, Run]] = {}
    for system in SYSTEMS:
        try:
            runs = runs_of(build(family, system, work), given, work)
        except REFUSALS:
            continue
        for task, run in runs.items():
            if any(part in task for part in named) and works(run):
                tasks.setdefault(task, {})[system] = run
    found: dict[str, dict[str, float]] = {}
    for task, runs in tasks.items():
        tokens = work.new if task.startswith("generate") else work.length
        medians = interleaved_loop_medians(runs, work.device, budget=budget)
        found[task] = {s: tokens * work.batch / t for s, t in medians.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.models", description=__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    parser.add_argument("--tasks", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--length", type=int, default=Work.length)
    parser.add_argument("--new", type=int, default=Work.new)
    parser.add_argument("--padding", type=int, default=Work.padding)
    parser.add_argument("--width", type=int, default=Work.width)
    parser.add_argument("--layers", type=int, default=Work.layers)
    parser.add_argument("--device", default=Work.device)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of a task")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    register()
    # A static cache compiles a model's forward, whose code all systems share.
    torch._dynamo.config.recompile_limit = 64
    size = args.length, args.new, args.padding, args.width, args.layers
    work = Work(*size, args.device, getattr(torch, args.dtype))
    print(f"tokens per second, {work}, {torch.get_num_threads()} threads")
    print(f"{'':36}" + "".join(f"{s:>16}" for s in SYSTEMS))
    for family in args.families:
        for task, speeds in measure(family, work, args.budget, args.tasks).items():
            cells = (
                f"{speeds[s]:16,.0f}" if s in speeds else f"{'-':>16}" for s in SYSTEMS
            )
            print(f"{family + ', ' + task:36}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
