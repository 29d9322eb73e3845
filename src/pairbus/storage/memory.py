"""A store in memory, for tests: it forgets everything when the process ends.

Records go through the same codec as on disk, so what comes back is what would come back from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pairbus.engine.records import MessageRemoved, MessageStored, Record
from pairbus.errors import StoreCorrupt, StoreFailed, UsageError
from pairbus.storage.codec import STORED_HEAD_BYTES, decode, encode, encode_stored
from pairbus.storage.ports import Batch, Store, StoreStatistics


@dataclass(slots=True)
class MemoryBatch:
    """Encoded records and the location behind the last."""

    pieces: list[bytes]
    end: int


@dataclass(slots=True)
class MemoryDisk:
    """The durable bytes that outlive a MemoryStore."""

    contents: bytearray = field(default_factory=bytearray)


class MemoryStore(Store):
    """See ``ports.Store``.

    Args:
        disk: What an earlier store left; None: nothing.
        bytes_max: Bytes it takes before ``has_room`` is False; None: no limit.
    """

    def __init__(self, disk: MemoryDisk | None = None, *, bytes_max: int | None = None) -> None:
        self.disk = MemoryDisk() if disk is None else disk
        self._bytes_max = bytes_max
        self._blobs: dict[int, bytes] = {}
        self._pieces: list[bytes] = []
        # Location 0 means "none", so the first byte lies at 1.
        self._position = 1 + len(self.disk.contents)
        self._sealed = self._position
        self._is_replayed = False
        self._is_closed = False
        self._commits = 0
        self._live_bytes = 0

    def replay(self) -> Iterator[Record]:
        if self._is_replayed:
            raise UsageError("a store is replayed once; open it again")
        contents = bytes(self.disk.contents)
        yield from decode(contents, 0, len(contents), 1)
        self._is_replayed = True

    def append(self, record: Record) -> None:
        if not self._is_replayed:
            raise UsageError("the store must be replayed to its end before anything is appended")
        if isinstance(record, MessageStored):
            blob = record.blob
            if blob is None:
                raise UsageError(
                    f"message {record.message.sequence_number} comes without its blob; read it first"
                )
            head = encode_stored(record, len(blob))
            if record.message.location:
                self._blobs.pop(record.message.location, None)
                self._live_bytes -= len(blob) + STORED_HEAD_BYTES
            location = self._position + len(head)
            record.message.location = location
            self._blobs[location] = blob
            self._live_bytes += len(blob) + STORED_HEAD_BYTES
            self._stage(head)
            self._stage(blob)
            return
        if isinstance(record, MessageRemoved):
            self._blobs.pop(record.location, None)
            self._live_bytes -= record.size + STORED_HEAD_BYTES
        self._stage(encode(record))

    def _stage(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._position += len(piece)

    def has_room(self, size: int) -> bool:
        return self._bytes_max is None or self._live_bytes + size <= self._bytes_max

    def read(self, location: int, size: int) -> bytes:
        blob = self._blobs.get(location)
        if blob is None:
            blob = bytes(self.disk.contents[location - 1 : location - 1 + size])
        if len(blob) != size:
            raise StoreCorrupt(f"there are no {size} bytes at location {location}")
        return blob

    def staged_bytes(self) -> int:
        return self._position - self._sealed

    def seal(self) -> MemoryBatch | None:
        if not self._pieces:
            return None
        batch = MemoryBatch(self._pieces, self._position)
        self._pieces = []
        self._sealed = self._position
        return batch

    def commit(self, batch: Batch) -> None:
        if not isinstance(batch, MemoryBatch):
            raise UsageError("this batch is not of this store")
        if self._is_closed:
            raise StoreFailed("the store is closed")
        self.disk.contents += b"".join(batch.pieces)
        if 1 + len(self.disk.contents) != batch.end:
            raise UsageError("batches must be committed in the order they were sealed")
        self._commits += 1

    def live(self, messages: Iterable[tuple[int, int, int]]) -> None:
        self._live_bytes = sum(size + STORED_HEAD_BYTES for _, _, size in messages)

    def restate(self, limit: int) -> list[Record]:  # noqa: ARG002 - nothing here ever needs to be given back
        return []

    def statistics(self) -> StoreStatistics:
        used = len(self.disk.contents)
        return StoreStatistics(
            commits=self._commits,
            used_bytes=used,
            live_bytes=self._live_bytes,
            garbage_bytes=max(0, used - self._live_bytes),
            cached_bytes=sum(map(len, self._blobs.values())),
        )

    def close(self) -> None:
        self._is_closed = True
