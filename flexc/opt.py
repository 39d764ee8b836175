"""`flexc-opt`: parse, transform, verify and print flexc IR on the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from xdsl.xdsl_opt_main import xDSLOptMain

from flexc import universe


class FlexcOptMain(xDSLOptMain):
    """xDSL's driver with flexc's dialects, passes, pipelines and targets."""

    def register_all_dialects(self) -> None:
        super().register_all_dialects()
        for name, factory in universe.DIALECTS.items():
            self.ctx.register_dialect(name, factory)

    def register_all_passes(self) -> None:
        super().register_all_passes()
        for name, factory in universe.PASSES.items():
            self.register_pass(name, factory)

    def register_all_targets(self) -> None:
        super().register_all_targets()
        self.available_targets.update(universe.TARGETS)


def main(args: Sequence[str] | None = None) -> None:
    FlexcOptMain("flexc's modular optimizer driver", args=args).run()


if __name__ == "__main__":
    main(sys.argv[1:])
