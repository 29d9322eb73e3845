"""The stores that the contract suite runs over: how each is opened, and opened again after its process has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pairbus.storage.log.store import LogStore
from pairbus.storage.memory import MemoryDisk, MemoryStore
from pairbus.storage.ports import Store
from pairbus.storage.table.ports import SequenceTaken
from pairbus.storage.table.store import TableStore
from tests.contract.table_kinds import LogTable
from tests.simulation.disk import SimulatedDisk


class StoreKind(Protocol):
    """A place where a store's data lives."""

    def open(self) -> Store:
        """Open it, for the first time or again."""

    def kill(self, store: Store) -> None:
        """End the store as a killed process would: without a last word."""

    def tear_down(self) -> None:
        """Close what is still open."""


class MemoryKind:
    def __init__(self) -> None:
        self.disk = MemoryDisk()

    def open(self) -> Store:
        return MemoryStore(self.disk)

    def kill(self, store: Store) -> None:
        pass

    def tear_down(self) -> None:
        pass


class LogKind:
    """The log in a real directory, its segments made ready by the thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opened: list[LogStore] = []

    def open(self) -> Store:
        store = LogStore.open(self.directory, namespace="ns", segment_bytes=64 * 1024, reserve_bytes=0)
        self.opened.append(store)
        return store

    def kill(self, store: Store) -> None:
        store.close()  # a kill differs by the mark alone; the lock held by this process must be let go

    def tear_down(self) -> None:
        for store in self.opened:
            store.close()


class SimulatedKind:
    """The log on a simulated disk, with segments so small that everything rolls."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()

    def open(self) -> Store:
        return LogStore.open(
            "simulated", segment_bytes=4096, reserve_bytes=0, file_system=self.disk, is_background=False
        )

    def kill(self, store: Store) -> None:
        self.disk = self.disk.killed()

    def tear_down(self) -> None:
        pass


class TableKind:
    """The log over a table, with ranges so small that everything rolls."""

    def __init__(
        self,
        table: LogTable,
        *,
        is_background: bool = True,
        reserve_bytes: int = 0,
        bytes_max: int | None = None,
    ) -> None:
        self.table = table
        self._reserve_bytes = reserve_bytes
        self._bytes_max = bytes_max
        self._is_background = is_background
        self._lease = table.lease()
        self._epoch = 0
        self.opened: list[TableStore] = []

    def open(self) -> Store:
        """As the next owner: the former one's lease is given back first, as if it had ended."""
        self._lease.release(self._epoch)
        found = None
        while found is None:
            try:
                found = self._lease.acquire("node", "", 600_000)
                assert found is not None
            except SequenceTaken:
                continue
        self._epoch = found.epoch
        store = TableStore(
            self.table.writer(),
            self.table.reader(),
            epoch=found.epoch,
            fence=found.fence,
            reserve_bytes=self._reserve_bytes,
            bytes_max=self._bytes_max,
            garbage_bytes_min=8192,
            cache_bytes=64 * 1024,
            is_background=self._is_background,
        )
        self.opened.append(store)
        return store

    def kill(self, store: Store) -> None:
        pass  # it may go on for a while; the next owner's fence keeps it out

    def tear_down(self) -> None:
        for store in self.opened:
            store.close()
        self._lease.close()
