"""Backends and kernel options: their names, their values, and torch's own options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from flexc.errors import DeviceError, OptionError, did_you_mean

if TYPE_CHECKING:
    from flexc.passes.targets.target import F32Precision
    from flexc.universe import Passes


@dataclass(frozen=True)
class Backend:
    """Computes calls on a kind of device.

    A user names backends; a backend has one target or more, which print its kernels.
    """

    name: str
    targets: tuple[str, ...] = ()
    """Names of the targets that print its kernels."""
    device: str = ""
    """The type of the device that its kernels run on, empty if it has none."""

    @property
    def is_dense(self) -> bool:
        """Return True if torch computes all pairs at once, without kernels."""
        return not self.targets

    @property
    def for_gpu(self) -> bool:
        """Return True if its kernels run on a GPU."""
        return self.device == "cuda"

    @property
    def for_cpu(self) -> bool:
        """Return True if its kernels run on a CPU."""
        return self.device == "cpu"

    @property
    def usual_dtype(self) -> torch.dtype:
        """The dtype of a query that is described without one."""
        return torch.bfloat16 if self.for_gpu else torch.float32


EAGER = Backend("eager")
TRITON = Backend("triton", ("triton", "gluon"), "cuda")
CPP = Backend("cpp", ("cpp",), "cpu")

BACKENDS = {backend.name: backend for backend in (TRITON, CPP, EAGER)}


def backend_on(device: str) -> Backend | None:
    """Return the backend whose kernels run on a type of device, if there is one."""
    return next((b for b in BACKENDS.values() if b.device == device), None)


def backend_of(target: str) -> Backend:
    """Return the backend that has a target."""
    return next(b for b in BACKENDS.values() if target in b.targets)


TILE_OPTIONS = {
    "BLOCK_M": "block_m",
    "BLOCK_N": "block_n",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
"""torch's names of the options that choose a tile, mapped to flexc's names."""

IGNORED_OPTIONS: dict[str, type] = {
    "BACKEND": str,
    "BLOCKS_ARE_CONTIGUOUS": bool,
    "BLOCK_M1": int,
    "BLOCK_M2": int,
    "BLOCK_N1": int,
    "BLOCK_N2": int,
    "FORCE_USE_FLEX_ATTENTION": bool,
    "PRESCALE_QK": bool,
    "ROWS_GUARANTEED_SAFE": bool,
    "USE_TMA": bool,
    "WRITE_DQ": bool,
    "kpack": int,
    "matrix_instr_nonkdim": int,
    "waves_per_eu": int,
}
"""Options of torch, with their types, for templates that flexc does not have."""

INTERNAL_OPTIONS = ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX")
"""Options that torch adds itself and refuses from users."""

TORCH_BACKENDS = {
    "AUTO": "",
    "TRITON": "",
    "TRITON_DECODE": "leave it out, as flexc splits the keys of few queries itself",
    "FLASH": "leave it out, as flexc compiles a kernel of its own",
}
"""The values of torch's option BACKEND. A value is "" if it is ignored, or advice if
flexc lacks that kernel.
"""


def is_ignored(key: object) -> bool:
    """Return True if an option is one of torch's that flexc ignores.

    Tile options of torch's backward are ignored, because flexc chooses those tiles
    itself.
    """
    if not isinstance(key, str) or key == "BACKEND":
        return key == "BACKEND"
    name = without_direction(key)
    if name in TILE_OPTIONS:
        return key.startswith("bwd_")
    return name in IGNORED_OPTIONS and name != "BACKEND"


def without_direction(key: str) -> str:
    """Return an option's name without the prefix "fwd_" or "bwd_"."""
    return key[4:] if key[:4] in ("fwd_", "bwd_") else key


def check_ignored(key: str, value: Any) -> None:
    """Check the type of an option that flexc ignores, as torch does."""
    if key == "BACKEND":
        return check_torch_backend(value)
    kind = IGNORED_OPTIONS.get(without_direction(key), int)
    if type(value) is not kind:
        expected = "True or False" if kind is bool else "an integer"
        raise OptionError(f"kernel option {key} expects {expected}, got {value!r}")


