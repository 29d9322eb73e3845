"""The rules of ``order="session"``, by example. Whole days of them are in ``tests/simulation/pair/ordered.py``."""

from __future__ import annotations

import random

import pytest

from pairbus import SessionFencedError
from pairbus.pairing.parking import Follows
from pairbus.pairing.rules.order import HOLD_MS, OrderBook
from pairbus.pairing.rules.order_values import UNKNOWN, Key, Oldest, Route, Seen, earlier, queue_order
from pairbus.pairing.rules.rotation import Rotation
from pairbus.pairing.rules.send_order import SendOrder

QUEUES = [f"p/x-servicebus-transfer/{index}" for index in range(3)]
KEY: Key = ("orders", "a")
HOME, SECOND, THIRD = queue_order(KEY, QUEUES)


def paired(policy: str = "wait", timeout_ms: int = 1_000) -> OrderBook:
    """A book of a client that has looked through all queues and found nothing."""
    book = OrderBook(timeout_ms, policy)
    book.paired(QUEUES, 0, 0)
    for queue in book.wanted():
        look(book, queue)
    return book


def rotation() -> Rotation:
    return Rotation(QUEUES, 1_000, random.Random(1))


def look(book: OrderBook, queue: str, *seen: Seen, is_complete: bool = True, now: int = 0) -> list[Key]:
    """A look that shows these messages. Returns the sessions that are lifted."""
    one = book.begin_look(queue)
    for message in seen:
        one.saw(message, "me")
    one.is_complete = is_complete
    return book.end_look(one, now).lifted


def message(number: int, factory: str = "me", key: Key = KEY, sent_ms: int = 5) -> Seen:
    return Seen(key, f"m{number}", factory, number, sent_ms)


def accept(book: OrderBook, queue: str, number: int, generation: int = 0, now: int = 0) -> None:
    oldest = Oldest(f"m{number}", queue, 5)
    book.accepted(KEY, queue, Follows(queue, "me", number), generation, oldest, now)


def failed_over() -> OrderBook:
    book = paired()
    book.failed_over("orders", 10)
    return book


def test_the_queue_of_a_session_is_the_same_in_every_process() -> None:
    assert queue_order(("orders", "session-1"), QUEUES) == [QUEUES[2], QUEUES[0], QUEUES[1]]
    assert queue_order(("orders", "session-1"), QUEUES[::-1])[0] == QUEUES[2]
    homes = {queue_order(("orders", f"s{number}"), QUEUES)[0] for number in range(50)}
    assert homes == set(QUEUES)


def test_without_one_queue_only_its_own_sessions_go_elsewhere() -> None:
    for number in range(50):
        before = queue_order(("orders", f"s{number}"), QUEUES)
        after = queue_order(("orders", f"s{number}"), [queue for queue in QUEUES if queue != HOME])
        assert after == [queue for queue in before if queue != HOME]


@pytest.mark.promise("P15")
def test_a_healthy_client_that_has_seen_all_queues_asks_nothing() -> None:
    book = paired()

    assert not book.is_busy
    assert book.wanted() == []
    assert book.route(KEY) is Route.DIRECT


@pytest.mark.promise("P15")
def test_until_all_queues_are_seen_a_session_is_parked() -> None:
    book = OrderBook(1_000, "wait")
    book.paired(QUEUES, 0, 0)
    assert book.route(KEY) is Route.PARK

    for queue in (HOME, SECOND):
        look(book, queue)
    assert book.route(KEY) is Route.PARK, "a client before may have moved it to the third"
    look(book, THIRD, is_complete=False)
    assert book.route(KEY) is Route.PARK
    look(book, THIRD)
    assert book.route(KEY) is Route.DIRECT


@pytest.mark.promise("P15")
def test_a_session_that_somebody_has_parked_is_fenced_at_pairing() -> None:
    book = OrderBook(1_000, "wait")
    book.paired(QUEUES, 0, 0)
    for queue in QUEUES:
        look(book, queue, *([message(7, "other")] if queue == HOME else []))

    assert book.route(KEY) is Route.PARK
    assert book.route(("orders", "b")) is Route.DIRECT
    assert book.plan(KEY, rotation(), ())[0] == HOME
    assert look(book, HOME) == [KEY]
    assert book.route(KEY) is Route.DIRECT
    assert not book.is_busy


