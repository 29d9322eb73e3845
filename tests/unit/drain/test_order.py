"""Which messages wait for an older one of their session: what the drain knows, what the plan sends, what a look costs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from azure.servicebus import exceptions as sdk
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.drain.lookups import older
from pairbus.drain.lookups.queue_view import goes_before
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen, SessionOrder
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.rules.restoring import ordering_of
from pairbus.pairing import parking
from pairbus.pairing.parking import Follows, Passport
from pairbus.sdk.failures import Failure
from tests.simulation.pair.model import original
from tests.unit.drain.shell_kit import Kit, LockingInbox, run
from tests.unit.drain.virtual_loop import VirtualLoop


def message(number: int, session: str | None = "s", queue: str = "q", **values: object) -> BacklogMessage:
    made = BacklogMessage(queue, number, "orders", b"x", f"m{number}", session, None, 60_000)
    made.is_ordered = session is not None
    for name, value in values.items():
        setattr(made, name, value)
    return made


def plan_with_all_accounted_for(window: int = 1_000, ready_max: int = 300) -> DrainPlan:
    plan = DrainPlan(window=window, ready_max=ready_max)
    plan.order.observed("q", (), (), 20)
    return plan


def batch_of(plan: DrainPlan) -> list[int]:
    return [one.sequence_number for one in plan.next_batch("orders", 0)]


# --- what is known ------------------------------------------------------------------------------------


def test_numbers_that_follow_each_other_leave_no_gap() -> None:
    order = SessionOrder()

    assert order.gaps("q", [1, 2, 3]) == []
    order.observed("q", (), {1, 2, 3}, 3)
    assert order.gaps("q", [4, 5]) == []
    assert order.gaps("q", [6, 7, 10]) == [(4, 6), (8, 10)]


def test_a_message_that_is_elsewhere_holds_up_younger_ones_of_its_session_alone() -> None:
    order = SessionOrder()
    order.observed("q", [Seen(3, "orders", "s"), Seen(4, "/Orders/", "t"), Seen(5, "events", "s")], {6, 7}, 7)

    assert order.older("q", 6, "orders", "s") == 3
    assert order.older("q", 2, "orders", "s") is None
    assert order.older("q", 6, "orders", "t") == 4
    assert order.older("q", 6, "orders", "u") is None
    assert order.older("other", 6, "orders", "s") is None
    order.observed_again("q", 3, 4, set())
    assert order.older("q", 6, "orders", "s") is None


def test_what_is_held_here_or_accepted_already_is_not_elsewhere() -> None:
    order = SessionOrder()
    order.at_home("q", 1)
    order.observed("q", [Seen(1, "orders", "s"), Seen(2, "orders", "s")], {2, 3}, 3)

    assert order.older("q", 3, "orders", "s") is None


# --- what is sent -------------------------------------------------------------------------------------


@pytest.mark.promise("P14")
def test_a_message_waits_for_an_older_one_and_others_pass_it() -> None:
    plan = DrainPlan()
    plan.order.observed("q", [Seen(1, "orders", "s")], {2, 3, 4, 5}, 5)
    for one in (message(2), message(3, "t"), message(4), message(5, None)):
        assert plan.add(one) is None

    assert batch_of(plan) == [3, 5]
    plan.send_accepted("orders")
    assert batch_of(plan) == []
    assert [one.sequence_number for one in plan.note_held_up("q")] == [2, 4]
    plan.add(message(1))
    assert batch_of(plan) == [1, 2, 4]


@pytest.mark.promise("P14")
def test_a_message_waits_until_everything_before_it_is_accounted_for() -> None:
    plan = DrainPlan()
    plan.add(message(4))
    plan.add(message(5, None))
    assert batch_of(plan) == [5]
    plan.send_accepted("orders")
    assert plan.waits_for_others("q") is None, "nobody is known to have older messages"

    plan.order.observed("q", [Seen(2, "orders", "t")], {4}, 4)
    assert batch_of(plan) == [4]


@pytest.mark.promise("P14")
def test_a_message_whose_lock_was_lost_is_waited_for_and_comes_back_to_its_place() -> None:
    plan = plan_with_all_accounted_for()
    first, second = message(1), message(2)
    plan.add(first)
    plan.add(second)

    assert plan.lock_lost(first)
    assert batch_of(plan) == []
    plan.add(message(1))
    assert batch_of(plan) == [1, 2]


@pytest.mark.promise("P14")
def test_a_message_that_follows_another_queue_holds_up_the_younger_ones() -> None:
    plan = plan_with_all_accounted_for()
    first = message(1, follows=(Follows("other", "f", 7),))
    for one in (first, message(2), message(3, "t")):
        plan.add(one)

    assert batch_of(plan) == [3]
    plan.send_accepted("orders")
    first.follows = ()
    assert batch_of(plan) == [1, 2]


def test_messages_that_wait_leave_half_of_the_window_to_others() -> None:
    plan = DrainPlan(window=4)
    plan.order.observed("q", [Seen(1, "orders", "s")], set(range(2, 20)), 20)
    for number in (2, 3):
        assert not plan.should_skip(message(number), 0)
        plan.add(message(number))

    assert plan.should_skip(message(4), 0)
    assert not plan.should_skip(message(5, "t"), 0)
    assert plan.capacity("q", 0) > 0


def test_messages_behind_one_that_waits_leave_room_for_those_without_a_session() -> None:
    plan = plan_with_all_accounted_for(window=8, ready_max=4)
    plan.add(message(1, follows=(Follows("other", "f", 7),)))
    plan.note_held_up("q")
    for number in (2, 3, 4):
        assert not plan.should_skip(message(number), 0)
        plan.add(message(number))

    assert plan.capacity("q", 0) == 4
    assert plan.should_skip(message(5), 0)
    assert not plan.should_skip(message(6, None), 0)


def test_the_oldest_messages_that_wait_are_held_and_the_others_come_again_when_there_is_room() -> None:
    plan = plan_with_all_accounted_for(window=8)
    followed = (Follows("other", "f", 7),)
    held = [message(number, f"s{number}", follows=followed) for number in (2, 3, 4, 5)]
    for one in held:
        plan.add(one)

    younger = plan.youngest_to_leave(message(1, "s1", follows=followed), 0)
    assert younger is held[-1]
    plan.add(message(1, "s1", follows=followed))
    assert plan.should_skip(message(6, "s6", follows=followed), 0)
    held[0].follows = ()
    assert plan.take_to_receive_again("q", 0) == []
    assert plan.should_skip(message(7, "s5"), 0)
    for one in held:
        one.follows = ()
    assert plan.take_to_receive_again("q", 0) == [5, 6, 7]
    assert plan.take_to_receive_again("q", 0) == []


_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["receive", "send", "accept", "fail", "lose", "steal", "look"]), st.integers(0, 99)
    ),
    max_size=80,
)


@pytest.mark.promise("P14")
@settings(max_examples=150, deadline=None)
@given(sessions=st.lists(st.sampled_from("abc"), min_size=1, max_size=14), actions=_ACTIONS)
def test_whatever_happens_no_message_of_a_session_is_accepted_before_an_older_one(
    sessions: list[str], actions: list[tuple[str, int]]
) -> None:
    """A queue, this plan and another drain that takes what is free: answers and losses come in any order."""
    plan = DrainPlan(window=8)
    there = dict(enumerate(sessions, 1))
    held: dict[int, BacklogMessage] = {}
    flying: list[BacklogMessage] = []
    others: set[int] = set()
    arrived: list[int] = []

    def receive(count: int) -> None:
        free = [number for number in there if number not in held and number not in others][: 1 + count % 4]
        got = [message(number, there[number]) for number in free]
        if not got:
            return
        mine = {one.sequence_number for one in got} | set(held)
        gaps = plan.order.gaps("q", mine)
        seen = [Seen(number, "orders", there[number]) for a, b in gaps for number in there if a <= number < b]
        plan.order.observed("q", seen, mine, max(free))
        for one in got:
            if not plan.should_skip(one, 0):
                plan.add(one)
                held[one.sequence_number] = one

    for name, pick in actions:
        waiting = [one for one in held.values() if not one.is_in_flight]
        free = [number for number in there if number not in held and number not in others]
        if name == "receive":
            receive(pick)
        elif name == "send" and not flying:
            flying = plan.next_batch("orders", 10**9)
        elif name == "accept" and flying:
            for one in plan.send_accepted("orders"):
                arrived.append(one.sequence_number)
                del there[one.sequence_number], held[one.sequence_number]
            flying = []
        elif name == "fail" and flying:
            plan.send_failed("orders", Failure.TIMEOUT, "why", 0)
            flying = []
        elif name == "lose" and waiting:
            lost = waiting[pick % len(waiting)]
            assert plan.lock_lost(lost)
            del held[lost.sequence_number]
        elif name == "steal" and free:
            others.add(free[pick % len(free)])
        elif name == "look" and others:
            # The other drain delivers the oldest it has, if it is the oldest of its session there, and this one looks.
            number = min(others)
            if number == min(one for one in there if there[one] == there[number]):
                arrived.append(number)
                del there[number]
            others.discard(number)
            plan.order.observed_again("q", 1, 100, set(there))

    for session in set(sessions):
        of_it = [number for number in arrived if sessions[number - 1] == session]
        assert of_it == sorted(of_it), f"session {session} arrived as {of_it}"
        left = [number for number in there if there[number] == session]
        assert not of_it or not left or max(of_it) < min(left), f"{of_it} arrived before {left}"


# --- which messages are in order ------------------------------------------------------------------------


def restored(session: str | None, order: str = "relaxed", **values: object) -> parking.Restored:
    passport = Passport("f", 1, 1, "r", order=order, **values)  # type: ignore[arg-type]
    return parking.restore(
        parking.park(original(1, session, has_alias_name=False, has_life=False), "orders", passport), 0
    )


def test_a_message_of_an_ordered_client_is_in_order_whatever_the_drain_was_told() -> None:
    assert ordering_of(restored("s", "session"), "q", "relaxed") == (True, ())
    assert ordering_of(restored("s"), "q", "session") == (True, ())
    assert ordering_of(restored("s"), "q", "relaxed") == (False, ())
    assert ordering_of(restored(None, "session"), "q", "session") == (False, ())


def test_a_message_follows_other_queues_and_not_its_own() -> None:
    follows = (Follows("a", "f", 3), Follows("b"))

    assert ordering_of(restored("s", "session", follows=follows), "b", "relaxed") == (True, follows[:1])


@pytest.mark.parametrize(
    ("seen", "follows", "expected"),
    [
        (Seen(1, "orders", "s", 5, Passport("f", 1, 3, "r").text()), Follows("q", "f", 3), True),
        (Seen(1, "orders", "s", 5, Passport("f", 1, 4, "r").text()), Follows("q", "f", 3), False),
        (Seen(1, "orders", "s", 5, Passport("g", 1, 3, "r").text()), Follows("q", "f", 3), False),
        (Seen(1, "orders", "t", 5, Passport("f", 1, 3, "r").text()), Follows("q", "f", 3), False),
        (Seen(1, "events", "s", 5, Passport("f", 1, 3, "r").text()), Follows("q", "f", 3), False),
        (Seen(1, "orders", "s", 5, "no passport"), Follows("q", "f", 3), False),
        (Seen(1, "orders", "s", 5, ""), Follows("q"), True),
        (Seen(1, "orders", "s", 11, ""), Follows("q"), False),
    ],
)
def test_what_goes_before_a_message_of_another_queue(seen: Seen, follows: Follows, expected: bool) -> None:
    assert goes_before(seen, message(9, enqueued_ms=10), follows) is expected


@pytest.mark.promise("P15")
@pytest.mark.parametrize(("number", "expected"), [(4, True), (5, False), (6, False)])
def test_a_message_waits_for_no_copy_of_itself_and_for_nothing_later(number: int, expected: bool) -> None:
    """The copies would wait for each other: a drain holds only one of them at a time."""
    waiting = message(9, enqueued_ms=10)
    waiting.detour = ("f", 5, 1)

    seen = Seen(1, "orders", "s", 5, Passport("f", 1, number, "r").text())

    assert goes_before(seen, waiting, Follows("q")) is expected


# --- the shell ------------------------------------------------------------------------------------------


def put(inbox: LockingInbox, number: int, session: str, **values: object) -> None:
    passport = Passport("f", 1, number, "r", order="session", **values)  # type: ignore[arg-type]
    payload = parking.park(
        original(number, session, has_alias_name=False, has_life=False), "orders", passport
    )
    inbox.stored[number] = (inbox.delivery(number, payload), 0)


def sent(kit: Kit) -> list[int]:
    return [number for _, numbers in kit.outlet.sent for number in numbers]


def inbox_of(kit: Kit, index: int = 0) -> LockingInbox:
    inbox = kit.inboxes[index]
    assert isinstance(inbox, LockingInbox)
    return inbox


def test_a_queue_that_one_drain_empties_costs_no_look_and_another_one_page(loop: VirtualLoop) -> None:
    async def from_the_first(kit: Kit) -> None:
        for number in range(1, 301):
            put(inbox_of(kit), number, f"s{number % 7}")
        await kit.run_for(10)

    async def from_the_middle(kit: Kit) -> None:
        for number in range(1_001, 1_301):
            put(inbox_of(kit), number, f"s{number % 7}")
        await kit.run_for(10)

    assert run(loop, 1, from_the_first, locking=True).counters.order_looks == 0
    later = run(loop, 1, from_the_middle, locking=True)
    assert later.counters.order_looks == 1
    assert sent(later) == list(range(1_001, 1_301))


@pytest.mark.promise("P14")
def test_a_message_that_a_killed_drain_has_locked_is_not_overtaken(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = inbox_of(kit)
        for number, session in ((1, "s"), (2, "s"), (3, "t"), (4, "s")):
            put(inbox, number, session)
        inbox.stored[1] = (inbox.stored[1][0], 50_000)  # its drain is gone, its lock is not
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(40)
        assert sent(kit) == [3]
        await asyncio.sleep(40)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work, locking=True)

    assert sent(kit) == [3, 1, 2, 4]
    assert kit.counters.order_looks < 25
    assert sorted(kit.inboxes[0].completed) == [1, 2, 3, 4]


@pytest.mark.promise("P14")
def test_a_message_that_another_drain_delivers_frees_the_younger_ones(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = inbox_of(kit)
        for number in (1, 2, 3):
            put(inbox, number, "s")
        inbox.stored[1] = (inbox.stored[1][0], 10**9)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(20)
        assert sent(kit) == []
        del inbox.stored[1]
        await asyncio.sleep(6)
        assert sent(kit) == [2, 3]
        kit.syphon.stop()
        await task

    run(loop, 1, work, locking=True)


@pytest.mark.promise("P14")
def test_a_message_that_fails_for_now_holds_up_its_session_and_no_other_destination(
    loop: VirtualLoop,
) -> None:
    async def work(kit: Kit) -> None:
        inbox = inbox_of(kit)
        for number in range(1, 6):
            put(inbox, number, "s")
        kit.outlet.answer = lambda path, messages: (
            sdk.ServiceBusServerBusyError() if loop.now_ms() < 30_000 else None
        )
        await kit.run_for(60)

    assert sent(run(loop, 1, work, locking=True)) == [1, 2, 3, 4, 5]


@pytest.mark.promise("P14")
def test_a_message_that_is_set_aside_lets_its_session_go_on_and_says_so(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = inbox_of(kit)
        for number in (1, 2, 3):
            put(inbox, number, "s")
        kit.outlet.answer = lambda path, messages: (
            sdk.MessageSizeExceededError() if any(one.sequence_number == 2 for one in messages) else None
        )
        await kit.run_for(60)

    kit = run(loop, 1, work, locking=True)

    assert sent(kit) == [1, 3]
    assert [text for kind, text in kit.events if kind == "set aside"] == [
        "TooLargeForDestination: session 's' goes on without it"
    ]


@pytest.mark.promise("P14")
def test_a_session_that_moved_waits_for_its_former_queue(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        old, new = inbox_of(kit), inbox_of(kit, 1)
        put(old, 1, "s")
        put(old, 2, "s")
        old.stored[1] = (old.stored[1][0], 50_000)
        put(new, 3, "s", follows=(Follows(old.queue, "f", 2),))
        put(new, 4, "s")
        put(new, 5, "t")
        await kit.run_for(120)

    assert sent(run(loop, 2, work, locking=True)) == [5, 1, 2, 3, 4]


def test_a_message_follows_no_longer_than_allowed_and_the_drain_says_so_once(
    loop: VirtualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(kit: Kit) -> None:
        old, new = inbox_of(kit), inbox_of(kit, 1)
        put(old, 1, "s")
        old.stored[1] = (old.stored[1][0], 10**9)
        put(new, 3, "s", follows=(Follows(old.queue, "f", 2),))
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(295)
        assert sent(kit) == []
        await asyncio.sleep(20)
        assert sent(kit) == [3]
        kit.syphon.stop()
        await task

    kit = run(loop, 2, work, locking=True)

    assert not [record for record in caplog.records if "delivered now" in record.getMessage()], "said twice"
    assert [text for kind, text in kit.events if kind == "order given up"] == [
        "message 3 of p/x-servicebus-transfer/1 has waited 300 s for older messages of 's' in "
        "p/x-servicebus-transfer/0: it is delivered now, and they may arrive after it"
    ]


def test_a_message_is_followed_as_long_as_others_come_from_that_queue(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        old, new = inbox_of(kit), inbox_of(kit, 1)
        put(old, 1, "s")
        put(old, 2, "t")
        old.stored[1] = (old.stored[1][0], 450_000)
        old.stored[2] = (old.stored[2][0], 200_000)
        put(new, 3, "s", follows=(Follows(old.queue, "f", 2),))
        await kit.run_for(600)

    assert sent(run(loop, 2, work, locking=True)) == [2, 1, 3]


def test_a_queue_that_is_gone_is_not_waited_for_and_one_that_does_not_answer_is(loop: VirtualLoop) -> None:
    async def work(kit: Kit, error: Exception) -> None:
        new = inbox_of(kit, 1)

        def fail(queue: str) -> None:
            if queue != new.queue:
                raise error

        new.on_browse = fail
        put(new, 3, "s", follows=(Follows("gone", "f", 2),))
        await kit.run_for(60)

    gone = run(loop, 2, lambda kit: work(kit, sdk.MessagingEntityNotFoundError()), locking=True)
    away = run(loop, 2, lambda kit: work(kit, sdk.ServiceBusConnectionError()), locking=True)

    assert (sent(gone), sent(away)) == ([3], [])


def test_many_sessions_that_moved_are_looked_for_with_one_page(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        old, new = inbox_of(kit), inbox_of(kit, 1)
        for number in range(1, 101):
            put(old, number, f"s{number}")
            old.stored[number] = (old.stored[number][0], 20_000)
            put(new, 100 + number, f"s{number}", follows=(Follows(old.queue, "f", number),))
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(10)
        assert sent(kit) == []
        assert kit.counters.order_looks < 15
        await asyncio.sleep(30)
        kit.syphon.stop()
        await task

    assert sent(run(loop, 2, work, locking=True)) == list(range(1, 201))


def test_queues_that_follow_each_other_are_browsed_once_while_they_are_drained(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients did not know what the queues held, so that every message follows the other queue."""
    count, page = 2_000, 50
    monkeypatch.setattr(older, "PAGE", page)

    async def work(kit: Kit) -> None:
        for index, (inbox, other) in enumerate([(0, 1), (1, 0)]):
            queue = inbox_of(kit, inbox)
            for number in range(1, count + 1):
                name = number * 2 + index
                put(queue, name, f"s{name % 50}", follows=(Follows(inbox_of(kit, other).queue),))
                delivery, _ = queue.stored.pop(name)
                queue.stored[number] = (replace(delivery, sequence_number=number, enqueued_ms=name), 0)
        await kit.run_for(60)

    kit = run(loop, 2, work, locking=True)

    assert len(sent(kit)) == 2 * count
    assert kit.counters.order_looks < 2 * (2 * count // page), "not once for each window"
