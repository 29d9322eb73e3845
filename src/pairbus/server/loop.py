"""Drives the pure broker on one event loop: turns, timers, commits and housekeeping.

The broker itself does no I/O and reads no clock. This module calls it, and decides when. Everything the broker does happens in the
thread of the event loop, in turns:

1. Sockets become readable. Each connection gives its bytes to the broker, which applies them at once and stages records and
   output. ``received`` counts the bytes and asks for a turn; further sockets of the same round of the loop join it. If no commit
   runs, so do those of the next round (``_gather``): who comes a moment later would wait for a whole sync.
2. At the end of the round ``_turn`` runs: timers that are due (``tick``), then deliveries that have become possible (``pump``).
3. ``_proceed`` asks the commit queue what comes next (``committer`` has the rules). If no commit runs, all output and all staged
   records become one commit. It goes to the commit thread, or is performed right here when that is quicker.
4. When the commit has ended, ``_committed`` runs in the loop again. It writes the output of that commit, and starts the next one with
   everything that was applied meanwhile.

So under load the broker alternates between two things: the disk syncs one batch while the loop fills the next.

Back-pressure: when more than ``uncommitted_bytes_max`` waits for the disk no socket is read, until half of it is durable.

Silence: a node of a cluster may write only while its lease lasts. Outside it (``may_write``) nothing is delivered, sealed or written; what
was applied and what was committed waits, and goes on with the first turn after the lease was renewed (S4).

Failure: an exception out of the broker, or a failed commit, ends the server (``fail``). Memory may be half changed or ahead of the
disk; a restart that replays the log is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pairbus.errors import StoreFailed, StoreFenced
from pairbus.server.committer import (
    Commit,
    CommitQueue,
    CommitThread,
    InlineCommitPolicy,
    PendingOutput,
    perform,
)

if TYPE_CHECKING:
    from pairbus.server.clock import Clock
    from pairbus.server.ports import BrokerPort
    from pairbus.storage.ports import Store

logger = logging.getLogger(__name__)

UNCOMMITTED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum bytes waiting to be committed. Above it the server stops reading from all sockets."""
TIMER_SECONDS_MAX: Final = 1.0
"""The longest the loop sleeps on a deadline: the wall clock may be stepped forward meanwhile (B65)."""
HOUSEKEEPING_SECONDS: Final = 0.25
HOUSEKEEPING_SLICE_SECONDS: Final = 0.005
"""The pause between two slices of one round, in which clients have their turn."""
RESTATE_RECORDS_MAX: Final = 200
"""Old records restated in one slice: about a millisecond of work."""
COMMIT_SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatistics:
    """What the commit path did so far."""

    turns: int
    commits: int
    commit_seconds: float
    commit_seconds_max: float
    commit_seconds_buckets: tuple[int, ...]
    """Commits at most as long as the bound of the same place in ``COMMIT_SECONDS_BUCKETS``."""
    uncommitted_bytes: int
    reading_pauses: int
    records_restated: int
    is_failed: bool


