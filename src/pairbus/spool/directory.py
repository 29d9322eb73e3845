"""The spools of one directory: one for each client that runs, and those that clients before have left behind.

Each spool has a directory of its own, ``0``, ``1``, …, with a lock file that its owner holds. A client that opens the directory
takes every spool that nobody holds and that is for its primary. They are replayed first, and its own messages go to a new spool, or
to one of them that holds none: so a spool has the messages of one client, and of two spools with messages of one session the one with
the older ones is replayed first. A spool that is empty is deleted when its client is closed.

A client that keeps an order stays behind messages of its sessions in spools that others hold (``ahead``). It takes such a spool when
its owner has gone.

A lock ends with its owner, not only with the process: with a client that is collected without having been closed, and, when another
one of this process opens the directory, with a client whose event loop is closed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pairbus.errors import SpoolError, SpoolFull, SpoolNotStored
from pairbus.spool.ahead import Ahead, KeyOf, ahead_in
from pairbus.spool.disk import MAKE_ROOM, is_disk_full
from pairbus.spool.file import FILE_NAME, ORDERS, About, Content, Spooled, is_written, read_about, total_of
from pairbus.spool.opening import opened_to_read
from pairbus.spool.store import Append, Spool

SPOOLS_MAX: Final = 1_000
"""How many spools a directory may have."""
LEFT_BEHIND_MAX: Final = 100
"""With so many that others have left behind, the newest of them takes new messages, too."""
LOCK_NAME: Final = "lock"


class Spools:
    """The spools that one client has open: those that are replayed, oldest first, and its own, the last of them."""

    def __init__(
        self,
        root: Path,
        about: About,
        *,
        bytes_max: int,
        age_ms_max: int,
        accepts: Callable[[str], bool] = lambda _address: True,
        key_of: KeyOf | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open them. ``accepts``: whether a spool with this address of a primary is for ours. Raises SpoolError.

        ``key_of``: by what messages are kept in order, and stay behind those in spools of other clients; None: they do not.

        ``is_over``: whether the owner of these can do nothing any more, so that another one of this process may have them.

        A full disk is no error: ``problems`` has it, and the own spool is created when messages need it.
        """
        self.root = root
        self.bytes_max = bytes_max
        self.age_ms_max = age_ms_max
        self.problems: list[str] = []
        """Spools that could not be opened, and why."""
        self._lock = threading.Lock()
        self._locks: dict[Spool, int] = {}
        weakref.finalize(self, _give_back, self._locks).atexit = False
        self._is_closed = False
        self._is_over = is_over
        self._process = os.getpid()
        self._about = about
        self._accepts = accepts
        self._key_of = key_of
        self.all: list[Spool] = []
        self.ahead: list[Ahead] = []
        """What spools of other clients hold that the messages of this one stay behind."""
        self.others: list[Path] = []
        """Spools that nobody has open and that are not for our primary (``left_behind``)."""
        self.not_seen: list[str] = []
        """Spools of other clients that could not be looked into, and why."""
        self.not_before_ms = 0
        """New messages are younger than all that they stay behind, also after the clock was set back."""
        self._oldest_ms = 0
        """No message that waits is older. It is looked for only when this would be too old: each send asks."""
        self._is_out_of_reach = False
        """Whether the full disk keeps a spool from being opened that may hold messages."""
        with suppress(SpoolNotStored):
            make_directory(root)
        # Those without messages last: the last one takes new messages.
        self.all = sorted(
            self._left_behind(about),
            key=lambda spool: (not spool.is_waiting, spool.newest_ms, spool.directory),
        )
        self.not_before_ms = max([self.not_before_ms, *(spool.newest_ms + 1 for spool in self.all)])
        if not self.all:
            self._open_own(about)
        elif self.all[-1].is_waiting and len(self.all) < LEFT_BEHIND_MAX:
            with suppress(SpoolError):  # a full disk: the newest one takes new messages
                self.all.append(self._new(about))
        self._parents: list[Spool] = []
        with _everywhere_lock:
            _everywhere.add(self)

    def _left_behind(self, about: About) -> Iterator[Spool]:
        for directory in spool_directories(self.root):
            if self._is_of_another(directory):
                # Not even for a moment: its own client may open the directory now, and would find it in use.
                self.others.append(directory)
                continue
            try:
                lock = take_lock(directory)
                if lock is None and _end_its_owner(directory):
                    lock = take_lock(directory)
            except OSError as error:
                self.problems.append(str(_unusable(directory, error)))
                continue
            if lock is None:
                if self._key_of is not None:
                    self._note_ahead(directory, self._key_of)
                continue
            try:
                spool = Spool(directory, about)
            except SpoolError as error:
                os.close(lock)
                self.problems.append(str(error))
                if isinstance(error, SpoolNotStored) and (directory / FILE_NAME).stat().st_size:
                    self._is_out_of_reach = True
                continue
            if self._is_ours(spool.about):
                self._locks[spool] = lock
                yield spool
            else:
                spool.close()
                os.close(lock)
                self.others.append(directory)

    def _is_of_another(self, directory: Path) -> bool:
        """Whether a spool is for another primary. One that cannot be read is not: opening it says what is wrong."""
        try:
            with opened_to_read(directory / FILE_NAME) as database:
                return is_written(database) and not self._is_ours(read_about(database, directory / FILE_NAME))
        except (sqlite3.Error, OSError, SpoolError):
            return False

    def _is_ours(self, about: About) -> bool:
        # The names of backlog queues begin with that of the primary, and case does not count in them either.
        return about.primary.lower() == self._about.primary.lower() and self._accepts(about.address)

    def _note_ahead(self, directory: Path, key_of: KeyOf) -> None:
        """Another client has a spool open: note what it holds."""
        try:
            found = ahead_in(directory, self._is_ours, key_of)
        except (sqlite3.Error, OSError, SpoolError) as error:
            if (directory / FILE_NAME).exists():
                self.not_seen.append(f"the spool {directory} of another client cannot be read: {error}")
            return
        if found is not None:
            self.ahead.append(found)
            self.not_before_ms = max(self.not_before_ms, found.newest_ms + 1)

    def _open_own(self, about: About) -> None:
        try:
            self.all.append(self._new(about))
        except SpoolNotStored as error:
            if self._is_out_of_reach and about.order not in (None, ORDERS[0]):
                raise  # new messages would overtake those in it
            self.problems.append(
                f"{error}. Until then it takes no message; what a namespace takes is sent all the same"
            )

    def _new(self, about: About) -> Spool:
        make_directory(self.root)
        for number in range(SPOOLS_MAX):
            directory = self.root / str(number)
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:
                continue
            except OSError as error:
                raise _unusable(self.root, error) from error
            try:
                lock = take_lock(directory)
            except OSError as error:
                delete(directory)
                raise _unusable(self.root, error) from error
            if lock is None:
                continue
            try:
                spool = Spool(directory, about)
            except SpoolError:
                delete(directory)
                os.close(lock)
                raise
            self._locks[spool] = lock
            return spool
        raise SpoolError(
            f"the directory {self.root} has {SPOOLS_MAX} spools: replay or export those that are not used, and delete them"
        )

    # --- append -----------------------------------------------------------------------------------

    def enter(self, append: Append) -> Spool:
        """Take messages into the own spool, for its ``commit``. Raises SpoolNotStored, and nothing is taken."""
        with self._lock:
            if self._is_closed:
                raise SpoolNotStored(f"the spool {self.root} is closed: enter the client again")
            size = sum(spool.size for spool in self.all)
            if size + append.size > self.bytes_max:
                raise SpoolFull(
                    f"the spool {self.root} holds {size:,} bytes of at most {self.bytes_max:,} (spool_max_bytes), and {append.size:,} "
                    "more do not fit: it takes messages again when a namespace is back"
                )
            if append.at_ms - self._oldest_ms > self.age_ms_max:
                self._oldest_ms = min(
                    (content.oldest_ms for _, content in self._contents() if content.oldest_ms is not None),
                    default=append.at_ms,
                )
            oldest_ms = self._oldest_ms = min(self._oldest_ms, append.at_ms)
            if append.at_ms - oldest_ms > self.age_ms_max:
                raise SpoolFull(
                    f"the oldest message in the spool {self.root} has waited for {(append.at_ms - oldest_ms) // 1000:,} s, longer than "
                    f"{self.age_ms_max // 1000:,} s (spool_max_age): it takes messages again when the old ones are replayed"
                )
            if not self.all:
                try:
                    self.all.append(self._new(self._about))
                except SpoolError as error:
                    raise SpoolNotStored(str(error)) from error
            own = self.all[-1]
            own.enter(append)
            return own

    # --- questions --------------------------------------------------------------------------------

    def waits(self, key: str) -> int:
        """How many messages of an entity wait, those on their way in included."""
        return sum(spool.waits(key) for spool in self.all)

    def keys(self) -> dict[str, str]:
        """The entities of which messages wait, with their paths."""
        return {key: content.path for key, content in self._contents() if content.count or content.entered}

    def _contents(self) -> list[tuple[str, Content]]:
        return [item for spool in self.all for item in list(spool.contents.items())]

    def content(self, key: str) -> Content:
        """What all spools together hold of an entity."""
        parts = [found for spool in self.all if (found := spool.contents.get(key)) is not None]
        return total_of(parts, parts[0].path if parts else key)

    def total(self) -> Content:
        """What all spools together hold."""
        return total_of(content for _, content in self._contents())

    # --- replay -----------------------------------------------------------------------------------

    def first(self, key: str, count: int, size: int) -> tuple[Spool, list[Spooled]] | None:
        """The oldest messages of an entity, and the spool that holds them; None: there are none."""
        spools = self.all
        if len(spools) > 1:
            spools = [*sorted(spools[:-1], key=lambda spool: spool.oldest_ms(key)), spools[-1]]
        for spool in spools:
            if spool.waits(key):
                messages = spool.first(key, count, size)
                if messages:
                    return spool, messages
        return None

    # --- what is ahead ----------------------------------------------------------------------------

    def paths_ahead(self) -> dict[str, str]:
        """The entities of which spools of other clients hold messages that ours stay behind, with their paths."""
        return {key: part.path for one in self.ahead for key, part in one.parts.items()}

    def is_ahead(self, key: str, order_keys: Iterable[str]) -> bool:
        """Whether messages of one of these sessions may be ahead of a new one."""
        parts = [part for one in self.ahead if (part := one.parts.get(key)) is not None]
        return any(part.concerns(order_key) for order_key in order_keys for part in parts)

    def free(self, key: str, spool: Spool, messages: Sequence[Spooled]) -> list[Spooled]:
        """The messages of a spool before the first one that an older one is ahead of."""
        parts = [(part, one.number) for one in self.ahead if (part := one.parts.get(key)) is not None]
        number = int(spool.directory.name)
        result = []
        for message in messages:
            older = [part for part, place in parts if (part.at_ms, place) < (message.at_ms, number)]
            if older and self._key_of is not None:
                order_key = self._key_of(message.payload)
                if order_key is not None and any(part.concerns(order_key) for part in older):
                    break
            result.append(message)
        return result

    def look_ahead(self) -> tuple[list[tuple[Ahead, dict[str, int | None]]], list[Spool]]:
        """What is left of what is ahead (``Ahead.note`` takes it), and the spools that have no owner any more and are now ours."""
        looks, taken = [], []
        for one in self.ahead:
            spool = self._take_over(one)
            if spool is not None:
                taken.append(spool)
                looks.append((one, dict.fromkeys(one.parts)))
                continue
            try:
                looks.append((one, one.look()))
            except (sqlite3.Error, OSError):
                if not one.is_there:
                    looks.append((one, dict.fromkeys(one.parts)))
        return looks, taken

    def _take_over(self, ahead: Ahead) -> Spool | None:
        """Open a spool whose owner has gone; None: it has one, or cannot be opened."""
        try:
            lock = take_lock(ahead.directory) if ahead.is_there else None
        except OSError:
            return None
        if lock is None:
            return None
        try:
            if not ahead.is_there:
                os.close(lock)
                return None
            spool = Spool(ahead.directory, self._about)
        except SpoolError:
            os.close(lock)
            return None
        with self._lock:
            if self._is_closed:
                spool.close()
                os.close(lock)
                return None
            self._locks[spool] = lock
            self.all = [spool, *self.all]
        return spool

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all spools, and delete those that are empty. Their locks are free afterwards."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._is_closed = True
        for spool in self.all:
            lock = self._locks.pop(spool, None)
            if lock is None:
                continue
            try:
                spool.close()
                if spool.is_empty:
                    delete(spool.directory)
            finally:
                os.close(lock)

    def is_over_with(self, directory: Path) -> bool:
        """Whether the owner of these can do nothing any more, and holds the spool of a directory."""
        return self._is_over() and any(spool.directory == directory for spool in list(self._locks))

    def forget(self) -> None:
        """In a forked process: the spools are the parent's. This process gets one of its own when it needs one."""
        for lock in self._locks.values():
            with suppress(OSError):
                os.close(lock)
        self._lock = threading.Lock()
        self._locks.clear()
        # Kept, so that nothing closes them here: the files are the parent's.
        self._parents += self.all
        self._process = os.getpid()
        self.all = []


