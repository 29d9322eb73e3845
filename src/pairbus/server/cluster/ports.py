"""What a node needs of the database that the nodes of a cluster share; ``storage.postgres.database`` is the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.storage.table.ports import FrameReader, FrameWriter, LeaseTable, NodeTable


class SettingTable(Protocol):
    """Named values that all nodes of a shard share. Values may be secrets."""

    def get(self, name: str) -> bytes | None:
        """The value; None: it was never set."""

    def put(self, name: str, value: bytes) -> None:
        """Set a value, whatever it was."""

    def settle(self, name: str, value: bytes) -> bytes:
        """Set a value unless there is one. Returns the one that holds."""

    def close(self) -> None: ...


class ShardDatabase(Protocol):
    """One shard in a database: gives out a connection for each part, each for one thread."""

    def writer(self) -> FrameWriter: ...
    def reader(self) -> FrameReader: ...
    def lease(self) -> LeaseTable: ...
    def nodes(self) -> NodeTable: ...
    def settings(self) -> SettingTable: ...

    def report_silence(self, report: Callable[[str, str], None]) -> None:
        """Have ``report`` called, by another thread, about calls that have had no answer for long: see ``second_look.SecondLooks``."""

    def cut(self) -> None:
        """End every call under way, and all that come. From any thread."""
