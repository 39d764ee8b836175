"""Targets: limits and choices that passes depend on, as one object for each target."""

from __future__ import annotations

from flexc.errors import OptionError, did_you_mean
from flexc.passes.targets.cpp import CPP
from flexc.passes.targets.gluon import GLUON
from flexc.passes.targets.target import Target
from flexc.passes.targets.triton import TRITON

_targets: dict[str, Target] = {t.name: t for t in (TRITON, GLUON, CPP)}


def register(target: Target) -> None:
    """Make a target known to passes by its name."""
    _targets[target.name] = target


def target_named(name: str) -> Target:
    """Return the target of a name.

    Raises:
        OptionError: no target has this name.
    """
    if name not in _targets:
        names = tuple(_targets)
        raise OptionError(
            f"target expects one of {', '.join(names)}, got {name!r}"
            + did_you_mean(name, names)
        )
    return _targets[name]
