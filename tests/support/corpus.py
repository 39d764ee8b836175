"""Named score and mask mods, as people write them: the inputs of all tests.

`CORPUS["causal"].factory(B, H, Hkv, Sq, Skv, device)` gives `(score_mod,
mask_mod)`, either of which may be None. Windows, tables and documents fit the
sizes, captured tensors come from a fixed seed. Nothing here knows flexc.
"""

from tests.support import corpus_masks, corpus_scores
from tests.support.problem import (
    CORPUS,
    Case,
    Device,
    Mods,
    Problem,
)

__all__ = [
    "CORPUS",
    "Case",
    "Device",
    "Mods",
    "Problem",
    "corpus_masks",
    "corpus_scores",
]
