"""What the senders of one client share."""

from __future__ import annotations

import logging
import random
import threading
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.pairing import parking
from pairbus.pairing.client.sending.limits import (
    BACKLOG_LIMIT_BYTES,
    ENVELOPE_BYTES,
    HEADER_LIMIT_BYTES,
    check_header,
    check_size,
    header_bytes,
    headroom_of,
)
from pairbus.pairing.client.state import PairingState
from pairbus.pairing.errors import MessageTooLargeForBacklogError
from pairbus.pairing.events import Event, EventLog, Kind
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.parking import Follows, Passport
from pairbus.pairing.rules.health import Health
from pairbus.pairing.rules.order_values import Oldest
from pairbus.sdk.messages import message_bytes


def make(listener: object = None, options: SendAvailabilityOptions | None = None) -> PairingState:
    state = PairingState(
        name="f",
        primary="p",
        secondary="s",
        options=options or SendAvailabilityOptions(),
        chooser=random.Random(1),
        clock=lambda: 5_000,
        wall_clock=lambda: 1_700_000_000_000,
        on_change=lambda record: None,
        listener=listener,  # type: ignore[arg-type]
    )
    state.paired_with(["q0", "q1"])
    return state


def test_an_entity_has_one_record_however_its_path_is_written() -> None:
    state = make()

    assert state.health_of("Orders") is state.health_of("/orders/")
    assert list(state.reports()) == ["Orders"]


@pytest.mark.promise("P19")
def test_a_failover_of_one_entity_changes_no_other() -> None:
    state = make()
    other = state.health_of("invoices")
    before = state.reports()["invoices"]

    state.fail_over("orders")

    assert state.health_of("orders").state is Health.FAILED_OVER
    assert other.state is Health.HEALTHY
    assert state.reports()["invoices"] == before


@pytest.mark.promise("P45")
def test_changes_are_told_once_and_in_order() -> None:
    told: list[Event] = []
    state = make(told.append)
    state.fail_over("orders")
    state.fail_over("orders")
    state.mark_healthy("orders")

    kinds = [event.kind for event in told]
    assert kinds == [Kind.PAIRED, Kind.FAILED_OVER, Kind.RECOVERED]
    assert (state.counters.failovers, state.counters.recoveries) == (1, 1)


def test_a_listener_that_raises_changes_nothing() -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("not my day")

    state = make(broken)
    state.fail_over("orders")

    assert state.is_failed_over("orders")


def test_asking_about_an_unknown_entity_makes_no_record() -> None:
    state = make()

    assert not state.is_failed_over("nobody")
    assert state.reports() == {}


