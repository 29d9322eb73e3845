"""The page that promises compatibility names tests; they must exist, and every behaviour must be on the page."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "compatibility.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
LEVELS = ("same", "different", "absent")


def test_every_test_on_the_page_exists() -> None:
    named = NAMED.findall(PAGE.read_text())

    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (TESTS / file).read_text()]

    assert len(named) > 50
    assert missing == []


def test_every_row_has_a_level_and_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and line.count("|") == 4]
    bodies = [row for row in rows if not row.endswith("| Test |") and "checker of that run" not in row]

    without = [row for row in bodies if not NAMED.search(row) and "| absent |" not in row]
    unclear = [row for row in bodies if not row.split("|")[2].strip().startswith(LEVELS)]

    assert (without, unclear) == ([], [])
