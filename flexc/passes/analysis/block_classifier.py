"""Classifiers of blocks: from a mask region to code over ranges."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.ir import Region

from flexc.passes.analysis.dependence import Along
from flexc.passes.analysis.proof import Proof, WhyNot


@dataclass(frozen=True)
class Summary:
    axis: Literal["row", "column"]
    region: Region
    along: Along

@dataclass(frozen=True)
class Classifier:
    summaries: tuple[Summary, ...]
    region: Region
    along: Along
    unknown: tuple[str, ...]

def build_classifier(mask: Region, max_length: int, fits: bool) -> Proof[Classifier]:
    return WhyNot("no classifier yet")
