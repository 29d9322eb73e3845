"""The judge itself: clean histories pass, and each planted violation is caught under its number."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.kill_history import Event, Operation, Outcome, Place, judge

OK, FAIL, UNKNOWN = Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN


class Story:
    """Writes a history line by line; each call begins and ends before the next unless told otherwise."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, operation: Operation, uid: str = "", **fields: Any) -> Story:
        index = 10 * (len(self.events) + 1)
        values: dict[str, Any] = {"index": index, "began": index - 5, "actor": "a", "entity": "q", **fields}
        self.events.append(Event(operation=operation, uid=uid, **values))
        return self

    def send(self, uid: str, outcome: Outcome = OK, **fields: Any) -> Story:
        return self.add(Operation.SEND, uid, outcome=outcome, **fields)

    def delivery(self, uid: str, number: int, **fields: Any) -> Story:
        return self.add(Operation.DELIVERY, uid, sequence_number=number, **fields)

    def complete(self, uid: str, outcome: Outcome = OK) -> Story:
        return self.add(Operation.COMPLETE, uid, outcome=outcome)

    def drained(self, uid: str, number: int, **fields: Any) -> Story:
        return self.add(Operation.DRAINED, uid, sequence_number=number, **fields)

    def promises_broken(self) -> list[str]:
        return [violation.promise for violation in judge(self.events).violations]


def test_ordinary_history_is_clean() -> None:
    story = Story().send("a").send("b").delivery("a", 1).complete("a").add(Operation.KILL).drained("b", 2)

    verdict = judge(story.events)

    assert verdict.is_clean
    assert verdict.counts["kills"] == 1
    assert "verdict: clean" in verdict.summary()


@pytest.mark.parametrize("stored", [True, False])
def test_send_in_doubt_may_have_happened_or_not(stored: bool) -> None:
    story = Story().send("a", UNKNOWN)

    assert (story.drained("a", 1) if stored else story).promises_broken() == []


@pytest.mark.promise("B6")
@pytest.mark.parametrize("gone", [True, False])
def test_completion_in_doubt_may_have_happened_or_not(gone: bool) -> None:
    story = Story().send("a").delivery("a", 1).complete("a", UNKNOWN).add(Operation.KILL)

    assert (story if gone else story.drained("a", 1)).promises_broken() == []


@pytest.mark.promise("B1")
def test_lost_message_is_caught() -> None:
    assert Story().send("a").add(Operation.KILL).promises_broken() == ["B1"]


@pytest.mark.promise("B1")
def test_message_that_vanished_after_a_delivery_is_caught() -> None:
    assert Story().send("a").delivery("a", 1).add(Operation.KILL).promises_broken() == ["B1"]


@pytest.mark.promise("B1")
def test_refused_completion_does_not_excuse_a_loss() -> None:
    assert Story().send("a").delivery("a", 1).complete("a", FAIL).promises_broken() == ["B1"]


@pytest.mark.promise("B2")
def test_message_from_nowhere_is_caught() -> None:
    assert Story().drained("ghost", 1).promises_broken() == ["B2"]


@pytest.mark.promise("B2")
def test_changed_body_is_caught() -> None:
    assert Story().send("a").drained("a", 1, is_intact=False).promises_broken() == ["B2"]


@pytest.mark.promise("B3")
def test_refused_message_that_is_there_is_caught() -> None:
    assert Story().send("a", FAIL).drained("a", 1).promises_broken() == ["B3"]


@pytest.mark.promise("B5")
def test_resurrected_message_is_caught() -> None:
    story = Story().send("a").delivery("a", 1).complete("a").add(Operation.KILL)

    assert story.drained("a", 1).promises_broken() == ["B5"]


@pytest.mark.promise("B5")
def test_delivery_that_was_under_way_proves_nothing() -> None:
    story = Story().send("a").delivery("a", 1).complete("a")

    assert story.delivery("a", 1, began=15).promises_broken() == []


@pytest.mark.promise("B7")
def test_message_in_two_places_is_caught() -> None:
    story = Story().send("a").drained("a", 1).drained("a", 1, place=Place.DEAD_LETTER)

    assert story.promises_broken() == ["B7"]


@pytest.mark.promise("B13")
def test_half_a_batch_is_caught() -> None:
    story = Story().send("a", UNKNOWN, batch="x").send("b", UNKNOWN, batch="x").drained("a", 1)

    assert story.promises_broken() == ["B13"]


@pytest.mark.promise("B13")
def test_whole_batch_in_doubt_is_fine() -> None:
    story = Story().send("a", UNKNOWN, batch="x").send("b", UNKNOWN, batch="x", order=1)

    assert story.drained("a", 1).drained("b", 2).promises_broken() == []


