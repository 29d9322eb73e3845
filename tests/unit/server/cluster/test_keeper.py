"""The thread that keeps a lease, over tables in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pairbus.errors import StoreFailed, StoreFenced
from pairbus.server.cluster.ownership import keeper as keeper_module
from pairbus.server.cluster.ownership.keeper import LeaseKeeper
from pairbus.server.cluster.ownership.lease import NS_PER_MS, Lease, LeaseState
from pairbus.server.cluster.status import STOPPED
from pairbus.storage.table.appender import CommitsLost
from pairbus.storage.table.ports import (
    MOVER,
    REQUEST_MOVE,
    Acquired,
    DatabaseCopies,
    FrameMark,
    HeldUp,
    LastFrame,
    LogShortened,
    NodeEntry,
    OutcomeUnknown,
    Ownership,
    SequenceTaken,
    ShardMoved,
    TableFailed,
)
from tests.waiting import wait_until

LEASE_MS = 1_000
SECONDS_MAX = 30


class Clock:
    """A clock that the test moves; who waits for an instant is not woken by it, so waits are short."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms * NS_PER_MS


class Table:
    """A lease that nobody else wants, unless the test says so."""

    def __init__(self) -> None:
        self.epoch, self.owner, self.address, self.remaining = 0, "", "", 0
        self.fails: Exception | None = None
        self.moved: ShardMoved | None = None
        self.is_quicker = False
        self.last = 7
        """The last frame."""
        self.kept: int | None = None
        self.calls: list[str] = []
        self.may_write: Callable[[], bool] = bool
        self.releases: list[bool] = []
        """Whether the node might still write when it gave the lease back."""
        self.called = threading.Condition()

    def _call(self, name: str) -> None:
        with self.called:
            self.calls.append(name)
            self.called.notify_all()
        if self.fails is not None:
            raise self.fails

    def acquire(self, owner: str, address: str, lease_ms: int) -> Acquired | None:
        self._call("acquire")
        if self.is_quicker:
            self.is_quicker = False
            raise SequenceTaken("one frame quicker")
        if self.owner:
            return None
        self.epoch, self.owner, self.address, self.remaining = self.epoch + 1, owner, address, lease_ms
        return Acquired(self.epoch, 7)

    def renew(self, epoch: int, address: str, lease_ms: int, newest: int = 0) -> bool:
        self._call("renew")
        if newest > self.last:
            raise LogShortened(self.last)
        if epoch == self.epoch:
            self.address = address
        return epoch == self.epoch

    def last_kept(self, last: LastFrame) -> int | None:
        self._call("last_kept")
        return self.kept

    def release(self, epoch: int) -> None:
        self._call("release")
        self.releases.append(self.may_write())
        self.owner = ""

    def move_away(self, epoch: int, target: str) -> bool:
        raise NotImplementedError(f"nobody moves epoch {epoch} to {target} here")

    def look(self) -> Ownership:
        self._call("look")
        if self.moved is not None:
            raise self.moved
        return Ownership(self.epoch, self.owner, self.address, self.remaining)

    def close(self) -> None:
        self.calls.append("close")


class Nodes:
    def __init__(self) -> None:
        self.reported: list[NodeEntry] = []
        self.asked = ""
        self.fails: Exception | None = None
        self.holds: threading.Event | None = None
        """While it is not set, a report waits."""
        self.begun = threading.Event()
        """A report waits, or has waited."""
        self.other: NodeEntry | None = None
        """What the table shows instead of the last report."""

    def report(self, entry: NodeEntry) -> str:
        if self.holds is not None:
            self.begun.set()
            assert self.holds.wait(SECONDS_MAX)
        if self.fails is not None:
            raise self.fails
        self.reported.append(entry)
        return self.asked

    def nodes(self) -> list[NodeEntry]:
        return self.reported[-1:] if self.other is None else [self.other]

    def ask(self, node: str, request: str) -> bool:
        self.asked = request
        return True

    def answered(self, node: str, request: str) -> None:
        self.asked = ""

    def forget(self, node: str, age_ms: int) -> bool:
        return True

    def held_up(self) -> tuple[HeldUp, ...]:
        return ()

    def copies(self) -> DatabaseCopies:
        return DatabaseCopies("", ())

    def close(self) -> None: ...


