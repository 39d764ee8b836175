"""How lit runs the tests of printed IR: `lit tests/filecheck`."""

import importlib
import os
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path

import lit.formats

config.name = "flexc"
config.test_format = lit.formats.ShTest()
config.suffixes = [".mlir"]
config.test_source_root = str(Path(__file__).parent)

# flexc-opt, filecheck and python are those of the environment that runs lit.
config.environment["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
)

# The checkout under test comes before a copy of flexc that is installed.
CHECKOUT = str(Path(__file__).parents[2])
config.environment["PYTHONPATH"] = os.pathsep.join(
    [CHECKOUT, os.environ.get("PYTHONPATH", "")]
)
sys.path.insert(0, CHECKOUT)

# The round trips that every dialect test starts with: printing what was parsed,
# and parsing that again, in custom and in generic syntax.
config.substitutions += [
    (
        "FLEXC_ROUNDTRIP",
        "flexc-opt %s --print-op-generic --split-input-file"
        " | flexc-opt --split-input-file | filecheck %s",
    ),
    (
        "FLEXC_GENERIC_ROUNDTRIP",
        "flexc-opt %s --print-op-generic --split-input-file"
        " | filecheck %s --check-prefix=CHECK-GENERIC",
    ),
]

# Two patterns that undo each other never end.
config.maxIndividualTestTime = 60


# Tools written in Python run in forks of lit, which has imported them. To start Python
# and import xDSL would take longer than most tests.
TOOLS = {"flexc-opt": "flexc.opt", "filecheck": "filecheck.main"}
MAINS = {tool: importlib.import_module(module).main for tool, module in TOOLS.items()}
importlib.import_module("flexc.passes.pipelines")


class ForkingPopen(subprocess.Popen):
    """A process that is a fork where it would start a tool."""

    def __init__(self, args, *, env=None, **options):
        if (main := MAINS.get(args[0])) is not None:
            options["preexec_fn"] = partial(run_tool, main, args, dict(env))
        super().__init__(args, env=env, **options)


def run_tool(main, args, env):
    """Call a main function in a fork that has its folder and standard files already."""
    # A pipe that stays open here would not end for others.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    status = 1
    try:
        os.environ.clear()
        os.environ.update(env)
        sys.argv = args
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
        status = main()
        sys.stdout.flush()
    except SystemExit as end:
        status = end.code
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status or 0)


subprocess.Popen = ForkingPopen