@pytest.mark.promise("P15")
def test_after_failback_a_session_is_parked_until_a_look_shows_none_of_it() -> None:
    book = failed_over()
    accept(book, HOME, 1)
    assert book.wanted() == []
    assert book.recovered("orders", 20, 20) == [KEY]

    assert book.route(KEY) is Route.PARK
    assert look(book, HOME, message(1)) == []
    assert book.route(KEY) is Route.PARK
    assert look(book, HOME) == [KEY]
    look(book, SECOND)
    look(book, THIRD)
    assert book.route(KEY) is Route.DIRECT


@pytest.mark.promise("P15")
def test_a_look_that_began_before_a_message_was_parked_lifts_nothing() -> None:
    book = failed_over()
    accept(book, HOME, 1)
    book.recovered("orders", 20, 20)
    stale = book.begin_look(HOME)
    accept(book, HOME, 2)
    stale.is_complete = True

    assert book.end_look(stale, 30).lifted == []
    assert book.route(KEY) is Route.PARK


@pytest.mark.promise("P15")
def test_a_look_that_began_before_failback_does_not_count_for_it() -> None:
    book = failed_over()
    early = book.begin_look(HOME)
    book.recovered("orders", 20, 20)
    early.is_complete = True
    book.end_look(early, 20)

    assert book.route(KEY) is Route.PARK


@pytest.mark.promise("P15")
def test_a_session_whose_queue_fails_follows_what_it_left_there() -> None:
    book, queues = failed_over(), rotation()
    accept(book, HOME, 1)
    accept(book, HOME, 2)
    queues.refused(HOME, 0, "full")

    queue, follows, generation = book.plan(KEY, queues, ())
    assert (queue, follows) == (SECOND, (Follows(HOME, "me", 2),))
    assert book.plan(KEY, queues, ())[1] == follows, "until one that says so is accepted"
    accept(book, SECOND, 3, generation)
    assert book.plan(KEY, queues, ())[:2] == (SECOND, ())
    queues.accepted(HOME)
    assert book.plan(KEY, queues, ())[0] == SECOND, "it does not move back while messages are there"


@pytest.mark.promise("P15")
def test_sessions_spread_again_when_all_queues_are_back_and_follow_nothing_then() -> None:
    book, queues = failed_over(), rotation()
    sessions: list[Key] = [("orders", f"s{number}") for number in range(30)]
    homes = {key: queue_order(key, QUEUES)[0] for key in sessions}
    for number, key in enumerate(sessions, 1):
        last = Follows(homes[key], "me", number)
        book.accepted(key, homes[key], last, 0, Oldest(f"m{number}", homes[key], 5), 0)
    for key in sessions:
        # Each of them is tried in every queue, and accepted by none.
        tried: list[str] = []
        while (queue := book.plan(key, queues, tried)[0]) is not None:
            queues.refused(queue, 10, "away", has_answered=False)
            tried.append(queue)
        assert sorted(tried) == QUEUES
        assert tried[0] == homes[key]

    assert book.plan(sessions[0], queues, ())[0] == homes[sessions[0]], "where its messages are"
    assert set(queues.accepted(homes[sessions[0]])) == set(QUEUES)
    for key in sessions:
        assert book.plan(key, queues, ())[:2] == (homes[key], ())


@pytest.mark.promise("P15")
def test_before_the_secondary_has_answered_once_sessions_do_not_go_to_the_primary() -> None:
    book = OrderBook(1_000, "wait")
    book.paired([], 0, 0)
    assert book.route(KEY) is Route.PARK
    assert book.wanted() == []
    assert book.plan(KEY, Rotation([], 1_000, random.Random(1)), ())[0] is None
    assert book.expire(1_000) == ([], [UNKNOWN])

    book.paired(QUEUES, 2_000, 2_000)
    assert book.plan(KEY, rotation(), ())[:2] == (
        HOME,
        tuple(Follows(one) for one in sorted([SECOND, THIRD])),
    )
    for queue in QUEUES:
        look(book, queue)
    assert book.route(KEY) is Route.DIRECT
    assert not book.is_busy


