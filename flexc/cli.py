"""`flexc`: look at what is compiled for mods, at the cache and at the machine."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexc import __version__
from flexc.doctor import doctor
from flexc.errors import FlexcError, OptionError, did_you_mean
from flexc.passes.targets.cpp import MACHINES

if TYPE_CHECKING:
    from flexc.frontend.signatures import ModKind
    from flexc.runtime.kernels.build import Build

LEVELS = ("flex", "blocksparse", "tile", "source")
TARGETS = ("cpp", "triton", "gluon")
DTYPES = ("float32", "bfloat16", "float16", "float64")
SPEC = "as MODULE:NAME or FILE.py:NAME, - for none"

TILE_ARGUMENTS = {
    "block_m": "queries of a tile (chosen by the compiler)",
    "block_n": "keys of a tile (chosen by the compiler)",
    "num_warps": "warps of a program, on GPUs (chosen by the compiler)",
    "num_stages": "tiles of keys in flight, on GPUs (chosen by the compiler)",
}

GPU_ARGUMENTS = ("num_warps", "num_stages")


def load_function(spec: str) -> Callable[..., Any] | None:
    """Return the function that `MODULE:NAME` or `FILE.py:NAME` names, None for `-`."""
    if spec == "-":
        return None
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise OptionError(f"a mod expects MODULE:NAME, FILE.py:NAME or -, got {spec!r}")
    found: Any = _load_module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            raise OptionError(
                f"{where} has no {name!r}{did_you_mean(part, dir(found))}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(f"{spec} expects a function, got {type(found).__name__}")
    return found


def _load_mods(args: argparse.Namespace, usage: Mapping[ModKind, str]) -> list[Any]:
    """Return the score mod and the mask. Raise OptionError if they are swapped.

    `usage` holds the command for a mod of each kind, given alone.
    """
    from flexc.frontend.signatures import takes

    mods = []
    pairs: list[tuple[ModKind, ModKind]]
    pairs = [("score_mod", "mask_mod"), ("mask_mod", "score_mod")]
    for kind, other in pairs:
        spec = getattr(args, kind)
        mod = load_function(spec)
        if mod is not None and takes(mod, other) and not takes(mod, kind):
            command = usage[other].format(spec)
            raise OptionError(f"{spec} has the arguments of a {other}: {command}")
        mods.append(mod)
    return mods


def _load_module(where: str) -> Any:
    if not where.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(where)
        except Exception as error:  # A user's module may raise anything.
            raise _not_imported(where, error) from error
        finally:
            sys.path.remove(os.getcwd())
    path = Path(where)
    if not path.is_file():
        raise OptionError(f"no file {where}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _not_imported(where, error) from error
    return module


def _not_imported(where: str, error: Exception) -> OptionError:
    """Return the error of a module that raised `error`, with the last line that ran."""
    ran = traceback.extract_tb(error.__traceback__)
    ran = [f for f in ran if f.filename not in (__file__, importlib.__file__)]
    at = f" ({ran[-1].filename}:{ran[-1].lineno})" if ran else ""
    return OptionError(f"cannot import {where!r}: {type(error).__name__}: {error}{at}")


def emit(args: argparse.Namespace) -> None:
    """Print the IR or the source of mods."""
    from flexc.frontend.capture import capture_mods
    from flexc.frontend.closures import read_mods
    from flexc.frontend.import_graph import build_attention_module
    from flexc.runtime.inputs.tensor_facts import sum_dtype

    build = _build(args)
    usage: dict[ModKind, str]
    usage = {"score_mod": "flexc emit {}", "mask_mod": "flexc emit - --mask {}"}
    signature = read_mods(*_load_mods(args, usage))
    mods = capture_mods(signature, sum_dtype(build.call.dtype))
    module = build_attention_module(mods.score, mods.mask, build.call).module
    print(_printed(module, args.level, args.target, build).rstrip("\n"))


def _printed(module: Any, level: str, target: str, build: Build) -> str:
    """Return a flex module, lowered to a level, as text."""
    from xdsl.context import Context

    from flexc.passes import pipelines
    from flexc.runtime.kernels.driver import lower
    from flexc.runtime.kernels.schedules import first_of

    if level == "source":
        return lower(module, build, first_of(target)).source
    if level != "flex":
        tiles: Any = {n: getattr(build.tiles, n) for n in TILE_ARGUMENTS}
        to_level: Any = pipelines.FlexcToBlocksparsePass
        if level == "tile":
            to_level = pipelines.FlexcToTilePass
        at_level = to_level(target=target, machine=build.machine, **tiles)
        at_level.apply(Context(), module)
    module.verify()
    return str(module)


def _build(args: argparse.Namespace) -> Build:
    from flexc.frontend.import_graph import AttentionCall
    from flexc.runtime.explain import check_inputs
    from flexc.runtime.inputs.options import TileOptions, backend_of
    from flexc.runtime.kernels.build import Build, machine_for

    backend = backend_of(args.target)
    dtype = _dtype(args) or backend.usual_dtype
    check_inputs(dtype, args.head_dim, backend.device)
    for name in GPU_ARGUMENTS if backend.for_cpu else ("machine",):
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{option} has no meaning for --target {args.target}")
    call = AttentionCall(
        dtype=dtype,
        head_dim=args.head_dim,
        value_dim=args.value_dim or args.head_dim,
        lse=args.lse,
        max_scores=args.max_scores,
        sparse_block=args.block_mask,
        full_tables=args.block_mask is not None,
        scale_positive=True,
        q_len_multiple=args.length_multiple,
        kv_len_multiple=args.length_multiple,
        alignment=16,
        index_width=32,
    )
    tiles = TileOptions(**{n: getattr(args, n) for n in TILE_ARGUMENTS})
    machine = args.machine or machine_for(backend.name)
    return Build(call, backend.name, backend.device, tiles, machine=machine)


def _dtype(args: argparse.Namespace) -> Any:
    """Return the torch.dtype of `--dtype`, None if it was not given."""
    import torch

    return args.dtype and getattr(torch, args.dtype)


def explain(args: argparse.Namespace) -> None:
    """Print what is known of a mask, and which blocks it leaves."""
    from flexc.runtime.explain import explain_mask

    length = f"--q-len {args.q_len}"
    usage: dict[ModKind, str] = {
        "score_mod": f"flexc explain - --score-mod {{}} {length}",
        "mask_mod": f"flexc explain {{}} {length}",
    }
    score_mod, mask_mod = _load_mods(args, usage)
    explanation = explain_mask(
        mask_mod,
        args.batch,
        args.heads,
        args.q_len,
        args.kv_len,
        score_mod=score_mod,
        device=args.device,
        dtype=_dtype(args),
        head_dim=args.head_dim,
        BLOCK_SIZE=args.block_size,
    )
    print(explanation)
    if args.svg is not None:
        try:
            explanation.save(args.svg)
        except OSError as error:
            raise OptionError(f"cannot write {args.svg}: {error.strerror}") from error


def cache(args: argparse.Namespace) -> None:
    """Say how large the cache on disk is, list what is in it, or empty it."""
    from flexc.runtime.process.cache import cache_dir, clear_cache, entries, limit

    folder = cache_dir()
    found = entries(folder)
    if args.action == "list":
        for entry in found:
            used = datetime.fromtimestamp(entry.used).isoformat(" ", "seconds")
            print(f"{used}  {entry.size:>10}  {entry.path.name}{_about(entry.path)}")
        return
    if args.action == "clear":
        clear_cache()
    done = "removed " if args.action == "clear" else ""
    size = sum(entry.size for entry in found) / 1e6
    most = "" if done else f" of at most {limit() / 1e6:.1f}"
    print(f"{folder}: {done}{len(found)} files, {size:.1f} MB{most}")


def _about(path: Path) -> str:
    """Return the names of the kernels in an entry of the cache, else ""."""
    from flexc.runtime.process.cache import load
    from flexc.runtime.process.progress import described

    kind = path.name.partition("-")[0]
    if kind not in ("spec", "tape"):
        return ""
    data = load(path.name, used=False)
    if data is None:
        return ""
    found = json.loads(data)
    try:
        return f"  {_tape(found) if kind == 'tape' else described(found['source'])}"
    except (KeyError, TypeError, ValueError):  # Written by another version.
        return ""


def _tape(tape: dict[str, Any]) -> str:
    """Return the kernels that a tape launches, and the tensors that it allocates."""
    launchers = [step[1] for step in tape["steps"] if step[0] == "launch"]
    # A CPU's launch names a shared object and a function, a GPU's an entry and a grid.
    kernels = [name if type(name) is str else file for file, name, _ in launchers]
    made = [step[2:5:2] for step in tape["steps"] if step[0] == "allocate"]
    results = ", ".join(f"{dtype} {tuple(shape)}" for shape, dtype in made)
    return f"launches {', '.join(kernels)}; allocates {results or 'nothing'}"


def _block_size(text: str) -> tuple[int, int]:
    q_block, comma, kv_block = text.partition(",")
    try:
        return _positive(q_block), _positive(kv_block if comma else q_block)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expects Q,KV, got {text!r}") from None


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"expects a positive integer, got {text!r}")
    return int(text)


def _head_dim(text: str) -> int:
    from flexc.runtime.inputs.arguments import MAX_HEAD_DIM

    if _positive(text) > MAX_HEAD_DIM:
        raise argparse.ArgumentTypeError(f"expects 1 to {MAX_HEAD_DIM}, got {text}")
    return int(text)


def _device(text: str) -> str:
    import torch

    try:
        kind = torch.device(text).type
    except RuntimeError:
        kind = text
    if kind not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"expects cpu or cuda, got {text!r}")
    return text


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    main_parser = argparse.ArgumentParser("flexc", description=__doc__)
    version = f"%(prog)s {__version__}"
    main_parser.add_argument("--version", action="version", version=version)
    commands = main_parser.add_subparsers(required=True, metavar="COMMAND")
    _add_emit(commands.add_parser("emit", help=emit.__doc__, description=emit.__doc__))
    name, about = "explain", explain.__doc__
    _add_explain(commands.add_parser(name, help=about, description=about))
    sub = commands.add_parser("cache", help=cache.__doc__, description=cache.__doc__)
    sub.add_argument(
        "action",
        choices=("size", "list", "clear"),
        nargs="?",
        default="size",
        help="its size (%(default)s); its files, the last used first; or remove them",
    )
    sub.set_defaults(run=cache)
    about = (doctor.__doc__ or "").partition(". ")[0]
    sub = commands.add_parser("doctor", help=about, description=doctor.__doc__)
    sub.set_defaults(run=doctor)
    return main_parser


def _add_emit(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("score_mod", metavar="SCORE_MOD", help=f"the score mod, {SPEC}")
    sub.add_argument(
        "--mask",
        dest="mask_mod",
        default="-",
        metavar="MASK_MOD",
        help=f"a mask, {SPEC}",
    )
    sub.add_argument(
        "--level",
        choices=LEVELS,
        default="source",
        help="how far down: a dialect, or the source that is compiled (%(default)s)",
    )
    sub.add_argument(
        "--target",
        choices=TARGETS,
        default="cpp",
        help="C++ for a CPU, Triton or Gluon for a GPU (%(default)s)",
    )
    sub.add_argument(
        "--machine", choices=MACHINES, help="whose vectors cpp is for (this one's)"
    )
    _add_inputs(sub)
    sub.add_argument(
        "--value-dim",
        type=_head_dim,
        metavar="EV",
        help="head dim of value (that of query)",
    )
    sub.add_argument(
        "--lse", action="store_true", help="also compute each row's log-sum-exp"
    )
    sub.add_argument(
        "--max-scores", action="store_true", help="also compute each row's maximum"
    )
    sub.add_argument(
        "--block-mask",
        type=_block_size,
        metavar="Q,KV",
        help="take the tables of a BlockMask of these block sizes",
    )
    sub.add_argument(
        "--length-multiple",
        type=_positive,
        metavar="N",
        help="assume that lengths are multiples of N",
    )
    for name, about in TILE_ARGUMENTS.items():
        option = f"--{name.replace('_', '-')}"
        sub.add_argument(option, type=_positive, metavar="N", help=about)
    sub.set_defaults(run=emit)


def _add_explain(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("mask_mod", metavar="MASK_MOD", help=f"the mask, {SPEC}")
    sub.add_argument(
        "--score-mod", default="-", metavar="SCORE_MOD", help=f"a score mod, {SPEC}"
    )
    sub.add_argument(
        "--q-len", type=_positive, required=True, metavar="N", help="number of queries"
    )
    sub.add_argument(
        "--kv-len", type=_positive, metavar="N", help="number of keys (as queries)"
    )
    sub.add_argument(
        "--batch", type=_positive, default=1, metavar="B", help="batch size (1)"
    )
    sub.add_argument(
        "--heads", type=_positive, default=1, metavar="H", help="number of heads (1)"
    )
    sub.add_argument(
        "--device",
        type=_device,
        metavar="DEVICE",
        help="cpu or cuda, present or not (that of captured tensors, or torch's own)",
    )
    _add_inputs(sub)
    sub.add_argument(
        "--block-size",
        type=_block_size,
        metavar="Q,KV",
        help="count blocks of these sizes",
    )
    sub.add_argument("--svg", metavar="FILE", help="also draw the blocks, .svg or .png")
    sub.set_defaults(run=explain)


def _add_inputs(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--dtype",
        choices=DTYPES,
        help="dtype of query, key and value (float32 on a CPU, bfloat16 on a GPU)",
    )
    sub.add_argument(
        "--head-dim",
        type=_head_dim,
        default=64,
        metavar="E",
        help="head dim of query and key (%(default)s)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Return 1 if flexc refuses it."""
    args = parser().parse_args(argv)
    try:
        status = args.run(args)
        sys.stdout.flush()
        return status or 0
    except FlexcError as error:
        print(f"flexc: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # As in `flexc emit ... | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
