"""A namespace moves between its own files and a database, with everything it holds.

What moves is what is true now: entities with their settings and keys, numbers given out, messages in every state with their numbers and
counts, session states, duplicate history, the number of the last audited batch, and the certificate authority. The log itself does not:
the target gets a new one.

The target counts only when all of it is there: in the database as one batch, on disk under its name. Only then is the source
marked as moved. So a move that is interrupted has changed nothing, and is begun again. It owns the shard meanwhile, by a short lease that
a thread renews, and gives it back at its end, also after SIGTERM.

A database that the namespace was moved out of keeps the old copy. A move back into it writes a shard beside the old one, and the two
change places in one transaction at the end. The source is opened first, so a move that is refused because of it finds the
database as it was and leaves it so.

The mark in a database is written together with a check that the move still owns the shard: see ``LeaseTable.move_away``. Nodes that run
meet it at their next call and end.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.engine.namespace import Namespace
from pairbus.engine.records import AuditMarked, MessageStored
from pairbus.errors import StorageError, StoreFailed, StoreFull, StoreUnavailable, UsageError
from pairbus.model.message import Message
from pairbus.server.assemble import MOVED_DIRECTORY, MOVED_TO_FILE, STORE_DIRECTORY, open_table_store, recover
from pairbus.server.cluster.authority import give_authority, keep_authority
from pairbus.server.files import sync_directory
from pairbus.server.offline.export import facts_of
from pairbus.server.offline.namespace import NoOutbox, Opened, Progress, entities, opened
from pairbus.storage.log.store import LogStore
from pairbus.storage.table.ports import MOVER, OutcomeUnknown, SequenceTaken, TableFailed
from pairbus.storage.tools.inspect import holds_data

if TYPE_CHECKING:
    from types import FrameType

    from pairbus.storage.ports import Store
    from pairbus.storage.postgres.database import Database
    from pairbus.storage.table.ports import Acquired, LeaseTable
    from pairbus.storage.table.store import TableStore

TLS_DIRECTORY: Final = "tls"
UNFINISHED_DIRECTORY: Final = f"{STORE_DIRECTORY}.moving"
LEASE_MS: Final = 5_000
"""Renewed five times in that time. So long nodes wait after a move that was killed; one that is stopped gives it back."""
JOIN_SECONDS_MAX: Final = 2.0
"""How long the end of a move waits for a renewal under way."""
COMMIT_BYTES: Final = 4 << 20
COMMIT_RECORDS: Final = 2_000
READ_MESSAGES: Final = 500
ACQUIRE_TRIES_MAX: Final = 10
LAST_STEP_TRIES_MAX: Final = 20
LAST_STEP_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a move has brought to its target."""

    namespace: str
    entities: int
    messages: int
    bytes: int
    """Of the messages."""


def move_to_database(data: Path, database: Database, now: int, progress: Progress) -> Moved:
    """Move a namespace from a data directory into a database. The log is kept as ``store.moved``; other files stay.

    Raises:
        UsageError: The database holds something under the namespace's name.
        StorageError: The data is in use, damaged or not there, or the database cannot be used.
    """
    with opened(data, progress) as found:
        if found.name != database.namespace:
            raise UsageError(
                f"{data} holds namespace {found.name}, not {database.namespace}: leave --namespace out"
            )
        with _target(database) as target, _acquired(target) as (store, _):
            for _ in store.replay():
                raise UsageError(f"{database} holds namespace {found.name} already: it is not overwritten")
            store.live(())
            moved = _Copy(found, store, progress, store.seal_part).run(now)
            settings = target.settings()
            try:
                keep_authority(settings, data / TLS_DIRECTORY)
            finally:
                settings.close()
        with _last_step():
            if target is not database:
                with _as_unavailable():
                    _repeat(lambda: database.replace_with(target))
            aside = data / MOVED_DIRECTORY
            shutil.rmtree(aside, ignore_errors=True)
            (data / STORE_DIRECTORY).rename(aside)
            sync_directory(data)
        # For people only, so it need not be durable. It names hosts and database, nothing secret.
        with suppress(OSError):
            (aside / MOVED_TO_FILE).write_text(f"{database}\n", encoding="utf-8")
    return moved


