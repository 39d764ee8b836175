"""Dialects, and the lists of what each defines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.ir import Attribute, Operation


def ops_of(dialect: str, names: Mapping[str, object]) -> list[type[Operation]]:
    """Return the dialect's ops among the values of some names."""
    found = _definitions(dialect, names)
    return [cls for cls in found if issubclass(cls, Operation)]


def attributes_of(dialect: str, names: Mapping[str, object]) -> list[type[Attribute]]:
    """Return the dialect's attributes and types among the values of some names."""
    found = _definitions(dialect, names)
    return [cls for cls in found if issubclass(cls, Attribute)]


def _definitions(dialect: str, names: Mapping[str, object]) -> Iterator[type]:
    """Yield classes with a name of the dialect; bases of ops have no such name."""
    for value in names.values():
        name = vars(value).get("name") if isinstance(value, type) else None
        if isinstance(name, str) and name.startswith(f"{dialect}."):
            assert isinstance(value, type)
            yield value
