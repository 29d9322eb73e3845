"""One Spark task's share of a drain: its budget, its rows, and the rules it shares with every other drain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from azure.servicebus import exceptions as sdk

from pairbus.drain.ports import LockLost
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.plan import SLOW_MS
from pairbus.drain.shell import BUDGET_STOP_SECONDS, Drain
from pairbus.pairing import parking
from pairbus.pairing.naming import PrimaryIdentity
from pairbus.pairing.parking import Passport
from pairbus.spark.drain.report import TIME_IS_UP
from pairbus.spark.drain.rows import LOCK_LOST, MOVED, SET_ASIDE, WAITING, LedgerRow
from pairbus.spark.drain.task import Rows, TaskSettings, task_drain
from tests.simulation.pair.model import original
from tests.unit.drain.shell_kit import FakeInbox, FakeOutlet, LockingInbox, Witness
from tests.unit.drain.virtual_loop import VirtualLoop

SETTINGS = TaskSettings(primary="", secondary="", seconds=10, idle_seconds=1)


class Share:
    """A task on false ports."""

    def __init__(self, loop: VirtualLoop, settings: TaskSettings, queues: int, *, locking: bool) -> None:
        self.loop = loop
        self.outlet = FakeOutlet()
        kind = LockingInbox if locking else FakeInbox
        self.inboxes = [kind(f"p/x-servicebus-transfer/{index}", loop) for index in range(queues)]
        witness = Witness(self.outlet)
        for inbox in self.inboxes:
            inbox.is_taken = witness.has
        self.rows = Rows(loop.now_ms)
        identity = PrimaryIdentity.make("here", settings.primary_aliases)
        self.drain: Drain = task_drain(
            settings,
            self.inboxes,
            witness,
            self.rows,
            identity=identity,
            clock=loop.now_ms,
            wall_clock=loop.now_ms,
        )

    def outcomes(self, outcome: str) -> list[int]:
        return [row.sequence_number for row in self.rows.rows if row.outcome == outcome]


def drained(
    loop: VirtualLoop,
    fill: Callable[[Share], None],
    settings: TaskSettings = SETTINGS,
    queues: int = 1,
    *,
    locking: bool = False,
) -> tuple[Share, float]:
    """Run a task to its end; returns it, and how many seconds it took."""

    async def main() -> tuple[Share, float]:
        share = Share(loop, settings, queues, locking=locking)
        fill(share)
        begun = loop.time()
        await share.drain.run()
        assert [claim for inbox in share.inboxes for claim in inbox.broken] == []
        return share, loop.time() - begun

    return loop.run_until_complete(main())


def put(count: int, path: str = "orders") -> Callable[[Share], None]:
    def fill(share: Share) -> None:
        for number in range(count):
            share.inboxes[number % len(share.inboxes)].put(number, path)

    return fill


def fails(path: str, error: BaseException) -> Callable[[str, Sequence[BacklogMessage]], BaseException | None]:
    return lambda to, _messages: error if to == path else None


@pytest.mark.promise("P34")
def test_a_task_ends_when_its_queues_are_empty_and_has_a_row_for_each_message(loop: VirtualLoop) -> None:
    share, seconds = drained(loop, put(250), queues=2)

    assert sorted(share.outcomes(MOVED)) == list(range(250))
    assert len(share.rows.rows) == 250
    assert seconds <= 2
    assert share.rows.rows[0] == replace(
        share.rows.rows[0], destination="orders", reason="", attempt=1, enqueued_ms=0
    )


@pytest.mark.promise("P38")
def test_a_task_whose_time_is_up_releases_what_it_holds_and_says_why(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        put(5, "away")(share)
        share.inboxes[0].put(9)
        share.outlet.answer = fails("away", sdk.ServiceBusConnectionError(message="nobody there"))

    share, seconds = drained(loop, fill)

    assert share.outcomes(MOVED) == [9]
    assert sorted(share.outcomes(WAITING)) == [0, 1, 2, 3, 4]
    assert {row.reason for row in share.rows.rows if row.outcome == WAITING} != {TIME_IS_UP}
    assert all("nobody there" in row.reason for row in share.rows.rows if row.outcome == WAITING)
    assert len(share.inboxes[0].given_back) == 5
    assert SETTINGS.seconds <= seconds <= SETTINGS.seconds + 1


@pytest.mark.promise("P36")
def test_a_task_waits_for_the_answer_to_its_last_send(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        put(3)(share)
        share.outlet.slow_s = SETTINGS.seconds + BUDGET_STOP_SECONDS / 3

    share, _ = drained(loop, fill)

    assert sorted(share.outcomes(MOVED)) == [0, 1, 2]


def test_a_task_receives_no_more_than_its_budget_of_messages(loop: VirtualLoop) -> None:
    share, seconds = drained(loop, put(50), replace(SETTINGS, messages_max=20))

    assert len(share.outcomes(MOVED)) == 20
    assert len(share.inboxes[0].waiting) == 30
    assert seconds < 1


def test_a_spent_budget_of_messages_does_not_wait_for_a_stalled_destination(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        put(1)(share)
        share.outlet.answer = fails("orders", sdk.ServiceBusConnectionError())

    share, seconds = drained(loop, fill, replace(SETTINGS, seconds=900, messages_max=1))

    assert share.outcomes(WAITING) == [0]
    assert seconds <= SLOW_MS / 1000


@pytest.mark.promise("P36")
def test_a_task_holds_no_more_than_its_window(loop: VirtualLoop) -> None:
    held: list[int] = []

    def fill(share: Share) -> None:
        put(60)(share)
        share.outlet.slow_s = 0.5
        original_receive = share.inboxes[0].receive

        async def receive(count: int, seconds: float) -> object:
            held.append(share.drain._plan.held(share.inboxes[0].queue) + count)
            return await original_receive(count, seconds)

        share.inboxes[0].receive = receive  # type: ignore[assignment, method-assign]

    drained(loop, fill, replace(SETTINGS, window=8, seconds=60))

    assert max(held) == 8


def test_a_queue_that_keeps_failing_is_given_up_and_reported(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        put(4)(share)

        async def broken(count: int, seconds: float) -> object:
            raise sdk.ServiceBusConnectionError(message="refused")

        share.inboxes[1].receive = broken  # type: ignore[assignment, method-assign]

    share, seconds = drained(loop, fill, replace(SETTINGS, seconds=600), queues=2)

    assert [problem.subject for problem in share.drain.problems()] == [share.inboxes[1].queue]
    assert sorted(share.outcomes(MOVED)) == [0, 2]
    assert seconds < 30


@pytest.mark.promise("P40")
def test_a_message_whose_lock_was_lost_after_the_send_is_counted_as_a_possible_repeat(
    loop: VirtualLoop,
) -> None:
    def fill(share: Share) -> None:
        put(2)(share)
        share.inboxes[0].loses_locks = True

    share, _ = drained(loop, fill)

    assert sorted(share.outcomes(LOCK_LOST)) == [0, 1]


# --- rules that every drain shares, and that tasks once lacked ---------------------------------------


def test_a_task_skips_messages_of_a_stalled_destination_to_reach_those_behind(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        for number in range(40):
            share.inboxes[0].put(number, "away")
        for number in range(40, 60):
            share.inboxes[0].put(number, "orders")
        share.outlet.answer = fails("away", sdk.ServiceBusConnectionError())

    share, _ = drained(loop, fill, replace(SETTINGS, window=10, seconds=60), locking=True)

    assert sorted(share.outcomes(MOVED)) == list(range(40, 60))
    assert set(share.outcomes(WAITING)) <= set(range(40))


def test_a_task_releases_what_it_skipped_when_it_ends(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        for number in range(20):
            share.inboxes[0].put(number, "away")
        share.inboxes[0].put(30, "orders")
        share.outlet.answer = fails("away", sdk.ServiceBusConnectionError())

    share, _ = drained(loop, fill, replace(SETTINGS, window=10, seconds=20), locking=True)

    assert share.outcomes(MOVED) == [30]
    assert len(share.inboxes[0].given_back) >= 15, "more than the window of 10 was locked"


@pytest.mark.promise("P36")
def test_a_task_sends_one_of_two_copies_of_a_parked_message(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        share.inboxes[0].put(1, detour=7)
        share.inboxes[1].put(1, detour=7)

    share, _ = drained(loop, fill, replace(SETTINGS, seconds=100), queues=2, locking=True)

    assert [numbers for _, numbers in share.outlet.sent] == [[1]]


@pytest.mark.promise("P36")
def test_a_task_asks_the_destination_before_it_repeats_a_send_without_an_answer(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        inbox = share.inboxes[0]
        inbox.lock_ms = 2_000
        inbox.put(1)

        async def send(_path: str, messages: Sequence[BacklogMessage]) -> None:
            share.outlet.known.add(messages[0].message_id)
            raise sdk.OperationTimeoutError

        async def renew(_message: BacklogMessage) -> int:
            raise LockLost

        share.outlet.send = send  # type: ignore[assignment, method-assign]
        inbox.renew = renew  # type: ignore[assignment, method-assign]

    share, _ = drained(loop, fill, replace(SETTINGS, seconds=60), locking=True)

    assert share.outlet.questions == 1
    assert share.outcomes(MOVED) == [1]


@pytest.mark.promise("P12")
@pytest.mark.parametrize(("aliases", "outcome"), [((), SET_ASIDE), (("there",), MOVED)])
def test_a_task_dead_letters_messages_of_another_primary(
    loop: VirtualLoop, aliases: tuple[str, ...], outcome: str
) -> None:
    def fill(share: Share) -> None:
        inbox = share.inboxes[0]
        passport = Passport("f", 0, 1, "r", primary="there")
        payload = parking.park(original(1, None, has_alias_name=False, has_life=False), "orders", passport)
        inbox.waiting.append(inbox.delivery(1, payload))

    share, _ = drained(loop, fill, replace(SETTINGS, primary_aliases=aliases))

    assert [row.outcome for row in share.rows.rows] == [outcome]


def test_settings_come_out_of_json_as_they_went_in() -> None:
    settings = TaskSettings(
        primary="p-secret",
        secondary="s-secret",
        seconds=3,
        window=7,
        not_found="wait",
        time_to_live="deduct",
        primary_aliases=("a", "b:5671"),
        order="session",
        authorities="pem",
    )

    text = settings.as_json()

    assert "secret" not in text
    assert TaskSettings.from_json(text, "p-secret", "s-secret") == settings


def test_a_row_has_the_number_of_the_delivery(loop: VirtualLoop) -> None:
    def fill(share: Share) -> None:
        put(1)(share)
        inbox = share.inboxes[0]
        inbox.waiting = [replace(delivery, attempt=3) for delivery in inbox.waiting]

    share, _ = drained(loop, fill)

    (row,) = share.rows.rows
    assert row == LedgerRow(share.inboxes[0].queue, 0, "m0", "orders", MOVED, "", 0, row.finished_ms, 3)
