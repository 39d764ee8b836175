"""Settings of the property tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
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


@pytest.fixture(scope="module")
def splats_of_comparisons() -> Iterator[None]:
    """Correct Triton's interpreter, whose splats of conditions have operands' type."""
    tl: Any = pytest.importorskip("triton.language")
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    original = InterpreterBuilder.create_splat

    def create_splat(self: Any, ret_ty: Any, arg: Any) -> Any:
        if arg.data.dtype != np.bool_:
            return original(self, ret_ty, arg)
        value = np.full(ret_ty.shape, arg.data.reshape(-1)[0])
        return TensorHandle(value, tl.int1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_splat", create_splat)
        yield