@pytest.mark.promise("P15")
def test_a_message_that_the_old_queue_accepts_late_is_followed_too() -> None:
    book, queues = failed_over(), rotation()
    accept(book, HOME, 1)
    queues.refused(HOME, 0, "full")
    _, _, generation = book.plan(KEY, queues, ())
    accept(book, SECOND, 3, generation)
    accept(book, HOME, 2)

    assert book.plan(KEY, queues, ())[:2] == (SECOND, (Follows(HOME, "me", 2),))


def test_a_message_that_says_less_than_it_should_ends_nothing() -> None:
    book, queues = failed_over(), rotation()
    accept(book, HOME, 1)
    queues.refused(HOME, 0, "full")
    _, _, generation = book.plan(KEY, queues, ())
    accept(book, HOME, 2)
    accept(book, SECOND, 3, generation)

    assert book.plan(KEY, queues, ())[1] == (Follows(HOME, "me", 2),)


def test_a_message_with_a_lower_number_than_what_it_follows_ends_nothing() -> None:
    book, queues = failed_over(), rotation()
    accept(book, HOME, 4)
    queues.refused(HOME, 0, "full")
    _, follows, generation = book.plan(KEY, queues, ())
    assert earlier(follows, "me", 2) == (Follows(HOME, "me", 1), Follows(HOME))
    accept(book, SECOND, 2, generation)
    assert book.plan(KEY, queues, ())[1] == (Follows(HOME, "me", 4),)
    accept(book, SECOND, 5, generation)
    assert book.plan(KEY, queues, ())[1] == ()


@pytest.mark.promise("P15")
def test_a_message_with_a_lower_number_follows_those_of_others_all_the_same() -> None:
    book, queues = OrderBook(1_000, "wait"), rotation()
    book.paired(QUEUES, 0, 0)
    look(book, HOME, message(32, "before"))
    look(book, SECOND)
    look(book, THIRD)
    accept(book, HOME, 2)

    # The send of 1 overlaps with that of 2, which is behind those of the client before.
    assert Follows(HOME) in earlier(book.plan(KEY, queues, {HOME})[1], "me", 1)


@pytest.mark.promise("P15")
def test_a_message_with_a_lower_number_follows_what_a_later_one_has_followed_for_it() -> None:
    book, queues = failed_over(), rotation()
    accept(book, HOME, 1)
    _, _, generation = book.plan(KEY, queues, {HOME})
    accept(book, SECOND, 3, generation)
    assert book.plan(KEY, queues, ())[1] == (), "those behind it need not say so"

    # The send of 2 overlaps with that of 3, and the queue that has accepted 3 refuses it.
    queues.refused(HOME, 0, "full")
    queues.refused(SECOND, 0, "full")
    (planned,) = SendOrder(book, "orders", "orders", ["a"], 0).planned(THIRD, queues, ())
    assert planned.follows == (Follows(SECOND, "me", 3),)
    said = set(earlier(planned.follows, "me", 2, planned.held))
    assert said == {Follows(HOME, "me", 1), Follows(SECOND, "me", 1), Follows(SECOND)}
    assert earlier(planned.follows, "me", 4, planned.held) == planned.follows


@pytest.mark.promise("P15")
def test_the_fence_of_a_session_in_two_queues_is_lifted_when_both_are_empty() -> None:
    book, queues = failed_over(), rotation()
    accept(book, HOME, 1)
    queues.refused(HOME, 0, "full")
    accept(book, SECOND, 2, book.plan(KEY, queues, ())[2])
    book.recovered("orders", 20, 20)

    assert look(book, SECOND) == []
    assert book.plan(KEY, queues, ())[:2] == (SECOND, (Follows(HOME, "me", 1),))
    assert look(book, HOME) == [KEY]


def test_a_queue_that_was_never_seen_is_followed_as_a_whole() -> None:
    book, queues = OrderBook(1_000, "wait"), rotation()
    book.paired(QUEUES, 0, 0)
    queues.refused(HOME, 0, "away")

    assert book.plan(KEY, queues, ())[:2] == (SECOND, tuple(Follows(name) for name in sorted([HOME, THIRD])))
    assert paired().plan(KEY, queues, ())[:2] == (SECOND, ())