def check_torch_backend(value: Any) -> None:
    if not isinstance(value, str) or value not in TORCH_BACKENDS:
        raise not_one_of("kernel option BACKEND", value, tuple(TORCH_BACKENDS))
    if TORCH_BACKENDS[value]:
        raise OptionError(
            f"kernel option BACKEND={value!r} asks for a kernel of torch that flexc "
            f"does not have; {TORCH_BACKENDS[value]}"
        )


SCOPE_OPTIONS = ("kernel_options", "deterministic")
"""Options of `flexc.compile`, which hold for all calls in a function."""

INDUCTOR = "inductor"
"""The option that is False if code other than attention is to run eagerly."""

DYNAMO_OPTIONS = ("backend", INDUCTOR, *SCOPE_OPTIONS)
"""Options of torch.compile with the backend "flexc", besides those of Inductor."""

MAX_OPTION = 1 << 20

SCHEDULE = "schedule"
"""The option that chooses how the warps of a GPU's kernel share its work."""

SCHEDULE_NAMES = ("overlap", "simple", "triton")
"""The values of the option "schedule". See `flexc.runtime.kernels.schedules`."""

SPLIT_KEYS = "split_keys"
"""The option that lets a GPU split a row's keys among programs.

By default the keys of few queries are split, and no others.
"""

PASSES = "passes"
"""The option that names passes to run on a call's `flex` module before all others.

Its value is a text such as `flexc-opt -p` takes. The passes are of plug-ins (entry
points of xDSL's group "xdsl.universe"), of xDSL or of flexc.
"""


F32_PRECISION = "FLOAT32_PRECISION"
"""torch's option that chooses how a GPU multiplies fp32 tiles."""

F32_PRECISIONS: tuple[F32Precision, ...] = ("ieee", "tf32", "tf32x3")
"""The values of that option. "tf32x3" adds three products of tf32, whose errors are
close to those of fp32 (docs/measurements/2026-11-27-fp32.md).
"""


class TileOptions(NamedTuple):
    """A user's choice of tile, schedule, precision and passes.

    None leaves a choice to the compiler.
    """

    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    schedule: str | None = None
    split_keys: bool | None = None
    f32_precision: F32Precision | None = None
    passes: Passes | None = None
    """The passes themselves: those of plug-ins may differ among processes."""

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that the user chose."""
        return {k: v for k, v in self._asdict().items() if v is not None}

    @property
    def sizes(self) -> dict[str, int | None]:
        """The options that are sizes, by the names that passes use."""
        return {name: getattr(self, name) for name in TILE_OPTIONS.values()}


NO_OPTIONS = TileOptions()

DETERMINISTIC = "deterministic"
"""The option that asks for derivatives with equal bits at every run."""

OWN_OPTIONS = (
    *(*TILE_OPTIONS, F32_PRECISION),
    *(SCHEDULE, SPLIT_KEYS, PASSES, DETERMINISTIC),
)
"""Options that change how a call is computed."""


class Choices(NamedTuple):
    """The user's choices for computing a call."""

    backend: str = "auto"
    tiles: TileOptions = NO_OPTIONS
    deterministic: bool = False
    ignored: tuple[str, ...] = ()
    """The names of given options that flexc ignores."""

    @property
    def for_gpus(self) -> tuple[str, ...]:
        """The names of given options that have no meaning on a CPU."""
        chosen = self.tiles.chosen
        return tuple(n for n in ("num_warps", "num_stages", SCHEDULE) if n in chosen)

    def merge(self, own: Choices) -> Choices:
        """Return a call's own choices, completed with these choices."""
        tiles = self.tiles
        if own.tiles != NO_OPTIONS:
            tiles = tiles._replace(**own.tiles.chosen)
        return Choices(
            self.backend if own.backend == "auto" else own.backend,
            tiles,
            self.deterministic or own.deterministic,
            tuple(dict.fromkeys((*self.ignored, *own.ignored))),
        )


NO_CHOICES = Choices()


@cache
def without_options(backend: str) -> Choices:
    return Choices(backend)


def read_choices(backend: str, kernel_options: Mapping[str, Any] | None) -> Choices:
    """Return the choices for a backend and kernel options, or raise OptionError."""
    check_backend(backend)
    if kernel_options is None:
        return without_options(backend)
    check_mapping("kernel_options", kernel_options)
    if not kernel_options:
        return without_options(backend)
    deterministic = read_flag(DETERMINISTIC, kernel_options.get(DETERMINISTIC, False))
    tiles = tile_options(kernel_options)
    ignored = tuple(name for name in kernel_options if is_ignored(name))
    return Choices(backend, tiles, deterministic, ignored)