@pytest.mark.promise("P45")
def test_counts_of_many_senders_add_up() -> None:
    state = make()
    tallies = [state.new_tally() for _ in range(4)]

    def send(tally: object) -> None:
        for _ in range(5_000):
            tally.sends += 1  # type: ignore[attr-defined]
            tally.to_primary += 1  # type: ignore[attr-defined]

    threads = [threading.Thread(target=send, args=(tally,)) for tally in tallies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state.retire(tallies[0])
    state.retire(tallies[0])

    statistics = state.statistics()
    assert (statistics.sends, statistics.to_primary, statistics.operations_primary) == (
        20_000,
        20_000,
        20_000,
    )


def test_explain_tells_errors_timers_and_decisions() -> None:
    state = make()
    record = state.health_of("orders")
    state.apply(record, record.send_failed(5_000, "OperationTimeoutError: silence"))
    lines = state.explain("orders")

    assert "suspect" in lines[0]
    assert "silence" in lines[0]
    assert any("fails over at" in line for line in lines)


@pytest.mark.promise("P15")
def test_each_detour_has_a_number_and_names_its_factory() -> None:
    from tests.simulation.pair.model import original

    state = make()
    payload = original(1, "s", has_alias_name=True, has_life=False)
    first = parking.restore(state.park([payload], "orders", "timeout")[0], 0)
    second = parking.restore(state.park([payload], "orders", "timeout")[0], 0)

    assert first.passport is not None
    assert second.passport is not None
    assert (first.passport.factory, first.passport.detour, second.passport.detour) == ("f", 1, 2)


@pytest.mark.promise("P13")
def test_the_size_error_names_the_overhead() -> None:
    with pytest.raises(MessageTooLargeForBacklogError) as caught:
        check_size([b"x" * 300], [b"x" * 100], 320)

    assert (caught.value.size, caught.value.overhead, caught.value.limit) == (364, 264, 320)


def test_each_message_of_a_batch_has_a_number_of_its_own() -> None:
    from tests.simulation.pair.model import original

    payload = original(1, None, has_alias_name=False, has_life=False)
    parked = make().park([payload, payload], "orders", "timeout")

    passports = [parking.passport_of(item) for item in parked]
    assert [passport.detour for passport in passports if passport is not None] == [1, 2]
    assert parking.passport_of(payload) is None


@pytest.mark.promise("P36")
def test_a_forked_process_does_not_number_like_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make()
    monkeypatch.setattr("os.getpid", lambda: -1)
    state.park([], "orders", "timeout")
    child = state.name
    state.park([], "orders", "timeout")

    assert child != "f"
    assert state.name == child


def test_a_journal_that_cannot_be_written_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def full(event: Event, at_ms: int) -> None:
        raise OSError(28, "No space left on device")

    state = make()
    state.journal = full
    state.fail_over("orders")

    assert state.is_failed_over("orders")
    assert "not in the journal" in caplog.text


def test_a_trigger_that_raises_does_not_count_and_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    from pairbus.pairing.rules.flow import Choice, Fail

    def broken(error: BaseException) -> bool:
        raise KeyError("oops")

    state = make(options=SendAvailabilityOptions(trigger=broken, failover_interval=timedelta(0)))
    record = state.health_of("orders")
    flow = state.flow(record, Choice(), 10_000)
    error = TimeoutError()
    state.apply(record, flow.primary_failed(5_000, error))

    step = flow.next_step(5_000)
    assert isinstance(step, Fail)
    assert step.error is error
    assert record.is_healthy
    assert not state.counts(error, record)
    assert "the trigger failed" in caplog.text


def test_headroom_knows_the_limit_of_all_properties_together() -> None:
    small = message_bytes.encoded(ServiceBusMessage(b"x" * 1000))
    many: dict[Any, Any] = {f"name {number}": "v" * 1000 for number in range(63)}
    full = message_bytes.encoded(ServiceBusMessage(b"x", application_properties=many))
    over = message_bytes.encoded(ServiceBusMessage(b"x", application_properties={**many, "last": "v" * 1800}))
    passport = Passport("f", 1, 1, "timeout", primary="contoso.servicebus.windows.net")
    parked = [parking.park(payload, "orders", passport) for payload in (small, full, over)]

    assert headroom_of(parked[0]) == BACKLOG_LIMIT_BYTES - ENVELOPE_BYTES - len(parked[0])
    assert headroom_of(parked[1]) == BACKLOG_LIMIT_BYTES - ENVELOPE_BYTES - len(parked[1])
    assert headroom_of(parked[2]) == HEADER_LIMIT_BYTES - header_bytes(parked[2]) < 0
    check_header(parked[:2], [small, full])
    with pytest.raises(MessageTooLargeForBacklogError, match="properties of the parked message") as caught:
        check_header(parked, [small, full, over])
    assert (caught.value.limit, caught.value.size) == (65_536, header_bytes(parked[2]))


def test_a_fence_that_stands_through_two_failovers_counts_once_and_its_event_names_the_session() -> None:
    state = make(options=SendAvailabilityOptions(order="session"))
    state.health_of("Orders").parked = 3
    key, last = ("orders", "s1"), Follows("q0", "f", 1)
    for _ in range(2):
        state.fail_over("Orders")
        state.order.accepted(key, "q0", last, 0, Oldest("m", "q0", 1), 5_000)
        state.mark_healthy("Orders")

    stands = [event for event in state.events.history() if event.kind is Kind.FENCE_STANDS]
    assert [(event.data["sessions"], event.data["names"]) for event in stands] == [(1, ["s1"])] * 2
    assert stands[0].text == "session 's1' goes on being parked until its parked messages have arrived"
    assert state.counters.fences == 1
    state.fences_ended([key, ("orders", "never fenced")], [])
    assert state.counters.fences_lifted == 1
    assert "3 messages parked so far, the last in None" in state.explain("orders")


def test_a_deleted_backlog_queue_is_told_once_with_what_was_in_it_at_most() -> None:
    state = make(options=SendAvailabilityOptions(order="session"))
    orders, other = state.health_of("Orders"), state.health_of("other")
    orders.has_parked("q0", 3)
    orders.has_parked("q1", 4)
    other.has_parked("q0", 1)
    seen = state.parked_in("q0")
    orders.has_parked("q0", 5)
    for health, count in seen.items():
        health.have_left("q0", count)

    state.queue_lost("q0")
    state.queue_lost("q0")
    state.queue_lost("never used")

    (event,) = [one for one in state.events.history() if one.kind is Kind.BACKLOG_LOST]
    assert (event.subject, event.is_loud, event.data) == ("q0", True, {"messages": 5, "sessions": 0})
    assert event.text.startswith(
        "somebody deleted it, and whatever was still in it is gone: up to 5 of the messages"
    )
    assert "`pairbus reconcile` names those that never arrived" in event.text
    assert (state.counters.backlog_queues_lost, state.counters.parked_lost) == (1, 5)
    reports = state.reports()
    assert (reports["Orders"].parked, reports["Orders"].parked_lost, reports["other"].parked_lost) == (
        12,
        5,
        0,
    )
    assert "backlog queues that somebody deleted held up to 5 of them, which are gone" in state.explain(
        "orders"
    )


def test_messages_that_only_others_have_parked_are_lost_too() -> None:
    state = make(options=SendAvailabilityOptions(order="session"))
    key = ("orders", "s1")
    state.order.accepted(key, "q0", Follows("q0", "another", 1), 0, Oldest("m", "q0", 1), 5_000)
    state.fences_stand([key])

    state.queue_lost("q0")
    state.fences_ended([], [key])

    (event,) = [one for one in state.events.history() if one.kind is Kind.BACKLOG_LOST]
    assert "messages that other clients had parked" in event.text
    assert event.data == {"messages": 0, "sessions": 1}
    assert (state.counters.fences_lifted, state.counters.fences_lost) == (0, 1)


def test_an_age_is_only_that_of_a_message_that_may_still_be_in_the_backlog() -> None:
    state = make()
    health = state.health_of("orders")
    for queue in ("q0", "q1"):
        health.has_parked(queue, 1)
    health.parked_since_ms = state.clock()

    state.queue_lost("q0")
    assert state.reports()["orders"].oldest_parked_age_ms is not None
    state.queue_lost("q1")
    assert state.reports()["orders"].oldest_parked_age_ms is None


def test_two_changes_for_one_reason_are_two_different_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    events = EventLog()
    with caplog.at_level(logging.INFO, "pairbus.pairing"):
        for kind, after in ((Kind.SUSPECT, Health.SUSPECT), (Kind.FAILED_OVER, Health.FAILED_OVER)):
            events.add(Event(kind, "orders", "it said no", 0, {"before": "healthy", "after": after.value}))

    assert [one.getMessage() for one in caplog.records] == [
        "orders: suspect: it said no",
        "orders: failed over: it said no",
    ]
