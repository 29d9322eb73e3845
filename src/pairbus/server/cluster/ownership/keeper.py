"""Performs what the lease machine decides: one thread that calls the database and waits in between. ``reporter`` has another one.

The event loop asks ``may_write`` before it writes. That reads one number and takes no lock; everything else takes the keeper's lock, which
is never held during a call to the database.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pairbus.errors import StorageError, StoreFailed, StoreFenced
from pairbus.server.cluster.ownership.lease import Lease, LeaseCall, LeaseState
from pairbus.server.cluster.ownership.reporter import Reporter
from pairbus.server.cluster.status import COMMIT_WAITS
from pairbus.storage.table.appender import CommitsLost, shortened
from pairbus.storage.table.ports import (
    MOVER,
    FrameMark,
    LastFrame,
    LogShortened,
    OutcomeUnknown,
    SequenceTaken,
    ShardMoved,
)

if TYPE_CHECKING:
    from pairbus.storage.table.ports import (
        Acquired,
        DatabaseCopies,
        LeaseTable,
        NodeEntry,
        NodeTable,
        Ownership,
    )

logger = logging.getLogger(__name__)

_LEASE: Final = "lease"
_REPORT: Final = "nodes"
_COMMIT: Final = "commit"
LOSSES_SECONDS_MAX: Final = 3.0
"""How long a node that was fenced tries to learn what the database lost."""
LOSSES_PAUSE_SECONDS: Final = 0.2
_NO_FRAME: Final = LastFrame(0, FrameMark(0, 0))
JOIN_SECONDS_MAX: Final = 2.0
"""How long a stop waits for a call under way, of each thread. They end with the process at the latest."""


def lease_clock_ns() -> int:
    """The monotonic clock that leases are counted on. It goes on while the machine is suspended, where the system has such a clock."""
    return time.clock_gettime_ns(_CLOCK)


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class LeaseView:
    """What the keeper knows, at one instant."""

    state: LeaseState
    held: Acquired | None
    """The epoch and the fence under which this node owns the shard."""
    ownership: Ownership | None
    """Who else owns the shard; None: nobody knows, or this node does."""
    asked: str
    """What an operator asked of this node."""
    nodes: tuple[NodeEntry, ...]
    lag_ms: int
    """Since the database last answered a call of the lease."""
    writes_ms_left: int = 0
    """How long this node may still write without a renewal."""
    copies: DatabaseCopies | None = None
    """The standbys of the database, as the owner last saw them; None: not the owner, or the database does not tell."""
    failure: str = ""
    """What the database last said instead of an answer about the lease, or what it makes it wait for; empty: it answers, or that is not
    known."""
    ending: StorageError | None = None
    """Why this node is fenced, if it is known: the namespace was moved out of this database, or the database lost a part of the log."""
    call: LeaseCall = LeaseCall.NONE
    """The call of the lease that is under way."""
    doubled: str = ""
    """Who else reports under the name of this node; empty: nobody."""
    report_waits_ms: int = 0
    """For how long the database has answered none of this node's reports; 0: it has answered the last one."""
    report_waits_for: str = ""
    """What it waits for, if that is known."""
    commit_waits_for: str = ""
    """What a commit that has waited for long waits for, if that is known."""
    is_over: bool = False
    """The thread has ended: nothing more will be known."""


