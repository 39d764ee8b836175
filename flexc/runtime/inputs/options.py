"""Backends and kernel options: what they are called and what they may be."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from flexc.errors import DeviceError, OptionError, did_you_mean
from flexc.runtime.inputs.torch_options import (
    MOOT_OPTIONS,
    TILE_OPTIONS,
    check_moot,
    is_moot,
)

BACKENDS = ("auto", "triton", "cpp", "eager")

SCOPE_OPTIONS = ("kernel_options", "deterministic")
"""Options of `flexc.compile`, which hold for all calls in a function."""

DYNAMO_OPTIONS = ("backend", *SCOPE_OPTIONS)
"""Options of torch.compile with the backend "flexc"."""


MAX_OPTION = 1 << 20

SCHEDULE = "schedule"
"""The option that asks a GPU for one way to share a kernel's work among its warps."""

SCHEDULE_NAMES = ("overlap", "simple", "triton")
"""What it may be; `flexc.runtime.kernels.schedules` says what they are."""


SPLIT_KEYS = "split_keys"
"""The option that lets a GPU share out a row's keys among programs.

It is off unless asked for: the kernels were checked without a GPU only.
"""


@dataclass(frozen=True)
class TileOptions:
    """A user's choice of tile and schedule; None leaves it to the compiler."""

    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    schedule: str | None = None
    split_keys: bool | None = None

    @property
    def sizes(self) -> dict[str, int | None]:
        """Those that are sizes, as passes name them."""
        return {name: getattr(self, name) for name in TILE_OPTIONS.values()}


NO_OPTIONS = TileOptions()

DETERMINISTIC = "deterministic"
"""The option that asks for derivatives of equal bits at every run."""

OWN_OPTIONS = (*TILE_OPTIONS, SCHEDULE, SPLIT_KEYS, DETERMINISTIC)
"""Options that change how a call is computed."""


@dataclass(frozen=True)
class Choices:
    """How a call is to be computed, as far as its user says."""

    backend: str = "auto"
    tiles: TileOptions = NO_OPTIONS
    deterministic: bool = False
    moot: tuple[str, ...] = ()
    """The names of options that were given and change nothing."""

    def merge(self, own: Choices) -> Choices:
        """What is asked for by a call itself, and these for the rest."""
        return Choices(
            self.backend if own.backend == "auto" else own.backend,
            merge_tiles(self.tiles, own.tiles),
            self.deterministic or own.deterministic,
            tuple(dict.fromkeys((*self.moot, *own.moot))),
        )


NO_CHOICES = Choices()


WITHOUT_OPTIONS = {backend: Choices(backend) for backend in BACKENDS}


def read_choices(backend: str, kernel_options: Mapping[str, Any] | None) -> Choices:
    """The choices of a call that is given these."""
    check_backend(backend)
    if not kernel_options:
        return WITHOUT_OPTIONS[backend]
    check_mapping("kernel_options", kernel_options)
    deterministic = read_flag(DETERMINISTIC, kernel_options.get(DETERMINISTIC, False))
    tiles = tile_options(kernel_options)
    moot = tuple(name for name in kernel_options if is_moot(name))
    return Choices(backend, tiles, deterministic, moot)


def kernel_options(choices: Choices) -> dict[str, Any]:
    """The options that `read_choices` reads these from, besides the backend."""
    names = {**TILE_OPTIONS, SCHEDULE: SCHEDULE, SPLIT_KEYS: SPLIT_KEYS}
    tiles = {k: getattr(choices.tiles, v) for k, v in names.items()}
    chosen: dict[str, Any] = {k: v for k, v in tiles.items() if v is not None}
    if choices.deterministic:
        chosen[DETERMINISTIC] = True
    return chosen


