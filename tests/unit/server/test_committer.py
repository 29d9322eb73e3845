from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.errors import StoreFailed
from pairbus.server.committer import (
    QUICK_COMMITS_MIN,
    QUICK_NS_MAX,
    SMALL_BYTES_MAX,
    SMALL_COMMITS_MIN,
    Commit,
    CommitQueue,
    CommitThread,
    InlineCommitPolicy,
    PendingOutput,
)
from tests.unit.server.fakes import FakeStore, disk_error


class Mouth:
    """Holds the rule while it listens: whatever is said is synced already (B4)."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.said: list[str] = []

    def write(self, chunks: list[bytes], closes: bool) -> None:
        for chunk in chunks:
            word = chunk.decode()
            assert word in self._store.synced, f"{word} was said before it was durable"
            self.said.append(word)


class World:
    """A broker of words: each command stages a record and leaves the same word to be said."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.mouth = Mouth(self.store)
        self.words: list[bytes] = []
        self.queue = CommitQueue(self._collect, self.store.seal)
        self.running: Commit | None = None

    def command(self, word: str) -> None:
        self.store.stage(word)
        self.words.append(word.encode())
        self.queue.received(len(word))

    def turn(self) -> None:
        commit = self.queue.begin()
        if commit is not None and commit.batch is not None:
            self.running = commit
        elif commit is not None:
            self._speak(commit)

    def sync(self, error: StoreFailed | None = None) -> None:
        commit, self.running = self.running, None
        if commit is None or commit.batch is None:
            return
        if error is None:
            self.store.commit(commit.batch)
        commit.error = error
        self._speak(commit)
        self.turn()

    def _speak(self, commit: Commit) -> None:
        for output in self.queue.finish(commit):
            output.sink.write(output.chunks, output.closes)

    def _collect(self) -> list[PendingOutput]:
        words, self.words = self.words, []
        return [PendingOutput(self.mouth, words, False)] if words else []


@pytest.mark.promise("B4")
def test_words_wait_for_the_commit_that_covers_them() -> None:
    world = World()
    world.command("a")

    world.turn()

    assert world.mouth.said == []
    world.sync()
    assert world.mouth.said == ["a"]


def test_everything_that_comes_during_a_commit_is_one_batch() -> None:
    world = World()
    world.command("a")
    world.turn()
    for word in "bcd":
        world.command(word)
        world.turn()

    world.sync()
    world.sync()

    assert world.store.batches == [["a"], ["b", "c", "d"]]
    assert world.mouth.said == ["a", "b", "c", "d"]


def test_words_that_rest_on_nothing_new_are_said_at_once_unless_a_commit_runs() -> None:
    world = World()
    world.store.synced.append("read")
    world.words.append(b"read")
    world.turn()
    assert world.mouth.said == ["read"]

    world.command("a")
    world.turn()
    world.words.append(b"read")
    world.turn()

    assert world.mouth.said == ["read"]
    world.sync()
    assert world.mouth.said == ["read", "a", "read"]


@pytest.mark.promise("B11")
def test_nothing_is_said_after_a_failed_commit() -> None:
    world = World()
    world.command("a")
    world.turn()
    world.command("b")

    world.sync(disk_error())
    world.command("c")
    world.turn()

    assert world.mouth.said == []
    assert world.queue.is_failed
    assert world.running is None


def test_uncommitted_bytes_are_counted_until_their_commit_ends() -> None:
    world = World()
    world.command("aa")
    world.turn()
    world.command("bbb")
    assert world.queue.uncommitted_bytes == 5

    world.sync()
    assert world.queue.uncommitted_bytes == 3
    world.sync()
    assert world.queue.uncommitted_bytes == 0


@pytest.mark.promise("B4", "B11")
@given(st.lists(st.sampled_from(["command", "turn", "sync", "fail"]), max_size=60))
def test_whatever_the_order_nothing_is_said_early_and_order_holds(steps: list[str]) -> None:
    world = World()
    sent: list[str] = []

    for step in steps:
        if step == "command":
            sent.append(f"w{len(sent)}")
            world.command(sent[-1])
        elif step == "turn":
            world.turn()
        else:
            world.sync(disk_error() if step == "fail" else None)

    assert world.mouth.said == sent[: len(world.mouth.said)]
    if not world.queue.is_failed:
        world.turn()
        world.sync()
        world.sync()
        assert world.mouth.said == sent


def _run_one(store: FakeStore) -> Commit:
    done = threading.Event()
    ended: list[Commit] = []

    def finish(commit: Commit) -> None:
        ended.append(commit)
        done.set()

    thread = CommitThread(store, finish, "test-commit")
    thread.start()
    store.stage("a")
    thread.submit(Commit(store.seal(), [], 0))
    assert done.wait(50)
    assert thread.stop()
    return ended[0]


def test_commit_thread_commits_and_reports() -> None:
    store = FakeStore()

    commit = _run_one(store)

    assert commit.error is None
    assert commit.sync_ns > 0
    assert store.synced == ["a"]


@pytest.mark.promise("B11")
def test_commit_thread_reports_any_failure_as_a_failed_store() -> None:
    for error in (disk_error(), OSError(28, "No space left on device"), ZeroDivisionError()):
        store = FakeStore()
        store.fails = error

        commit = _run_one(store)

        assert isinstance(commit.error, StoreFailed)
        assert store.synced == []


def _commit(weight_bytes: int = 100, sync_ns: int = 1_000) -> Commit:
    commit = Commit(None, [], weight_bytes)
    commit.sync_ns = sync_ns
    return commit


def _become_calm(pace: InlineCommitPolicy, commits: int) -> None:
    for _ in range(commits):
        assert not pace.should_commit_inline(_commit())
        pace.ended(_commit())
    assert pace.should_commit_inline(_commit())


def test_a_disk_must_prove_quick_before_it_is_waited_for_and_again_after_each_slow_commit() -> None:
    pace = InlineCommitPolicy()
    _become_calm(pace, SMALL_COMMITS_MIN)

    pace.ended(_commit(sync_ns=QUICK_NS_MAX + 1))

    _become_calm(pace, QUICK_COMMITS_MIN)


def test_nobody_waits_for_a_commit_where_there_is_much_to_do_meanwhile() -> None:
    pace = InlineCommitPolicy()
    _become_calm(pace, SMALL_COMMITS_MIN)
    large = _commit(weight_bytes=SMALL_BYTES_MAX + 1)
    assert not pace.should_commit_inline(large)

    pace.ended(large)

    _become_calm(pace, SMALL_COMMITS_MIN)
