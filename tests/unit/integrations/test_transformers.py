"""Hugging Face models with flexc's attention have the results of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import utils as dynamo

import flexc
from flexc.errors import OptionError
from flexc.runtime.kernels.driver import counters
from tests.support.pairwise import in_turn

hf: Any = pytest.importorskip("transformers")

from transformers.masking_utils import (  # noqa: E402
    and_masks,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
    sliding_window_overlay,
)

from flexc.integrations.transformers import (  # noqa: E402
    FunctionMask,
    attention,
    make_mask,
    register,
)

BATCH, LENGTH = 2, 19

TOKENS: dict[str, Any] = {
    "vocab_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DECODER: dict[str, Any] = SIZES | TOKENS | {"num_key_value_heads": 2, "head_dim": 8}
ENCODER: dict[str, Any] = SIZES | TOKENS | {"cls_token_id": 1, "sep_token_id": 2}
BOTH_LAYERS = {
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
}
UNDROPPED = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 1,
}
CAPPED = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0}
EXPERTS = {
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}


@dataclass(frozen=True)
class Family:
    """A model of random weights."""

    model: str
    config: str
    options: dict[str, Any]

    def build(self, attention: str, **options: Any) -> Any:
        config = getattr(hf, self.config)(**(self.options | options))
        torch.manual_seed(0)
        return (
            getattr(hf, self.model)
            ._from_config(config, attn_implementation=attention)
            .eval()
        )


DECODERS = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", DECODER),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", DECODER),
    "mistral": Family(
        "MistralForCausalLM", "MistralConfig", DECODER | {"sliding_window": 7}
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM", "Gemma2Config", DECODER | BOTH_LAYERS | CAPPED
    ),
    "gemma3": Family("Gemma3ForCausalLM", "Gemma3TextConfig", DECODER | BOTH_LAYERS),
    "gpt-oss": Family(
        "GptOssForCausalLM", "GptOssConfig", DECODER | BOTH_LAYERS | EXPERTS
    ),
    "t5": Family("T5ForConditionalGeneration", "T5Config", T5 | TOKENS),
}
ENCODERS = {
    "bert": Family("BertModel", "BertConfig", ENCODER | UNDROPPED),
    "modernbert": Family(
        "ModernBertModel",
        "ModernBertConfig",
        ENCODER | {"local_attention": 8, "global_attn_every_n_layers": 2},
    ),
    "vit": Family(
        "ViTModel", "ViTConfig", SIZES | UNDROPPED | {"image_size": 24, "patch_size": 8}
    ),
}
FAMILIES = DECODERS | ENCODERS


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


def inputs(padding: str) -> dict[str, Tensor]:
    """Tokens, of which one sequence is shorter than the other."""
    tokens = torch.randint(3, 96, (BATCH, LENGTH))
    if padding == "none":
        return {"input_ids": tokens}
    kept = torch.ones(BATCH, LENGTH, dtype=torch.long)
    kept[0, slice(5) if padding == "left" else slice(-5, None)] = 0
    return {"input_ids": tokens, "attention_mask": kept}


def inputs_of(name: str, padding: str) -> dict[str, Tensor]:
    if name == "vit":
        return {"pixel_values": torch.randn(BATCH, 3, 24, 24)}
    given = inputs(padding)
    if name == "t5":
        given["labels"] = torch.randint(3, 96, (BATCH, 11))
    return given


def trained(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The output of a model where it is not padded, and gradients of its weights."""
    model.train()
    found = model(**given)
    model.eval()
    out = found["logits"] if "logits" in found else found["last_hidden_state"]
    kept = given.get("attention_mask")
    if kept is not None and "labels" not in given:
        out = out[kept.bool()]
    out.square().sum().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return out.detach(), grads


PADDED = in_turn([f for f in FAMILIES if f != "vit"], ["none", "left"])
PADDED += [("vit", "none"), ("llama", "right"), ("bert", "right")]


@pytest.mark.parametrize(("name", "padding"), PADDED)
def test_a_training_step(name: str, padding: str) -> None:
    given = inputs_of(name, padding)
    expected, own = trained(FAMILIES[name].build("eager"), given)
    out, grads = trained(FAMILIES[name].build("flexc"), given)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert grads.keys() == own.keys()
    scale = max(grad.abs().max().item() for grad in own.values())
    for weight, grad in grads.items():
        torch.testing.assert_close(grad, own[weight], rtol=1e-3, atol=1e-5 * scale)


