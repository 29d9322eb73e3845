"""A disk that has no room for a new spool."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pairbus.spool import file, store


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a file has no room for more than its first page."""
    connect = file.connect

    def connected(path: Path) -> sqlite3.Connection:
        database = connect(path)
        database.execute("PRAGMA max_page_count = 1").fetchone()
        return database

    monkeypatch.setattr(store, "connect", connected)