class LeaseKeeper:
    """One node's lease, kept by a thread.

    Args:
        lease: The machine; nobody else touches it from now on.
        table: The lease in the database.
        nodes: Where this node reports itself.
        entry: What it reports, but for its state.
        changed: Called from the thread whenever ``view`` may show something new; with True if a silence has ended.
        clock_ns: See ``lease_clock_ns``.
    """

    def __init__(
        self,
        lease: Lease,
        table: LeaseTable,
        nodes: NodeTable,
        entry: NodeEntry,
        changed: Callable[[bool], None],
        clock_ns: Callable[[], int] = lease_clock_ns,
    ) -> None:
        self._lease = lease
        self._table = table
        self._changed = changed
        self._clock_ns = clock_ns
        self._condition = threading.Condition()
        self._address = ""
        """What a renewal publishes: empty until this node can be relayed to."""
        self._is_stopped = False
        self._answered_ns = clock_ns()
        self._failures = {_LEASE: "", _REPORT: ""}
        """What is wrong with each of the two connections; empty: nothing."""
        self._waits = {_LEASE: "", _COMMIT: ""}
        """What the call under way on each of these connections waits for, once it has waited for long; empty: that is not known."""
        self._call = LeaseCall.NONE
        self._ending: StorageError | None = None
        self._last: Callable[[], LastFrame] = _none
        self._is_over = False
        self.renewals = self.failures = 0
        self._reporter = Reporter(
            nodes,
            entry,
            changed=lambda: changed(False),
            failed=lambda error: self._failed(_REPORT, "report", error),
            answered=lambda: self._answered(_REPORT),
            clock_ns=clock_ns,
        )
        self._thread = threading.Thread(target=self._run, name=f"{entry.node}-lease", daemon=True)

    def start(self) -> None:
        self._reporter.start()
        self._thread.start()

    def stop(self) -> None:
        """End after the calls under way."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify()
        self._reporter.stop()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS_MAX)
        is_ended = not self._thread.is_alive()
        self._reporter.close(JOIN_SECONDS_MAX, says_so=is_ended and not self._failures[_LEASE])
        if is_ended:
            self._table.close()

    # Asked by the event loop, often.

    def may_write(self) -> bool:
        """Whether this node may write, seal and deliver at this instant."""
        return self._clock_ns() < self._lease.writes_until_ns

    def may_flush(self) -> bool:
        """Whether sockets may take what waits in their buffers: not if it may be of a server whose lease has ended."""
        state = self._lease.state(self._clock_ns())
        return state not in (LeaseState.SILENT, LeaseState.FENCED) and (
            state is not LeaseState.DRAINING or self.may_write()
        )

    def view(self) -> LeaseView:
        now = self._clock_ns()
        reported = self._reporter.view()
        with self._condition:
            return LeaseView(
                state=self._lease.state(now),
                held=self._lease.held,
                ownership=self._lease.ownership,
                asked=reported.asked,
                nodes=reported.nodes,
                lag_ms=(now - self._answered_ns) // 1_000_000,
                writes_ms_left=max(0, self._lease.writes_until_ns - now) // 1_000_000,
                copies=reported.copies if self._lease.held is not None else None,
                failure=self._waits[_LEASE] or self._failures[_LEASE],
                ending=self._ending,
                call=self._call,
                doubled=reported.doubled,
                report_waits_ms=reported.waits_ms,
                report_waits_for=reported.waits_for,
                commit_waits_for=self._waits[_COMMIT],
                is_over=self._is_over,
            )

    # Reported by the node.

    def replayed(self, last: Callable[[], LastFrame] | None = None) -> None:
        """The engine is built: output may be written. ``last``: tells the last frame that is durable; each renewal looks for it."""
        with self._condition:
            self._last = last or _none
            self._lease.replayed()

    def publish(self, address: str) -> None:
        """Other nodes may relay to this address from now on: renew at once."""
        with self._condition:
            self._address = address
            self._lease.renew_now(self._clock_ns())
            self._condition.notify()

    def fenced(self, why: StoreFenced) -> None:
        """A commit or a read has found it."""
        with self._condition:
            self._ending = self._ending or why
            self._lease.fenced()
            self._condition.notify()

    def withdraw(self, hold_off_ms: int | None = None) -> None:
        with self._condition:
            self._lease.withdraw(self._clock_ns(), hold_off_ms)
            self._condition.notify()

    def take_part(self) -> None:
        with self._condition:
            self._lease.take_part()
            self._condition.notify()

    def drained(self) -> None:
        """Nothing more is said under the old epoch: the lease is given back."""
        with self._condition:
            self._address = ""
            self._last = _none
            self._lease.drained(self._clock_ns())
            self._condition.notify()

    def unanswered(self, connection: str, why: str) -> None:
        """A call on one of this node's connections to the database goes on waiting; empty: it was answered. From any thread."""
        with self._condition:
            self.failures += bool(why)
            if connection in self._waits:
                self._waits[connection] = why
        if connection == _REPORT:
            self._reporter.unanswered(why)

    def has_done(self, request: str) -> None:
        """What was asked of this node is done: the request is taken off the table."""
        self._reporter.has_done(request)

    def wait_released(self, seconds_max: float) -> bool:
        """Wait until this node owns nothing any more."""
        with self._condition:
            return self._condition.wait_for(
                lambda: self._lease.held is None or not self._thread.is_alive(), seconds_max
            )

    # The thread.

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody renews the lease any more
            self._end_unforeseen(error)
        with self._condition:
            self._is_over = True
        self._changed(False)

    def _end_unforeseen(self, error: Exception) -> None:
        """Without this thread the node would stay, silent for ever: it ends instead, and another one takes over."""
        logger.error(
            "the lease cannot be kept",
            exc_info=error,
            extra={"event": "cluster.lease_failed", "error": repr(error)},
        )
        with self._condition:
            if self._ending is None:
                self._ending = StoreFailed(f"the lease could not be kept, in an unforeseen way: {error!r}")
                self._ending.__cause__ = error
            self._lease.fenced()

    def _keep(self) -> None:
        while (call := self._await_call()) is not LeaseCall.NONE:
            has_woken = self._perform(call)
            self._changed(has_woken)
            if not self._failures[_LEASE]:
                state = self._lease.state(self._clock_ns())
                is_waiting = state is LeaseState.SERVING and bool(self._waits[_COMMIT])
                said = COMMIT_WAITS if is_waiting else state.value
                self._reporter.lease_answered(said, is_owner=self._lease.held is not None)
        if not self._is_stopped:
            self._learn_why()

    def _learn_why(self) -> None:
        """The shard has another epoch: because another node has it, because the namespace was moved elsewhere, or is being moved now."""
        if isinstance(self._ending, (CommitsLost, ShardMoved)):
            return
        owner = ""
        try:
            owner = self._table.look().owner
        except ShardMoved as error:
            with self._condition:
                self._ending = error
        except StorageError as error:
            self._failed(_LEASE, "look", error)
        self._look_for_losses()
        if owner == MOVER and not isinstance(self._ending, CommitsLost):
            with self._condition:
                self._ending = ShardMoved(
                    "`pairbus store move` is moving the namespace out of this database: serve it from its new place, or start this node "
                    "again if the move fails"
                )

    def _look_for_losses(self) -> None:
        """Another node has the shard. Before this one ends it looks whether the database still has what it acknowledged to this one.

        The other node cannot know: it serves what it found. A database that does not answer is asked again for a while.
        """
        last = self._last()
        if not last.sequence or isinstance(self._ending, (CommitsLost, ShardMoved)):
            return
        until_ns = self._clock_ns() + int(LOSSES_SECONDS_MAX * 1e9)
        while not self._is_stopped and self._clock_ns() < until_ns:
            try:
                kept = self._table.last_kept(last)
            except StorageError as error:
                self._failed(_LEASE, "last_kept", error)
                with self._condition:
                    self._condition.wait(LOSSES_PAUSE_SECONDS)
                continue
            if kept is not None:
                lost = shortened(last.sequence, LogShortened(kept))
                with self._condition:
                    self._ending = lost
            return

    def _await_call(self) -> LeaseCall:
        with self._condition:
            while not self._is_stopped:
                planned = self._lease.next_call()
                if planned.call is LeaseCall.NONE:
                    return planned.call
                wait_ns = planned.at_ns - self._clock_ns()
                if wait_ns <= 0:
                    self._lease.begin(planned.call, self._clock_ns())
                    return planned.call
                self._condition.wait(wait_ns / 1e9)
            return LeaseCall.NONE

    def _perform(self, call: LeaseCall) -> bool:
        """Perform one call; whether this node was silent before and may write now."""
        lease = self._lease
        has_woken = False
        epoch = lease.held.epoch if lease.held is not None else 0
        self._call = call
        try:
            if call is LeaseCall.LOOK:
                ownership = self._table.look()
                with self._condition:
                    lease.looked(ownership, self._clock_ns())
            elif call is LeaseCall.ACQUIRE:
                self._acquire()
            elif call is LeaseCall.RENEW:
                is_ours = self._renew(epoch)
                with self._condition:
                    has_woken = lease.renewed(is_ours, self._clock_ns())
                self.renewals += 1
            else:
                self._table.release(epoch)
                with self._condition:
                    lease.released(self._clock_ns())
        except (ShardMoved, StoreFenced) as error:
            if isinstance(error, ShardMoved):
                error.is_of_waiting_node = call is LeaseCall.LOOK
            with self._condition:
                self._ending = error
                lease.fenced()
        except StorageError as error:
            with self._condition:
                lease.unknown(self._clock_ns())
            self._failed(_LEASE, call.value, error)
        else:
            self._answered_ns = self._clock_ns()
            self._answered(_LEASE)
        with self._condition:
            self._call, self._waits[_LEASE] = LeaseCall.NONE, ""
            self._condition.notify_all()
        return has_woken

    def _renew(self, epoch: int) -> bool:
        # Asked first: what is durable now must be there when the renewal arrives.
        newest = self._last().sequence
        try:
            return self._table.renew(epoch, self._address, self._lease.lease_ms, newest)
        except LogShortened as error:
            lost = shortened(newest, error)
            with self._condition:
                # First: another node may speak as soon as the lease is given back.
                self._ending = lost
                self._lease.fenced()
            with contextlib.suppress(StorageError):
                self._table.release(epoch)  # another node need not wait for the end of the lease
            raise lost from None

    def _acquire(self) -> None:
        try:
            # Without an address: nobody relays here before the log is replayed.
            acquired = self._table.acquire(self._lease.node, "", self._lease.lease_ms)
        except SequenceTaken:
            with self._condition:
                self._lease.sequence_taken(self._clock_ns())
            return
        with self._condition:
            self._lease.acquired(acquired, self._clock_ns())

    def _answered(self, connection: str) -> None:
        if self._failures[connection]:
            self._failures[connection] = ""
            logger.info(
                "the database answers again",
                extra={"event": "cluster.database_back", "connection": connection},
            )

    def _failed(self, connection: str, call: str, error: StorageError) -> None:
        with self._condition:  # both threads come here
            self.failures += 1
        if str(error) != self._failures[connection]:
            self._failures[connection] = str(error)
            logger.warning(
                "the database did not answer"
                if isinstance(error, OutcomeUnknown)
                else "the database refused",
                extra={
                    "event": "cluster.database_failed",
                    "connection": connection,
                    "call": call,
                    "error": str(error),
                },
            )


def _none() -> LastFrame:
    return _NO_FRAME
