"""Owns a shard of a database for as long as a move takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pairbus.errors import StorageError, StoreFailed, StoreFenced, StoreUnavailable
from pairbus.server.assemble import open_table_store
from pairbus.server.cluster.status import waits_in_words
from pairbus.storage.table.ports import MOVER, OutcomeUnknown, SequenceTaken, TableFailed

if TYPE_CHECKING:
    from pairbus.storage.postgres.database import Database
    from pairbus.storage.table.ports import Acquired, LeaseTable
    from pairbus.storage.table.store import TableStore

LEASE_MS: Final = 5_000
"""Renewed five times in that time. So long nodes wait after a move that was killed; one that is stopped gives it back."""
JOIN_SECONDS_MAX: Final = 2.0
"""How long the end of a move waits for a renewal under way."""
ACQUIRE_TRIES_MAX: Final = 10


@contextmanager
def leased(database: Database) -> Iterator[tuple[Acquired, LeaseKeeper]]:
    """Own a shard for a while, as a node does. Raises StoreUnavailable if a node serves it, or has taken it meanwhile."""
    lease = database.lease()
    try:
        held = _acquire(lease, database)
        keeper = LeaseKeeper(lease, held)
        keeper.start()
        try:
            yield held, keeper
        finally:
            keeper.stop()
    except (OutcomeUnknown, TableFailed) as error:
        raise StoreUnavailable(str(error)) from error
    except StoreFenced as error:
        raise StoreUnavailable(
            f"this move was paused for longer than its lease, and a node or another move has taken namespace {database.namespace} in "
            f"{database} meanwhile: nothing was moved; stop the nodes and move again ({error})"
        ) from error
    finally:
        lease.close()


@contextmanager
def acquired(database: Database) -> Iterator[tuple[TableStore, int]]:
    """Own a shard for a while: its store and the epoch. Raises as ``leased`` does."""
    with leased(database) as (held, keeper):
        store = open_table_store(database, held, keeper.is_held, MOVER, reserve_bytes=0)
        try:
            yield store, held.epoch
        finally:
            store.close()


def _acquire(lease: LeaseTable, database: Database) -> Acquired:
    for _ in range(ACQUIRE_TRIES_MAX):
        with suppress(SequenceTaken):
            held = lease.acquire(MOVER, "", LEASE_MS)
            if held is not None:
                return held
            raise _in_use(lease, database)
    raise StoreFailed(f"namespace {database.namespace} in {database} could not be taken: others write to it")


def _in_use(lease: LeaseTable, database: Database) -> StoreUnavailable:
    owner = lease.look()
    where = f"namespace {database.namespace} in {database}"
    seconds = max(1, -(-owner.remaining_ms // 1000))
    if not owner.owner:
        return StoreUnavailable(
            f"the row of {where} is locked by another connection: end what it does, and move again"
        )
    if owner.owner == MOVER:
        return StoreUnavailable(
            f"another `pairbus store move` of {where} is under way, or was interrupted: wait {seconds} s until its lease has ended"
        )
    if owner.remaining_ms <= 0:
        waits = _waits(database)
        return StoreUnavailable(
            f"{where} is served by node {owner.owner}, which waits for the database to renew its lease{waits and f' ({waits})'}. Nothing "
            "was changed: stop the node first, or bring the standby back that the database waits for, or end what holds the lock"
        )
    return StoreUnavailable(
        f"{where} is served by node {owner.owner}: stop it first. If it was killed, its lease ends in {seconds} s"
    )


def _waits(database: Database) -> str:
    nodes = database.nodes()
    try:
        return waits_in_words(nodes.held_up())
    finally:
        nodes.close()


class LeaseKeeper:
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
