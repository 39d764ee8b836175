"""The console script `flexc`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flexc
from flexc import doctor
from flexc.cli import main, parser
from flexc.runtime.process.cache import cache_dir, store

DIGEST = "0123456789abcdef" * 2

MODS = """
import torch

slopes = torch.ones(4)

def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx)

def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx

def branches(score, b, h, q_idx, kv_idx):
    return score if score > 0 else -score

number = 3
"""


@pytest.fixture
def mods(tmp_path: Path) -> str:
    path = tmp_path / "user_mods.py"
    path.write_text(MODS)
    return str(path)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("flex", "flex.attention"),
        ("blocksparse", "blocksparse.segment"),
        ("tile", "tile.kernel"),
        ("source", "FLEXC_KERNEL void attention("),
    ],
)
def test_levels(
    level: str, expected: str, mods: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["emit", f"{mods}:alibi", "--mask", f"{mods}:causal", "--level", level]
    assert main(command) == 0
    assert expected in capsys.readouterr().out


def test_triton_source(mods: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["emit", "-", "--mask", f"{mods}:causal", "--target", "triton"]
    command += ["--dtype", "bfloat16", "--value-dim", "32", "--block-mask", "128,64"]
    assert main([*command, "--block-m", "64", "--num-warps", "4", "--lse"]) == 0
    source = capsys.readouterr().out
    compile(source, "emitted", "exec")
    assert "num_warps: 4" in source
    assert "kv_num_blocks" in source


def test_gluon_source(mods: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["emit", "-", "--mask", f"{mods}:causal", "--target", "gluon"]
    assert main([*command, "--lse"]) == 0
    source = capsys.readouterr().out
    compile(source, "emitted", "exec")
    assert "def attention_consumer(" in source
    assert main([*command, "--dtype", "float32"]) == 1
    assert capsys.readouterr().err.startswith("flexc: ")


def test_a_module_in_the_current_directory(
    mods: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(mods).parent)
    assert main(["emit", "user_mods:alibi", "--level", "flex"]) == 0
    assert "%slopes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mod", "message"),
    [
        ("{mods}:branches", "user_mods.py:13: a score_mod runs on symbolic positions"),
        ("{mods}:absent", "has no 'absent'"),
        ("{mods}:alibbi", "has no 'alibbi'; did you mean 'alibi'?"),
        ("{mods}:causal", "has the arguments of a mask_mod: flexc emit - --mask "),
        ("{mods}:number", "expects a function, got int"),
        ("alibi", "a mod expects MODULE:NAME, FILE.py:NAME or -, got 'alibi'"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("no/such.py:f", "no file no/such.py"),
    ],
)
def test_refusals(
    mod: str, message: str, mods: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", mod.format(mods=mods)]) == 1
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("flexc: ")
    assert not said.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(", "SyntaxError: '(' was never closed (broken.py, line 1)"),
        ("x = 1\nimport no_such", "No module named 'no_such' ({path}:2)"),
        ("1 / 0", "ZeroDivisionError: division by zero ({path}:1)"),
    ],
)
def test_modules_that_do_not_load(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    assert main(["emit", f"{path}:f"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"flexc: cannot import '{path}': ")
    assert message.format(path=path) in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "triton", "--dtype", "float64"], "on cuda, got torch.float64"),
        (["--target", "triton", "--machine", "avx2"], "--machine has no meaning"),
        (["--num-warps", "4"], "--num-warps has no meaning for --target cpp"),
    ],
)
def test_options_of_other_targets(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", "-", *options]) == 1
    assert message in capsys.readouterr().err


def test_a_score_mod_to_explain(mods: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{mods}:alibi", "--q-len", "8"]) == 1
    said = capsys.readouterr().err
    assert "arguments of a score_mod: flexc explain - --score-mod " in said
    assert said.rstrip().endswith(":alibi --q-len 8")


@pytest.mark.parametrize(
    "options",
    [
        ("--head-dim", "0"),
        ("--head-dim", "1025"),
        ("--value-dim", "-1"),
        ("--block-mask", "0,0"),
        ("--length-multiple", "0"),
        ("--block-m", "1e3"),
    ],
)
def test_numbers_out_of_range(
    options: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["emit", "-", *options])
    assert f"argument {options[0]}: expects" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["emit", "explain"])
def test_every_option_has_a_help_text(command: str) -> None:
    (commands,) = (a for a in parser()._actions if isinstance(a.choices, dict))
    found = commands.choices
    assert isinstance(found, dict)
    assert all(action.help for action in found[command]._actions)


@pytest.mark.parametrize("device", ["tpu", "meta"])
def test_other_devices(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "-", "--q-len", "8", "--device", device])
    assert "--device: expects cpu or cuda, got" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "absent" / "blocks.svg"
    assert main(["explain", "-", "--q-len", "8", "--svg", str(path)]) == 1
    said = capsys.readouterr().err
    assert said == f"flexc: cannot write {path}: No such file or directory\n"


def test_cache(
    cache_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["cache"]) == 0
    said = f"{cache_folder}: 0 files, 0.0 MB of at most 2147.5\n"
    assert capsys.readouterr().out == said
    (cache_folder / f"add-{DIGEST}.so").write_text("x")
    monkeypatch.setenv("FLEXC_CACHE_SIZE", "3M")
    assert main(["cache", "size"]) == 0
    assert capsys.readouterr().out.endswith("1 files, 0.0 MB of at most 3.1\n")
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.endswith("removed 1 files, 0.0 MB\n")
    assert not list(cache_folder.iterdir())


@pytest.mark.usefixtures("cache_folder")
def test_cache_lists_the_last_used_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "// flexc kernel attention, target cpp\n// mask: q_idx >= kv_idx\n\n"
    store(f"spec-{DIGEST}.json", json.dumps({"source": source}).encode())
    store(f"spec-{DIGEST[::-1]}.json", b'["another version"]')
    launch = ["launch", ["attention-0.so", "attention", ["address"]], [0], []]
    allocation = ["allocate", 4, [1, 2, 256, 64], [1, 1, 1, 1], "float32", 0, False]
    store(f"tape-{DIGEST}.json", json.dumps({"steps": [allocation, launch]}).encode())
    os.utime(cache_dir() / f"tape-{DIGEST}.json", (1, 1))
    os.utime(cache_dir() / f"spec-{DIGEST[::-1]}.json", (2, 2))
    os.utime(store(f"old-{DIGEST}.so", b"object"), (0, 0))
    assert main(["cache", "list"]) == 0
    first, other, tape, second = capsys.readouterr().out.splitlines()
    assert first.endswith(f"spec-{DIGEST}.json  attention (mask: q_idx >= kv_idx)")
    assert other.endswith(f"spec-{DIGEST[::-1]}.json")
    said = f"tape-{DIGEST}.json  launches attention; allocates float32 (1, 2, 256, 64)"
    assert tape.endswith(said)
    assert second.endswith(f"old-{DIGEST}.so")


def test_doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for name in ("flexc", "python", "torch", "xdsl", "compiler", "gpu"):
        assert f"\n{name} " in f"\n{said}"
    assert re.search("^cpu works +yes: attention", said, re.MULTILINE)
    assert re.search("^cache works +yes: /", said, re.MULTILINE)


def test_doctor_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert re.search("^compiler +none: .*needs a C\\+\\+ compiler", said, re.MULTILINE)
    assert re.search("^cpu works +no: .*apt install", said, re.MULTILINE)
    assert re.search("^gpu works +no: torch", said, re.MULTILINE)
    assert re.search("^no rich +pip install rich", said, re.MULTILINE)


def test_doctor_names_packages_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch there is nothing to try."""

    def version(package: str) -> str:
        return doctor.MISSING if package in ("torch", "xdsl") else "1.0"

    needs = ["torch>=2.11", "xdsl==0.74.0", 'torch-other; extra == "test"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    monkeypatch.setattr(doctor, "_version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert re.search("^torch +not installed", said, re.MULTILINE)
    assert "pip install 'torch>=2.11' xdsl==0.74.0\n" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"flexc {flexc.__version__}\n"


def test_nothing_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "COMMAND" in capsys.readouterr().err


def test_python_runs_the_package() -> None:
    command = [sys.executable, "-m", "flexc", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "emit" in shown.stdout
