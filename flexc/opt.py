"""`flexc-opt`: parse, transform, verify and print flexc IR on the command line.

Texts and modules are checked before verifiers run. xDSL assumes properties that its own
texts have: strings end, ops have the parts that their definitions require, and values
are computed before they are used.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterable, Sequence
from textwrap import fill
from traceback import walk_tb
from typing import IO, Literal

from xdsl.dialects import arith
from xdsl.dialects.arith import CMPF_COMPARISON_OPERATIONS, CMPI_COMPARISON_OPERATIONS
from xdsl.dialects.builtin import ModuleOp, i64
from xdsl.ir import Region, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser
from xdsl.passes import ModulePass, PassPipeline
from xdsl.printer import Printer
from xdsl.utils.exceptions import (
    DiagnosticException,
    ParseError,
    VerifyException,
)
from xdsl.utils.lexer import Input, Span
from xdsl.xdsl_opt_main import xDSLOptMain

import flexc
from flexc import universe
from flexc.errors import FlexcError, OptionError, PassResultError, did_you_mean

DESCRIPTION = "Parse, transform, verify and print the IR of flexc."

REFUSALS = (ParseError, DiagnosticException, FlexcError, OSError, UnicodeError)
"""Errors that mean refused input. The tool prints their message without a traceback.

Any other error is a fault of flexc, and its traceback is shown. Verifiers and passes
state what they expect, so errors of Python are not interpreted here.
"""


STRINGS = re.compile(
    r'//[^\n]*|"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*"|(?P<open>")|[^"/]+|/'
)
"""A pattern for comments, strings, text between them, and quotes that are not closed.

xDSL's own pattern takes exponential time if a quote is not closed.
"""


class FlexcOptMain(xDSLOptMain):
    """xDSL's driver with flexc's dialects, passes, pipelines and targets."""

    version_format = f"flexc-opt {flexc.__version__}, xDSL {{xdsl_version}}"
    started: float
    """The time when the last pass began."""

    def register_all_dialects(self) -> None:
        super().register_all_dialects()
        for name, factory in universe.DIALECTS.items():
            self.ctx.register_dialect(name, factory)

    def register_all_frontends(self) -> None:
        self.available_frontends["mlir"] = self.parse_mlir

    def parse_mlir(self, io: IO[bytes]) -> ModuleOp:
        """Parse a module. All errors have a position in the text."""
        text = io.read().decode()
        check_strings(Input(text, self.get_input_name()))
        parser = Parser(self.ctx, text, self.get_input_name())
        try:
            module = parser.parse_module(not self.args.no_implicit_module)
        except (ParseError, FlexcError):
            raise
        except Exception as error:
            if not (isinstance(error, VerifyException) or is_of_xdsl(error)):
                raise
            parser.raise_error(str(error) or type(error).__name__)
        if not self.args.disable_verify:
            check_order(module.body)
            check_definitions(module)
        return module

    def register_all_passes(self) -> None:
        self.available_passes.update(universe.known_passes())

    def register_all_targets(self) -> None:
        super().register_all_targets()
        self.available_targets.update(universe.TARGETS)

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        """Register xDSL's arguments and MLIR's, and list flexc's own passes first."""
        super().register_all_arguments(arg_parser)
        arg_parser.prog = "flexc-opt"
        arg_parser.add_argument(
            "--print-ir-before-all", action="store_true", help="as for single passes"
        )
        arg_parser.add_argument(
            "--print-ir-after-all", action="store_true", help="as for single passes"
        )
        for when in ("before", "after"):
            arg_parser.add_argument(
                f"--print-ir-{when}",
                metavar="PASS,...",
                type=lambda text: text.split(","),
                default=[],
                help=f"print the IR {when} each run of these passes, to stderr",
            )
        for action in arg_parser._actions:
            if action.dest == "passes":
                action.help = "passes to run: NAME,NAME{OPTION=VALUE OPTION=VALUE},..."
        pipelines = [n for n in universe.PASSES if n.startswith("flexc-")]
        passes = [n for n in universe.PASSES if n not in pipelines]
        others = [n for n in self.available_passes if n not in universe.PASSES]
        arg_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        arg_parser.description = "\n\n".join(
            (
                DESCRIPTION,
                listed("pipelines of flexc", pipelines),
                listed("passes of flexc", passes),
                listed("targets of flexc", universe.TARGETS),
            )
        )
        arg_parser.epilog = listed("passes of xDSL and of plug-ins", others)

    def prepare_input(self) -> tuple[list[tuple[IO[bytes], int]], str]:
        """Return the input. Raise OptionError for an unknown file extension."""
        if self.args.input_file == "-":
            self.args.input_file = None
        try:
            return super().prepare_input()
        except ValueError as error:
            raise OptionError(f"{self.args.input_file}: {error}") from error

    def setup_pipeline(self) -> None:
        """Set up the requested passes. Raise OptionError if an option is invalid."""
        try:
            passes = universe.parse_passes(self.args.passes, self.available_passes)
        except OptionError as error:
            raise OptionError(f"-p {error}") from error
        names = {each.name for each in passes}
        for name in (*self.args.print_ir_before, *self.args.print_ir_after):
            if name not in names:
                hint = did_you_mean(name, list(names))
                raise OptionError(
                    f"no pass of -p is called {name!r}{hint}; a pipeline is printed by "
                    "the names of its passes"
                )
        self.pipeline = PassPipeline(passes, self.between)

    def output_resulting_program(self, prog: ModuleOp) -> str:
        """Return the output. Raise OptionError if the target's module is missing."""
        try:
            return super().output_resulting_program(prog)
        except ModuleNotFoundError as error:
            raise OptionError(
                f"-t {self.args.target} needs the module {error.name}, which is not "
                "installed"
            ) from error

    def between(
        self, done: ModulePass | None, module: ModuleOp, following: ModulePass | None
    ) -> None:
        """Verify a module between passes, print it and the last pass's time, if asked.

        Only the module that results is printed to stdout.
        """
        if done is not None and self.args.time_passes:
            took = time.perf_counter() - self.started
            print(f"Pass {done.name} took {took:.6f} seconds", file=sys.stderr)
        if done is not None and self.prints(done, "after"):
            print_module(f"After {done.name}", module)
        if not self.args.disable_verify:
            verify(done, module)
        if following is not None and self.prints(following, "before"):
            print_module(f"Before {following.name}", module)
        self.started = time.perf_counter()

    def prints(self, each: ModulePass, when: Literal["before", "after"]) -> bool:
        """Return True if the module is to be printed before or after a pass."""
        args = vars(self.args)
        every = args[f"print_ir_{when}_all"]
        every |= when == "after" and self.args.print_between_passes
        return every or each.name in args[f"print_ir_{when}"]


