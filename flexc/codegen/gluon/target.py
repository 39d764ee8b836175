"""The `gluon` target, which prints modules with scheduled kernels as Gluon source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.passes import ModulePass

from flexc.codegen.gluon.printer import GluonPrinter, roles_of
from flexc.codegen.target import Target
from flexc.codegen.triton.tile_printer import integer_attribute
from flexc.dialects import tile
from flexc.passes import pipelines
from flexc.passes.targets.target import LoweringOptions


@dataclass(frozen=True)
class GluonTarget(Target):
    """A target that prints each kernel of a module as Gluon source."""

    name = "gluon"
    printer = GluonPrinter

    def passes(self, options: LoweringOptions) -> tuple[ModulePass, ...]:
        return pipelines.to_gluon(options)

    def launch_options(self, kernel: tile.KernelOp) -> dict[str, Any]:
        roles = roles_of(kernel)
        return {
            "num_warps": roles[0].warps.value.data if roles else None,
            "max_registers": integer_attribute(kernel, "max_registers"),
        }
