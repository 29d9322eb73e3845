"""Reports a node to the others, and reads what is asked of it: one thread, beside the one that keeps the lease.

A report is a call to the database like any other and may wait there, for a lock or for a standby that is away. Renewals must not wait behind it:
the lease would end (decision 0184). So the lease's thread only tells of each answer that it gets (``lease_answered``), and this thread
reports once a second and when the node's state changes, right after such an answer: then the database can be reached.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pairbus.errors import StorageError
from pairbus.server.cluster.status import STOPPED
from pairbus.storage.table.ports import REQUEST_MOVE, OutcomeUnknown, TableFailed

if TYPE_CHECKING:
    from pairbus.storage.table.ports import DatabaseCopies, NodeEntry, NodeTable

logger = logging.getLogger(__name__)

REPORT_SECONDS: Final = 1.0
"""How often a node reports itself and reads what is asked of it."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What the last report has brought, at one instant."""

    asked: str = ""
    """What an operator asked of this node."""
    nodes: tuple[NodeEntry, ...] = ()
    copies: DatabaseCopies | None = None
    doubled: str = ""
    """Who else reports under the name of this node; empty: nobody."""
    waits_ms: int = 0
    """For how long the database has answered no report, over all tries; 0: it has answered the last one."""
    waits_for: str = ""
    """What it waits for, or why the last try failed; empty: neither is known."""


