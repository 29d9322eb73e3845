"""Group commit: what goes in which batch, and when it may be spoken (B4, B11).

Rule 1: nothing is spoken before the commit that covers everything applied before it.
Rule 2: at most one commit runs; everything that comes meanwhile is one batch, the next.
Rule 3: after a failed commit nothing is spoken any more.

``CommitQueue`` decides and neither waits nor knows threads, so a simulation can drive it step by step; ``CommitThread``
is the thin shell that syncs beside the event loop, for a sync releases the interpreter lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
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
"""So many quick commits in a row, and the disk is trusted to be quick once more. One that is not, and it must prove itself anew."""
SMALL_BYTES_MAX: Final = 2_048
"""With no more than this there is nothing worth doing beside a commit."""
SMALL_COMMITS_MIN: Final = 64
"""So many small commits in a row, and the next is taken to be small too: a busy broker has small ones among large ones."""


class Speaker(Protocol):
    """Whom words can be given to once they may be said."""

    def speak(self, chunks: list[bytes], is_last: bool) -> None:
        """Write the chunks; after the last words the connection ends."""


class Speech:
    """Words of one connection that wait for a commit."""

    __slots__ = ("chunks", "is_last", "speaker")

    def __init__(self, speaker: Speaker, chunks: list[bytes], is_last: bool) -> None:
        self.speaker = speaker
        self.chunks = chunks
        self.is_last = is_last


class Commit:
    """One batch and the words that rest on it."""

    __slots__ = ("batch", "error", "received_bytes", "speeches", "sync_ns")

    def __init__(self, batch: Batch | None, speeches: list[Speech], received_bytes: int) -> None:
        self.batch = batch
        """None: nothing was staged, the words rest on what is durable already."""
        self.speeches = speeches
        self.received_bytes = received_bytes
        """How much input it stands for, or how much is written if that is more; the measure of back-pressure."""
        self.error: BaseException | None = None
        self.sync_ns = 0


class CommitQueue:
    """The deciding part. The owner calls ``begin`` after every burst, makes the batch durable, calls ``finish``.

    Args:
        collect: Takes the words that wait in the connections.
        seal: Takes what the store has staged as one batch.
        staged_bytes: How much it has staged: a little input may be stored many times over, once for each subscription.
    """

    def __init__(
        self,
        collect: Callable[[], list[Speech]],
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
        return waiting + (running.received_bytes if running is not None else 0)

    def received(self, count: int) -> None:
        """So many bytes of input were applied."""
        self._received_bytes += count

    def begin(self) -> Commit | None:
        """The next commit, or None when one is running, all is said, or a commit has failed.

        A commit without a batch is not counted as running: its owner calls ``finish`` at once.
        """
        if self._running is not None or self.is_failed:
            return None
        # First the words, then the seal: so the batch covers whatever the words rest on.
        speeches = self._collect()
        staged = self._staged_bytes()
        batch = self._seal()
        received, self._received_bytes = self._received_bytes, 0
        if batch is not None:
            received = max(received, staged)
        if batch is None and not speeches:
            return None
        commit = Commit(batch, speeches, received)
        if batch is not None:
            self._running = commit
        return commit

    def proceed(self, words: list[Speech]) -> tuple[Commit | None, list[Speech]]:
        """What the disk does next, if anything, and what is said now: the ``words`` of a commit that has ended, and behind
        them those that rest on no batch. In this order, for both may be of the same connection.
        """
        commit = self.begin()
        if commit is None or commit.batch is not None:
            return commit, words
        return None, words + self.finish(commit)

    def finish(self, commit: Commit) -> list[Speech]:
        """The commit has ended: what may be said now. Nothing, if it failed."""
        if commit.batch is not None:
            assert commit is self._running, "commits end in the order they began"
            self._running = None
        if commit.error is not None:
            self.is_failed = True
        return [] if self.is_failed else commit.speeches


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
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to wait for work."""
        self._thread.start()

    def submit(self, commit: Commit) -> None:
        """Hand over a commit; ``done`` will be called."""
        self._waiting.put(commit)

    def stop(self) -> bool:
        """End after the work at hand. False when a sync hangs and the thread had to be left behind."""
        if self._thread.ident is None:
            return True
        self._waiting.put(None)
        self._thread.join(JOIN_SECONDS_MAX)
        return not self._thread.is_alive()

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


class Pace:
    """Whether the next commit is better waited for than handed over.

    To hand a commit to the thread and back costs more than a quick disk takes to sync. That pays while the broker has something
    else to do meanwhile, and while the disk may be slow; where there is little to do and the disk has just proved quick, it is only
    latency. Nothing may be said during a commit anyhow (rule 1), so whoever waits on the spot keeps nobody waiting for words.
    """

    __slots__ = ("_quick", "_small")

    def __init__(self) -> None:
        self._quick = 0
        """Commits in a row that were quick."""
        self._small = 0
        """Commits in a row that were small."""

    def is_calm(self, commit: Commit) -> bool:
        """Whether to wait for this one on the spot."""
        return (
            self._quick >= QUICK_COMMITS_MIN
            and self._small >= SMALL_COMMITS_MIN
            and commit.received_bytes <= SMALL_BYTES_MAX
        )

    def ended(self, commit: Commit) -> None:
        """Learn from a commit."""
        self._quick = self._quick + 1 if commit.sync_ns <= QUICK_NS_MAX else 0
        self._small = self._small + 1 if commit.received_bytes <= SMALL_BYTES_MAX else 0
