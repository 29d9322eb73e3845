"""Dead letters that somebody puts back are the messages that they were: the certificate counts them once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from click.testing import CliRunner

from pairbus.cli.root import root
from pairbus.reports.certificate.value import HOLDS, LOSS, Certificate
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT
from pairbus.reports.inputs import find_all
from pairbus.testing import Namespace
from tests.integration.reports.ledger_kit import row
from tests.integration.reports.test_truth import at, certified, fates, in_secondary, set_aside

QUEUE = "contoso/x-servicebus-transfer/0"
ASIDE = {"entity": "contoso/x-servicebus-transfer/3/$DeadLetterQueue"}


def redriven(minutes: int, message_id: str) -> dict[str, object]:
    return in_secondary("sent", message_id, minutes, detail="redriven")


@pytest.mark.parametrize("message_id", ["a", ""])
def test_a_redriven_message_is_accepted_once(tmp_path: Path, message_id: str) -> None:
    aside = [{**entry, "message_id": message_id} for entry in set_aside(1)]
    again = [*aside, redriven(3, message_id)]
    home = [row("sent", message_id, time=at(5))]
    for name, ends, primary, expected in (
        ("home", "completed", home, {"arrived": 1}),
        ("purged", "purged", [], {"lost": 1}),
        ("cancelled", "cancelled", [], {"cancelled": 1}),
    ):
        found = certified(tmp_path / name, primary, [*again, in_secondary(ends, message_id, 6)])
        assert (fates(found), found.accepted) == (expected, 1), name
    waiting = certified(tmp_path, [], again)
    assert (fates(waiting), waiting.accepted, waiting.verdict) == ({"in_backlog": 1}, 1, HOLDS)


@pytest.mark.parametrize("message_id", ["a", ""])
def test_a_redrive_that_was_repeated_after_a_crash_is_a_repeat(tmp_path: Path, message_id: str) -> None:
    """It sends before it completes: both of its sends may arrive."""
    aside = [{**entry, "message_id": message_id} for entry in set_aside(1)]
    twice = [redriven(2, message_id), redriven(3, message_id)]
    drained = [in_secondary("completed", message_id, 6)] * 2
    found = certified(tmp_path, [row("sent", message_id, time=at(5))] * 2, [*aside, *twice, *drained])
    assert (fates(found), found.accepted) == ({"arrived": 1, "repeated": 1}, 1)


def test_the_first_send_of_a_redriven_message_may_be_older_than_the_rows(tmp_path: Path) -> None:
    """Then it must not be left out: it may be lost."""
    taken = in_secondary("completed", "a", 4, **ASIDE)
    for purged, expected in (([], {"in_backlog": 1}), ([in_secondary("purged", "a", 6)], {"lost": 1})):
        found = certified(tmp_path, [], [redriven(3, "a"), taken, *purged])
        assert (fates(found), found.accepted) == (expected, 1)


def test_a_senders_own_ledger_knows_nothing_of_a_redrive(tmp_path: Path) -> None:
    aside = [{**entry, "message_id": "a"} for entry in set_aside(1)]
    told = in_secondary("accepted", "a", 1)
    log = [*aside, redriven(3, "a"), in_secondary("completed", "a", 6)]
    found = certified(tmp_path, [row("sent", "a", time=at(5))], [told], backlog=log)
    assert (fates(found), found.accepted, found.verdict) == ({"arrived": 1}, 1, HOLDS)


def test_what_is_put_back_at_its_destination_had_arrived_before(tmp_path: Path) -> None:
    dead = [
        row("dead-lettered", "a", time=at(2)),
        row("completed", "a", time=at(4), entity="orders/$DeadLetterQueue"),
    ]
    again = row("sent", "a", time=at(4), detail="redriven")
    for ends in ([], [row("completed", "a", time=at(6))]):
        found = certified(tmp_path, [row("sent", "a", time=at(1)), *dead, again, *ends], [])
        assert (fates(found), found.accepted, found.received) == ({"arrived": 1}, 1, 1)


@pytest.fixture
def secondary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    config = {"Queues": [{"Name": QUEUE, "Properties": {}}]}
    with Namespace(
        "standby", process=True, config=config, data=tmp_path / "standby", audit=True
    ) as namespace:
        monkeypatch.setenv("PAIRBUS_SECONDARY", namespace.connection_string)
        yield namespace


def certificate(tmp_path: Path, **more: list[str]) -> Certificate:
    data = [str(tmp_path / "standby")]
    none = tmp_path / "none.jsonl"
    none.touch()
    given = {"sent": data, "received": [str(none)], "backlog": data, **more}
    return arrow.reconcile(find_all(None, given, AUDIT)).certificate


def test_what_the_command_puts_back_counts_once(secondary: Namespace, tmp_path: Path) -> None:
    ids = ["waits", "gone", None]
    with secondary.client() as client:
        with client.get_queue_sender(QUEUE) as sender:
            for message_id in ids:
                parked = ServiceBusMessage(
                    "x", message_id=message_id, application_properties={"x-ms-path": "orders"}
                )
                sender.send_messages(parked)
        for _ in range(2):
            with client.get_queue_receiver(QUEUE) as receiver:
                for _ in ids:
                    (message,) = receiver.receive_messages(1, max_wait_time=30)
                    receiver.dead_letter_message(message, reason="Nope")
            result = CliRunner().invoke(
                root, ["backlog", "--namespace", "contoso", "redrive", QUEUE], standalone_mode=False
            )
            assert (result.exception, result.return_value) == (None, 0)
        with client.get_queue_receiver(QUEUE) as receiver:
            for message in receiver.receive_messages(3, max_wait_time=30):
                if message.message_id == "gone":
                    receiver.complete_message(message)
    found = certificate(tmp_path)
    assert (fates(found), found.accepted, found.verdict) == ({"in_backlog": 2, "lost": 1}, 3, LOSS)
