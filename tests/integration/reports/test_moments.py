"""Certificates of the messages that were accepted from some moment on, and of messages that were forwarded beside others of the same name: both engines
account for every copy, as its story tells.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet
import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.reports.certificate.value import HOLDS, LOSS, Certificate
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT
from pairbus.reports.engines.base import Engine
from pairbus.reports.engines.spark import SparkEngine
from pairbus.reports.inputs import find_all
from pairbus.testing import Namespace
from tests.integration.reports.copies_kit import Copies, parked
from tests.integration.reports.ledger_kit import BACKLOG_QUEUE, NOON_MS, row, write
from tests.integration.reports.moments_kit import SINCE_MS, forwarding_world, moment, since_world
from tests.integration.spark.kit import small_session

pytestmark = pytest.mark.timeout(900)  # the first test of a process starts Java
Rows = list[dict[str, object]]
SECOND_MS = 1_000


def engine_of(request: pytest.FixtureRequest) -> Engine:
    return arrow if request.param == "local" else SparkEngine(small_session())


@pytest.fixture(scope="module", params=["local", "spark"])
def each_engine(request: pytest.FixtureRequest) -> Engine:
    """For worlds, which hold that the engines agree."""
    return engine_of(request)


@pytest.fixture(scope="module", params=["local", pytest.param("spark", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """For single stories: some ten seconds each on Spark, however small they are."""
    return engine_of(request)


def certified(
    engine: Engine, directory: Path, rows: dict[str, Rows], since: datetime | None = None
) -> Certificate:
    """The certificate; ``directory/messages`` has the fates of messages."""
    files = {role: [write(directory / f"{role}.parquet", given)] for role, given in rows.items() if given}
    inputs = find_all(None, files, AUDIT)
    done = engine.reconcile(inputs, None, with_body=True, with_order=True, since=since)
    done.write(str(directory))
    return done.certificate


def counts(found: Certificate) -> dict[str, int]:
    return {fate: number for fate, number in found.fates.items() if number}


def assert_accounted_for(
    engine: Engine, directory: Path, world: Copies, since: datetime | None = None
) -> None:
    found = certified(engine, directory, world.rows, since)
    assert counts(found) == {fate: number for fate, number in world.fates.items() if number}
    named: Counter[tuple[str, str, str]] = Counter()
    for one in pyarrow.parquet.read_table(directory / "messages").to_pylist():
        is_lost_somewhere = since is None and one["fate"] == "lost"
        fate = f"lost at {one['destination']}" if is_lost_somewhere else one["fate"]
        named[fate, one["message_id"], one["sha256"]] += one["copies"]
    assert named == +world.named


@pytest.mark.promise("D4")
@pytest.mark.parametrize("seed", range(4))
def test_copies_accepted_before_a_moment_stand_for_none_of_those_after_it(
    each_engine: Engine, tmp_path: Path, seed: int
) -> None:
    """With and without an id, from the audit logs and from ledgers of senders and receivers."""
    assert_accounted_for(each_engine, tmp_path, since_world(60, seed), moment())


@pytest.mark.promise("D4")
@pytest.mark.parametrize("seed", range(3))
def test_forwarded_copies_stand_for_none_that_were_sent_to_the_target(
    each_engine: Engine, tmp_path: Path, seed: int
) -> None:
    assert_accounted_for(each_engine, tmp_path, forwarding_world(200, seed))


@pytest.mark.promise("D4")
@pytest.mark.parametrize("seed", range(10, 20))
def test_so_it_is_in_many_worlds(tmp_path: Path, seed: int) -> None:
    assert_accounted_for(arrow, tmp_path / "since", since_world(100, seed), moment())
    assert_accounted_for(arrow, tmp_path / "forwarded", forwarding_world(200, seed))


# -- each by name -------------------------------------------------------------------------------------


def at(seconds: int) -> int:
    """So many seconds after the moment."""
    return SINCE_MS + seconds * SECOND_MS


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_late_completion_of_an_older_message_does_not_stand_for_a_lost_one(
    engine: Engine, tmp_path: Path, is_pruned: bool
) -> None:
    older = [row("sent", "", time=at(-20)), row("completed", "", time=at(40))]
    primary = [*older[is_pruned:], row("sent", "x", time=at(25), sequence_number=2)]
    secondary = [
        parked(kind, "", namespace="standby", time=at(seconds))
        for kind, seconds in (("sent", 20), ("completed", 30))
    ]
    rows = {"sent": [*primary, *secondary], "received": primary, "backlog": secondary}

    found = certified(engine, tmp_path, rows, moment())

    assert (counts(found), found.verdict) == ({"arrived": 1, "lost": 1}, LOSS)


@pytest.mark.parametrize("seconds", [5, 40])
def test_a_direct_send_does_not_stand_for_an_older_one_that_was_put_back_and_lost(
    engine: Engine, tmp_path: Path, seconds: int
) -> None:
    """It was sent before the dead letter was put back, or after that was completed by hand."""
    primary = [row("sent", "", time=at(seconds))]
    secondary = [
        parked(kind, "", namespace="standby", time=at(when), sequence_number=number, **changes)
        for kind, when, number, changes in (
            ("sent", -20, 1, {}),
            ("dead-lettered", -10, 1, {"detail": "DestinationNotFound"}),
            ("sent", 20, 2, {"detail": "redriven"}),
            ("completed", 21, 1, {"entity": f"{BACKLOG_QUEUE}/$DeadLetterQueue"}),
            ("completed", 30, 2, {}),
        )
    ]
    rows = {"sent": [*primary, *secondary], "received": primary, "backlog": secondary}

    found = certified(engine, tmp_path, rows, moment())

    assert (counts(found), found.verdict) == ({"arrived": 1, "lost": 1}, LOSS)


@pytest.mark.parametrize("role", ["backlog", "dead-letter"])
def test_a_listing_of_an_older_message_does_not_stand_for_one_that_was_destroyed(
    engine: Engine, tmp_path: Path, role: str
) -> None:
    """A listing need not say when a message was accepted."""
    secondary = [
        parked(kind, "", namespace="standby", time=at(seconds), sequence_number=number)
        for kind, seconds, number in (("sent", -20, 1), ("sent", 20, 2), ("purged", 30, 2))
    ]
    place = BACKLOG_QUEUE if role == "backlog" else f"{BACKLOG_QUEUE}/$DeadLetterQueue"
    listed = parked("held", "", namespace=None, entity=place, time=at(50))
    primary = [row("sent", "x", time=at(25))]
    rows = {"sent": [*primary, *secondary], "received": primary, "backlog": secondary}
    rows[role] = [*rows.get(role, []), listed]

    found = certified(engine, tmp_path, rows, moment())

    assert (counts(found), found.verdict) == ({"arrived": 1, "lost": 1}, LOSS)


def test_what_was_accepted_before_and_ends_later_is_not_asked_about(engine: Engine, tmp_path: Path) -> None:
    """At a queue, at a topic, and by way of the backlog."""
    primary = [
        row("sent", "a", entity="events", time=at(-20)),
        row("completed", "a", entity="events/Subscriptions/s", time=at(10)),
        row("sent", "b", time=at(-20)),
        row("completed", "b", time=at(10)),
        row("sent", "x", time=at(40), sequence_number=2),
    ]
    secondary = [
        parked(kind, "c", namespace="standby", time=at(seconds), sequence_number=number)
        for kind, seconds, number in (("sent", -20, 1), ("completed", 11, 1), ("sent", 30, 2))
    ]
    drained = row("sent", "c", time=at(10), sequence_number=3)
    own = [{**row("accepted", name, time=at(-20)), "namespace": None} for name in "abc"]
    own.append({**row("accepted", "x", time=at(40)), "namespace": None})
    rows = {"sent": own, "received": [*primary, drained], "backlog": secondary[:2]}

    found = certified(engine, tmp_path, rows, moment())

    assert (counts(found), found.verdict) == ({"arrived": 1}, HOLDS)


@pytest.mark.parametrize("older", ["known", "gone", "before the audit"])
def test_a_copy_that_was_dropped_as_a_duplicate_of_an_older_one_is_not_lost(
    engine: Engine, tmp_path: Path, older: str
) -> None:
    primary = [
        row("sent", "one", time=at(-20)),
        row("duplicate", "one", time=at(10), sequence_number=0),
        row("sent", "two", time=at(20), sequence_number=2),
    ][older != "known" :]
    rows = {"sent": primary, "received": primary}

    found = certified(engine, tmp_path, rows, None if older == "before the audit" else moment())

    assert (counts(found), found.verdict) == ({"arrived": 1, "absorbed": 1}, HOLDS)


def test_a_retry_that_a_broker_dropped_after_the_moment_is_not_lost(engine: Engine, tmp_path: Path) -> None:
    detecting = [{"Name": "orders", "Properties": {"RequiresDuplicateDetection": True}}]
    config = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": detecting}]}}
    data = tmp_path / "data"
    with (
        Namespace("contoso", process=True, config=config, data=data, audit=True) as namespace,
        namespace.client() as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("boots", message_id="one"))
        since = datetime.now(UTC) + timedelta(milliseconds=1)
        while datetime.now(UTC) < since:
            time.sleep(0.001)
        for name in ("one", "two"):
            sender.send_messages(ServiceBusMessage("boots", message_id=name))

    inputs = find_all(None, {"sent": [str(data)], "received": [str(data)]}, AUDIT)
    found = engine.reconcile(inputs, None, with_body=True, with_order=True, since=since).certificate

    assert (counts(found), found.verdict) == ({"arrived": 1, "absorbed": 1}, HOLDS)


@pytest.mark.parametrize("seconds", [-20, 5])
def test_a_dropped_copy_with_another_body_is_lost(engine: Engine, tmp_path: Path, seconds: int) -> None:
    """The entity compares ids only: it has the first body, and not this one."""
    primary = [
        row("sent", "one", time=at(seconds), sha256="e" * 64),
        row("duplicate", "one", time=at(10), sequence_number=0),
        row("sent", "two", time=at(20), sequence_number=2),
    ]

    found = certified(engine, tmp_path, {"sent": primary, "received": primary}, moment())

    assert (counts(found), found.verdict) == ({"arrived": 1 + (seconds > 0), "lost": 1}, LOSS)


def test_a_dropped_copy_explains_itself_alone(engine: Engine, tmp_path: Path) -> None:
    """What the senders had confirmed beside it is nowhere."""
    own = [{**row("accepted", "one", time=at(seconds)), "namespace": None} for seconds in (10, 30)]
    received = [row("sent", "two", time=at(5)), row("duplicate", "one", time=at(10), sequence_number=0)]

    found = certified(engine, tmp_path, {"sent": own, "received": received}, moment())

    assert (found.fates["absorbed"], found.fates["lost"], found.verdict) == (1, 1, LOSS)


def test_the_drains_send_may_be_dropped_as_a_duplicate(engine: Engine, tmp_path: Path) -> None:
    """The send whose answer never came was before the moment."""
    primary = [
        row("sent", "one", time=at(-1)),
        row("duplicate", "one", time=at(10), sequence_number=0),
    ]
    secondary = [
        parked(kind, "one", namespace="standby", time=at(seconds))
        for kind, seconds in (("sent", 5), ("completed", 11))
    ]
    rows = {"sent": [*primary, *secondary], "received": primary, "backlog": secondary}

    found = certified(engine, tmp_path, rows, moment())

    assert (counts(found), found.verdict) == ({"absorbed": 1}, HOLDS)


def test_a_receivers_ledger_says_where_a_forwarded_message_was(engine: Engine, tmp_path: Path) -> None:
    sent = [row("sent", "a", entity="/In/")]
    received = [
        row("forwarded", "a", entity="in", detail="orders", time=NOON_MS + 5),
        row("received", "a", entity="orders/", time=NOON_MS + 6),
    ]

    found = certified(engine, tmp_path, {"sent": sent, "received": received})

    assert (counts(found), found.verdict) == ({"arrived": 1}, HOLDS)
    assert (found.rows["received"].used, found.rows["received"].other) == (2, 0)


def test_a_message_forwarded_to_a_target_does_not_stand_for_the_same_one_sent_there(
    engine: Engine, tmp_path: Path
) -> None:
    sent = [{**row("accepted", "a", entity=place), "namespace": None} for place in ("in", "orders")]
    primary = [
        row("sent", "a", entity="in"),
        row("forwarded", "a", entity="in", detail="orders"),
        row("completed", "a", entity="orders"),
    ]

    found = certified(engine, tmp_path, {"sent": sent, "received": primary})

    assert (counts(found), found.verdict) == ({"arrived": 1, "lost": 1}, LOSS)
    assert [one.destination for one in found.named["lost"]] == ["orders"]


@pytest.mark.parametrize("when", [-5, 15, 45])
def test_a_direct_send_while_no_drained_copy_waited_stands_for_none(
    engine: Engine, tmp_path: Path, when: int
) -> None:
    """The first copy was completed by hand: nothing was sent while it was there. Another one waits all the time."""
    primary = [row("sent", "", time=at(seconds)) for seconds in (when, 25)]
    secondary = [
        parked(kind, "", namespace="standby", time=at(seconds), sequence_number=number)
        for kind, seconds, number in (
            ("sent", -10, 1),
            ("sent", 0, 2),
            ("completed", 10, 2),
            ("sent", 20, 3),
            ("completed", 30, 3),
            ("sent", 40, 4),
            ("completed", 50, 4),
        )
    ]
    hand = 2 if when != 45 else 1
    rows = {"sent": [*primary, *secondary], "received": primary, "backlog": secondary}

    found = certified(engine, tmp_path, rows)

    expected = {"arrived": 2, "in_backlog": 1, "lost": hand}
    assert (counts(found), found.verdict) == (expected, LOSS)


def test_two_sends_while_one_copy_waited_are_not_both_the_drains(engine: Engine, tmp_path: Path) -> None:
    """Of the other copy, none was sent."""
    primary = [row("sent", "", time=at(seconds)) for seconds in (12, 14)]
    secondary = [
        parked(kind, "", namespace="standby", time=at(seconds), sequence_number=number)
        for kind, seconds, number in (
            ("sent", 0, 1),
            ("completed", 10, 1),
            ("sent", 11, 2),
            ("completed", 20, 2),
        )
    ]
    own = [{**row("accepted", "", time=at(12)), "namespace": None}]
    own += [{**parked("accepted", "", time=at(seconds)), "namespace": None} for seconds in (0, 11)]
    expected = {"arrived": 2, "lost": 1}

    audits = {"sent": [*primary, *secondary], "received": primary, "backlog": secondary}
    assert counts(certified(engine, tmp_path, audits)) == expected
    senders = {"sent": own, "received": primary, "backlog": secondary}
    assert counts(certified(engine, tmp_path, senders)) == expected
