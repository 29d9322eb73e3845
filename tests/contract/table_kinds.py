"""The log tables that the contract of the port runs over. Each kind makes one new, empty shard."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from pairbus.storage.postgres.database import Database
from pairbus.storage.table.ports import FrameReader, FrameWriter, LeaseTable
from tests.postgres_kit import shared_server
from tests.simulation.cluster.table import quiet_table

RANGE_FRAMES: Final = 8
"""Frames that are dropped together, in every kind: small, so that tests reach the edges of ranges."""

_numbers = count(1)


class LogTable(Protocol):
    """A shard's table: gives out a connection for each part."""

    def writer(self) -> FrameWriter: ...
    def reader(self) -> FrameReader: ...
    def lease(self) -> LeaseTable: ...


def postgres_table(range_frames: int = RANGE_FRAMES) -> LogTable:
    """A shard of its own in the server that all tests share."""
    database = Database(shared_server().url(), f"shard-{next(_numbers)}", range_frames=range_frames)
    database.prepare()
    return database


TABLE_KINDS: Final[dict[str, Callable[[], LogTable]]] = {
    "postgres": postgres_table,
    "simulated": lambda: quiet_table(RANGE_FRAMES),
}


def new_name(what: str) -> str:
    """A name that no other test of this process has."""
    return f"{what}-{next(_numbers)}"
