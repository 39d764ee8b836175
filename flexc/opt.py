"""`flexc-opt`: parse, transform, verify and print flexc IR on the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from textwrap import fill
from typing import IO

from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass, PassPipelineCallbackType
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import (
    ArgSpecParseError,
    DiagnosticException,
    ParseError,
    VerifyException,
)
from xdsl.utils.lexer import Input
from xdsl.xdsl_opt_main import xDSLOptMain

from flexc import universe
from flexc.errors import FlexcError, OptionError, PassResultError
from flexc.input_checks import check_definitions, check_order, check_strings, is_of_xdsl

DESCRIPTION = "Parse, transform, verify and print the IR of flexc."

REFUSALS = (ParseError, DiagnosticException, FlexcError, OSError, UnicodeError)
"""Errors that mean refused input. The tool prints their message without a traceback.

Any other error is a fault of flexc, and its traceback is shown. Verifiers and passes
state what they expect, so errors of Python are not interpreted here.
"""


class FlexcOptMain(xDSLOptMain):
    """xDSL's driver with flexc's dialects, passes, pipelines and targets."""

    between: PassPipelineCallbackType | None
    """xDSL's callback before the first pass and after each pass."""

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
        super().register_all_passes()
        for name, factory in universe.PASSES.items():
            self.register_pass(name, factory)

    def register_all_targets(self) -> None:
        super().register_all_targets()
        self.available_targets.update(universe.TARGETS)

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        """Register xDSL's arguments, and list flexc's own passes in the help text."""
        super().register_all_arguments(arg_parser)
        arg_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        pipelines = [n for n in universe.PASSES if n.startswith("flexc-")]
        passes = [n for n in universe.PASSES if n not in pipelines]
        arg_parser.epilog = "\n\n".join(
            (
                listed("pipelines of flexc", pipelines),
                listed("passes of flexc", passes),
                listed("targets of flexc", universe.TARGETS),
            )
        )

    def prepare_input(self) -> tuple[list[tuple[IO[bytes], int]], str]:
        """Return the input. Raise OptionError for an unknown file extension."""
        try:
            return super().prepare_input()
        except ValueError as error:
            raise OptionError(f"{self.args.input_file}: {error}") from error

    def setup_pipeline(self) -> None:
        """Set up the requested pipeline. Raise OptionError if its text is invalid."""
        try:
            for spec in parse_pipeline(self.args.passes):
                self.check_pass_name(spec.name)
            super().setup_pipeline()
        except (ArgSpecParseError, ValueError) as error:
            raise OptionError(f"-p {self.args.passes!r}: {error}") from error
        self.between = self.pipeline.callback
        self.pipeline = replace(self.pipeline, callback=self.check_between)

    def check_between(
        self, done: ModulePass | None, module: ModuleOp, following: ModulePass | None
    ) -> None:
        """Verify a module between passes.

        A pass that makes invalid IR from valid IR raises PassResultError.
        """
        assert self.between is not None
        try:
            self.between(done, module, following)
            if not self.args.disable_verify:
                check_order(module.body)
        except VerifyException as error:
            if done is None:
                raise
            message = f"{done.name} made what does not verify: {error}"
            raise PassResultError(message) from error

    def check_pass_name(self, name: str) -> None:
        if name not in self.available_passes:
            similar = get_close_matches(name, self.available_passes)
            hint = f"did you mean {', '.join(similar)}?" if similar else "see --help"
            raise OptionError(f"no pass or pipeline is called {name!r}; {hint}")


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