def test_sinks_have_gradients() -> None:
    _, grads = trained(DECODERS["gpt-oss"].build("flexc"), inputs("none"))
    assert grads["model.layers.0.self_attn.sinks"].abs().min() > 0


def generated(model: Any, given: dict[str, Tensor], **options: Any) -> Any:
    return model.generate(
        **given,
        max_new_tokens=9,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )


CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
}


@pytest.mark.parametrize(
    ("model", "cache"),
    in_turn([("llama", "none"), *((name, "left") for name in DECODERS)], list(CACHES)),
    ids=str,
)
def test_generate(model: tuple[str, str], cache: str) -> None:
    """Of a name, with padding or none."""
    name, padding = model
    given = inputs(padding)
    own, ours = (DECODERS[name].build(a) for a in ("eager", "flexc"))
    expected = generated(own, given, **CACHES[cache])
    found = generated(ours, given, **CACHES[cache])
    assert found.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)


def test_assisted_generation() -> None:
    given = {"input_ids": inputs("none")["input_ids"][:1]}
    family = DECODERS["mistral"]
    helper = family.build("flexc", num_hidden_layers=1)
    found = generated(family.build("flexc"), given, assistant_model=helper)
    expected = generated(family.build("eager"), given)
    assert found.sequences.tolist() == expected.sequences.tolist()


GROWING = [
    *(("llama", c) for c in CACHES),
    *(("t5", "dynamic"), ("mistral", "dynamic"), ("gemma2", "static")),
]


@pytest.mark.parametrize(("name", "cache"), GROWING)
def test_a_growing_cache_compiles_nothing(name: str, cache: str) -> None:
    given, model = inputs("left"), DECODERS[name].build("flexc")
    generated(model, given, **CACHES[cache])
    before = dict(counters)
    model.generate(**given, max_new_tokens=30, eos_token_id=None, **CACHES[cache])
    assert dict(counters) == before


def test_no_tensor_holds_a_mask() -> None:
    mask = make_mask(2, 5, 7, 2, 0, attention_mask=torch.ones(2, 6).bool())
    assert isinstance(mask, FunctionMask)
    assert mask.shape == (2, 1, 5, 7)
    assert not any(isinstance(v, Tensor) for v in vars(mask).values())
    assert make_mask(2, 5, 5, attention_mask=torch.ones(2, 5).bool()) is None


def test_the_last_query_needs_no_causal_mask() -> None:
    assert make_mask(2, 1, 7, 6, 0, causal_mask_function) is None
    assert make_mask(2, 1, 7, 9, 3, causal_mask_function) is None
    padding = torch.tensor([[False] + [True] * 6])
    one: dict[str, Any] = {"batch_size": 1, "q_length": 1, "kv_length": 7}
    others: list[dict[str, Any]] = [
        {"q_offset": 5},
        {"q_offset": torch.tensor(6)},
        {"q_offset": 6, "attention_mask": padding},
        {"q_offset": 6, "q_length": 2, "kv_length": 8},
    ]
    for given in others:
        made = make_mask(**one | given, mask_function=causal_mask_function)
        assert made is not None
    query, key = torch.randn(1, 4, 1, 16), torch.randn(1, 2, 9, 16)
    module = torch.nn.Identity()
    found, wanted = (
        attention(module, query, key, key, None, is_causal=causal)[0]
        for causal in (True, False)
    )
    assert torch.equal(found, wanted)


WINDOW = sliding_window_causal_mask_function(4)
OTHERS = {
    "chunk": chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.int64)),
    "both": and_masks(WINDOW, causal_mask_function),
    "bidirectional": sliding_window_bidirectional_mask_function(4),
    "window": sliding_window_overlay(4),
    "or": or_masks(sliding_window_overlay(4), causal_mask_function),
}


