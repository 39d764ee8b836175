"""Settings of tests that compile what is emitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def compiler_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the tests of a file empty caches, flexc's and Triton's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("FLEXC_CACHE_DIR", str(folder))
        patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        yield
