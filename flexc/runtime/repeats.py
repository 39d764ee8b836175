"""What is done again and again on tensors of equal facts: run, recorded, replayed.

A tape (`flexc.runtime.tape`) is right for all tensors of which the same is known as of
those that it was recorded with. `facts_of` says what that is. The first time something
is run as it stands; the second time it is recorded, as much that is done once is never
done again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from flexc.frontend.plain_values import number_key
from flexc.runtime.modes import unseen
from flexc.runtime.recorder import Recorder
from flexc.runtime.streams import CPU, stream_of
from flexc.runtime.tape import Tape
from flexc.runtime.tensor_facts import ALIGNMENT
from flexc.runtime.wrappers import PLAIN

MOST = 1024
"""Facts for which something is kept."""

current_transform: Any = torch._C._functorch.maybe_current_level  # pyright: ignore
count_of_modes = torch._C._len_torch_dispatch_stack
is_autocast_enabled = torch.is_autocast_enabled
is_deterministic = torch.are_deterministic_algorithms_enabled
precision_of: Any = torch._C._get_fp32_precision_getter  # pyright: ignore
"""What `torch.backends` says of products of fp32, in a fifth of the time."""

environment: Any = getattr(os.environ, "_data")  # noqa: B009  (private)
"""What `os.environ` holds; it takes a microsecond to say that it lacks a name."""
MACHINE: Any = os.environ.encodekey("FLEXC_MACHINE")

NUMBERS = frozenset({int, float, bool})

Results = tuple[Any, ...]


class Repeated:
    """One thing that is done to tensors of equal facts."""

    __slots__ = ("_is_known", "_refused", "tape")

    def __init__(self, is_known: bool = False) -> None:
        self._is_known = is_known
        self._refused = False
        self.tape: Tape | None = None
        """Replays it; None until it was done twice, or where it cannot be replayed."""

    def __call__(
        self,
        tensors: Sequence[Any],
        device: torch.device,
        run: Callable[[], tuple[Results, bool]],
    ) -> Results:
        """The results of `run`, which says too whether it may be repeated."""
        if self.tape is not None:
            return self.tape(tensors)
        if self._refused or not self._is_known:
            self._is_known = True
            return run()[0]
        with unseen(), Recorder(tensors) as seen:
            results, may_repeat = run()
        if may_repeat:
            self.tape = seen.tape(results, device)
        self._refused = self.tape is None
        return results


_known: dict[Hashable, Any] = {}


def kept(facts: Hashable, make: Callable[..., Any], *args: Any) -> Any:
    """What is kept for facts; made of arguments where nothing is."""
    found = _known.get(facts)
    if found is None:
        if len(_known) >= MOST:
            _known.clear()
        found = _known[facts] = make(*args)
    return found


def repeat(
    key: Hashable | None,
    tensors: Sequence[Any],
    device: torch.device,
    run: Callable[[], Results],
) -> Results:
    """The results of `run`, by a tape where the key and tensors have one.

    The key is all that `run` depends on but tensors and numbers; None forbids tapes.
    """
    facts = None if key is None else facts_of(tensors, device)
    if facts is None:
        return run()
    facts = (facts, key, stream_facts(device))
    return kept(facts, Repeated)(tensors, device, lambda: (run(), True))


def tape_of(key: Hashable, tensors: Sequence[Any], device: torch.device) -> Tape | None:
    """The tape that `repeat` replays; None where it would run."""
    facts = facts_of(tensors, device)
    if facts is None:
        return None
    found = _known.get((facts, key, stream_facts(device)))
    return None if found is None else found.tape


def is_hidden() -> bool:
    """Whether no one sees or changes operations: no mode, transform or recorder."""
    return (
        current_transform() is None
        and forward_ad._current_level < 0
        and not count_of_modes()
    )


def facts_of(
    tensors: Sequence[Any], device: torch.device
) -> tuple[Hashable, ...] | None:
    """What is known of tensors and numbers, and of torch; None if it does not do."""
    if not is_hidden():
        return None
    facts: list[Any] = []
    try:  # What has no strides or no memory raises an error when asked for it.
        for tensor in tensors:
            if type(tensor) in PLAIN:
                address = tensor.data_ptr()
                if tensor.is_neg() or (not address and tensor.numel()):
                    return None
                aligned = address % ALIGNMENT == 0
                strides, dtype = tensor.stride(), tensor.dtype
                facts += (tensor.shape, strides, dtype, tensor.device, aligned)
            elif tensor is None or type(tensor) in NUMBERS:
                facts.append(number_key(tensor))
            else:
                return None
    except RuntimeError:
        return None
    if len(set(map(id, tensors))) < len(tensors):
        # A tape knows tensors apart by what they are, not by where they are given.
        first = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        facts += [first[id(t)] for t in tensors]
    facts += settings(device)
    return tuple(facts)


def settings(device: torch.device) -> tuple[Hashable, ...]:
    """A device, and what torch and the environment say that calls on it depend on."""
    if device == CPU:
        cast = is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        machine = environment.get(MACHINE)
        return device, cast, is_deterministic(), torch.get_num_threads(), machine
    kind = device.type
    cast = is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
    return device, cast, is_deterministic(), precision_of("cuda", "matmul")


def stream_facts(device: torch.device) -> Hashable:
    """Where the constants of a tape are made: other streams would not wait for them.

    A CUDA graph would outlive them.
    """
    if device == CPU:
        return None
    return stream_of(device), torch.cuda.is_current_stream_capturing()