class Driver:
    """Owns the broker's thread of control.

    Args:
        outputs: Takes the output that waits in all connections and logs.
        set_reading: Called with False to stop reading every socket, with True to go on.
        failed: Called once, when a commit failed or the broker broke; no output is written from then on.
        may_write: Whether output may be written now; None: always. Who makes it True again calls ``wake``.
        commits_inline: Whether a quick commit may be performed in the event loop; not if the store waits for a network.
        hurry: Called by the commit thread when a commit has ended: the loop should begin the next one soon; None: that can wait.
    """

    def __init__(
        self,
        broker: BrokerPort,
        store: Store,
        clock: Clock,
        *,
        outputs: Callable[[], list[PendingOutput]],
        set_reading: Callable[[bool], None],
        failed: Callable[[Exception], None],
        uncommitted_bytes_max: int = UNCOMMITTED_BYTES_MAX,
        name: str = "pairbus",
        may_write: Callable[[], bool] | None = None,
        commits_inline: bool = True,
        hurry: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._broker = broker
        self._store = store
        self.now: Clock = clock
        self._set_reading = set_reading
        self._failed = failed
        self._queue = CommitQueue(outputs, store.seal, store.staged_bytes)
        self._commit_thread = CommitThread(store, self._commit_ended, f"{name}-commit")
        self._inline_policy = InlineCommitPolicy()
        self._commits_inline = commits_inline
        self._hurry = hurry
        self._is_committing_inline = False
        self._may_write = _always if may_write is None else may_write
        self._held: list[PendingOutput] = []
        """Output whose commit has ended and that waits for ``may_write``."""
        self._commit_since: float | None = None
        """When the commit that the thread makes now was begun, by the loop's clock; None: it makes none."""
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self._turn_asked = False
        self._is_reading = True
        self._is_stopped = False
        self._read_ahead = store.read_ahead
        if self._read_ahead is not None:
            self._read_ahead.on_fetched(self._fetch_ended)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._housekeeper: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._turns = self._commits = self._reading_pauses = self._restated = 0
        self._sync_ns = self._sync_ns_max = 0
        self._buckets = [0] * len(COMMIT_SECONDS_BUCKETS)

    @property
    def is_reading(self) -> bool:
        """Whether sockets may be read now."""
        return self._is_reading

    @property
    def is_failed(self) -> bool:
        """Whether nothing is acknowledged any more."""
        return self._queue.is_failed

    def start(self) -> None:
        """Begin: the first turn commits what the start-up staged."""
        self._commit_thread.start()
        self.ask_turn()
        self._housekeeper = self._loop.call_later(HOUSEKEEPING_SECONDS, self._housekeep)

    def received(self, count: int) -> None:
        """A socket's bytes were given to the broker: a turn will follow."""
        self._queue.received(count)
        if not self._turn_asked:
            self.ask_turn()
        self._stop_reading_if_behind()

    def _stop_reading_if_behind(self) -> None:
        if self._is_reading and self._queue.uncommitted_bytes > self._uncommitted_bytes_max:
            self._is_reading = False
            self._reading_pauses += 1
            self._set_reading(False)

    def ask_turn(self) -> None:
        """Run a turn once this round of the event loop is over."""
        if not self._turn_asked and not self._is_stopped:
            self._turn_asked = True
            self._idle.clear()
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """If a commit would begin with this turn, have the sockets polled once more: what has come meanwhile shares it."""
        if self._queue.is_busy:
            self._turn()
        else:
            self._loop.call_soon(self._turn)

    def wake(self) -> None:
        """Look at the clock and the lease again. May be called from any thread: one of the two has moved."""
        self._loop.call_soon_threadsafe(self.ask_turn)

    def fail(self, error: Exception) -> None:
        if not self._queue.is_failed:
            self._queue.is_failed = True
            self._idle.set()
            self._failed(error)

    def _broke(self, error: Exception, what: str) -> None:
        """An exception came out of the broker. StoreFenced is not a fault: any call may be the first to find that another node owns the namespace."""
        if isinstance(error, StoreFenced):
            logger.warning(
                "this node was fenced, so it says nothing more",
                extra={"event": "server.fenced", "error": str(error)},
            )
        else:
            logger.error(what, exc_info=error, extra={"event": "server.broke"})
        self.fail(error)

    def record_uses(self) -> None:
        """The broker is about to stop: have the last use of each entity recorded with its last commit."""
        try:
            self._broker.namespace.record_uses(self.now(), is_last=True)
        except Exception as error:  # noqa: BLE001 - the server ends with it
            self._broke(error, "the broker broke")

    async def wait_durable(self, seconds_max: float) -> bool:
        """Wait until everything applied is durable and its output is written; False when that took too long."""
        try:
            async with asyncio.timeout(seconds_max):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> bool:
        """End the commit thread after the sync under way; no output is written from now on."""
        self._is_stopped = True
        for timer in (self._timer, self._housekeeper):
            if timer is not None:
                timer.cancel()
        return self._commit_thread.stop()

    def commit_waits_ms(self) -> int:
        """For how long the commit under way has waited for the store; 0: none is under way."""
        since = self._commit_since
        return 0 if since is None else int((self._loop.time() - since) * 1000)

    def statistics(self) -> DriverStatistics:
        """A snapshot for metrics and tests."""
        return DriverStatistics(
            turns=self._turns,
            commits=self._commits,
            commit_seconds=self._sync_ns / 1e9,
            commit_seconds_max=self._sync_ns_max / 1e9,
            commit_seconds_buckets=tuple(self._buckets),
            uncommitted_bytes=self._queue.uncommitted_bytes,
            reading_pauses=self._reading_pauses,
            records_restated=self._restated,
            is_failed=self._queue.is_failed,
        )

    def _turn(self) -> None:
        self._turn_asked = False
        if self._is_stopped or not self._may_write():
            return
        self._turns += 1
        now = self.now()
        try:
            deadline = self._broker.next_deadline()
            if deadline is not None and deadline <= now:
                self._broker.tick(now)
            self._broker.pump(now)
            self._proceed([])
            self._stop_reading_if_behind()
            self._arm(now)
        except Exception as error:  # noqa: BLE001 - the server ends with it
            # Memory may be half changed: going on could break a promise, recovery from the store cannot.
            self._broke(error, "the broker broke")

    def _proceed(self, outputs: list[PendingOutput]) -> None:
        if self._held:
            outputs, self._held = self._held + outputs, []
        commit, outputs = self._queue.proceed(outputs)
        if (
            commit is not None
            and self._commits_inline
            and not self._is_committing_inline
            and self._inline_policy.should_commit_inline(commit)
        ):
            self._write(outputs)
            self._commit_inline(commit)
            return
        if commit is not None:
            # The disk gets its next work before the output of the last commit is written: neither waits for the other.
            self._commit_since = self._loop.time()
            self._commit_thread.submit(commit)
        self._write(outputs)
        if not self._queue.is_busy and not self._turn_asked and not self._held:
            self._idle.set()

    def _write(self, outputs: list[PendingOutput]) -> None:
        may_write = self._may_write
        for place, output in enumerate(outputs):
            # Asked before each socket: this process may have been paused a moment ago, for longer than its lease.
            if not may_write():
                self._held += outputs[place:]
                return
            output.sink.write(output.chunks, output.closes)

    def _commit_inline(self, commit: Commit) -> None:
        # What follows from its output, if anything, goes to the thread: so this never nests.
        self._is_committing_inline = True
        try:
            perform(self._store, commit)
            self._committed(commit)
        finally:
            self._is_committing_inline = False

    def _commit_ended(self, commit: Commit) -> None:
        try:
            self._loop.call_soon_threadsafe(self._committed, commit)
            if self._hurry is not None:
                self._hurry()
        except RuntimeError:
            # The loop was closed by a kill. The next start finds the batch.
            logger.debug(
                "ignoring a commit that finished after the event loop closed",
                extra={"event": "commit.orphaned"},
            )

    def _committed(self, commit: Commit) -> None:
        self._commit_since = None
        outputs = self._queue.finish(commit)
        if self._is_stopped:
            return
        if commit.error is not None:
            self._idle.set()
            self._failed(
                commit.error if isinstance(commit.error, StoreFailed) else StoreFailed(str(commit.error))
            )
            return
        self._count(commit)
        try:
            if self._may_write():
                self._proceed(outputs)
                self._arm(self.now())
            else:
                self._held += outputs
        except Exception as error:  # noqa: BLE001 - the server ends with it
            self._broke(error, "the broker broke")
        if not self._is_reading and self._queue.uncommitted_bytes <= self._uncommitted_bytes_max // 2:
            self._is_reading = True
            self._set_reading(True)

    def _count(self, commit: Commit) -> None:
        self._commits += 1
        self._inline_policy.ended(commit)
        self._sync_ns += commit.sync_ns
        self._sync_ns_max = max(self._sync_ns_max, commit.sync_ns)
        seconds = commit.sync_ns / 1e9
        for place, bound in enumerate(COMMIT_SECONDS_BUCKETS):
            if seconds <= bound:
                self._buckets[place] += 1

    def _fetch_ended(self) -> None:
        """Message bytes have come from another machine. Called by the thread that reads."""
        try:
            self._loop.call_soon_threadsafe(self._fetched)
        except RuntimeError:
            logger.debug("the event loop ended before a read", extra={"event": "read.orphaned"})

    def _fetched(self) -> None:
        if self._is_stopped or self.is_failed or self._read_ahead is None:
            return
        tags = sorted(self._read_ahead.take_fetched())
        if not tags:
            return
        try:
            self._broker.fetched(tags, self.now())
        except Exception as error:  # noqa: BLE001 - the server ends with it
            self._broke(error, "the broker broke")
            return
        self.ask_turn()

    def _arm(self, now: int) -> None:
        deadline = self._broker.next_deadline()
        if deadline is None:
            return
        at = self._loop.time() + min(max(deadline - now, 0) / 1000, TIMER_SECONDS_MAX)
        if self._timer is not None:
            if self._timer_at <= at and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.ask_turn()

    def _housekeep(self) -> None:
        """Give old places of the log back, a slice at a time, and record uses; never while the disk is behind."""
        if self._is_stopped or self.is_failed:
            return
        pause = HOUSEKEEPING_SECONDS
        if self._is_reading and self._may_write():
            try:
                records = self._store.restate(RESTATE_RECORDS_MAX)
                now = self.now()
                for record in records:
                    self._broker.namespace.restate(record, now)
                self._broker.namespace.record_uses(now)
            except Exception as error:  # noqa: BLE001 - the server ends with it
                self._broke(error, "housekeeping broke")
                return
            if records:
                self._restated += len(records)
                pause = HOUSEKEEPING_SLICE_SECONDS
            # Also without records: the last segment of a round is given back with the next batch.
            self.ask_turn()
        self._housekeeper = self._loop.call_later(pause, self._housekeep)


def _always() -> bool:
    return True
