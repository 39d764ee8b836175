"""What a kind of captured state is: a score_mod, a change, and what is learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Kind(NamedTuple):
    """A score_mod that reads some state, and a change of that state."""

    mod: Callable[..., Any]
    change: Callable[[], object]
    learned: Sequence[Tensor] = ()
    """Tensors that the mod reads and that have gradients."""


KINDS: dict[str, Callable[[], Kind]] = {}


def kind(make: Callable[[], Any]) -> Callable[[], Kind]:
    """Register what makes a kind: a tuple of a mod, its change and what is learned."""

    def made() -> Kind:
        return Kind(*make())

    name = make.__name__.replace("_", " ")
    assert name not in KINDS, name
    KINDS[name] = made
    return made
