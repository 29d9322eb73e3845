"""A namespace moves between its own files and a database, with everything it holds.

What moves is what is true now: entities with their settings and keys, numbers given out, messages in every state with their numbers and
counts, session states, duplicate history, the number of the last audited batch, and the certificate authority. The log itself does not:
the target gets a new one.

At every instant at most one side can be served. The copy is made where nobody serves it, then the source is marked as moved, then the
copy gets its name. ``handover`` decides from what it finds how a repeated command goes on:

    into a database    DIR              NAME           NAME (moving)     served    the same command again
    copying            store            free           being written     DIR       begins again
    copied             store            free           whole             DIR       begins again
    NAME closed        store            moved to DIR   whole             DIR       begins again
    source marked      store.moved      moved to DIR   whole             nothing   finishes it
    finished           store.moved      free           -                 NAME      says so

    out of a database  NAME             DIR                              served    the same command again
    copying            held, then free  store.moving, being written      NAME      begins again
    copied             held, then free  store.moving, whole              NAME      begins again
    source marked      moved to DIR     store.moving, whole              nothing   finishes it
    finished           moved to DIR     store                            DIR       says so

Each move has a random number. The copy and the mark of its source both hold it, so a copy is never confirmed by the mark of another
move. If the outcome of marking the source is not known, the copy stays as it is: the next command takes the lease, and with it a
new epoch, so a mark that is still on its way fails; or it finds the mark.

A move owns the place of the log in its target directory while it copies, and what it leaves there is refused by brokers: see ``places``. It owns the shard, by a short lease that a thread renews, and gives it back at its end, also after SIGTERM. The source is opened first,
so a move that is refused because of it finds the database as it was and leaves it so. A database that the namespace was moved out of
keeps the old copy until a move back replaces it.

The mark in a database is written together with a check that the move still owns the shard: see ``LeaseTable.move_away``. Nodes that run
meet it at their next call and end; those that wait while a namespace is moved in look for it again: see ``cluster.arrival``.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pairbus.engine.namespace import Namespace
from pairbus.engine.records import AuditMarked, MessageStored
from pairbus.errors import StorageError, StoreFull, StoreUnavailable, UsageError
from pairbus.model.message import Message
from pairbus.server.assemble import (
    MOVED_DIRECTORY,
    MOVED_TO_FILE,
    MOVING_DIRECTORY,
    MOVING_FROM_FILE,
    MOVING_TO_FILE,
    STORE_DIRECTORY,
    recover,
    refuse_moved,
)
from pairbus.server.cluster.authority import give_authority, keep_authority
from pairbus.server.files import sync_directory
from pairbus.server.offline.export import facts_of
from pairbus.server.offline.handover import Step, into_database, into_files
from pairbus.server.offline.held_shard import acquired
from pairbus.server.offline.marks import MOVED_BY_FILE, Mark, Moved, finished, read_mark, unfinished_move
from pairbus.server.offline.namespace import NoOutbox, Opened, Progress, entities, opened
from pairbus.server.offline.places import claimed, locked, take_place
from pairbus.server.offline.target import as_unavailable, move_of, repeat, target_in
from pairbus.storage.log.store import LogStore
from pairbus.storage.table.ports import OutcomeUnknown, TableFailed
from pairbus.storage.tools.inspect import foreign_files, holds_data

if TYPE_CHECKING:
    from types import FrameType

    from pairbus.storage.ports import Store
    from pairbus.storage.postgres.database import Database

TLS_DIRECTORY: Final = "tls"
COPY_SETTING: Final = "copy"
"""See ``storage.postgres.settings.COPY``; psycopg is not needed to read this module."""
MARKS: Final = (MOVED_TO_FILE, MOVED_BY_FILE, MOVING_TO_FILE, MOVING_FROM_FILE)
"""What moves write beside a log."""
MOVE_BYTES: Final = 16
"""Of the random number of a move."""
COMMIT_BYTES: Final = 4 << 20
COMMIT_RECORDS: Final = 2_000
READ_MESSAGES: Final = 500
NAMES_SHOWN_MAX: Final = 5


def move_to_database(data: Path, database: Database, now: int, progress: Progress) -> Moved:
    """Move a namespace from a data directory into a database. The log is kept as ``store.moved``; other files stay.

    Raises:
        UsageError: The database holds something under the namespace's name.
        StorageError: The data is in use, damaged or not there, or the database cannot be used.
    """
    data = data.absolute()
    mark = unfinished_move(data)
    if mark is not None:
        with locked(data / MOVED_DIRECTORY), _last_step():
            _confirm_in_database(data, database, mark)
        return mark.moved
    done = finished(data)
    if done is not None and _is_there(database, done):
        return done.moved
    directory, aside = data / STORE_DIRECTORY, data / MOVED_DIRECTORY
    _refuse_foreign(aside)
    with opened(data, progress) as found:
        if found.name != database.namespace:
            raise UsageError(
                f"{data} holds namespace {found.name}, not {database.namespace}: leave --namespace out"
            )
        former = read_mark(directory / MOVING_TO_FILE)
        with target_in(database, former) as target:
            with acquired(target.copy) as (store, target.copy_epoch):
                for _ in store.replay():
                    raise UsageError(f"{target.copy} is not empty: something else writes there")
                store.live(())
                moved = _Copy(found, store, progress, store.seal_part).run(now)
                mark = Mark(move=secrets.token_hex(MOVE_BYTES), database=str(database), moved=moved)
                # First here: a copy that names a move which its source does not know belongs to another directory.
                mark.write(directory / MOVING_TO_FILE)
                settings = target.copy.settings()
                try:
                    keep_authority(settings, data / TLS_DIRECTORY)
                    settings.put(COPY_SETTING, f"{mark.move}\n{data}".encode())
                finally:
                    settings.close()
            with _last_step():
                target.close(str(data))
                shutil.rmtree(aside, ignore_errors=True)
                directory.rename(aside)
                sync_directory(data)
                _confirm_in_database(data, database, mark)
    return moved


def _is_there(database: Database, done: Mark) -> bool:
    """Whether the database still has what a move has brought there: then the same command was only repeated."""
    with as_unavailable():
        return (
            database.find() and database.moved_mark() is None and move_of(database.copied_by()) == done.move
        )


def _confirm_in_database(data: Path, database: Database, mark: Mark) -> None:
    """The source is marked: give the copy its name, unless that was done. May be repeated."""
    aside = data / MOVED_DIRECTORY
    copy = database.beside()

    def confirm() -> Step:
        named = database.copied_by() if database.find() else None
        beside = copy.copied_by() if copy.find() else None
        step = into_database(mark=mark.move, named=move_of(named), copy=move_of(beside))
        if step is Step.CONFIRM:
            if not database.find():
                database.prepare()
            database.replace_with(copy)
        return step

    try:
        step = repeat(confirm)
    except (OutcomeUnknown, TableFailed) as error:
        raise StoreUnavailable(
            f"the move is not finished: {data} is marked as moved, and whether {database} serves the copy is not known. Nothing is lost: "
            f"repeat the command, which finishes it ({_reason(error)})"
        ) from error
    if step is Step.REFUSE:
        raise StoreUnavailable(
            f"{data} was being moved to {mark.database}, and {database} does not hold the copy that was made there: repeat the command "
            f"with --to and that database, which finishes the move"
        )
    # For people only, so it need not be durable. It names hosts and database, nothing secret.
    with suppress(OSError):
        (aside / MOVED_TO_FILE).write_text(f"{database}\n", encoding="utf-8")
        (aside / MOVING_TO_FILE).rename(aside / MOVED_BY_FILE)


def move_to_files(database: Database, data: Path, now: int, progress: Progress) -> Moved:
    """Move a namespace from a database into a data directory. The database keeps its tables, marked as moved.

    Raises:
        UsageError: The data directory holds a log, or the database holds no such namespace.
        StorageError: The namespace is being served, was moved already, or is damaged, or there is no space.
    """
    data = data.absolute()
    directory, unfinished = data / STORE_DIRECTORY, data / MOVING_DIRECTORY
    named = read_mark(directory / MOVING_FROM_FILE)
    if holds_data(directory) and named is None:
        _refuse_data(directory, unfinished)
    _refuse_foreign(directory, unfinished)
    if unfinished_move(data) is not None:
        refuse_moved(data)  # which says so
    copy = read_mark(unfinished / MOVING_FROM_FILE)
    with as_unavailable():
        if not database.find():
            raise UsageError(f"{database} holds no namespace {database.namespace}")
        source = database.moved_mark()
    step = into_files(
        named=None if named is None else named.move,
        copy=None if copy is None else copy.move,
        mark=None if source is None else source.partition("\n")[2] or None,
        is_marked=source is not None,
    )
    if step is Step.DONE and named is not None:
        return named.moved
    if step is Step.CONFIRM and copy is not None:
        with claimed(directory), locked(unfinished), _last_step():
            _confirm_in_files(data)
        return copy.moved
    if named is not None:
        _refuse_data(directory, unfinished)
    if source is not None:
        with as_unavailable():
            database.prepare()  # which says so
    was_there = data.is_dir()
    settings = database.settings()
    try:
        with acquired(database) as (store, epoch):
            found = Opened(database.namespace, store, Namespace(database.namespace, store, NoOutbox()))
            recover(found.namespace, store, found.note)
            if found.settings is None:
                raise UsageError(f"{database} holds no namespace {database.namespace}")
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            with claimed(directory):
                _remove_unfinished(unfinished, database)
                made = [unfinished] if was_there else [unfinished, data / TLS_DIRECTORY]
                with _removed_unless_kept(made) as keep:
                    target = LogStore.open(unfinished, namespace=database.namespace)
                    try:
                        for _ in target.replay():
                            raise StoreUnavailable(f"{unfinished} is not empty: something else writes there")
                        target.live(())
                        moved = _Copy(found, target, progress, target.seal).run(now)
                    finally:
                        target.close()
                    give_authority(settings, data / TLS_DIRECTORY)
                    mark = Mark(move=secrets.token_hex(MOVE_BYTES), database=str(database), moved=moved)
                    mark.write(unfinished / MOVING_FROM_FILE)
                    sync_directory(data)
                    with _last_step():
                        keep(True)
                        is_marked = _mark_moved(database, epoch, data, mark)
                        keep(is_marked)
                        if not is_marked:
                            raise StoreUnavailable(
                                f"a node has taken namespace {database.namespace} in {database} while it was moved, so the copy is not "
                                "complete: nothing was moved; stop the nodes and move again"
                            )
                        _confirm_in_files(data)
    except BaseException:
        if not was_there:
            with suppress(OSError):
                data.rmdir()  # if nothing is left in it, not even of another move
        raise
    finally:
        settings.close()
    return moved


@contextmanager
def _removed_unless_kept(made: Sequence[Path]) -> Iterator[Callable[[bool], None]]:
    """Remove what a move has made when it fails, while the place is still claimed: without the claim no copy is touched."""
    is_kept = False

    def keep(wanted: bool) -> None:
        nonlocal is_kept
        is_kept = wanted

    try:
        yield keep
    except BaseException:
        if not is_kept:
            for path in made:
                shutil.rmtree(path, ignore_errors=True)
        raise


def _remove_unfinished(unfinished: Path, database: Database) -> None:
    """Remove what an interrupted move has left, with the place claimed and the shard acquired.

    A whole copy of this namespace is not what counts then: its source would be marked, and could not be acquired. That of another one may
    be the only copy there is.
    """
    if not unfinished.is_dir():
        return
    with locked(unfinished):
        copy = read_mark(unfinished / MOVING_FROM_FILE)
        if copy is not None and (copy.moved.namespace, copy.database) != (database.namespace, str(database)):
            raise UsageError(
                f"{unfinished} is the copy of namespace {copy.moved.namespace} from {copy.database}, whose move is not finished, and "
                "perhaps the only one: repeat that move, which finishes it, or name another --data"
            )
        shutil.rmtree(unfinished)


def _refuse_data(directory: Path, unfinished: Path) -> NoReturn:
    beside = (
        f". It was begun beside the copy of a move that is not finished, {unfinished}: stop its broker, move {directory} to another "
        "place, and repeat the command"
        if (unfinished / MOVING_FROM_FILE).is_file()
        else ""
    )
    raise UsageError(f"{directory} holds the data of a namespace already: it is not overwritten{beside}")


def _refuse_foreign(*directories: Path) -> None:
    """A move removes what lies under these names, which must be its own. Raises UsageError."""
    for directory in directories:
        names = foreign_files(directory, MARKS)
        if names:
            shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (", …" if len(names) > NAMES_SHOWN_MAX else "")
            raise UsageError(
                f"{directory} holds what is not PairBus's: {shown}; move it away, or name another --data"
            )


def _confirm_in_files(data: Path) -> None:
    """The database is marked: give the copy its name."""
    directory = data / STORE_DIRECTORY
    try:
        take_place(data / MOVING_DIRECTORY, directory)
    except OSError as error:
        raise StoreUnavailable(
            f"the move is not finished: the database is marked as moved, and the whole copy in {data} could not get its name ({error}). "
            "Nothing is lost: mend that and repeat the command, which finishes it"
        ) from error


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


def _reason(error: StorageError) -> str:
    """Of a statement; what it says about the statement's effect is not true of the whole move."""
    return str(error).removesuffix(". Nothing was changed")


def _mark_moved(database: Database, epoch: int, data: Path, mark: Mark) -> bool:
    """Mark the shard as moved; False: somebody else has taken it meanwhile, so it never will be. StoreUnavailable: that is not known."""
    lease = database.lease()
    target = f"{data}\n{mark.move}"
    try:
        # A mark whose answer was lost is found by the next try.
        return repeat(lambda: lease.move_away(epoch, target) or database.moved_mark() == target)
    except (OutcomeUnknown, TableFailed) as error:
        raise StoreUnavailable(
            f"the move is not finished: whether {database} is marked as moved is not known. If it is not, its nodes can go on; {data} "
            f"cannot be served yet. Repeat the command, which finishes the move or begins it again ({_reason(error)})"
        ) from error
    finally:
        lease.close()