def move_to_files(database: Database, data: Path, now: int, progress: Progress) -> Moved:
    """Move a namespace from a database into a data directory. The database keeps its tables, marked as moved.

    Raises:
        UsageError: The data directory holds a log, or the database holds no such namespace.
        StorageError: The namespace is being served, was moved already, or is damaged, or there is no space.
    """
    directory = data / STORE_DIRECTORY
    if holds_data(directory):
        raise UsageError(f"{directory} holds the data of a namespace already: it is not overwritten")
    with _as_unavailable():
        if not database.find():
            raise UsageError(f"{database} holds no namespace {database.namespace}")
        if database.moved_to() is not None:
            database.prepare()  # which says so
    unfinished = data / UNFINISHED_DIRECTORY
    was_there = data.is_dir()
    settings = database.settings()
    try:
        with _acquired(database) as (source, epoch):
            found = Opened(database.namespace, source, Namespace(database.namespace, source, NoOutbox()))
            recover(found.namespace, source, found.note)
            if found.settings is None:
                raise UsageError(f"{database} holds no namespace {database.namespace}")
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.rmtree(unfinished, ignore_errors=True)
            target = LogStore.open(unfinished, namespace=database.namespace)
            try:
                for _ in target.replay():
                    raise StoreUnavailable(f"{unfinished} is not empty: something else writes there")
                target.live(())
                moved = _Copy(found, target, progress, target.seal).run(now)
            finally:
                target.close()
            give_authority(settings, data / TLS_DIRECTORY)
            shutil.rmtree(directory, ignore_errors=True)  # at most a lock file
            with _last_step():
                unfinished.rename(directory)
                sync_directory(data)
                _mark_moved(database, epoch, data)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not was_there:
            _remove_empty(data)
        raise
    finally:
        settings.close()
    return moved


class _Copy:
    """Writes what is true of one namespace into an empty store.

    Args:
        found: The source.
        target: Replayed, and empty.
        seal: Takes a part of what is staged there.
    """

    def __init__(self, found: Opened, target: Store, progress: Progress, seal: Callable[[], object]) -> None:
        self._found = found
        self._target = target
        self._progress = progress
        self._seal = seal
        self._records = 0

    def run(self, now: int) -> Moved:
        found, target = self._found, self._target
        for fact in facts_of(found, now):
            target.append(fact)
            self._staged()
        places = entities(found.namespace)
        queues = [queue for entity in places for queue in entity.queues]
        total = sum(len(queue.messages) for queue in queues)
        count = size = 0
        for queue in queues:
            messages = queue.messages.values()
            while chosen := list(islice(messages, READ_MESSAGES)):
                if found.store.read_ahead is not None:
                    found.store.read_ahead.fetch([message.location for message in chosen], 0)
                for message in chosen:
                    blob = found.store.read(message.location, message.size)
                    if not target.has_room(len(blob)):
                        raise StoreFull(
                            "the target has no space left: nothing was moved; free some and move again"
                        )
                    target.append(MessageStored(queue.queue_id, _copied(message), blob, b""))
                    self._staged()
                    size += len(blob)
                count += len(chosen)
                self._progress(count, total)
        # The last record is never left out: it ends the batch.
        target.append(AuditMarked(found.namespace.audited_batch))
        batch = target.seal()
        assert batch is not None, "something is staged"
        target.commit(batch)
        return Moved(namespace=found.name, entities=len(places), messages=count, bytes=size)

    def _staged(self) -> None:
        self._records += 1
        if self._records % COMMIT_RECORDS == 0 or self._target.staged_bytes() >= COMMIT_BYTES:
            part = self._seal()
            if part is not None:
                self._target.commit(part)


def _copied(message: Message) -> Message:
    """The same message, nowhere yet."""
    copy = Message(
        message.sequence_number, message.enqueued_at, message.expires_at, message.size, message.session_id
    )
    copy.state = message.state
    copy.delivery_count = message.delivery_count
    copy.extra = None if message.extra is None else message.extra.copy()
    return copy


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (OutcomeUnknown, TableFailed) as error:
        raise StoreUnavailable(str(error)) from error


def _repeat(step: Callable[[], None]) -> None:
    """Do the last step of a move, which may be repeated, until its outcome is known."""
    for _ in range(LAST_STEP_TRIES_MAX - 1):
        try:
            return step()
        except OutcomeUnknown:
            time.sleep(LAST_STEP_PAUSE_SECONDS)
    return step()