def verify(done: ModulePass | None, module: ModuleOp) -> None:
    """Verify a module after a pass.

    A pass that makes invalid IR from valid IR raises PassResultError.
    """
    try:
        module.verify()
        check_order(module.body)
    except VerifyException as error:
        if done is None:
            raise
        message = f"{done.name} made what does not verify: {error}"
        raise PassResultError(message) from error


def print_module(title: str, module: ModuleOp) -> None:
    print(f"// -----// IR Dump {title} //----- //", file=sys.stderr)
    Printer(stream=sys.stderr).print_op(module)
    print("\n", file=sys.stderr)


def check_strings(text: Input) -> None:
    """Raise an error if a string does not end."""
    for match in STRINGS.finditer(text.content):
        if match["open"]:
            span = Span(*match.span(), text)
            raise ParseError(span, "expected a string that ends in this line")


def is_of_xdsl(error: Exception) -> bool:
    """Return True if xDSL's code raised the error, of whatever type.

    xDSL's parser assumes that some malformed texts are well formed.
    """
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).startswith("xdsl.")


def check_definitions(module: ModuleOp) -> None:
    """Raise an error if an op lacks parts that its definition requires.

    Verifiers look at other ops, and xDSL verifies an op after the ops within it.
    """
    for op in module.walk():
        if isinstance(op, IRDLOperation):
            try:
                op.get_irdl_definition().verify(op)
                check_predicate(op)
                check_names(op)
            except VerifyException as error:
                op.emit_error(f"Operation does not verify: {error}", error)


def check_predicate(op: IRDLOperation) -> None:
    """Raise an error for an unknown comparison predicate, which xDSL does not check."""
    if not isinstance(op, arith.CmpiOp | arith.CmpfOp):
        return
    is_integer = isinstance(op, arith.CmpiOp)
    known = CMPI_COMPARISON_OPERATIONS if is_integer else CMPF_COMPARISON_OPERATIONS
    number = op.predicate
    if number.type != i64 or not 0 <= number.value.data < len(known):
        raise VerifyException(
            f"predicate expects an i64 below {len(known)}, got {number}"
        )


def check_names(op: IRDLOperation) -> None:
    """Raise an error if an attribute has the name of a property of the op.

    A custom syntax has one place for both.
    """
    properties = op.get_irdl_definition().properties.keys() | op.properties.keys()
    if clash := properties & op.attributes.keys():
        raise VerifyException(f"{min(clash)} expects to be a property, no attribute")


def check_order(region: Region, known: set[SSAValue] | None = None) -> None:
    """Raise an error if a value is used before it is computed.

    `known` are the values of the enclosing regions.
    """
    known = set() if known is None else known
    own: list[SSAValue] = [arg for block in region.blocks for arg in block.args]
    known.update(own)
    for block in region.blocks:
        for op in block.ops:
            for number, operand in enumerate(op.operands):
                if operand not in known:
                    message = f"operand {number} expects a value computed before it"
                    op.emit_error(message, VerifyException(message))
            for inner in op.regions:
                check_order(inner, known)
            known.update(op.results)
            own += op.results
    known.difference_update(own)


def listed(title: str, names: Iterable[str]) -> str:
    """Return names under a title, wrapped to a terminal's width."""
    text = ", ".join(sorted(names))
    lines = fill(
        text,
        width=78,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    return f"{title}:\n{lines}"


def main(args: Sequence[str] | None = None) -> int:
    """Run the tool. Return 1 for refused input, after printing a message."""
    try:
        FlexcOptMain(DESCRIPTION, args=args).run()
    except REFUSALS as error:
        # The notes show the op in its module.
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        print(f"flexc-opt: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
