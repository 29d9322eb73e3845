"""Group commit: which records share a commit, and when the output that depends on them may be written.

A client may trust an answer only if the broker still knows of it after a crash. So the broker applies a request at once, in memory, but
its answer waits here until the records behind it are durable. Syncing a disk takes about as long for a thousand records as for one,
so everything that arrives while a sync runs shares the next one:

    applied        A B C      D E F G          H
    commits        [-- A B C --][-- D E F G --][-- H --]
    written                     a b c          d e f g ...

Rule 1: no output is written before the commit that covers everything applied before it.
Rule 2: at most one commit runs. Everything that arrives meanwhile becomes one batch, the next.
Rule 3: after a failed commit nothing is written any more. Memory is then ahead of the disk, so no answer could be trusted.

The order inside ``CommitQueue.begin`` keeps rule 1: it takes the output first and seals the batch second. What is applied in between
can only make the batch larger.

``CommitQueue`` decides. It neither waits nor knows threads, so a simulation can drive it step by step. ``CommitThread`` syncs beside
the event loop, because a sync releases the interpreter lock. ``InlineCommitPolicy`` decides when to sync in the event loop instead.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pairbus.errors import StoreFailed
from pairbus.server.clock import elapsed_ns

if TYPE_CHECKING:
    from pairbus.storage.ports import Batch, Store

JOIN_SECONDS_MAX: Final = 30.0
"""How long a stop waits for a sync that is under way."""
QUICK_NS_MAX: Final = 1_000_000
"""A commit up to this long is quick."""
QUICK_COMMITS_MIN: Final = 8
"""After so many quick commits in a row the next one is expected to be quick. A slow one starts the count again."""
SMALL_BYTES_MAX: Final = 2_048
"""A commit up to this size is small: there is little to do beside it."""
SMALL_COMMITS_MIN: Final = 64
"""After so many small commits in a row the next one is expected to be small: a busy broker has small ones among large ones."""


class OutputSink(Protocol):
    """Takes output once it may be written: a connection, or a log."""

    def write(self, chunks: list[bytes], closes: bool) -> None:
        """Write the chunks; ``closes``: the connection ends after them."""


@dataclass(slots=True)
class PendingOutput:
    """Output of one connection that waits for a commit."""

    sink: OutputSink
    chunks: list[bytes]
    closes: bool


@dataclass(slots=True, eq=False)
class Commit:
    """One batch and the output that depends on it."""

    batch: Batch | None
    """None: nothing was staged, so the output depends on nothing but what is durable already."""
    outputs: list[PendingOutput]
    weight_bytes: int
    """How much input it stands for, or how much is written if that is more; the measure of back-pressure."""
    error: BaseException | None = None
    sync_ns: int = 0


class CommitQueue:
    """The deciding part. The owner calls ``begin`` after every turn, makes the batch durable, calls ``finish``.

    Args:
        collect: Takes the output that waits in the connections.
        seal: Takes what the store has staged as one batch.
        staged_bytes: How much it has staged: a little input may be stored many times over, once for each subscription.
    """

    def __init__(
        self,
        collect: Callable[[], list[PendingOutput]],
        seal: Callable[[], Batch | None],
        staged_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._collect = collect
        self._seal = seal
        self._staged_bytes = _nothing if staged_bytes is None else staged_bytes
        self._running: Commit | None = None
        self._received_bytes = 0
        self.is_failed = False

    @property
    def is_busy(self) -> bool:
        """Whether a commit is under way."""
        return self._running is not None

    @property
    def uncommitted_bytes(self) -> int:
        """What is applied and not yet durable."""
        running = self._running
        waiting = max(self._received_bytes, self._staged_bytes())
        return waiting + (running.weight_bytes if running is not None else 0)

    def received(self, count: int) -> None:
        """So many bytes of input were applied."""
        self._received_bytes += count

    def begin(self) -> Commit | None:
        """The next commit, or None when one is running, nothing waits, or a commit has failed.

        A commit without a batch is not counted as running: its owner calls ``finish`` at once.
        """
        if self._running is not None or self.is_failed:
            return None
        # First the output, then the seal: so the batch covers everything that the output depends on.
        outputs = self._collect()
        staged = self._staged_bytes()
        batch = self._seal()
        weight, self._received_bytes = self._received_bytes, 0
        if batch is not None:
            weight = max(weight, staged)
        if batch is None and not outputs:
            return None
        commit = Commit(batch, outputs, weight)
        if batch is not None:
            self._running = commit
        return commit

    def proceed(self, outputs: list[PendingOutput]) -> tuple[Commit | None, list[PendingOutput]]:
        """The commit to perform next, if any, and the output to write now: the ``outputs`` of a commit that has ended, then
        those that depend on no batch. In this order, for both may be of the same connection.
        """
        commit = self.begin()
        if commit is None or commit.batch is not None:
            return commit, outputs
        return None, outputs + self.finish(commit)

    def finish(self, commit: Commit) -> list[PendingOutput]:
        """End a commit and return the output that may be written now: none, if it failed."""
        if commit.batch is not None:
            assert commit is self._running, "commits end in the order they began"
            self._running = None
        if commit.error is not None:
            self.is_failed = True
        return [] if self.is_failed else commit.outputs


def _nothing() -> int:
    return 0


class CommitThread:
    """Runs commits one at a time beside the event loop.

    Args:
        store: Its ``commit`` is called from this thread while it works on something.
        done: Called with each ended commit, from this thread; hands it back to the owner's loop.
    """

    def __init__(self, store: Store, done: Callable[[Commit], None], name: str) -> None:
        self._store = store
        self._done = done
        self._waiting: queue.SimpleQueue[Commit | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to wait for work."""
        self._worker.start()

    def submit(self, commit: Commit) -> None:
        """Hand over a commit; ``done`` will be called."""
        self._waiting.put(commit)

    def stop(self) -> bool:
        """End after the work at hand. False when a sync hangs and the thread had to be left behind."""
        if self._worker.ident is None:
            return True
        self._waiting.put(None)
        self._worker.join(JOIN_SECONDS_MAX)
        return not self._worker.is_alive()

    def _run(self) -> None:
        while (commit := self._waiting.get()) is not None:
            perform(self._store, commit)
            self._done(commit)


