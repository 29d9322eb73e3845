"""A disk that has no room for a new spool."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pairbus.spool import store


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a file has no room for more than its first page."""
    connect = store.connect

    def connected(file: Path) -> sqlite3.Connection:
        database = connect(file)
        database.execute("PRAGMA max_page_count = 1").fetchone()
        return database

    monkeypatch.setattr(store, "connect", connected)