@pytest.mark.promise("B19")
def test_number_used_twice_is_caught() -> None:
    story = Story().send("a").delivery("a", 1).complete("a").add(Operation.KILL).send("b", actor="b")

    assert story.drained("b", 1).promises_broken() == ["B19"]


@pytest.mark.promise("B19")
def test_same_number_in_two_queues_is_fine() -> None:
    story = Story().send("a").send("b", entity="r")

    assert story.drained("a", 1).drained("b", 1, entity="r").promises_broken() == []


@pytest.mark.promise("B19")
def test_message_stored_twice_is_caught() -> None:
    story = Story().send("a").delivery("a", 1).drained("a", 2)

    assert story.promises_broken() == ["B19"]


@pytest.mark.promise("B19")
def test_numbers_against_the_order_of_acceptance_are_caught() -> None:
    assert Story().send("a").send("b").drained("a", 2).drained("b", 1).promises_broken() == ["B19"]


@pytest.mark.promise("B24")
def test_scheduled_message_gets_a_second_larger_number() -> None:
    def story(number: int) -> Story:
        return Story().add(Operation.SCHEDULE, "a", sequence_number=5).drained("a", number)

    assert story(9).promises_broken() == []
    assert story(4).promises_broken() == ["B24"]


@pytest.mark.promise("B29")
def test_forgotten_abandon_is_caught() -> None:
    def story(delivery_count: int) -> Story:
        abandoned = Story().send("a").delivery("a", 1).add(Operation.ABANDON, "a").add(Operation.KILL)
        return abandoned.drained("a", 1, delivery_count=delivery_count)

    assert story(1).promises_broken() == []
    assert story(0).promises_broken() == ["B29"]


@pytest.mark.promise("B29")
def test_uncounted_deferral_is_caught() -> None:
    def story(delivery_count: int) -> Story:
        deferred = Story().send("a").delivery("a", 1).add(Operation.DEFER, "a").add(Operation.KILL)
        return deferred.drained("a", 1, place=Place.DEFERRED, delivery_count=delivery_count)

    assert story(1).promises_broken() == []
    assert story(0).promises_broken() == ["B29"]


@pytest.mark.promise("B34")
def test_deferred_message_that_is_active_again_is_caught() -> None:
    def story(place: Place) -> Story:
        deferred = Story().send("a").delivery("a", 1).add(Operation.DEFER, "a").add(Operation.KILL)
        return deferred.drained("a", 1, place=place, delivery_count=1)

    assert story(Place.DEFERRED).promises_broken() == []
    assert story(Place.MAIN).promises_broken() == ["B34"]


@pytest.mark.promise("B38")
def test_dead_letter_that_is_back_in_the_queue_is_caught() -> None:
    def story(place: Place) -> Story:
        dead = Story().send("a").delivery("a", 1).add(Operation.DEAD_LETTER, "a").add(Operation.KILL)
        return dead.drained("a", 1, place=place)

    assert story(Place.DEAD_LETTER).promises_broken() == []
    assert story(Place.MAIN).promises_broken() == ["B38"]


@pytest.mark.promise("B44")
def test_early_delivery_is_caught() -> None:
    story = Story().add(Operation.SCHEDULE, "a", sequence_number=1, due_ms=1_000)

    assert story.drained("a", 2, at_ms=999).promises_broken() == ["B44"]


@pytest.mark.promise("B46")
def test_cancelled_message_that_arrives_is_caught() -> None:
    story = Story().add(Operation.SCHEDULE, "a", sequence_number=1).add(Operation.CANCEL, "a")

    assert story.drained("a", 2).promises_broken() == ["B46"]


@pytest.mark.promise("B53")
def test_state_is_the_last_confirmed_or_one_in_doubt_after_it() -> None:
    def story(value: str) -> Story:
        states = Story()
        for text, outcome in (("0", UNKNOWN), ("1", OK), ("2", UNKNOWN)):
            states.add(Operation.SET_STATE, session="s", value=text, outcome=outcome)
        return states.add(Operation.GET_STATE, session="s", value=value)

    assert story("1").promises_broken() == []
    assert story("2").promises_broken() == []
    assert story("0").promises_broken() == ["B53"]
    assert story("").promises_broken() == ["B53"]


@pytest.mark.promise("B53")
def test_write_in_doubt_may_be_read_before_its_writer_gave_up() -> None:
    story = Story().add(Operation.SET_STATE, session="s", value="1")
    story.add(Operation.GET_STATE, session="s", value="2")
    story.add(Operation.SET_STATE, session="s", value="2", outcome=UNKNOWN, began=11)

    assert story.promises_broken() == []


