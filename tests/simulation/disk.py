"""A disk in memory that behaves as badly as disks may: it stands in for ``files.FileSystem``.

Rule 1: what is written and not synced may, after a loss of power, be there, be gone, or be there in part: by sectors or in the
        midst of one, whatever the order of writing.
Rule 2: names that were made, changed or removed and not synced likewise, each by itself.
Rule 3: after a failed sync the data stays readable until the power goes, and a later sync that succeeds says nothing about it;
        it must be written again. That is how Linux does it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from pairbus.errors import StoreUnavailable
from pairbus.storage.files import LockLost

SECTOR_BYTES: Final = 512


class _File:
    """Contents as read, contents on stable storage, and the writes between the two."""

    __slots__ = ("contents", "durable", "pending")

    def __init__(self) -> None:
        self.contents = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []

    def write(self, offset: int, data: bytes) -> None:
        _put(self.contents, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            _put(self.durable, offset, data)
        self.pending.clear()


class SimulatedDisk:
    """One directory on a simulated disk.

    Args:
        capacity_bytes: How much fits; None: any amount.
        watch: Called after each change of the disk with the operation's name. A test takes its crashes there.
    """

    def __init__(
        self, *, capacity_bytes: int | None = None, watch: Callable[[str], None] | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.watch = watch
        self.operations = 0
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._pending_names: list[tuple[str, str, _File]] = []
        """(name before or "", name after or "", file), in order."""
        self._open: dict[int, _File] = {}
        self._next_handle = 3
        self._is_locked = False
        self.is_taken = False
        """Another process has replaced the lock."""
        self._faults: dict[str, list[tuple[int, int]]] = {}

    # -- faults --------------------------------------------------------------------------------------------------

    def fail(self, operation: str, number: int, after: int = 0) -> None:
        """Let an operation (``write``, ``sync``, ``create`` …) fail with an errno, after so many good ones. The number 0
        stands for a short write."""
        self._faults.setdefault(operation, []).append((after, number))

    def _begin(self, operation: str) -> int:
        """Count an operation; raises if it is to fail, -1 if it is to be short, else 0."""
        self.operations += 1
        faults = self._faults.get(operation)
        if faults:
            after, number = faults[0]
            if after:
                faults[0] = (after - 1, number)
                return 0
            faults.pop(0)
            if number:
                raise OSError(number, f"injected into {operation}")
            return -1
        return 0

    def _changed(self, operation: str) -> None:
        if self.watch is not None:
            self.watch(operation)

    def crashed(self, chance: random.Random) -> SimulatedDisk:
        """What a loss of power now leaves: another disk, nothing pending. This one is not changed."""
        after = SimulatedDisk(capacity_bytes=self.capacity_bytes)
        names = dict(self._durable_names)
        cruelty = chance.choice((0.0, 0.5, 0.5, 0.5, 1.0))
        for old, new, file in self._pending_names:
            if chance.random() < cruelty:
                continue
            if old:
                names.pop(old, None)
            if new:
                names[new] = file
        copies: dict[int, _File] = {}
        for name, file in names.items():
            copy = copies.get(id(file))
            if copy is None:
                copy = copies[id(file)] = _after_power_loss(file, chance)
            after._names[name] = copy
        after._durable_names = dict(after._names)
        return after

    def killed(self) -> SimulatedDisk:
        """What the end of the process alone leaves: everything written can be read, synced or not."""
        after = SimulatedDisk(capacity_bytes=self.capacity_bytes)
        copies: dict[int, _File] = {}
        for file in (*self._names.values(), *self._durable_names.values()):
            copy = copies.setdefault(id(file), _File())
            copy.contents = bytearray(file.contents)
            copy.durable = bytearray(file.durable)
            copy.pending = list(file.pending)
        after._names = {name: copies[id(file)] for name, file in self._names.items()}
        after._durable_names = {name: copies[id(file)] for name, file in self._durable_names.items()}
        after._pending_names = [
            (old, new, copies.setdefault(id(file), _File())) for old, new, file in self._pending_names
        ]
        return after

    def flip(self, name: str, bit: int) -> None:
        """Damage one bit of a file."""
        file = self._names[name]
        for contents in (file.contents, file.durable):
            if bit >> 3 < len(contents):
                contents[bit >> 3] ^= 1 << (bit & 7)

    def truncate(self, name: str, length: int) -> None:
        """Damage a file: cut it off, durably."""
        file = self._names[name]
        for contents in (file.contents, file.durable):
            del contents[length:]
        file.pending.clear()

    def zero(self, name: str, offset: int) -> None:
        """Damage a file: overwrite it with zeros from an offset to its end, durably."""
        file = self._names[name]
        for contents in (file.contents, file.durable):
            contents[offset:] = bytes(max(0, len(contents) - offset))
        file.pending.clear()

    def lose(self, name: str) -> None:
        """Damage the directory: the file is gone, durably."""
        file = self._names.pop(name)
        self._durable_names = {key: other for key, other in self._durable_names.items() if other is not file}
        self._pending_names = [entry for entry in self._pending_names if entry[2] is not file]

    def contents(self, name: str) -> bytes:
        """What a file holds, as read."""
        return bytes(self._names[name].contents)

    # -- FileSystem ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """See FileSystem."""
        return list(self._names)

    def path(self, name: str) -> str:
        return name

    def size(self, name: str) -> int:
        """See FileSystem."""
        return len(self._file(name).contents)

    def create(self, name: str, size: int) -> int:
        """See FileSystem."""
        self._begin("create")
        if name in self._names:
            raise FileExistsError(errno.EEXIST, name)
        if size > self.free_bytes():
            raise OSError(errno.ENOSPC, name)
        file = _File()
        self._names[name] = file
        self._pending_names.append(("", name, file))
        if size:
            file.write(0, bytes(size))
        self._changed("create")
        return self._handle(file)

    def reserve(self, handle: int, offset: int, size: int) -> None:
        """See FileSystem."""
        self._begin("reserve")
        file = self._open[handle]
        growth = offset + size - len(file.contents)
        if growth > self.free_bytes():
            raise OSError(errno.ENOSPC, f"handle {handle}")
        if growth > 0:
            file.write(len(file.contents), bytes(growth))
        self._changed("reserve")

    def open(self, name: str) -> int:
        """See FileSystem."""
        self._begin("open")
        return self._handle(self._file(name))

    def close(self, handle: int) -> None:
        """See FileSystem."""
        if self._open.pop(handle, None) is None:
            raise OSError(errno.EBADF, f"handle {handle}")

    def write(self, handle: int, pieces: Sequence[bytes], offset: int) -> int:
        """See FileSystem."""
        is_short = self._begin("write") < 0
        file = self._open[handle]
        data = b"".join(pieces)
        growth = offset + len(data) - len(file.contents)
        if growth > 0 and growth > self.free_bytes():
            raise OSError(errno.ENOSPC, f"handle {handle}")
        if is_short:
            data = data[: len(data) // 2]
        file.write(offset, data)
        self._changed("write")
        return len(data)

    def sync(self, handle: int) -> None:
        """See FileSystem."""
        file = self._open[handle]
        try:
            self._begin("sync")
        except OSError:
            file.pending.clear()
            self._changed("sync")
            raise
        file.sync()
        self._changed("sync")

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """See FileSystem."""
        self._begin("read")
        return bytes(self._open[handle].contents[offset : offset + size])

    def rename(self, old: str, new: str) -> None:
        """See FileSystem."""
        self._begin("rename")
        file = self._file(old)
        del self._names[old]
        self._names[new] = file
        self._pending_names.append((old, new, file))
        self._changed("rename")

    def unlink(self, name: str) -> None:
        """See FileSystem."""
        self._begin("unlink")
        file = self._file(name)
        del self._names[name]
        self._pending_names.append((name, "", file))
        self._changed("unlink")

    def sync_directory(self) -> None:
        """See FileSystem."""
        self._begin("sync_directory")
        self._durable_names = dict(self._names)
        self._pending_names.clear()
        self._changed("sync_directory")

    def free_bytes(self) -> int:
        """See FileSystem."""
        if self.capacity_bytes is None:
            return 1 << 50
        return max(0, self.capacity_bytes - sum(len(file.contents) for file in self._names.values()))

    def lock(self, name: str) -> None:
        """See FileSystem."""
        if self._is_locked:
            raise StoreUnavailable(
                f"the data on the simulated disk is in use (file '{name}'): close the other store"
            )
        self._is_locked = True

    def check_lock(self) -> None:
        """See FileSystem."""
        if self.is_taken:
            raise LockLost("the lock of the simulated disk was replaced: start one broker on it")

    def unlock(self) -> None:
        """See FileSystem."""
        self._is_locked = False

    def _file(self, name: str) -> _File:
        file = self._names.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, name)
        return file

    def _handle(self, file: _File) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._open[handle] = file
        return handle


def _after_power_loss(file: _File, chance: random.Random) -> _File:
    after = _File()
    contents = bytearray(file.durable)
    writes = list(file.pending)
    if len(writes) > 1 and chance.random() < 0.5:
        # Overlapping writes go through one page of memory, so the later one wins; others come in any order.
        writes = (
            [writes[at] for at in chance.sample(range(len(writes)), len(writes))]
            if _disjoint(writes)
            else writes
        )
    for offset, data in writes:
        fate = chance.randrange(4)
        if fate == 0:
            continue
        if fate == 1:
            _put(contents, offset, data)
        elif fate == 2:
            _tear_sectors(contents, offset, data, chance)
        else:
            cut = chance.randrange(len(data) + 1)
            if chance.random() < 0.5:
                _put(contents, offset, data[:cut])
            else:
                _put(contents, offset + cut, data[cut:])
    after.contents = contents
    after.durable = bytearray(contents)
    return after


def _tear_sectors(contents: bytearray, offset: int, data: bytes, chance: random.Random) -> None:
    start = 0
    while start < len(data):
        end = min(len(data), (offset + start) // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES - offset)
        if chance.random() < 0.5:
            _put(contents, offset + start, data[start:end])
        start = end


def _disjoint(writes: list[tuple[int, bytes]]) -> bool:
    spans = sorted((offset, offset + len(data)) for offset, data in writes)
    return all(one[1] <= two[0] for one, two in pairwise(spans))


def _put(contents: bytearray, offset: int, data: bytes) -> None:
    if not data:
        return
    if offset > len(contents):
        contents.extend(bytes(offset - len(contents)))
    contents[offset : offset + len(data)] = data