@pytest.mark.parametrize("position", range(10))
def test_a_window_of_live_keys_needs_no_mask(position: int) -> None:
    """A single query at each position has no mask only if all of its keys are live."""
    for first in {0, max(0, position - 4), max(0, position - 3)}:
        given = (1, 1, position + 1 - first, position, first)
        keys = torch.arange(first, position + 1)
        zero = torch.tensor(0)
        live = WINDOW(zero, zero, torch.tensor(position), keys)
        assert (make_mask(*given, WINDOW) is None) == bool(live.all())
        for other in OTHERS.values():
            assert make_mask(*given, other) is not None


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("given", [3, 7, 9])
@pytest.mark.parametrize("function", [WINDOW, causal_mask_function])
def test_padding_is_that_of_the_kept_keys(
    first: int, given: int, function: Any
) -> None:
    """Keys `first` to 6 are kept, and the mask of padding has `given` positions."""
    padding = torch.ones(1, given).bool()
    padding[0, :2] = False
    live = torch.cat([padding[0], torch.zeros(7).bool()])[first:7]
    made = make_mask(1, 2, 7 - first, 5, first, function, attention_mask=padding)
    assert made is not None
    zero, keys = torch.tensor(0), torch.arange(7 - first)
    for query in torch.arange(2):
        wanted = function(zero, zero, query + 5, keys + first) & live
        found = made.mask_mod(zero, zero, query, keys)
        assert torch.equal(found.expand(keys.shape), wanted)
    last = (1, 1, 7 - first, 6, first, causal_mask_function)
    made = make_mask(*last, attention_mask=padding)
    assert made is not None
    assert torch.equal(made.mask_mod(zero, zero, zero, keys), live)


SHAPES = [(BATCH, 1, LENGTH, LENGTH), (1, 4, LENGTH, LENGTH), (BATCH, 1, 1, LENGTH)]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_of_the_user(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tokens = inputs("none")["input_ids"]
    mask = torch.rand(shape) > 0.3
    mask[..., 0] = True
    added = torch.where(mask, torch.randn(shape), -torch.inf)
    given = mask if dtype is torch.bool else added
    own = DECODERS["llama"].build("sdpa")(tokens, attention_mask=given).logits
    found = DECODERS["llama"].build("flexc")(tokens, attention_mask=given).logits
    torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-5)


def test_packed_sequences() -> None:
    """Positions that start again separate sequences, as do documents of a BlockMask."""
    given: dict[str, Any] = {"input_ids": inputs("none")["input_ids"][:1]}
    positions = torch.cat([torch.arange(8), torch.arange(LENGTH - 8)])[None]
    given |= {"position_ids": positions, "use_cache": False}
    own, ours = (DECODERS["llama"].build(a) for a in ("eager", "flexc"))
    expected = own(**given).logits
    found = ours(**given).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    ids = (torch.arange(LENGTH) >= 8).int()
    mask = flexc.create_block_mask(
        lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k), 1, None, LENGTH, LENGTH, "cpu"
    )
    found = ours(**given, attention_mask=mask).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_dropout_is_refused() -> None:
    model = DECODERS["llama"].build("flexc", attention_dropout=0.1).train()
    with pytest.raises(OptionError, match="expects no dropout"):
        model(**inputs("none"))


def test_one_graph_serves_all_lengths() -> None:
    one = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    own, ours = (DECODERS["gpt-oss"].build(a, **one) for a in ("eager", "flexc"))
    torch.compiler.reset()
    dynamo.counters.clear()
    compiled: Any = torch.compile(
        ours, backend="aot_eager", fullgraph=True, dynamic=True
    )
    for length in (19, 23):
        tokens = torch.randint(3, 96, (BATCH, length))
        kept = torch.ones_like(tokens)
        kept[0, :5] = 0
        given = {"input_ids": tokens, "attention_mask": kept, "use_cache": False}
        expected, own_grads = trained(own, given)
        out, grads = trained(compiled, given)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        for a, b in zip(grads.values(), own_grads.values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert dynamo.counters["stats"]["unique_graphs"] == 1


def test_compiled_generation() -> None:
    """The prompt and each next token have a graph, of which no more are compiled."""
    given, model = inputs("left"), DECODERS["llama"].build("flexc")
    expected = generated(DECODERS["llama"].build("eager"), given, **CACHES["static"])
    torch.compiler.reset()
    dynamo.counters.clear()
    model.forward = torch.compile(model.forward, backend="aot_eager")
    found = generated(model, given, **CACHES["static"])
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert dynamo.counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("dims", [2, 3, 4])
@pytest.mark.parametrize("kind", ["bias", "permuted", "mask", "causal"])
def test_tensors_are_broadcast_from_their_last_dimension(kind: str, dims: int) -> None:
    query = torch.randn(1, 2, 16, 8)
    table = torch.randn(1, 2, 16, 16)[(0,) * (4 - dims)]
    permuted = table.mT.contiguous().mT
    tables = {"bias": table, "permuted": permuted, "mask": table > 0, "causal": None}
    given = tables[kind]
    is_causal = kind == "causal"
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, query, query, given, is_causal=is_causal
    )
    found, _ = attention(
        torch.nn.Identity(), query, query, query, given, is_causal=is_causal
    )
    torch.testing.assert_close(found.transpose(1, 2), expected)
