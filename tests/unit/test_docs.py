"""Pages of prose are short, and the files that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
MAX_LINES = {"README.md": 300, "ARCHITECTURE.md": 200}

EXAMPLES = {"mods.py"}
"""Files that readers write themselves."""

NAMED_FILE = re.compile(r"`([\w./]+(?:\.py|\.md|/))`")
LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    missing = [
        name
        for name in NAMED_FILE.findall(text)
        if name not in EXAMPLES
        and not (ROOT / name).exists()
        and not any([*ROOT.glob(f"flexc/**/{name}"), *ROOT.glob(f"tests/**/{name}")])
    ]
    missing += [
        link for link in LINK.findall(text) if not (page.parent / link).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", MAX_LINES)
def test_pages_are_short(page: str) -> None:
    assert len((ROOT / page).read_text("utf-8").splitlines()) <= MAX_LINES[page]
