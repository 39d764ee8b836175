"""Files of results: `bench/results/<machine>-<date>.json`, one row a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

FOLDER = Path("bench/results")


def path_of(machine: str, folder: Path = FOLDER, day: date | None = None) -> Path:
    """`nvidia-h100-80gb-hbm3-2026-11-21.json`, say."""
    name = re.sub(r"[^a-z0-9]+", "-", machine.split(",")[0].lower()).strip("-")
    return folder / f"{name}-{(day or date.today()).isoformat()}.json"


def save(path: Path, machine: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """The old file stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(dict(row))}" for row in rows)
    text = f'{{"machine": {json.dumps(machine)}, "rows": [\n{lines}\n]}}\n'
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text)
    unfinished.replace(path)


def load(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """The machine, and rows."""
    data = json.loads(path.read_text())
    return data["machine"], data["rows"]