@pytest.mark.promise("P15")
def test_sends_of_a_session_that_never_rests_wait_for_its_last_messages() -> None:
    book = failed_over()
    accept(book, HOME, 1)
    book.recovered("orders", 20, 20)
    send = SendOrder(book, "orders", "orders", ["a"], 0)
    look(book, HOME, message(1), now=30)
    assert send.held_ms(31) == 0, "it may be without a parked message by itself"
    accept(book, HOME, 2, now=40)
    look(book, HOME, message(2), now=50)
    assert send.held_ms(1_050) == HOLD_MS - 1_000
    assert SendOrder(book, "orders", "orders", ["a", "b"], 0).held_ms(1_050) == 0, (
        "the other is not known yet"
    )
    assert book.is_holding(1_050)
    accept(book, HOME, 3, now=5_000)
    look(book, HOME, message(3), now=5_000)
    assert send.held_ms(5_000) == 0, "not again so soon"
    look(book, HOME, now=5_100)
    for queue in (SECOND, THIRD):
        look(book, queue)
    assert not send.must_park()


@pytest.mark.promise("P15")
def test_a_session_that_was_met_in_one_queue_follows_those_that_are_not_seen_yet() -> None:
    book, queues = OrderBook(1_000, "wait"), rotation()
    book.paired(QUEUES, 0, 0)
    look(book, HOME, message(7, "before"))
    look(book, SECOND)

    assert book.plan(KEY, queues, ())[:2] == (HOME, (Follows(THIRD),))
    look(book, THIRD, message(9, "before"))
    assert book.plan(KEY, queues, ())[:2] == (HOME, (Follows(THIRD, "before", 9),))


@pytest.mark.promise("P15")
def test_a_look_that_did_not_come_to_the_end_does_not_say_which_message_is_the_last() -> None:
    book, queues = OrderBook(1_000, "wait"), rotation()
    book.paired(QUEUES, 0, 0)
    look(book, HOME, message(7, "before"))
    look(book, THIRD)
    look(book, SECOND, message(9, "before"), is_complete=False)
    _, follows, generation = book.plan(KEY, queues, ())
    assert follows == (Follows(SECOND),), "there may be more behind the one that was seen"

    look(book, SECOND, message(9, "before"), message(10, "before"))
    accept(book, HOME, 1, generation)
    assert book.plan(KEY, queues, ())[:2] == (HOME, ()), "later ones are behind the one that says so"


@pytest.mark.promise("P15")
def test_a_session_that_leaves_a_queue_which_was_not_seen_to_the_end_follows_all_of_it() -> None:
    book, queues = OrderBook(1_000, "wait"), rotation()
    book.paired(QUEUES, 0, 0)
    look(book, HOME, message(7, "before"), is_complete=False)
    look(book, SECOND)
    look(book, THIRD)
    queues.refused(HOME, 0, "full")

    assert book.plan(KEY, queues, ())[:2] == (SECOND, (Follows(HOME),))


@pytest.mark.parametrize(
    ("policy", "route"), [("wait", Route.PARK), ("raise", Route.REFUSE), ("overtake", Route.DIRECT)]
)
def test_at_its_bound_a_fence_follows_the_policy(policy: str, route: Route) -> None:
    book = paired(policy)
    book.failed_over("orders", 10)
    accept(book, HOME, 1)
    book.recovered("orders", 100, 100)

    assert book.expire(1_099) == ([], [])
    assert book.route(KEY) is Route.PARK
    sessions, queues = book.expire(1_100)
    assert (sessions, sorted(queues)) == ([KEY], sorted(QUEUES))
    assert book.expire(1_200) == ([], []), "it is told once"
    assert book.route(KEY) is route
    assert book.route(("orders", "b")) is route, "it may be in a queue that is unseen"
    book.failed_over("orders", 2_000)
    book.recovered("orders", 3_000, 3_000)
    assert book.route(KEY) is Route.PARK, "the next failback begins a new fence"


