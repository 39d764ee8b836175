"""State of layers: parameters, buffers, containers, parametrizations, hooks."""

# ruff: noqa: E731
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, weight_norm

from tests.captured_state.kinds import kind


class Layer(nn.Module):
    """A layer of a user's, with members that a kind gives it."""

    def __init__(self, **members: Any):
        super().__init__()
        for name, value in members.items():
            setattr(self, name, value)


def grown(parameter: torch.Tensor) -> Any:
    return lambda: parameter.data.mul_(-2)


@kind
def parameter() -> Any:
    layer = Layer(bias=nn.Parameter(torch.rand(2)))
    mod = lambda s, b, h, q, k: s * layer.bias[h]
    return mod, grown(layer.bias), [layer.bias]


@kind
def parameter_that_is_replaced() -> Any:
    layer = Layer(bias=nn.Parameter(torch.rand(2)))
    change = lambda: setattr(layer, "bias", nn.Parameter(torch.rand(2)))
    return lambda s, b, h, q, k: s * layer.bias[h], change, [layer.bias]


@kind
def buffer() -> Any:
    layer = Layer(table=nn.Buffer(torch.rand(2)))
    return lambda s, b, h, q, k: s * layer.table[h], grown(layer.table)


@kind
def training_flag() -> Any:
    layer = Layer()
    return lambda s, b, h, q, k: s * (2 if layer.training else 3), layer.eval


@kind
def plain_attribute_of_a_layer() -> Any:
    layer = Layer(window=2.0)
    return lambda s, b, h, q, k: s * layer.window, lambda: setattr(layer, "window", 3.0)


@kind
def weight_of_an_embedding() -> Any:
    layer = Layer(rel=nn.Embedding(10, 2))
    mod = lambda s, b, h, q, k: s + layer.rel.weight[q - k + 4, h]
    return mod, grown(layer.rel.weight), [layer.rel.weight]


@kind
def embedding_that_is_called() -> Any:
    layer = Layer(rel=nn.Embedding(10, 2))
    mod = lambda s, b, h, q, k: s + layer.rel(q - k + 4)[h]
    return mod, grown(layer.rel.weight), [layer.rel.weight]


@kind
def embedding_of_the_closure() -> Any:
    rel = nn.Embedding(10, 2)
    return lambda s, b, h, q, k: s + rel(q - k + 4)[h], grown(rel.weight), [rel.weight]


@kind
def weight_of_a_linear_layer() -> Any:
    layer = Layer(proj=nn.Linear(5, 2))
    mod = lambda s, b, h, q, k: s + layer.proj.weight[h, k] + layer.proj.bias[h]
    return mod, grown(layer.proj.weight), [layer.proj.weight, layer.proj.bias]


@kind
def frozen_weight_of_a_linear_layer() -> Any:
    proj = nn.Linear(5, 2).requires_grad_(False)
    mod = lambda s, b, h, q, k: s + proj.weight[h, k]
    return mod, lambda: proj.requires_grad_().weight.data.mul_(-2)


@kind
def list_of_parameters() -> Any:
    parameters = nn.ParameterList([nn.Parameter(torch.rand(2)) for _ in range(2)])
    mod = lambda s, b, h, q, k: s * parameters[1][h] * parameters[0][h]
    return mod, grown(parameters[1]), list(parameters)


@kind
def dictionary_of_parameters() -> Any:
    parameters = nn.ParameterDict({"a": nn.Parameter(torch.rand(2))})
    mod = lambda s, b, h, q, k: s * parameters["a"][h]
    return mod, grown(parameters["a"]), [parameters["a"]]


@kind
def iteration_over_parameters() -> Any:
    parameters = nn.ParameterList([nn.Parameter(torch.rand(2)) for _ in range(2)])
    change = lambda: parameters.append(nn.Parameter(torch.rand(2)))
    mod = lambda s, b, h, q, k: s * sum(p[h] for p in parameters)
    return mod, change, list(parameters)


@kind
def list_of_layers() -> Any:
    layers = nn.ModuleList([nn.Embedding(10, 2), nn.Embedding(10, 2)])
    mod = lambda s, b, h, q, k: s + layers[1].weight[q - k + 4, h]
    return mod, grown(layers[1].weight), [layers[1].weight]


@kind
def length_of_a_list_of_layers() -> Any:
    layers = nn.ModuleList([nn.Identity()])
    return lambda s, b, h, q, k: s * len(layers), lambda: layers.append(nn.Identity())


@kind
def dictionary_of_layers() -> Any:
    layers = nn.ModuleDict({"a": nn.Embedding(10, 2)})
    weight: Any = layers["a"].weight
    mod = lambda s, b, h, q, k: s + layers["a"].weight[q - k + 4, h]
    return mod, grown(weight), [weight]