def kernel_options(choices: Choices) -> dict[str, Any]:
    """Return the kernel options that `read_choices` would turn into these choices."""
    names = {field: name for name, field in TILE_OPTIONS.items()}
    names["f32_precision"] = F32_PRECISION
    chosen = {names.get(k, k): v for k, v in choices.tiles.chosen.items()}
    if choices.tiles.passes:
        chosen[PASSES] = ",".join(str(each.spec()) for each in choices.tiles.passes)
    return chosen | ({DETERMINISTIC: True} if choices.deterministic else {})


def read_choices_of_scope(
    backend: str,
    options: Mapping[str, Any] | None,
    names: Sequence[str] = SCOPE_OPTIONS,
) -> Choices:
    """Return the choices for the options of a scope, which may have the given names."""
    options = {} if options is None else options
    check_mapping("options", options)
    for name in options:
        if name in names:
            continue
        if is_ignored(name) or name in OWN_OPTIONS:
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
    names = ("auto", *BACKENDS)
    if backend not in names:
        raise not_one_of("backend", backend, names)


def check_mapping(name: str, options: object) -> None:
    if not isinstance(options, Mapping):
        raise OptionError(f"{name} expects a dict, got {type(options).__name__}")


def not_one_of(what: str, value: Any, known: Sequence[str]) -> OptionError:
    """Return the error for a value that is none of the known ones."""
    return OptionError(
        f"{what} expects one of {', '.join(known)}, got {value!r}"
        + did_you_mean(value, known)
    )


def unknown(what: str, name: object, known: Sequence[str]) -> OptionError:
    """Return the error for an unknown name."""
    hint = did_you_mean(name, known) or "."
    return OptionError(
        f"{what} has no key {name!r}{hint} The keys are {', '.join(known)}"
    )


def tile_options(kernel_options: Mapping[str, Any] | None) -> TileOptions:
    """Return the tile options among torch's `kernel_options`.

    A name with "fwd_" overrides the name without a prefix.
    """
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
        elif key == F32_PRECISION:
            chosen["f32_precision"] = read_f32_precision(value)
        elif key == PASSES:
            chosen[PASSES] = read_passes(value)
        elif is_ignored(key):
            check_ignored(key, value)
        elif name not in TILE_OPTIONS:
            raise unknown("kernel_options", key, (*OWN_OPTIONS, *IGNORED_OPTIONS))
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
        raise not_one_of(f"kernel option {SCHEDULE}", value, SCHEDULE_NAMES)
    return value


def read_f32_precision(value: Any) -> F32Precision:
    # torch pastes the value into the source of a kernel, so it may have quotes.
    name: Any = value.strip("'\"") if isinstance(value, str) else ""
    if name not in F32_PRECISIONS:
        raise not_one_of(f"kernel option {F32_PRECISION}", value, F32_PRECISIONS)
    return name


def read_passes(value: Any) -> Passes | None:
    if not isinstance(value, str):
        raise OptionError(f"kernel option {PASSES} expects a text, got {value!r}")
    return _parsed_passes(value) or None


@cache
def _parsed_passes(text: str) -> Passes:
    from flexc.universe import known_passes, parse_passes

    try:
        return parse_passes(text, known_passes())
    except OptionError as error:
        raise OptionError(f"kernel option {PASSES}: {error}") from error


def is_interpreting() -> bool:
    """Return True if Triton interprets kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def resolve_backend(backend: str, device: torch.device) -> str:
    """Return the backend for a device. Raise DeviceError for an unsupported device."""
    check_backend(backend)
    if backend == "auto":
        if (found := backend_on(device.type)) is not None:
            return found.name
        raise DeviceError(
            f"flexc has backends for cpu and cuda tensors, got {device}; move the "
            'tensors, or ask for backend="eager"'
        )
    asked = BACKENDS[backend]
    if asked.for_cpu and device.type != "cpu":
        raise DeviceError(f'backend "{backend}" expects cpu tensors, got {device}')
    if asked.for_gpu and device.type == "cpu" and not is_interpreting():
        raise DeviceError(
            'backend "triton" expects cuda tensors, got cpu; use backend="cpp", or '
            "set TRITON_INTERPRET=1 before importing triton to debug a kernel"
        )
    return backend
