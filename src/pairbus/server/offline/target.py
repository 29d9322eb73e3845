"""Where a move into a database copies to: a shard beside the namespace's own, which is held and empty meanwhile.

A move may sleep between any two of its steps for longer than its leases, so what it removes or marks is checked in the same transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from pairbus.engine.namespace import Namespace
from pairbus.errors import StorageError, StoreUnavailable, UsageError
from pairbus.server.assemble import open_table_store, recover
from pairbus.server.offline.held_shard import LeaseKeeper, leased
from pairbus.server.offline.marks import Mark
from pairbus.server.offline.namespace import NoOutbox, entities
from pairbus.storage.table.ports import MOVER, OutcomeUnknown, TableFailed

if TYPE_CHECKING:
    from pairbus.storage.postgres.database import Database
    from pairbus.storage.table.ports import Acquired, Ownership

LAST_STEP_TRIES_MAX: Final = 20
LAST_STEP_PAUSE_SECONDS: Final = 0.5

Outcome = TypeVar("Outcome")


class Target:
    """The shard that a move copies into, and what the move may undo.

    Args:
        database: Where the namespace will be.
        copy: The shard beside it.
    """

    def __init__(self, database: Database, copy: Database) -> None:
        self._database = database
        self.copy = copy
        self.copy_epoch = 0
        """Of the move's own lease on the copy; 0: it has none."""
        self.held: Acquired | None = None
        """The namespace's own shard while it is copied; None: not yet, or it is closed already."""
        self._is_closed = False

    def close(self, source: str) -> None:
        """Let no node begin the namespace under its name any more, for it is elsewhere. Raises StoreUnavailable if somebody has taken it."""
        self._is_closed = True  # also if the outcome stays unknown: the copy may count then
        if self.held is not None and not _close(self._database, self.held.epoch, source):
            self._is_closed = False
            raise StoreUnavailable(
                f"a node or another move has taken namespace {self._database.namespace} in {self._database} meanwhile: nothing was moved; "
                "stop the nodes and move again"
            )

    def undo(self, *, is_new: bool) -> None:
        """Remove what a move has made that fails before it has closed the namespace.

        It may have slept for longer than its leases. So only what has the epoch still that this move left there is removed: a node may
        serve the namespace by now, and another move may have made another copy, or have finished. ``is_new``: the shard under the
        namespace's name was made by this move.
        """
        if self._is_closed:
            return
        with suppress(StorageError):
            if self.copy.is_known:
                self.copy.remove(self.copy_epoch, owner=MOVER, copied=self.copy.copied_by())
        with suppress(StorageError):
            if is_new:
                self._database.remove(0 if self.held is None else self.held.epoch, owner=MOVER, is_empty=True)


@contextmanager
def target_in(database: Database, former: Mark | None) -> Iterator[Target]:
    """The shard to copy into.

    What a move that fails before it has closed the namespace has made is removed again; what was there before is not touched.

    Args:
        database: Where the namespace will be.
        former: An earlier move out of the same directory that did not get as far as to mark it.
    """
    with as_unavailable():
        is_there = database.find()
        _remove_interrupted(database.beside(), former)
        is_new = not is_there and database.prepare()
        target = Target(database, database.beside())
        try:
            if database.moved_to() is None:
                with leased(database) as (target.held, keeper):
                    _refuse_what_is_there(database, target.held, keeper)
                    target.copy.prepare()
                    yield target
            else:
                target.copy.prepare()
                yield target
        except BaseException:
            target.undo(is_new=is_new)
            raise


def _remove_interrupted(copy: Database, former: Mark | None) -> None:
    """Remove the copy that an interrupted move has left. Raises StoreUnavailable if it may count."""
    if not copy.find():
        return
    found, copied = _refuse_a_second_move(copy), copy.copied_by()
    _refuse_another_source(copy, copied, former)
    if not copy.remove(found.epoch, copied=copied):
        raise StoreUnavailable(f"another move into {copy} is under way: wait until it has ended")


def _close(database: Database, epoch: int, source: str) -> bool:
    """Mark the namespace's own shard, which is empty, as one whose namespace is in a directory; False: somebody has taken it."""
    lease = database.lease()
    try:
        return repeat(lambda: lease.move_away(epoch, f"{source}\n") or database.moved_mark() == f"{source}\n")
    finally:
        lease.close()


def _refuse_what_is_there(database: Database, held: Acquired, keeper: LeaseKeeper) -> None:
    """UsageError if the namespace has entities in the database. One without any was only begun, by a node or an earlier move."""
    store = open_table_store(database, held, keeper.is_held, MOVER, reserve_bytes=0)
    try:
        namespace = Namespace(database.namespace, store, NoOutbox())
        recover(namespace, store)
        if entities(namespace):
            raise UsageError(
                f"{database} holds namespace {database.namespace} already: it is not overwritten. If what it holds is not needed, "
                "delete its queues and topics there, stop its nodes, and move again"
            )
    finally:
        store.close()


def _refuse_another_source(target: Database, copied: str | None, former: Mark | None) -> None:
    if copied is not None and (former is None or former.move != move_of(copied)):
        source = copied.partition("\n")[2]
        raise StoreUnavailable(
            f"a move of the namespace from {source} into {target} is not finished: repeat it there with `pairbus store move --data "
            f"{source} --to URL`, which finishes it or begins it again"
        )


def _refuse_a_second_move(target: Database) -> Ownership:
    lease = target.lease()
    try:
        owner = lease.look()
    finally:
        lease.close()
    if owner.owner and owner.remaining_ms > 0:
        raise StoreUnavailable(
            f"another move into {target} is under way, or was interrupted: wait {max(1, owner.remaining_ms // 1000)} s"
        )
    return owner


def move_of(mark: str | None) -> str | None:
    return None if mark is None else mark.partition("\n")[0]


@contextmanager
def as_unavailable() -> Iterator[None]:
    try:
        yield
    except (OutcomeUnknown, TableFailed) as error:
        raise StoreUnavailable(str(error)) from error


def repeat(step: Callable[[], Outcome]) -> Outcome:
    """Do the last step of a move, which may be repeated, until its outcome is known."""
    for _ in range(LAST_STEP_TRIES_MAX - 1):
        try:
            return step()
        except OutcomeUnknown:
            time.sleep(LAST_STEP_PAUSE_SECONDS)
    return step()