@kind
def layers_in_sequence() -> Any:
    layers = nn.Sequential(nn.Embedding(10, 2), nn.Softplus())
    weight: Any = layers[0].weight
    mod = lambda s, b, h, q, k: s + layers(q - k + 4)[h]
    return mod, grown(weight), [weight]


@kind
def activation_layer() -> Any:
    act = nn.LeakyReLU(0.5)
    change = lambda: setattr(act, "negative_slope", 0.25)
    return lambda s, b, h, q, k: act(s - 1), change


@kind
def learned_activation() -> Any:
    act = nn.PReLU(init=0.3)
    mod = lambda s, b, h, q, k: s + torch.relu(s) * act.weight[0]
    return mod, grown(act.weight), [act.weight]


@kind
def forward_of_a_layer() -> Any:
    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rel = nn.Embedding(10, 2)

        def forward(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return s + self.rel(q - k + 4)[h]

    layer = Bias()
    return layer, grown(layer.rel.weight), [layer.rel.weight]


@kind
def forward_of_a_layer_that_is_replaced() -> Any:
    class Scales(nn.Module):
        def forward(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return s * 2

    layer: Any = Scales()
    change = lambda: setattr(layer, "forward", lambda s, b, h, q, k: s * 3)
    return layer, change


@kind
def layer_derived_from_one_of_torch() -> Any:
    class Relative(nn.Embedding):
        def bias(self, h: Any, d: Any) -> Any:
            return self(d)[h] * self.gain

    rel: Any = Relative(10, 2)
    rel.gain = 2.0
    change = lambda: setattr(rel, "gain", 3.0)
    return lambda s, b, h, q, k: s + rel.bias(h, q - k + 4), change, [rel.weight]


@kind
def hook_of_a_layer() -> Any:
    rel = nn.Embedding(10, 2)
    change = lambda: rel.register_forward_hook(lambda m, args, out: out * 2)
    return lambda s, b, h, q, k: s + rel(q - k + 4)[h], change, [rel.weight]


@kind
def parameter_by_name() -> Any:
    layer = Layer(rel=nn.Embedding(10, 2))
    mod = lambda s, b, h, q, k: s + layer.get_parameter("rel.weight")[q - k + 4, h]
    return mod, grown(layer.rel.weight), [layer.rel.weight]


@kind
def parameters_of_a_layer() -> Any:
    layer = Layer(bias=nn.Parameter(torch.rand(2)))
    mod = lambda s, b, h, q, k: s * next(layer.parameters())[h]
    return mod, grown(layer.bias), [layer.bias]


@kind
def state_dictionary_of_a_layer() -> Any:
    layer = Layer(bias=nn.Buffer(torch.rand(2)))
    mod = lambda s, b, h, q, k: s * layer.state_dict()["bias"][h]
    return mod, grown(layer.bias)


@kind
def parameter_by_getattr() -> Any:
    layer = Layer(bias=nn.Parameter(torch.rand(2)))
    mod = lambda s, b, h, q, k: s * getattr(layer, "bias")[h]  # noqa: B009
    return mod, grown(layer.bias), [layer.bias]


@kind
def layer_that_computes_attributes() -> Any:
    class Wraps(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

    inner = Layer(bias=nn.Parameter(torch.rand(2)))
    layer: Any = Wraps(inner)
    return lambda s, b, h, q, k: s * layer.bias[h], grown(inner.bias), [inner.bias]


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


@kind
def parametrized_weight() -> Any:
    proj = nn.Linear(5, 2)
    doubled = Doubled()
    parametrize.register_parametrization(proj, "weight", doubled)
    original: Any = proj.parametrizations.weight.original  # pyright: ignore
    mod = lambda s, b, h, q, k: s + proj.weight[h, k]
    return mod, grown(doubled.gain), [original, doubled.gain]


@kind
def weight_that_is_normalised() -> Any:
    proj = weight_norm(nn.Linear(5, 2))
    parts: Any = proj.parametrizations.weight  # pyright: ignore
    mod = lambda s, b, h, q, k: s + proj.weight[h, k]
    return mod, grown(parts.original0), [parts.original0, parts.original1]


@kind
def weight_that_is_normalised_by_a_hook() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Deprecated, and used all the same.
        proj: Any = torch.nn.utils.weight_norm(nn.Embedding(10, 2))  # type: ignore
    mod = lambda s, b, h, q, k: s + proj(q - k + 4)[h]
    return mod, grown(proj.weight_g), [proj.weight_g, proj.weight_v]


@kind
def orthogonal_weight() -> Any:
    proj = orthogonal(nn.Linear(5, 2))
    original: Any = proj.parametrizations.weight.original  # pyright: ignore
    mod = lambda s, b, h, q, k: s + proj.weight[h, k]
    return mod, lambda: original.data.mul_(-0.5).add_(torch.rand(2, 5)), [original]
