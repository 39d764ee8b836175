"""The base of code generators: the last passes before printing, and the printer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from io import StringIO
from typing import IO, Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.utils.target import Target

from flexc.codegen.kernel_spec import KernelSpec, ParamSpec
from flexc.codegen.source_printer import SourcePrinter
from flexc.dialects import tile
from flexc.dialects.tile import ParamAttr
from flexc.dialects.tile.types import is_memory, is_tensor
from flexc.errors import OptionError
from flexc.passes.targets.target import LoweringOptions


@dataclass(frozen=True)
class SourceTarget(Target):
    """A target that prints the kernels of a module as source."""

    printer: ClassVar[type[SourcePrinter]]

    @abstractmethod
    def passes(self, options: LoweringOptions) -> tuple[ModulePass, ...]:
        """Return the passes from `tile` to the IR that the target prints."""

    def print_kernel(self, kernel: tile.KernelOp) -> KernelSpec:
        """Return the source of a kernel, and how to call it."""
        printer = self.printer(stream := StringIO())
        entry = printer.print_kernel(kernel)
        params = tuple(
            param_spec(printer.name(arg), arg.type, param)
            for arg, param in zip(kernel.body.block.args, kernel.params, strict=True)
        )
        grid, options = str(kernel.grid), self.launch_options(kernel)
        ops = kernel.body.block.ops
        options["launches_early"] = any(isinstance(o, tile.AwaitKernelsOp) for o in ops)
        return KernelSpec(self.name, entry, params, grid, stream.getvalue(), **options)

    def launch_options(self, kernel: tile.KernelOp) -> dict[str, Any]:
        """Return fields of the spec that only this target has."""
        return {}

    def print_kernels(self, module: ModuleOp) -> list[KernelSpec]:
        """Return every kernel of a module, printed."""
        kernels = (op for op in module.ops if isinstance(op, tile.KernelOp))
        return [self.print_kernel(op) for op in kernels]

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        specs = self.print_kernels(module)
        if not specs:
            raise OptionError(
                f"-t {self.name} expects a tile.kernel, got none; lower what is there "
                f"with -p flexc-to-{self.name}"
            )
        output.write(self.separator.join(spec.source for spec in specs))

    @property
    def separator(self) -> str:
        """The text between the sources of two kernels."""
        return ""


def param_spec(name: str, type_: Attribute, param: ParamAttr) -> ParamSpec:
    """Return the parameter for a kernel's argument of the given type."""
    element, role, box = type_, "scalar", param.get_box()
    if is_tensor(type_) or is_memory(type_):
        role = "input" if is_tensor(type_) else "output"
        element = type_.element_type
        if box:
            box = (1,) * (type_.get_num_dims() - len(box)) + box
    return ParamSpec(
        name,
        str(element),
        role,
        param.kind.data,
        param.source.data,
        param.dim.data,
        param.unit.data,
        box,
    )