class Bench:
    def __init__(self) -> None:
        self.clock, self.table, self.nodes = Clock(), Table(), Nodes()
        self.woken = 0
        self.keeper = LeaseKeeper(
            Lease("here", LEASE_MS, 0),
            self.table,
            self.nodes,
            NodeEntry(node="here", address="here:1", state="", version="1"),
            self._changed,
            self.clock,
        )

        self.table.may_write = self.keeper.may_write

    def _changed(self, has_woken: bool) -> None:
        self.woken += has_woken

    def until(self, is_so: Callable[[], bool]) -> None:
        wait_until(is_so, seconds=SECONDS_MAX)  # not every change is told of

    def advance(self, ms: int) -> None:
        """Move the clock and have the thread look at it."""
        self.clock.ms += ms
        with self.keeper._condition:
            self.keeper._condition.notify_all()

    def serve(self) -> None:
        self.keeper.start()
        self.until(lambda: self.keeper.view().state is LeaseState.REPLAYING)
        self.keeper.replayed()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_free_shard_is_acquired_and_its_address_published_once_it_is_served(bench: Bench) -> None:
    bench.table.is_quicker = True
    bench.serve()
    assert bench.table.calls[:3] == ["look", "acquire", "acquire"]
    assert bench.table.address == ""
    assert bench.keeper.may_write()
    bench.keeper.publish("here:1")
    bench.until(lambda: bench.table.address == "here:1")
    bench.keeper.stop()
    assert bench.table.calls[-1] == "close"


@pytest.mark.promise("S4")
@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), TableFailed("no rights")])
def test_silence_begins_by_the_clock_alone_and_ends_with_a_renewal(bench: Bench, error: Exception) -> None:
    bench.serve()
    bench.table.fails = error
    bench.advance(950)
    assert not bench.keeper.may_write()
    assert not bench.keeper.may_flush()
    bench.until(lambda: bench.keeper.failures > 0)
    assert bench.keeper.view().state is LeaseState.SILENT
    bench.table.fails = None
    bench.advance(100)
    bench.until(lambda: bench.woken == 1)
    assert bench.keeper.may_write()
    bench.keeper.stop()


@pytest.mark.promise("S4")
def test_another_epoch_fences(bench: Bench) -> None:
    bench.serve()
    bench.table.epoch += 1
    bench.advance(200)
    bench.until(lambda: bench.keeper.view().state is LeaseState.FENCED)
    assert not bench.keeper.may_write()
    assert not bench.keeper.may_flush()
    bench.keeper.stop()


@pytest.mark.promise("S3", "S4")
@pytest.mark.parametrize("is_owner", [True, False])
def test_a_node_that_runs_meets_the_mark_of_a_shard_that_was_moved(bench: Bench, is_owner: bool) -> None:
    moved = ShardMoved("it was moved")
    if is_owner:
        bench.serve()
        bench.table.moved, bench.table.epoch = moved, bench.table.epoch + 1
    else:
        bench.keeper.withdraw()  # drained, for example
        bench.keeper.start()
        bench.until(lambda: bench.keeper.view().ownership is not None)
        bench.table.moved = moved
        bench.keeper.take_part()
    bench.advance(300)
    bench.until(lambda: bench.keeper.view().is_over)
    assert bench.keeper.view().ending is moved
    assert not bench.keeper.may_write()
    assert is_owner or "acquire" not in bench.table.calls
    bench.keeper.stop()


@pytest.mark.promise("S3")
@pytest.mark.parametrize("found_by", ["renewal", "commit"])
def test_an_owner_that_wakes_while_its_namespace_is_moved_ends_as_after_the_move(
    bench: Bench, found_by: str
) -> None:
    bench.serve()
    bench.keeper.replayed(lambda: LastFrame(7, FrameMark(1, 5)))
    bench.table.epoch, bench.table.owner = bench.table.epoch + 1, MOVER
    if found_by == "renewal":
        bench.advance(300)
    else:
        bench.keeper.fenced(StoreFenced("frame 8 was written by another owner"))
    bench.until(lambda: bench.keeper.view().is_over)
    ending = bench.keeper.view().ending
    assert isinstance(ending, ShardMoved)
    assert "start this node again if the move fails" in str(ending)
    bench.keeper.stop()


