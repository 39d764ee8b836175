"""How lit runs the tests of printed IR: `lit tests/filecheck`."""

import os
import sys
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
config.environment["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
)

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