def perform(store: Store, commit: Commit) -> None:
    """Make a commit's batch durable; afterwards it knows how long that took and whether it failed."""
    started = elapsed_ns()
    try:
        assert commit.batch is not None, "only batches are committed"
        store.commit(commit.batch)
    except StoreFailed as error:
        commit.error = error
    except Exception as error:  # noqa: BLE001 - whatever it was, the batch is not known to be durable (B11)
        commit.error = StoreFailed(f"the commit failed in an unforeseen way: {error!r}")
        commit.error.__cause__ = error
    commit.sync_ns = elapsed_ns() - started


class InlineCommitPolicy:
    """Decides whether the next commit is performed in the event loop instead of the commit thread.

    To hand a commit to the thread and back costs more than a quick disk takes to sync. The thread pays while the broker has something
    else to do meanwhile, and while the disk may be slow. When there is little to do and the disk has just proved quick, it only adds
    latency. No output may be written during a commit anyhow (rule 1), so committing inline delays no other client.
    """

    __slots__ = ("_quick", "_small")

    def __init__(self) -> None:
        self._quick = 0
        """Commits in a row that were quick."""
        self._small = 0
        """Commits in a row that were small."""

    def should_commit_inline(self, commit: Commit) -> bool:
        return (
            self._quick >= QUICK_COMMITS_MIN
            and self._small >= SMALL_COMMITS_MIN
            and commit.weight_bytes <= SMALL_BYTES_MAX
        )

    def ended(self, commit: Commit) -> None:
        """Learn from a commit."""
        self._quick = self._quick + 1 if commit.sync_ns <= QUICK_NS_MAX else 0
        self._small = self._small + 1 if commit.weight_bytes <= SMALL_BYTES_MAX else 0