def test_a_refused_send_names_the_oldest_message() -> None:
    book = paired("raise")
    book.failed_over("orders", 10)
    accept(book, HOME, 1)
    book.recovered("orders", 100, 100)
    book.expire(5_000)
    send = SendOrder(book, "Orders", "orders", [None, "a"], wall_offset_ms=0)

    refusal = send.refusal(6_005)
    assert isinstance(refusal, SessionFencedError)
    assert (refusal.session, refusal.message_id, refusal.age_ms, refusal.queue) == ("a", "m1", 6_000, HOME)
    assert "6 s old" in str(refusal)
    assert "(`pairbus syphon`) until the message has left" in str(refusal)
    assert "pairbus backlog" not in str(refusal), "it removes no message that was not dead-lettered"
    assert SendOrder(book, "Orders", "orders", ["b"], 0).refusal(6_005) is not None, "its queue is unseen"


def test_messages_of_a_list_go_to_the_queues_of_their_sessions() -> None:
    book, queues = failed_over(), rotation()
    keys = [f"s{number % 5}" for number in range(20)]
    send = SendOrder(book, "orders", "orders", [*keys, None], 0)
    gone: dict[str, list[int]] = {}
    while send.left:
        queue = send.next_queue(queues, ())
        assert queue is not None
        planned = [one.index for one in send.planned(queue, queues, ())]
        gone.setdefault(queue, []).extend(planned)
        send.left = [index for index in send.left if index not in planned]

    for queue, indexes in gone.items():
        assert indexes == sorted(indexes)
        assert {queue_order(("orders", keys[index]), QUEUES)[0] for index in indexes if index < 20} <= {queue}


@pytest.mark.promise("P15")
def test_it_is_told_when_another_client_parked_a_session_that_this_one_sent() -> None:
    book = paired()
    book.is_failing("orders", 500)
    book.failed_over("orders", 600)
    for key in (KEY, ("orders", "b")):
        book.accepted(key, HOME, Follows(HOME, "me", 1), 0, Oldest("m", HOME, 650), 650)
    book.recovered("orders", 900, 900)
    crossing = book.begin_look(HOME)
    for seen in (message(1, "other", sent_ms=400), message(2, "other", ("orders", "b"), sent_ms=550)):
        crossing.saw(seen, "me")
    crossing.saw(message(3, "other", ("orders", "never ours"), sent_ms=400), "me")

    assert book.end_look(crossing, 950).crossed == [KEY], (
        "the others: parked while nobody could send, never sent"
    )

    again = book.begin_look(HOME)
    again.saw(message(3, "other", ("orders", "never ours"), sent_ms=400), "me")
    book.accepted(("orders", "never ours"), HOME, Follows(HOME, "me", 3), 0, Oldest("m", HOME, 960), 960)
    assert book.end_look(again, 970).crossed == [("orders", "never ours")], "now it was sent"


def test_beyond_a_bound_only_the_queue_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.pairing.rules.order.TRACKS_MAX", 0)
    book = paired()
    accept(book, HOME, 1)

    assert not book.is_tracked(KEY)
    assert book.route(KEY) is Route.PARK
    look(book, HOME)
    assert book.route(KEY) is Route.DIRECT


def test_the_oldest_message_of_an_entity_is_known() -> None:
    book = failed_over()
    assert book.oldest_of("orders") is None
    accept(book, HOME, 1)
    assert book.oldest_of("orders") == 5
    assert book.fenced("orders") == 0
    book.recovered("orders", 20, 20)
    look(book, HOME, message(9, sent_ms=77))
    assert book.oldest_of("orders") == 77
    assert book.fenced("orders") == 1


@pytest.mark.promise("P15")
def test_a_session_of_a_queue_that_is_not_used_is_fenced_and_follows_it_elsewhere() -> None:
    book = OrderBook(1_000, "wait")
    extra = "p/x-servicebus-transfer/3"
    book.paired(QUEUES, 0, 0, unused=[extra])
    for queue in QUEUES:
        look(book, queue)
    assert book.wanted() == [extra]
    look(book, extra, message(1, factory="earlier"))

    assert book.route(KEY) is Route.PARK
    home, follows, _ = book.plan(KEY, rotation(), ())
    assert home == HOME
    assert follows == (Follows(extra, "earlier", 1),)
    nothing = Rotation((), 1_000, random.Random(1))
    assert book.plan(KEY, nothing, ())[0] in (None, HOME), (
        "it takes no messages, also when no other queue does"
    )
    assert look(book, extra) == [KEY]
    assert book.route(KEY) is Route.DIRECT