@pytest.mark.promise("B53")
def test_state_that_was_read_does_not_go_back() -> None:
    story = Story().add(Operation.SET_STATE, session="s", value="1")
    story.add(Operation.SET_STATE, session="s", value="2", outcome=UNKNOWN)
    story.add(Operation.GET_STATE, session="s", value="2")

    assert story.add(Operation.GET_STATE, session="s", value="1").promises_broken() == ["B53"]


@pytest.mark.promise("B15")
def test_publish_with_some_of_its_copies_is_caught() -> None:
    def story(*stored: str) -> Story:
        told = Story()
        for name in ("one", "two"):
            told.send(f"a@{name}", UNKNOWN, entity=name, batch="p", promise="B15")
        for name in stored:
            told.drained(f"a@{name}", 1, entity=name)
        return told

    assert story().promises_broken() == []
    assert story("one", "two").promises_broken() == []
    assert story("one").promises_broken() == ["B15"]


def transaction(outcome: Outcome) -> Story:
    """Two messages are taken and two are put, in one transaction."""
    story = Story().send("x").send("y").delivery("x", 1).delivery("y", 2)
    one: dict[str, Any] = {"batch": "t", "promise": "B14", "outcome": outcome}
    story.add(Operation.SEND, "r", entity="out", **one).add(Operation.SEND, "s", entity="out", **one)
    return story.add(Operation.COMPLETE, "x", **one).add(Operation.COMPLETE, "y", **one)


@pytest.mark.promise("B14")
@pytest.mark.parametrize("outcome", [OK, UNKNOWN])
def test_transaction_that_happened_is_clean(outcome: Outcome) -> None:
    done = transaction(outcome).drained("r", 1, entity="out").drained("s", 2, entity="out")

    assert done.promises_broken() == []


@pytest.mark.promise("B14")
@pytest.mark.parametrize("outcome", [FAIL, UNKNOWN])
def test_transaction_that_did_not_happen_is_clean(outcome: Outcome) -> None:
    assert transaction(outcome).drained("x", 1).drained("y", 2).promises_broken() == []


@pytest.mark.promise("B14")
def test_halves_of_a_transaction_in_doubt_are_caught() -> None:
    def put(story: Story) -> Story:
        return story.drained("r", 1, entity="out").drained("s", 2, entity="out")

    assert set(transaction(UNKNOWN).promises_broken()) == {"B14"}  # taken, and not put
    assert set(put(transaction(UNKNOWN)).drained("x", 1).drained("y", 2).promises_broken()) == {"B14"}
    assert set(put(transaction(UNKNOWN)).drained("x", 1).promises_broken()) == {"B14"}
    assert set(transaction(UNKNOWN).drained("x", 1).promises_broken()) == {"B14"}
    half_put = transaction(UNKNOWN).drained("r", 1, entity="out")
    assert half_put.promises_broken() == ["B14"]


@pytest.mark.promise("B14")
def test_rolled_back_work_that_is_there_is_caught() -> None:
    story = transaction(FAIL).drained("x", 1).drained("y", 2).drained("r", 1, entity="out")

    assert set(story.promises_broken()) == {"B14"}


@pytest.mark.promise("B14")
def test_message_taken_elsewhere_proves_nothing() -> None:
    story = transaction(UNKNOWN).complete("x").complete("y")

    assert story.promises_broken() == []


@pytest.mark.promise("B16")
def test_configuration_that_was_confirmed_and_forgotten_is_caught() -> None:
    def story(value: str, outcome: Outcome = OK) -> Story:
        told = Story().add(Operation.CONFIGURE, session="queue", value="1")
        told.add(Operation.CONFIGURE, session="queue", value="", outcome=outcome).add(Operation.KILL)
        return told.add(Operation.READ_CONFIGURATION, session="queue", value=value)

    assert story("").promises_broken() == []
    assert story("1").promises_broken() == ["B16"]
    assert story("1", UNKNOWN).promises_broken() == []
    assert story("2").promises_broken() == ["B16"]


@pytest.mark.promise("B16")
def test_message_that_outlived_its_queue_is_caught() -> None:
    story = Story().send("a", entity="q#1").add(Operation.REMOVE, "a")

    assert story.promises_broken() == []
    assert story.delivery("a", 1, entity="q#2").promises_broken() == ["B16"]


@pytest.mark.promise("B50")
def test_message_that_was_doubled_on_its_way_is_caught() -> None:
    story = Story().send("a", entity="exit").drained("a", 1, entity="exit")

    assert story.promises_broken() == []
    assert story.drained("a", 2, entity="exit").promises_broken() == ["B7", "B19"]


@pytest.mark.promise("B50")
def test_dead_letter_has_another_number_where_it_was_forwarded_to() -> None:
    story = Story().send("a").delivery("a", 7).add(Operation.DEAD_LETTER, "a")

    assert story.drained("a", 1, entity="graves", place=Place.DEAD_LETTER).promises_broken() == []
