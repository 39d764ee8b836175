"""Settings of the property tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Thousands of generated kernels are nothing for the user's cache."""
    before = os.environ.get("FLEXC_CACHE_DIR")
    os.environ["FLEXC_CACHE_DIR"] = str(tmp_path_factory.mktemp("flexc-cache"))
    yield
    if before is None:
        del os.environ["FLEXC_CACHE_DIR"]
    else:
        os.environ["FLEXC_CACHE_DIR"] = before