def read_choices_of_scope(
    backend: str,
    options: Mapping[str, Any] | None,
    names: Sequence[str] = SCOPE_OPTIONS,
) -> Choices:
    """The choices of what is compiled with options, which may have these names."""
    options = options or {}
    check_mapping("options", options)
    for name in options:
        if name in names:
            continue
        if is_moot(name) or name in OWN_OPTIONS:
            raise OptionError(
                f"options expects {name!r} among its kernel_options; write "
                f'options={{"kernel_options": {{{name!r}: ...}}}}'
            )
        raise unknown("options", name, names)
    backend = options.get("backend", backend)
    deterministic = read_flag(DETERMINISTIC, options.get(DETERMINISTIC, False))
    choices = read_choices(backend, options.get("kernel_options"))
    return choices.merge(Choices(deterministic=deterministic))


def read_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"option {name} expects True or False, got {value!r}")
    return value


def check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise OptionError(
            f"backend expects one of {', '.join(BACKENDS)}, got {backend!r}"
            + did_you_mean(backend, BACKENDS)
        )


def check_mapping(name: str, options: object) -> None:
    if not isinstance(options, Mapping):
        raise OptionError(f"{name} expects a dict, got {type(options).__name__}")


def unknown(what: str, name: object, known: Sequence[str]) -> OptionError:
    """The error of a name that there is not."""
    return OptionError(
        f"{what} expects keys among {', '.join(known)}, got {name!r}"
        + did_you_mean(name, known)
    )


def tile_options(kernel_options: Mapping[str, Any] | None) -> TileOptions:
    """Read torch's `kernel_options`, forward names first."""
    if not kernel_options:
        return NO_OPTIONS
    chosen: dict[str, Any] = {}
    for key, value in kernel_options.items():
        name = str(key).removeprefix("fwd_")
        if key == DETERMINISTIC:
            continue
        if key == SCHEDULE:
            chosen[SCHEDULE] = read_schedule(value)
        elif key == SPLIT_KEYS:
            chosen[SPLIT_KEYS] = read_flag(SPLIT_KEYS, value)
        elif is_moot(key):
            check_moot(key, value)
        elif name not in TILE_OPTIONS:
            raise unknown("kernel_options", key, (*OWN_OPTIONS, *MOOT_OPTIONS))
        elif type(value) is not int or not 1 <= value <= MAX_OPTION:
            raise OptionError(
                f"kernel option {key} expects an integer of 1 to {MAX_OPTION}, got "
                f"{value!r}"
            )
        elif key.startswith("fwd_") or TILE_OPTIONS[name] not in chosen:
            chosen[TILE_OPTIONS[name]] = value
    if "BACKEND" in kernel_options and kernel_options.get("FORCE_USE_FLEX_ATTENTION"):
        raise OptionError(
            "give BACKEND or FORCE_USE_FLEX_ATTENTION, not both; flexc needs neither"
        )
    return TileOptions(**chosen)


def read_schedule(value: Any) -> str:
    if not isinstance(value, str) or value not in SCHEDULE_NAMES:
        raise OptionError(
            f"kernel option {SCHEDULE} expects one of {', '.join(SCHEDULE_NAMES)}, got "
            f"{value!r}" + did_you_mean(value, SCHEDULE_NAMES)
        )
    return value


def merge_tiles(base: TileOptions, own: TileOptions) -> TileOptions:
    """What a call asks for itself, and `base` for the rest."""
    if own == NO_OPTIONS:
        return base
    chosen = {k: v for k, v in asdict(own).items() if v is not None}
    return replace(base, **chosen)


def is_interpreting() -> bool:
    """Whether Triton runs kernels on the CPU, element by element."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def resolve_backend(backend: str, device: torch.device) -> str:
    """The backend that serves a device; an error if the one asked for does not."""
    check_backend(backend)
    if backend == "auto":
        if device.type in ("cpu", "cuda"):
            return "cpp" if device.type == "cpu" else "triton"
        raise DeviceError(
            f"flexc has backends for cpu and cuda tensors, got {device}; move the "
            'tensors, or ask for backend="eager"'
        )
    if backend == "cpp" and device.type != "cpu":
        raise DeviceError(f'backend "cpp" expects cpu tensors, got {device}')
    if backend == "triton" and device.type == "cpu" and not is_interpreting():
        raise DeviceError(
            'backend "triton" expects cuda tensors, got cpu; use backend="cpp", or '
            "set TRITON_INTERPRET=1 before importing triton to debug a kernel"
        )
    return backend