@pytest.mark.promise("S1", "S3")
def test_a_renewal_finds_that_the_database_lost_what_was_durable_and_gives_the_lease_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the next send: nobody may be told that it was taken, and another node may go on at once."""
    bench.serve()
    newest = 7
    bench.keeper.replayed(lambda: LastFrame(newest, FrameMark(1, 5)))
    bench.advance(300)
    bench.until(lambda: bench.keeper.renewals >= 1)
    assert bench.keeper.view().state is LeaseState.SERVING
    newest = 22
    bench.advance(300)
    bench.until(lambda: bench.keeper.view().is_over)
    assert bench.keeper.view().state is LeaseState.FENCED
    ending = bench.keeper.view().ending
    assert isinstance(ending, StoreFenced)
    assert "lacks the last 15 frames" in str(ending)
    assert "a standby without them was promoted" in str(ending)
    assert not bench.keeper.may_write()
    assert bench.table.releases == [False], "it is silent before another node may speak"
    (told,) = (one for one in caplog.records if getattr(one, "event", "") == "cluster.log_shortened")
    assert told.__dict__["missing"] == 15
    bench.keeper.stop()


@pytest.mark.promise("S1", "S3")
@pytest.mark.parametrize("found_by", ["renewal", "commit"])
def test_an_owner_that_another_node_replaced_looks_whether_its_commits_are_there(
    bench: Bench, caplog: pytest.LogCaptureFixture, found_by: str
) -> None:
    """A standby without them was promoted, and the other node was quicker: it serves what it found, and cannot know."""
    bench.serve()
    bench.keeper.replayed(lambda: LastFrame(22, FrameMark(1, 5)))
    bench.table.last, bench.table.kept = 99, 17
    assert not bench.keeper.view().is_over
    if found_by == "renewal":
        bench.table.epoch += 1
        bench.advance(300)
    else:
        bench.keeper.fenced(StoreFenced("frame 23 was written by another owner"))
    bench.until(lambda: bench.keeper.view().is_over)
    ending = bench.keeper.view().ending
    assert isinstance(ending, CommitsLost)
    assert "lacks the last 5 frames" in str(ending)
    (told,) = (one for one in caplog.records if getattr(one, "event", "") == "cluster.log_shortened")
    assert (told.__dict__["missing"], told.__dict__["last"], told.__dict__["newest"]) == (5, 17, 22)
    bench.keeper.stop()


def test_an_owner_that_another_node_replaced_says_so_if_nothing_is_lost(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.serve()
    bench.keeper.replayed(lambda: LastFrame(22, FrameMark(1, 5)))
    why = StoreFenced("frame 23 was written by another owner")
    bench.table.fails = OutcomeUnknown("lost")
    bench.keeper.fenced(why)
    bench.until(lambda: "last_kept" in bench.table.calls)
    bench.table.fails = None
    bench.until(lambda: bench.keeper.view().is_over)
    assert bench.keeper.view().ending is why
    assert events(caplog, "cluster.log_shortened") == []
    bench.keeper.stop()


def test_an_owner_whose_database_does_not_answer_ends_without_knowing(bench: Bench) -> None:
    bench.serve()
    bench.keeper.replayed(lambda: LastFrame(22, FrameMark(1, 5)))
    bench.table.fails = OutcomeUnknown("lost")
    bench.keeper.fenced(StoreFenced("frame 23 was written by another owner"))
    bench.until(lambda: "last_kept" in bench.table.calls)
    bench.advance(3_000)
    bench.until(lambda: bench.keeper.view().is_over)
    bench.keeper.stop()


@pytest.mark.promise("S4")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_lease_that_fails_in_an_unforeseen_way_ends_the_node(bench: Bench, is_first: bool) -> None:
    """Nobody would renew the lease any more, and the process would stay, silent."""
    unforeseen = RuntimeError("nobody thought of it")
    if is_first:
        bench.table.fails = unforeseen
        bench.keeper.start()
    else:
        bench.serve()
        bench.table.fails = unforeseen
        bench.advance(500)
    bench.until(lambda: bench.keeper.view().is_over)
    view = bench.keeper.view()
    assert view.state is LeaseState.FENCED
    assert isinstance(view.ending, StoreFailed)
    assert "nobody thought of it" in str(view.ending)
    assert not bench.keeper.may_write()
    bench.keeper.stop()


def test_a_report_that_fails_in_an_unforeseen_way_is_made_again(bench: Bench) -> None:
    bench.serve()
    bench.until(lambda: bool(bench.nodes.reported))
    bench.nodes.fails = RuntimeError("nobody thought of it")
    bench.advance(1_100)
    bench.until(lambda: bench.keeper.failures == 1)
    assert "nobody thought of it" in bench.keeper.view().report_waits_for
    bench.nodes.fails = None
    bench.advance(1_100)
    bench.until(lambda: not bench.keeper.view().report_waits_for)
    assert bench.keeper.may_write()
    bench.keeper.stop()


def test_a_lease_that_is_drained_is_given_back(bench: Bench) -> None:
    bench.serve()
    bench.keeper.withdraw()
    assert bench.keeper.may_flush()
    bench.keeper.drained()
    assert bench.keeper.wait_released(SECONDS_MAX)
    assert "release" in bench.table.calls
    assert bench.table.owner == ""
    bench.keeper.stop()


def test_a_request_is_seen_with_the_next_report_and_taken_off_when_done(bench: Bench) -> None:
    bench.serve()
    bench.until(lambda: bool(bench.nodes.reported))
    bench.nodes.asked = REQUEST_MOVE
    bench.advance(1_100)
    bench.until(lambda: bench.keeper.view().asked == REQUEST_MOVE)
    bench.keeper.has_done(REQUEST_MOVE)
    assert bench.keeper.view().asked == ""
    bench.advance(300)
    bench.until(lambda: bench.nodes.asked == "")
    assert bench.keeper.view().asked == ""
    assert [entry.state for entry in bench.keeper.view().nodes] == ["serving"]
    bench.keeper.stop()


def test_a_move_that_was_asked_of_the_process_before_this_one_is_taken_off(bench: Bench) -> None:
    bench.table.epoch, bench.table.owner, bench.table.remaining = 1, "there", 60_000
    bench.nodes.asked = REQUEST_MOVE
    bench.keeper.start()
    bench.until(lambda: bool(bench.nodes.reported))
    bench.advance(1_100)
    bench.until(lambda: bench.nodes.asked == "")
    assert bench.keeper.view().asked == ""
    bench.keeper.stop()


def events(caplog: pytest.LogCaptureFixture, *names: str) -> list[str]:
    found = (str(getattr(one, "event", "")) for one in list(caplog.records))
    return [name for name in found if name in names]


def test_a_node_list_that_cannot_be_written_is_told_once_although_the_lease_is_answered(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    told = ("cluster.database_failed", "cluster.database_back")
    bench.nodes.fails = OutcomeUnknown("too many connections")
    bench.serve()
    for number in range(4):
        bench.advance(1_100)
        bench.until(lambda number=number: bench.keeper.failures > number)  # type: ignore[misc]
    renewals = bench.keeper.renewals
    bench.advance(200)
    bench.until(lambda: bench.keeper.renewals > renewals)
    assert events(caplog, *told) == ["cluster.database_failed"]
    bench.nodes.fails = None
    bench.advance(1_100)
    bench.until(lambda: bool(bench.nodes.reported))
    bench.until(lambda: events(caplog, *told)[1:] == ["cluster.database_back"])
    bench.keeper.stop()


def test_a_node_that_is_stopped_says_so_at_last(bench: Bench) -> None:
    bench.serve()
    bench.until(lambda: bool(bench.nodes.reported))
    bench.keeper.stop()
    assert bench.nodes.reported[-1].state == STOPPED


def test_a_second_process_of_the_same_name_is_told_of_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """What is there before the first report may be of this node itself, before a restart."""
    other = NodeEntry(node="here", address="elsewhere:2", state="idle", version="1")
    bench.nodes.reported.append(other)
    bench.serve()
    bench.until(lambda: len(bench.nodes.reported) > 1)
    bench.advance(1_100)
    bench.until(lambda: len(bench.nodes.reported) > 2)
    assert events(caplog, "cluster.name_taken") == []
    bench.nodes.other = other  # it reports again
    for _ in range(2):
        count = len(bench.nodes.reported)
        bench.advance(1_100)
        bench.until(lambda count=count: len(bench.nodes.reported) > count)  # type: ignore[misc]
    bench.until(lambda: bool(events(caplog, "cluster.name_taken")))
    assert "another process, at elsewhere:2, reports under the name here" in bench.keeper.view().doubled
    bench.nodes.other = None  # it is gone
    bench.advance(1_100)
    bench.until(lambda: not bench.keeper.view().doubled)
    bench.keeper.stop()
    assert events(caplog, "cluster.name_taken") == ["cluster.name_taken"]
    assert [one.address for one in bench.keeper.view().nodes] == ["here:1"]


@pytest.mark.promise("S4", "S8")
def test_a_report_that_waits_holds_up_no_renewal_and_no_look_is_said_to_wait(bench: Bench) -> None:
    """A row of another session's transaction, for example: the lease would end, although the database answers."""
    bench.serve()
    bench.until(lambda: bool(bench.nodes.reported))
    count = len(bench.nodes.reported)
    bench.nodes.holds = threading.Event()
    bench.advance(1_100)
    assert bench.nodes.begun.wait(SECONDS_MAX)
    for _ in range(3 * LEASE_MS // 200):
        renewals = bench.keeper.renewals
        bench.advance(200)
        bench.until(lambda renewals=renewals: bench.keeper.renewals > renewals)  # type: ignore[misc]
        assert bench.keeper.may_write()
    bench.keeper.unanswered("nodes", "it waits for a lock")
    view = bench.keeper.view()
    assert view.state is LeaseState.SERVING
    assert view.lag_ms < LEASE_MS
    assert (view.report_waits_ms, view.report_waits_for) == (3 * LEASE_MS, "it waits for a lock")
    assert view.failure == ""
    bench.nodes.holds.set()
    bench.until(lambda: len(bench.nodes.reported) > count)
    bench.until(lambda: not bench.keeper.view().report_waits_ms)
    assert bench.keeper.view().report_waits_for == ""
    bench.keeper.stop()


def test_reports_that_fail_are_one_wait_until_one_is_answered(bench: Bench) -> None:
    """The connection was left because it said nothing, again and again."""
    bench.serve()
    bench.until(lambda: bool(bench.nodes.reported))
    bench.nodes.fails = OutcomeUnknown("the connection was lost")
    bench.advance(1_100)
    bench.until(lambda: bench.keeper.failures == 1)
    before = bench.keeper.view().report_waits_ms
    for _ in range(6):
        bench.advance(600)
    view = bench.keeper.view()
    assert view.report_waits_ms == before + 3_600
    assert view.report_waits_for == "the connection was lost"
    bench.nodes.fails = None
    bench.advance(1_100)
    bench.until(lambda: not bench.keeper.view().report_waits_ms)
    assert bench.keeper.view().report_waits_for == ""
    bench.keeper.stop()


def test_a_request_that_is_done_while_a_report_waits_is_taken_off_by_the_next_one(bench: Bench) -> None:
    bench.serve()
    bench.until(lambda: bool(bench.nodes.reported))
    bench.nodes.asked = REQUEST_MOVE
    bench.advance(1_100)
    bench.until(lambda: bench.keeper.view().asked == REQUEST_MOVE)
    bench.nodes.holds = threading.Event()
    bench.advance(1_100)
    assert bench.nodes.begun.wait(SECONDS_MAX)
    bench.keeper.has_done(REQUEST_MOVE)
    bench.nodes.holds.set()  # it brings the request once more
    bench.until(lambda: not bench.keeper.view().report_waits_ms)
    assert bench.keeper.view().asked == ""
    bench.advance(300)
    bench.until(lambda: bench.nodes.asked == "")
    bench.keeper.stop()


def test_a_node_stops_although_its_report_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "JOIN_SECONDS_MAX", 0.1)
    bench.nodes.holds = threading.Event()
    bench.serve()
    assert bench.nodes.begun.wait(SECONDS_MAX)
    bench.keeper.withdraw()
    bench.keeper.drained()
    assert bench.keeper.wait_released(SECONDS_MAX), "the lease is given back"
    bench.keeper.stop()
    assert bench.table.calls[-1] == "close"
    assert bench.nodes.reported == []
    bench.nodes.holds.set()
