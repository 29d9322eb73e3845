"""The certificate where entities forward: a message arrived at the entity that it was sent to, and what comes to the target of a forwarding is no
other message, on both engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.reports.certificate.value import HOLDS, Certificate
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT
from pairbus.reports.engines.spark import SparkEngine
from pairbus.reports.inputs import find_all
from pairbus.testing import Namespace
from tests.integration.reports.ledger_kit import NOON_MS, parked, row, write
from tests.integration.spark.kit import small_session

pytestmark = pytest.mark.timeout(900)  # the first test of a process starts Java
Rows = Sequence[dict[str, object]]
HOP_MS = 10
TTL = "TTLExpiredException"


@pytest.fixture(scope="module", params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def certificate(engine: str, files: Mapping[str, Sequence[str]]) -> Certificate:
    inputs = find_all(None, files, AUDIT)
    if engine == "local":
        return arrow.reconcile(inputs).certificate
    spark = SparkEngine(small_session())
    return spark.reconcile(inputs, None, with_body=True, with_order=True).certificate


def certified(
    engine: str, directory: Path, primary: Rows, secondary: Rows = (), own: Rows = (), dead: Rows = ()
) -> Certificate:
    """Of the audit logs of both brokers; and of a sender's own ledger, in place of the primary's sends, or a listing of dead letters."""
    rows = {"primary": primary, "secondary": secondary, "own": own, "dead": dead}
    paths = {name: [write(directory / f"{name}.parquet", part)] for name, part in rows.items() if part}
    sent = [*paths.get("own", paths["primary"]), *paths.get("secondary", [])]
    files = {"sent": sent, "received": paths["primary"], "backlog": paths.get("secondary", []), "dead-letter": paths.get("dead", [])}  # fmt: skip
    return certificate(engine, {role: given for role, given in files.items() if given})


def counts(found: Certificate) -> dict[str, int]:
    return {name: number for name, number in found.fates.items() if number}


def hops(message_id: str, *places: str, at: int = NOON_MS) -> list[dict[str, object]]:
    """A message that was sent to the first place and forwarded to each other, and completed at the last. Places with a subscription are two."""
    first = places[0].partition("/")[0]
    found = [row("sent", message_id, entity=first, time=at)]
    for number, (place, target) in enumerate(pairwise(places), 1):
        found.append(
            row(
                "forwarded",
                message_id,
                entity=place,
                detail=target.partition("/")[0],
                time=at + number * HOP_MS,
            )
        )
    return [*found, row("completed", message_id, entity=places[-1], time=at + len(places) * HOP_MS)]


def purged(message_id: str, at: int) -> list[dict[str, object]]:
    """A message that was parked for ``orders`` and destroyed in the backlog."""
    return [
        parked(kind, message_id, namespace="standby", time=at + n)
        for n, kind in enumerate(("sent", "purged"))
    ]


def test_what_entities_forward_has_arrived_and_is_nobody_elses(engine: str, tmp_path: Path) -> None:
    both = [
        *hops("both", "events/Subscriptions/a", "Orders"),
        *hops("both", "events/Subscriptions/b", "Orders")[1:],
    ]
    fan = hops("fan", "in", "events/Subscriptions/a")
    fan += [row("completed", "fan", entity="events/Subscriptions/b")]
    dead = [row("dead-lettered", "dead", entity="orders", detail="bad")]
    dead += hops("dead", "orders/$DeadLetterQueue", "dead-letters")[1:]
    rows = [
        *hops("one", "in", "orders"),
        *hops("four", "a", "b", "events/Subscriptions/a", "c", "ORDERS"),
        *both,
        *fan,
        row("sent", "dead"),
        *dead,
        # The same id and body sent to the target too.
        *hops("twice", "in", "orders"),
        *hops("twice", "orders", at=NOON_MS + 1_000),
        # Without an id.
        *hops("", "in", "orders"),
        *hops("", "orders", at=NOON_MS + 1_000),
        # Not consumed yet.
        *hops("waiting", "in", "orders")[:2],
    ]

    found = certified(engine, tmp_path, rows)

    assert counts(found) == {"arrived": 10}
    assert (found.received, found.accepted, found.verdict) == (10, 10, HOLDS)


@pytest.mark.parametrize("before", [True, False])
def test_a_forwarded_message_does_not_stand_for_one_that_was_destroyed_in_the_backlog(
    engine: str, tmp_path: Path, before: bool
) -> None:
    """Whatever becomes of it at the target, and whether it came before or later."""
    forwarded = hops("m", "in", "orders")
    ends = {
        "completed": [],
        "waiting": [],
        "dead": [row("dead-lettered", "m", detail="bad")],
        "taken": [row("completed", "m", entity="orders/$DeadLetterQueue")],
    }
    at = NOON_MS + (1_000 if before else -1_000)
    for name, rows in ends.items():
        primary = [*forwarded[: 3 if name == "completed" else 2], *rows]
        listed = [
            row("held", "m", entity="orders/$DeadLetterQueue", detail=reason) for reason in ("bad", TTL)
        ]

        for number, entry in enumerate((None, *listed) if name == "dead" else (None,)):
            found = certified(
                engine, tmp_path / f"{name}-{number}", primary, purged("m", at), dead=[entry] if entry else ()
            )

            assert counts(found) == {"arrived": 1, "lost": 1}, (name, entry)
            assert [one.destination for one in found.named["lost"]] == ["orders"]


def test_a_message_that_came_beside_a_forwarded_one_is_there(engine: str, tmp_path: Path) -> None:
    """The drain brought it: its destination stored it."""
    parked_rows = [
        parked(kind, "m", namespace="standby", time=NOON_MS + n)
        for n, kind in enumerate(("sent", "completed"))
    ]
    brought = row("sent", "m", time=NOON_MS + 5_000, sequence_number=2)

    found = certified(engine, tmp_path, [*hops("m", "in", "orders"), brought], parked_rows)

    assert counts(found) == {"arrived": 2}
    assert found.verdict == HOLDS


def test_a_sender_that_names_the_target_of_a_send_by_way_of_another_entity_finds_it_there(
    engine: str, tmp_path: Path
) -> None:
    """The audit log has a send by way of another entity there, and its end at the target."""
    found = certified(engine, tmp_path, hops("m", "way", "orders"), own=[row("accepted", "m")])

    assert counts(found) == {"arrived": 1, "unexpected": 1}
    assert [one.destination for one in found.named["unexpected"]] == ["way"]


def test_forwardings_of_another_namespace_and_without_a_target_say_nothing(
    engine: str, tmp_path: Path
) -> None:
    elsewhere = row("forwarded", "m", entity="in", detail="orders", namespace="standby")
    nowhere = row("forwarded", "m", entity="in")
    rows = [row("sent", "m"), row("completed", "m"), nowhere]

    found = certified(engine, tmp_path, rows, [*purged("n", NOON_MS), elsewhere])

    assert counts(found) == {"arrived": 1, "lost": 1}


def test_the_audit_log_of_a_broker_that_forwards_accounts_for_every_message(
    engine: str, tmp_path: Path
) -> None:
    config = {
        "Queues": [
            {"Name": "orders", "Properties": {}},
            {"Name": "second", "Properties": {"ForwardTo": "orders"}},
            {"Name": "first", "Properties": {"ForwardTo": "second"}},
            {"Name": "failing", "Properties": {"ForwardDeadLetteredMessagesTo": "first"}},
        ],
        "Topics": [
            {
                "Name": "events",
                "Properties": {},
                "Subscriptions": [{"Name": name, "Properties": {"ForwardTo": "first"}} for name in "ab"],
            }
        ],
    }
    with (
        Namespace("contoso", process=True, config=config, data=tmp_path / "data", audit=True) as namespace,
        namespace.client() as client,
    ):
        for name in ("first", "failing"):
            with client.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage("body", message_id=name))
        with client.get_topic_sender("events") as sender:
            sender.send_messages(ServiceBusMessage("body", message_id="event"))
        with client.get_queue_receiver("failing") as receiver:
            (bad,) = receiver.receive_messages(max_wait_time=30)
            receiver.dead_letter_message(bad)
        taken = completed(client, "orders", 4)
    assert taken == ["event", "event", "failing", "first"]

    data = [str(tmp_path / "data")]
    found = certificate(engine, {"sent": data, "received": data})

    assert counts(found) == {"arrived": 3}
    assert (found.received, found.verdict) == (3, HOLDS)


def completed(client: ServiceBusClient, queue: str, count: int) -> list[str]:
    """The ids of so many messages that are received and completed."""
    found: list[str] = []
    with client.get_queue_receiver(queue) as receiver:
        while len(found) < count:
            for message in receiver.receive_messages(count - len(found), max_wait_time=30):
                receiver.complete_message(message)
                found.append(str(message.message_id))
    return sorted(found)