def test_a_session_whose_queue_was_deleted_ends_without_having_arrived() -> None:
    book = failed_over()
    accept(book, HOME, 1)
    book.recovered("orders", 20, 20)
    for queue in (SECOND, THIRD):
        look(book, queue)

    assert book.queue_lost(HOME) == 1
    assert book.queue_lost(HOME) == 0, "told already"
    assert book.oldest(KEY) is None
    gone = book.begin_look(HOME)
    gone.is_complete = True
    report = book.end_look(gone, 30)

    assert (report.lifted, report.lost) == ([], [KEY])
    assert book.route(KEY) is Route.DIRECT
    assert not book.is_busy


def test_a_session_that_goes_on_in_the_queue_that_was_created_again_has_lost_messages_all_the_same() -> None:
    book = failed_over()
    accept(book, HOME, 1)
    book.queue_lost(HOME)
    accept(book, HOME, 2)
    book.recovered("orders", 20, 20)
    for queue in (SECOND, THIRD):
        look(book, queue)
    assert look(book, HOME, message(2)) == []

    gone = book.begin_look(HOME)
    gone.is_complete = True
    assert book.end_look(gone, 30).lost == [KEY]

    accept(book, HOME, 3, now=40)
    assert look(book, HOME, now=50) == [KEY], "messages of a later time have arrived"


def test_a_queue_that_holds_nothing_of_a_session_is_no_loss_to_it() -> None:
    book = failed_over()
    accept(book, HOME, 1)

    assert book.queue_lost(SECOND) == 0


# --- what other clients have parked -----------------------------------------------------------------------


@pytest.mark.promise("P15")
def test_a_session_with_parked_messages_follows_what_another_client_may_have_parked_since() -> None:
    book = failed_over()
    accept(book, HOME, 1)

    book.parked_by_others("orders", 20)

    queue, follows, generation = book.plan(KEY, rotation(), ())
    assert queue == HOME
    assert set(follows) == {Follows(SECOND), Follows(THIRD)}
    accept(book, HOME, 2, generation)
    assert book.plan(KEY, rotation(), ())[:2] == (HOME, ()), "later ones are behind the one that says so"


@pytest.mark.promise("P15")
def test_a_queue_that_was_followed_before_is_followed_again_when_another_client_may_have_parked_there() -> (
    None
):
    book = failed_over()
    accept(book, SECOND, 1)
    look(book, HOME, message(2))
    _, _, generation = book.plan(KEY, rotation(), {SECOND})
    accept(book, HOME, 3, generation)
    assert book.plan(KEY, rotation(), ())[:2] == (HOME, ())

    book.parked_by_others("orders", 20)

    assert Follows(SECOND) in book.plan(KEY, rotation(), ())[1]


@pytest.mark.promise("P15")
def test_a_session_that_was_met_in_one_queue_follows_those_that_nobody_has_looked_through() -> None:
    book = paired()
    book.parked_by_others("orders", 20)

    look(book, HOME, message(7, "other"))

    queue, follows, _ = book.plan(KEY, rotation(), ())
    assert queue == HOME
    assert set(follows) == {Follows(SECOND), Follows(THIRD)}


@pytest.mark.promise("P15")
def test_a_fence_stands_until_looks_have_shown_what_another_client_may_have_parked() -> None:
    book = paired()
    accept(book, HOME, 1)
    early = book.begin_look(SECOND)
    early.is_complete = True
    book.parked_by_others("orders", 20)

    book.end_look(early, 21)
    assert look(book, HOME) == []
    assert look(book, THIRD) == []
    assert book.route(KEY) is Route.PARK
    assert look(book, SECOND) == [KEY]
    assert book.route(KEY) is Route.DIRECT


@pytest.mark.promise("P15")
def test_a_session_that_moves_follows_what_another_client_may_have_parked_in_its_former_queue() -> None:
    book = paired()
    accept(book, HOME, 1)
    book.parked_by_others("orders", 20)

    queue, follows, _ = book.plan(KEY, rotation(), {HOME})

    assert queue == SECOND
    assert set(follows) == {Follows(HOME), Follows(THIRD)}
