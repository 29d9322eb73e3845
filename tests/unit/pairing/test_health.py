from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from pairbus.pairing.rules.health import EntityHealth, Health


def entity(interval: int = 500, pings: int = 1) -> EntityHealth:
    return EntityHealth("orders", interval, 1_000, pings)


def failed_over(pings: int = 1) -> EntityHealth:
    subject = entity(0, pings)
    subject.send_failed(1_000, "timeout")
    assert subject.state is Health.FAILED_OVER
    return subject


@pytest.mark.promise("P17")
def test_entity_fails_over_once_the_interval_has_passed_and_not_before() -> None:
    subject = entity()
    subject.send_failed(1_000, "timeout")

    assert subject.tick(1_499) == []
    assert subject.state is Health.SUSPECT
    changes = subject.tick(1_500)

    assert [change.after for change in changes] == [Health.FAILED_OVER]
    assert subject.tick(1_501) == []


@pytest.mark.parametrize(
    ("waited", "shown"), [(6_001, "6 s"), (6_249, "6.2 s"), (65_000, "65 s"), (520, "0.52 s")]
)
def test_the_reason_of_a_failover_says_how_long_no_send_succeeded(waited: int, shown: str) -> None:
    subject = entity(500)
    subject.send_failed(1_000, "timeout")

    changes = subject.tick(1_000 + waited)

    assert [change.why for change in changes] == [f"no send succeeded for {shown}; first: timeout"]


@pytest.mark.promise("P17")
def test_later_failures_do_not_restart_the_timer() -> None:
    subject = entity()
    subject.send_failed(1_000, "timeout")
    subject.send_failed(1_400, "timeout")

    assert subject.failover_due_ms == 1_500
    subject.send_failed(1_500, "timeout")

    assert subject.state is Health.FAILED_OVER


@pytest.mark.promise("P17")
def test_any_success_resets_to_healthy() -> None:
    subject = entity()
    subject.send_failed(1_000, "timeout")
    subject.send_succeeded(1_400)

    assert subject.tick(9_000) == []
    assert subject.state is Health.HEALTHY
    assert subject.next_deadline() is None


@pytest.mark.promise("P17")
def test_with_interval_zero_the_first_failure_switches() -> None:
    subject = entity(0)

    changes = subject.send_failed(1_000, "timeout")

    assert [change.after for change in changes] == [Health.SUSPECT, Health.FAILED_OVER]


@pytest.mark.promise("P22")
def test_the_first_ping_goes_out_at_failover_then_one_per_interval_and_one_in_flight() -> None:
    subject = failed_over()

    assert subject.ping_is_due(1_000)
    subject.pings.sending(1_000)
    assert not subject.ping_is_due(5_000), "one is in flight"
    subject.ping_failed(1_100, "refused", entity_is_gone=False)

    assert not subject.ping_is_due(1_999)
    assert subject.ping_is_due(2_000)


@pytest.mark.promise("P22")
def test_24_hours_of_an_outage_are_1440_pings_and_the_first() -> None:
    subject = EntityHealth("orders", 0, 60_000)
    subject.send_failed(0, "timeout")
    now, day_ms = 0, 24 * 3_600_000
    while now <= day_ms:
        if subject.ping_is_due(now):
            subject.pings.sending(now)
            subject.ping_failed(now + 20, "refused", entity_is_gone=False)
        now = subject.next_deadline() or day_ms + 1

    assert subject.pings.sent == 1_440 + 1


@pytest.mark.promise("P22")
def test_after_a_suspend_there_is_one_ping_and_no_burst() -> None:
    subject = failed_over()
    subject.pings.sending(1_000)
    subject.ping_failed(1_001, "refused", entity_is_gone=False)
    woken = 100_000_000

    assert subject.ping_is_due(woken)
    subject.pings.sending(woken)
    subject.ping_failed(woken + 1, "refused", entity_is_gone=False)

    assert not subject.ping_is_due(woken + 999)
    assert subject.pings.sent == 2