class Reporter:
    """Reports one node.

    Args:
        nodes: Where.
        entry: What, but for its state.
        changed: Called from the thread when ``view`` may show something new.
        failed: Called from the thread with the error of a report that failed.
        answered: Called from the thread when a report was answered.
        clock_ns: See ``keeper.lease_clock_ns``.
    """

    def __init__(
        self,
        nodes: NodeTable,
        entry: NodeEntry,
        *,
        changed: Callable[[], None],
        failed: Callable[[StorageError], None],
        answered: Callable[[], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._nodes = nodes
        self._entry = entry
        self._changed = changed
        self._failed = failed
        self._answered = answered
        self._clock_ns = clock_ns
        self._condition = threading.Condition()
        self._is_stopped = False
        self._is_due = False
        """The lease was answered since the thread looked last."""
        self._state = ""
        self._is_owner = False
        self._seen = Reported()
        self._done = ""
        self._sees_copies = True
        self._has_failed = False
        self._sent_ns: int | None = None
        """When the first report began that has had no answer; None: the last one had."""
        self._waits_for = ""
        self._reported_ns = 0
        self._reported_state = ""
        self._is_double_logged = False
        self._thread = threading.Thread(target=self._run, name=f"{entry.node}-report", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the report under way; ``close`` waits for that."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()

    def close(self, seconds_max: float, *, says_so: bool) -> None:
        """After ``stop``. ``says_so``: report at last that the node has stopped, if it ever reported. The thread ends with the process at the latest."""
        if self._thread.ident is not None:
            self._thread.join(seconds_max)
        if self._thread.is_alive():
            return
        if says_so and self._reported_state and not self._has_failed:
            with contextlib.suppress(StorageError):
                self._nodes.report(replace(self._entry, state=STOPPED))
        self._nodes.close()

    def view(self) -> Reported:
        now = self._clock_ns()
        with self._condition:
            waits_ms = 0 if self._sent_ns is None else (now - self._sent_ns) // 1_000_000
            return replace(self._seen, waits_ms=waits_ms, waits_for=self._waits_for)

    def lease_answered(self, state: str, *, is_owner: bool) -> None:
        """The database has just answered a call of the lease: it can be reached. ``state``: of the node."""
        with self._condition:
            self._state, self._is_owner, self._is_due = state, is_owner, True
            self._condition.notify_all()

    def unanswered(self, why: str) -> None:
        """What the report under way waits for; empty: it was answered."""
        with self._condition:
            self._waits_for = why

    def has_done(self, request: str) -> None:
        """What was asked of this node is done: the request is taken off the table."""
        with self._condition:
            self._done = request
            self._seen = replace(self._seen, asked="")
            self._reported_ns = 0

    # The thread.

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_due or self._is_stopped)
                if self._is_stopped:
                    return
                self._is_due = False
                state, is_owner = self._state, self._is_owner
            self._report(state, is_owner)

    def _report(self, state: str, is_owner: bool) -> None:
        """Report once a second, and at once when the state has changed."""
        now = self._clock_ns()
        is_late = now - self._reported_ns >= REPORT_SECONDS * 1e9
        has_changed = state != self._reported_state and not self._has_failed
        if not (is_late or has_changed):
            return
        with self._condition:
            done, self._done = self._done, ""
            if self._sent_ns is None:
                self._sent_ns = now
        try:
            asked, known = self._exchange(done, state)
            copies = self._look_at_copies() if is_owner else None
        except StorageError as error:
            self._not_reported(error, done, now)
            return
        except Exception as error:  # noqa: BLE001 - whatever it was, the next report may succeed, and nobody else makes it
            self._not_reported(TableFailed(f"the report failed in an unforeseen way: {error!r}"), done, now)
            return
        self._has_failed = False
        self._answered()
        is_first = not self._reported_state
        with self._condition:
            self._sent_ns, self._waits_for = None, ""
            if is_first and asked == REQUEST_MOVE and not is_owner:
                self._done = REQUEST_MOVE  # asked of the process before this one
            if not self._done:
                self._reported_ns = now
            self._reported_state = state
            # A request that was answered while the report was under way is not asked again.
            self._seen = replace(self._seen, asked="" if self._done else asked, nodes=known, copies=copies)
        self._changed()

    def _not_reported(self, error: StorageError, done: str, now: int) -> None:
        self._has_failed = True
        with self._condition:
            self._done = self._done or done
            self._reported_ns = now
            self._waits_for = str(error)
        self._failed(error)

    def _exchange(self, done: str, state: str) -> tuple[str, tuple[NodeEntry, ...]]:
        try:
            return self._exchange_once(done, state)
        except OutcomeUnknown:
            # The lease has a connection of its own, and it was just answered: this one was lost while it was idle.
            return self._exchange_once(done, state)

    def _exchange_once(self, done: str, state: str) -> tuple[str, tuple[NodeEntry, ...]]:
        if done:
            self._nodes.answered(self._entry.node, done)
        known = self._nodes.nodes()
        mine = replace(self._entry, state=state)
        asked = self._nodes.report(mine)
        self._look_for_a_double(known)
        others = [one for one in known if one.node != mine.node]
        return asked, tuple(sorted((*others, replace(mine, asked=asked)), key=lambda one: one.node))

    def _look_for_a_double(self, known: Sequence[NodeEntry]) -> None:
        """Who else reports under this node's name. What was there before our first report may be of our former self."""
        if not self._reported_state:
            return
        own = self._entry
        others = [
            one.address
            for one in known
            if one.node == own.node and one.address != own.address and one.state != STOPPED
        ]
        doubled = (
            f"another process, at {others[0]}, reports under the name {own.node} of this node: give each node a --node of its own"
            if others
            else ""
        )
        with self._condition:
            self._seen = replace(self._seen, doubled=doubled)
        if others and not self._is_double_logged:
            self._is_double_logged = True
            logger.error(
                "another process reports under the name of this node: give each node a --node of its own",
                extra={
                    "event": "cluster.name_taken",
                    "node": own.node,
                    "address": own.address,
                    "other_address": others[0],
                },
            )

    def _look_at_copies(self) -> DatabaseCopies | None:
        """What the owner shows of the database's standbys. Nothing depends on it, so a database that does not tell is not asked again."""
        if not self._sees_copies:
            return None
        try:
            return self._nodes.copies()
        except OutcomeUnknown:
            return None
        except StorageError as error:
            self._sees_copies = False
            logger.info(
                "the database does not tell about its standbys",
                extra={"event": "cluster.copies_unknown", "error": str(error)},
            )
            return None
