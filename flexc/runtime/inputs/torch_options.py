"""The options of torch's `flex_attention`, of which few mean something to flexc."""

from __future__ import annotations

from typing import Any

from flexc.errors import OptionError, did_you_mean

TILE_OPTIONS = {
    "BLOCK_M": "block_m",
    "BLOCK_N": "block_n",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
"""torch's names of the options that choose a tile, and ours."""

MOOT_OPTIONS: dict[str, type] = {
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
"""Options of torch that steer templates flexc does not have, and what they may be."""

INTERNAL_OPTIONS = ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX")
"""Options that torch adds itself, and refuses from users."""

TORCH_BACKENDS = {
    "AUTO": "",
    "TRITON": "",
    "TRITON_DECODE": 'ask for {"split_keys": True}, flexc\'s own way to share out keys',
    "FLASH": "leave it out, as flexc compiles a kernel of its own",
}
"""Which of torch's kernels BACKEND asks for, and of those that differ what to do."""


def is_moot(key: object) -> bool:
    """Whether an option is one of torch's that changes nothing here.

    All that steer torch's backward are: flexc's kernels of gradients choose tiles.
    """
    if not isinstance(key, str) or key == "BACKEND":
        return key == "BACKEND"
    name = without_direction(key)
    if name in TILE_OPTIONS:
        return key.startswith("bwd_")
    return name in MOOT_OPTIONS and name != "BACKEND"


def without_direction(key: str) -> str:
    """The name of an option that may be meant for one direction only."""
    return key[4:] if key[:4] in ("fwd_", "bwd_") else key


def check_moot(key: str, value: Any) -> None:
    """Check what torch would be told."""
    if key == "BACKEND":
        return check_torch_backend(value)
    kind = MOOT_OPTIONS.get(without_direction(key), int)
    if type(value) is not kind:
        expected = "True or False" if kind is bool else "an integer"
        raise OptionError(f"kernel option {key} expects {expected}, got {value!r}")


def check_torch_backend(value: Any) -> None:
    if not isinstance(value, str) or value not in TORCH_BACKENDS:
        raise OptionError(
            f"kernel option BACKEND expects one of {', '.join(TORCH_BACKENDS)}, got "
            f"{value!r}" + did_you_mean(value, tuple(TORCH_BACKENDS))
        )
    if TORCH_BACKENDS[value]:
        raise OptionError(
            f"kernel option BACKEND={value!r} asks for a kernel of torch that flexc "
            f"does not have; {TORCH_BACKENDS[value]}"
        )