@pytest.mark.promise("P22")
def test_a_changed_interval_is_used_by_the_next_ping() -> None:
    subject = failed_over()
    subject.pings.sending(1_000)
    subject.ping_failed(1_001, "refused", entity_is_gone=False)
    subject.pings.change_interval(5_000)

    assert subject.next_deadline() == 6_000


@pytest.mark.promise("P25")
def test_a_good_ping_heals_and_no_ping_follows() -> None:
    subject = failed_over()
    subject.pings.sending(1_000)

    changes = subject.ping_succeeded(1_050)

    assert [change.after for change in changes] == [Health.HEALTHY]
    assert subject.next_deadline() is None
    assert not subject.ping_is_due(9_999)


def test_healthy_pings_must_come_in_a_row() -> None:
    subject = failed_over(pings=2)
    subject.ping_succeeded(2_000)
    subject.ping_failed(3_000, "refused", entity_is_gone=False)
    subject.ping_succeeded(4_000)

    assert subject.state is Health.FAILED_OVER
    subject.ping_succeeded(5_000)
    assert subject.is_healthy


def test_an_entity_that_is_gone_refuses_until_a_good_ping() -> None:
    subject = failed_over()
    subject.pings.sending(1_000)
    subject.ping_failed(1_100, "not found", entity_is_gone=True)

    assert subject.state is Health.REFUSING
    assert subject.ping_is_due(2_000)
    subject.pings.sending(2_000)
    subject.ping_failed(2_050, "timeout", entity_is_gone=False)
    assert subject.state is Health.REFUSING, "only a good ping heals it"
    subject.ping_succeeded(3_000)
    assert subject.is_healthy


def test_a_send_in_flight_that_succeeds_after_failover_is_proof_of_health() -> None:
    subject = failed_over()

    assert [change.after for change in subject.send_succeeded(1_500)] == [Health.HEALTHY]


def test_a_failover_by_hand_is_not_undone_by_a_send_in_flight_but_by_a_ping() -> None:
    subject = entity()
    subject.fail_over(1_000)

    assert subject.send_succeeded(1_500) == []
    assert subject.state is Health.FAILED_OVER
    assert [change.after for change in subject.ping_succeeded(70_000)] == [Health.HEALTHY]


def test_after_a_failover_by_hand_the_next_one_is_judged_as_ever() -> None:
    subject = entity(0)
    subject.fail_over(1_000)
    subject.mark_healthy(2_000)
    subject.send_failed(3_000, "timeout")

    assert subject.state is Health.FAILED_OVER
    assert [change.after for change in subject.send_succeeded(3_100)] == [Health.HEALTHY]


@pytest.mark.promise("P27")
def test_a_flapping_entity_is_not_pinged_more_often_than_the_interval() -> None:
    subject = entity(0)
    sent = []
    for now in range(1_000, 11_000, 50):
        subject.send_failed(now, "timeout")
        if subject.ping_is_due(now):
            subject.pings.sending(now)
            sent.append(now)
            subject.ping_succeeded(now)
        elif now % 100 == 0:
            subject.send_succeeded(now)

    assert all(later - earlier >= 1_000 for earlier, later in pairwise(sent))


def test_switched_by_hand_and_back() -> None:
    subject = entity()

    assert [change.why for change in subject.fail_over(5)] == ["by hand"]
    assert subject.fail_over(6) == []
    assert not subject.ping_is_due(5), "what was asked for by hand is not undone at once"
    assert subject.ping_is_due(1_005)
    assert [change.after for change in subject.mark_healthy(7)] == [Health.HEALTHY]
    assert subject.mark_healthy(8) == []


def test_the_report_says_why_and_what_is_next() -> None:
    subject = failed_over()
    subject.parked = 7
    report = subject.report(lambda at_ms: datetime.fromtimestamp(at_ms / 1000, UTC))

    assert (report.path, report.state, report.parked) == ("orders", Health.FAILED_OVER, 7)
    assert report.why == "timeout"
    assert report.next_ping_ms == 1_000