def _unusable(root: Path, error: OSError) -> SpoolError:
    if is_disk_full(root, error):
        return SpoolNotStored(f"the spool directory {root} cannot be used: {error}. {MAKE_ROOM}")
    return SpoolError(
        f"the spool directory {root} cannot be used: {error}. Give a directory that this program may write"
    )


def make_directory(root: Path) -> None:
    """Create the directory for its owner alone. Raises SpoolError."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable", str(root))
    except OSError as error:
        raise _unusable(root, error) from error


def spool_directories(root: Path) -> list[Path]:
    """The directories of the spools below ``root``, by number."""
    try:
        names = [entry for entry in root.iterdir() if entry.name.isdecimal() and (entry / FILE_NAME).exists()]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda entry: int(entry.name))


def take_lock(directory: Path) -> int | None:
    """The lock of a spool, as a descriptor that holds it until it is closed; None: somebody has it, or the spool is gone."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its owner may have deleted it in this moment: then this is the lock of nothing.
        if os.stat(directory / LOCK_NAME).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def is_held(directory: Path) -> bool:
    """Whether a program has a spool open. Also where nothing can be written."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def retry_undeliverable(root: Path) -> int:
    """Let messages that a namespace has refused wait again, in every spool that nobody has open. How many that is."""
    count = 0
    for directory in spool_directories(root):
        lock = take_lock(directory)
        if lock is not None:
            try:
                spool = Spool(directory, About("", ""))
                count += spool.retry_undeliverable()
                spool.close()
            except SpoolError:
                continue  # damaged: the listing of the directory says so
            finally:
                os.close(lock)
    return count


def delete(directory: Path) -> None:
    """Delete an empty spool whose lock the caller holds: its lock file goes last."""
    for entry in directory.glob(f"{FILE_NAME}*"):
        entry.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def _give_back(locks: dict[Spool, int]) -> None:
    """The owner of some spools was collected, and had not closed them: each lock ends with its spool, which a thread may still write."""
    while locks:
        spool, lock = locks.popitem()
        weakref.finalize(spool, os.close, lock).atexit = False


def _end_its_owner(directory: Path) -> bool:
    """Close the spools of an owner in this process that is over and holds this one. False: there is none."""
    with _everywhere_lock:
        owners = list(_everywhere)
    for spools in owners:
        if spools.root == directory.parent and spools.is_over_with(directory):
            spools.close()
            return True
    return False


_everywhere: weakref.WeakSet[Spools] = weakref.WeakSet()
_everywhere_lock = threading.RLock()


def _forked() -> None:
    global _everywhere_lock  # noqa: PLW0603 - nobody will release the parent's
    _everywhere_lock = threading.RLock()
    for spools in list(_everywhere):
        spools.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
