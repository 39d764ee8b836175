"""A Llama of random weights generates with a static cache: the tokens of eager.

    python docs/examples/generate.py

The cache grows by a token at each step, and nothing is compiled after the first ones.
"""

import logging
import time
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from flexc.integrations.transformers import register

STEPS = 24


class Compilations(logging.Handler):
    """Counts the kernels that flexc compiles."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("compiling")


def model(attention: str) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()


def generated(made: Any, prompt: Tensor) -> Tensor:
    return made.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=STEPS,
        min_new_tokens=STEPS,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
    )


def main() -> None:
    register()
    seen = Compilations()
    logging.getLogger("flexc").addHandler(seen)
    prompts = torch.randint(3, 512, (2, 3, 40))
    found: dict[str, Tensor] = {}
    for name in ("eager", "flexc"):
        made = model(name)
        for i, prompt in enumerate(prompts):
            before, start = seen.count, time.perf_counter()
            found[name] = generated(made, prompt)
            print(
                f"{name}, prompt {i}: {time.perf_counter() - start:.2f} s, "
                f"{seen.count - before} kernels compiled"
            )
    print("the tokens of eager:", bool(torch.equal(found["eager"], found["flexc"])))


if __name__ == "__main__":
    main()