@contextmanager
def _last_step() -> Iterator[None]:
    """Both copies could count in the middle of it. So the first SIGINT or SIGTERM does not end it; a second one does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def hear(number: int, frame: FrameType | None) -> None:
        former = before[signal.Signals(number)]
        if heard and callable(former):
            former(number, frame)
        heard.append(number)

    for number in before:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def _target(database: Database) -> Iterator[Database]:
    """The shard to move into. What a move that fails has made is removed again; what was there before is not touched."""
    with _as_unavailable():
        is_new = not database.find()
        target = database
        if not is_new and database.moved_to() is not None:
            is_new, target = True, database.beside()
            _refuse_a_second_move(target)
            target.remove()  # what an interrupted move has left
            target.prepare()
        else:
            database.prepare()
    try:
        yield target
    except BaseException:
        if is_new:
            with suppress(StorageError):
                target.remove()
        raise


def _refuse_a_second_move(target: Database) -> None:
    lease = target.lease()
    try:
        owner = lease.look()
    finally:
        lease.close()
    if owner.owner and owner.remaining_ms > 0:
        raise StoreUnavailable(
            f"another move into {target} is under way, or was interrupted: wait {max(1, owner.remaining_ms // 1000)} s"
        )


def _remove_empty(data: Path) -> None:
    """Remove a directory that a move made, with what holds no messages."""
    if not holds_data(data / STORE_DIRECTORY):
        shutil.rmtree(data, ignore_errors=True)


def _mark_moved(database: Database, epoch: int, data: Path) -> None:
    """Mark the shard as moved, unless somebody else has taken it meanwhile: then the copy does not count."""
    lease = database.lease()

    def mark() -> None:
        # A mark whose answer was lost is found by the next try.
        if not lease.move_away(epoch, str(data)) and database.moved_to() != str(data):
            shutil.rmtree(data / STORE_DIRECTORY, ignore_errors=True)
            raise StoreUnavailable(
                f"a node has taken namespace {database.namespace} in {database} while it was moved, so the copy is not complete: "
                "nothing was moved; stop the nodes and move again"
            )

    try:
        _repeat(mark)
    except OutcomeUnknown as error:
        raise StoreUnavailable(
            f"{data} holds the whole namespace, but whether {database} is marked as moved is not known ({error}): "
            f"before you serve {data}, see to it that `pairbus cluster status` says so; if it does not, delete {data} and move again"
        ) from error
    finally:
        lease.close()


@contextmanager
def _acquired(database: Database) -> Iterator[tuple[TableStore, int]]:
    """Own a shard for a while, as a node does: its store and the epoch. Raises StoreUnavailable if a node serves it."""
    lease = database.lease()
    try:
        held = _acquire(lease, database)
        keeper = _Keeper(lease, held)
        keeper.start()
        store = open_table_store(database, held, keeper.is_held, MOVER, reserve_bytes=0)
        try:
            yield store, held.epoch
        finally:
            store.close()
            keeper.stop()
    except (OutcomeUnknown, TableFailed) as error:
        raise StoreUnavailable(str(error)) from error
    finally:
        lease.close()


def _acquire(lease: LeaseTable, database: Database) -> Acquired:
    for _ in range(ACQUIRE_TRIES_MAX):
        with suppress(SequenceTaken):
            held = lease.acquire(MOVER, "", LEASE_MS)
            if held is not None:
                return held
            owner = lease.look()
            who = f"namespace {database.namespace} in {database} is served by node {owner.owner}"
            if owner.owner and owner.remaining_ms <= 0:
                raise StoreUnavailable(
                    f"{who}, which waits for the database to renew its lease. Nothing was changed: stop the node first, or bring the "
                    "standby back that the database waits for"
                )
            raise StoreUnavailable(
                f"{who}: stop it first, or wait {max(1, owner.remaining_ms // 1000)} s until its lease has ended"
            )
    raise StoreFailed(f"namespace {database.namespace} in {database} could not be taken: others write to it")


class _Keeper:
    """Renews a lease until it is stopped, in a thread."""

    def __init__(self, lease: LeaseTable, held: Acquired) -> None:
        self._lease = lease
        self._held = held
        self._stopped = threading.Event()
        self._is_lost = False
        self._thread = threading.Thread(target=self._run, name="pairbus-move-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_held(self) -> bool:
        return not self._is_lost

    def _run(self) -> None:
        while not self._stopped.wait(LEASE_MS / 5000):
            try:
                if not self._lease.renew(self._held.epoch, "", LEASE_MS):
                    self._is_lost = True
                    return
            except StorageError:
                continue  # the lease ends by itself; a commit then finds the fence of the next owner

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(JOIN_SECONDS_MAX)
        if self._thread.is_alive():
            return  # the database does not answer: the lease ends by itself
        with suppress(StorageError):
            self._lease.release(self._held.epoch)
