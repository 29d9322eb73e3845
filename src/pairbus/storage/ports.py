"""The store's port: keeps records durably, gives them back in order, understands nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pairbus.engine.ports import RecordLog
from pairbus.native import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pairbus.engine.records import Record

SMALL_MESSAGE_BYTES: Final = 1024
"""Of the message that shows whether there is room for any."""


class Batch(Protocol):
    """What one commit makes durable: everything staged since the batch before. Opaque to its carrier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """The state of a store at one instant. What a store does not have is 0."""

    commits: int = 0
    segments: int = 0
    """Segments that hold records."""
    spare_segments: int = 0
    """Segments made ready ahead of use."""
    disk_bytes: int = 0
    """What the segments take on disk, spare ones included."""
    used_bytes: int = 0
    """What records take, live or not."""
    live_bytes: int = 0
    """What still stored messages take of it."""
    garbage_bytes: int = 0
    cached_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    last_sync_ms: float = 0.0
    is_full: bool = False
    """A message of SMALL_MESSAGE_BYTES would be refused for lack of space (B12)."""


class ReadAhead(Protocol):
    """Brings message bytes that are not on this machine, while the owner does something else. Owner's thread."""

    def is_at_hand(self, location: int) -> bool:
        """Whether ``read`` answers at once."""

    def fetch(self, locations: Iterable[int], tag: int) -> None:
        """Bring these blobs; ``take_fetched`` names the tag when one of them has come."""

    def take_fetched(self) -> set[int]:
        """The tags for which something has come since last asked."""

    def on_fetched(self, call: Callable[[], None]) -> None:
        """Have a function called, by another thread, when something has come."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Store(RecordLog):
    """One namespace's records. Staging is done by the one thread that owns the engine, committing by another.

    Life: ``replay`` to its end, then ``live``, then ``append``/``seal`` by the owner and ``commit`` by the
    committer, then ``close``.
    """

    @property
    def read_ahead(self) -> ReadAhead | None:
        """How blobs are asked for before they are read; None: all are on this machine, and a commit waits for its disk alone."""
        return None

    def replay(self) -> Iterator[Record]:
        """Every durable record, in order. Drops a torn tail that was never acknowledged; raises StoreCorrupt
        on any other damage (B10). A message may come more than once (restated); its last record holds."""
        raise NotImplementedError

    def append(self, record: Record) -> None:
        """Stage a record. ``MessageStored`` gets its ``message.location``; if it had one (it is restated),
        the old place is given back."""
        raise NotImplementedError

    def has_room(self, size: int) -> bool:
        """Whether a send of this many bytes can be taken without touching the reserve (B12)."""
        raise NotImplementedError

    def read(self, location: int, size: int) -> bytes:
        """The blob at a location, staged or durable."""
        raise NotImplementedError

    def staged_bytes(self) -> int:
        """About how much has been staged since the last batch was taken. Owner's thread."""
        raise NotImplementedError

    def seal(self) -> Batch | None:
        """Take what is staged as one atomic batch; None if nothing is. Owner's thread."""
        raise NotImplementedError

    def commit(self, batch: Batch) -> None:
        """Return once the batch is durable. Batches come in the order they were sealed, one at a time,
        from the committer's thread. Raises StoreFailed if that is not certain; the store is then dead (B11)."""
        raise NotImplementedError

    def live(self, messages: Iterable[tuple[int, int, int]]) -> None:
        """After replay: (queue id, location, size) of every message still stored, for space accounting.
        Until this is called no space is given back."""
        raise NotImplementedError

    def restate(self, limit: int) -> list[Record]:
        """Housekeeping, owner's thread: up to ``limit`` old records whose place should be given back. The owner
        appends again what of them is still true and calls again; an empty list ends the round.

        Only records that can still be true by themselves come: messages (without their bytes), entities,
        the namespace, session states, duplicate history. Numbers given out are kept by the store itself."""
        raise NotImplementedError

    def statistics(self) -> StoreStatistics:
        """A snapshot for metrics."""
        raise NotImplementedError

    def close(self) -> None:
        """Release files and the lock on the data. Idempotent."""
        raise NotImplementedError
