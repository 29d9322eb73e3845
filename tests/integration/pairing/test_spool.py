"""The spool with real brokers: both killed, the sending program killed, everything home, and the certificate says so."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from click.testing import CliRunner

from pairbus import (
    ClientClosedError,
    EntityGoneError,
    Health,
    PairedServiceBusClient,
    ScheduledMessageGoneError,
    SpoolRefusedError,
    aio,
)
from pairbus.cli.pairing.spool import spool as spool_command
from pairbus.cli.reports.reconcile import reconcile
from pairbus.pairing.client.spool import replaying, spooling
from pairbus.pairing.events import Kind
from pairbus.sdk.messages import message_bytes
from pairbus.spool.store import Append
from pairbus.testing import Namespace, Pair, Queue
from tests.integration.pairing import spool_process
from tests.integration.pairing.kit import bodies, options, paired, text
from tests.waiting import until, wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def pair() -> Iterator[Pair]:
    once = Queue(
        "once",
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=10),
    )
    sessions = Queue("sessions", requires_session=True)
    primary = Namespace("primary", process=True, queues=["orders", once, sessions], audit=True)
    secondary = Namespace("secondary", process=True, audit=True)
    with Pair(primary, secondary) as started:
        yield started


def kinds_of(client: PairedServiceBusClient) -> list[Kind]:
    return [event.kind for event in client.events()]


def kill(pair: Pair) -> None:
    pair.primary.kill()
    pair.secondary.kill()


@pytest.mark.promise("P1", "P2", "P45", "P50", "P51")
def test_sends_go_on_while_both_are_away_and_the_spool_empties_in_order(pair: Pair, tmp_path: Path) -> None:
    with (
        paired(pair, options(spool=tmp_path / "spool", enable_syphon=True)) as client,
        client.get_queue_sender("once") as sender,
    ):
        sender.send_messages(text(0))
        kill(pair)
        sender.send_messages(text(1))
        sender.send_messages([text(2), text(3)])
        report = client.health()["once"]
        assert report.spooled == 3
        assert (report.oldest_spooled_age_ms or 0) > 0
        handles = sender.schedule_messages([text("cancelled"), text("kept")], datetime.now(UTC))
        sender.cancel_scheduled_messages(handles[:1])
        with pytest.raises(ScheduledMessageGoneError):
            sender.cancel_scheduled_messages(handles[:1])
        pair.primary.restart()
        # The event, not a count of 0: until the replay has ended a send still joins the spool.
        wait_until(lambda: Kind.SPOOL_REPLAYED in kinds_of(client), "P50: the spool is replayed")
        assert client.health()["once"].spooled == 0
        sender.send_messages(text(4))
        with pytest.raises(ScheduledMessageGoneError):
            sender.cancel_scheduled_messages(handles[1:])
        found = client.statistics()
        kinds = [event.kind.value for event in client.events()]

    assert found.sends == 7 == found.to_primary + found.to_backlog + found.spooled
    assert (found.spooled, found.replayed_to_primary, found.spool_messages) == (5, 4, 0)
    assert kinds.count("pairing.spool_used") == kinds.count("pairing.spool_replayed") == 1
    assert list((tmp_path / "spool").iterdir()) == [], "an empty spool is deleted"
    with pair.primary.client() as reader, reader.get_queue_receiver("once") as receiver:
        order = [str(message) for message in receiver.peek_messages(max_message_count=20)]
    assert order == ["0", "1", "2", "3", "kept", "4"], "P51"


async def test_the_asynchronous_client_spools_starts_without_namespaces_and_goes_on(
    pair: Pair, tmp_path: Path
) -> None:
    strings = pair.primary.connection_string, pair.secondary.connection_string
    kill(pair)

    def made() -> Any:
        return aio.PairedServiceBusClient.from_connection_strings(
            *strings,
            options=options(spool=tmp_path / "spool"),
            management={"retry_total": 0},
            retry_total=0,
        )

    async with made() as client:
        assert client.backlog_queue_count == 0
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(text("a"), timeout=20)
            await sender.send_messages(text("b"), timeout=20)
        assert client.statistics().spooled == 2
    with pytest.raises(ClientClosedError):
        await sender.send_messages(text("closed"))
    async with made() as client:
        assert (client.backlog_queue_count, client.health()["orders"].spooled) == (0, 2)
        pair.secondary.restart()
        await until(lambda: client.backlog_queue_count == 2, "the queues are set up later")
        await until(lambda: client.health()["orders"].spooled == 0, "the backlog takes what is left")
        assert client.statistics().replayed_to_backlog == 2
        assert client.health()["orders"].state is Health.FAILED_OVER
    pair.primary.restart()


@pytest.mark.promise("P52")
def test_at_its_bound_the_spool_refuses_with_the_primarys_error(pair: Pair, tmp_path: Path) -> None:
    with (
        paired(pair, options(spool=tmp_path / "spool", spool_max_bytes=700)) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(text(0))
        kill(pair)
        sender.send_messages(text("x" * 200))
        with pytest.raises(SpoolRefusedError, match="spool_max_bytes") as caught:
            sender.send_messages(text("y" * 500))
        assert isinstance(caught.value.__cause__, ServiceBusError)
        found = client.statistics()
        assert (found.spooled, found.failed, found.unknown) == (1, 1, 0)
    pair.primary.restart()
    pair.secondary.restart()
    listing = CliRunner().invoke(spool_command, ["list", str(tmp_path / "spool"), "--json"])
    (row,) = json.loads(listing.stdout)
    assert (row["entity"], row["messages"], row["in_use"]) == ("orders", 1, False)
    exported = tmp_path / "messages.jsonl"
    assert (
        CliRunner()
        .invoke(spool_command, ["export", str(tmp_path / "spool"), "--output", str(exported)])
        .stdout.startswith("1 message in")
    )
    assert json.loads(exported.read_text())["body"] == "x" * 200
    replayed = CliRunner(
        env={
            "PAIRBUS_PRIMARY": pair.primary.connection_string,
            "PAIRBUS_SECONDARY": pair.secondary.connection_string,
        }
    ).invoke(spool_command, ["replay", str(tmp_path / "spool"), "--queues", "2"])
    assert "1 message to the primary, 0 to the backlog" in replayed.stdout, replayed.output
    assert bodies(pair.primary, "orders", 2) == {"0": 1, "x" * 200: 1}


def test_a_message_that_the_entity_refuses_stays_and_the_others_go_on(pair: Pair, tmp_path: Path) -> None:
    with (
        paired(pair, options(spool=tmp_path / "spool")) as client,
        client.get_queue_sender("orders") as sender,
    ):
        client.fail_over("orders")
        kill(pair)
        sender.send_messages(text("one"))
        # As large as the link of a larger tier allows: this primary takes 256 KB.
        spools = client._state.spools
        assert spools is not None
        large = Append("orders", "orders", [message_bytes.encoded(text("x" * 400_000))], 1)
        spools.enter(large).commit(large)
        sender.send_messages(text("two"))
        pair.primary.restart()
        wait_until(lambda: Kind.SPOOL_REPLAYED in kinds_of(client), "the others are replayed")
        report = client.health()["orders"]
        assert report.spool_undeliverable == 1
        kinds = [event.kind.value for event in client.events()]
    assert "pairing.spool_undeliverable" in kinds
    assert bodies(pair.primary, "orders", 2) == {"one": 1, "two": 1}
    exported = CliRunner().invoke(spool_command, ["export", str(tmp_path / "spool")])
    assert "MessageSizeExceeded" in json.loads(exported.stdout)["detail"]


@pytest.mark.promise("P50")
def test_a_message_that_the_settings_of_the_entity_forbid_holds_up_no_other(
    pair: Pair, tmp_path: Path
) -> None:
    with (
        paired(pair, options(spool=tmp_path / "spool")) as client,
        client.get_queue_sender("sessions") as sender,
    ):
        kill(pair)
        sender.send_messages(text("without a session"))
        sender.send_messages([ServiceBusMessage(body, session_id="s") for body in ("one", "two")])
        pair.primary.restart()
        wait_until(lambda: Kind.SPOOL_REPLAYED in kinds_of(client), "the others are replayed")
        assert client.health()["sessions"].spool_undeliverable == 1
        sender.send_messages(ServiceBusMessage("three", session_id="s"))
        assert client.statistics().to_primary == 1
        assert "pairing.spool_undeliverable" in [event.kind.value for event in client.events()]
    assert bodies(pair.primary, "sessions", 3, session_id="s") == {"one": 1, "two": 1, "three": 1}
    exported = CliRunner().invoke(spool_command, ["export", str(tmp_path / "spool")])
    row = json.loads(exported.stdout)
    assert row["body"] == "without a session"
    assert "session" in row["detail"]


def test_sends_to_an_entity_that_does_not_exist_raise_although_the_spool_has_messages_of_it(
    pair: Pair, tmp_path: Path
) -> None:
    with paired(pair, options(spool=tmp_path / "spool")) as client:
        kill(pair)
        client.get_queue_sender("later").send_messages(text("one"))
    pair.secondary.restart()
    pair.primary.restart()
    with paired(pair, options(spool=tmp_path / "spool")) as client:
        # This client has never sent to the entity, and knows of no outage.
        sender = client.get_queue_sender("later")
        wait_until(lambda: client.health()["later"].state is Health.REFUSING, "it is known to be gone")
        with pytest.raises(EntityGoneError):
            sender.send_messages(text("two"))
        assert client.health()["later"].spooled == 1
        assert "pairing.refused" in [event.kind.value for event in client.events()]
        with pair.primary.administration_client() as administration:
            administration.create_queue("later")
        # A send before the end of the replay would join the spool, and stay there when this client is closed.
        wait_until(lambda: Kind.SPOOL_REPLAYED in kinds_of(client), "it is replayed once it exists")
        assert client.health()["later"].spooled == 0
        sender.send_messages(text("three"))
    assert bodies(pair.primary, "later", 2) == {"one": 1, "three": 1}


def test_sends_go_direct_once_all_is_delivered_although_the_disk_is_full(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    for module in (replaying, spooling):
        monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", 0.3)
    with (
        paired(pair, options(spool=tmp_path / "spool")) as client,
        client.get_queue_sender("orders") as sender,
    ):
        kill(pair)
        sender.send_messages([text(0), text(1)])
        spools = client._state.spools
        assert spools is not None
        (own,) = spools.all
        with monkeypatch.context() as full:
            full.setattr(own, "_change", fails)
            full.setattr(own, "_write", fails)
            pair.primary.restart()
            wait_until(lambda: Kind.SPOOL_REPLAYED in kinds_of(client), "all is delivered")
            sender.send_messages(text(2))
            assert client.statistics().to_primary == 1
            assert not own.is_tidy
        wait_until(lambda: own.is_tidy, "they are removed when there is space again")
        kinds = [event.kind.value for event in client.events()]
        assert kinds.count("pairing.spool_unusable") == 1
    assert bodies(pair.primary, "orders", 3) == {"0": 1, "1": 1, "2": 1}
    assert list((tmp_path / "spool").iterdir()) == []


# --- a program that is killed ---------------------------------------------------------------------------


class Program:
    """The sending program, as a process that can be killed and started again."""

    def __init__(self, pair: Pair, root: Path, threads: int, rate: float) -> None:
        self._root = root
        self._arguments = [str(threads), str(rate)]
        self._environment = {
            **os.environ,
            "PAIRBUS_PRIMARY": pair.primary.connection_string,
            "PAIRBUS_SECONDARY": pair.secondary.connection_string,
        }
        self.lives = 0
        self.start()

    def start(self) -> None:
        name = str(self.lives)
        self.lives += 1
        self._process = subprocess.Popen(
            [sys.executable, spool_process.__file__, str(self._root), name, *self._arguments],
            env=self._environment,
        )
        wait_until((self._root / f"ready-{name}").exists, f"life {name} starts", 120)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> dict[str, Any]:
        (self._root / "stop").touch()
        assert self._process.wait(300) == 0
        found: dict[str, Any] = json.loads((self._root / f"end-{self.lives - 1}.json").read_text())
        return found

    def returned(self) -> int:
        return sum(len(file.read_text().splitlines()) for file in self._root.glob("sent-*.jsonl"))


def outage(pair: Pair, root: Path, threads: int, rate: float, seconds: float) -> dict[str, Any]:
    """Both namespaces away for ``seconds``, the program killed twice meanwhile. Returns what the last life tells."""
    program = Program(pair, root, threads, rate)
    try:
        wait_until(lambda: program.returned() > threads, "sends return")
        kill(pair)
        begun = time.monotonic()
        for _ in range(2):
            before = program.returned()
            wait_until(lambda: program.returned() > before + 2 * threads, "sends go on")  # noqa: B023 - waited for here
            time.sleep(seconds / 3 - 0.5)  # the outage lasts as long as the caller says
            program.kill()
            program.start()
        before = program.returned()
        wait_until(lambda: program.returned() > before + threads, "sends go on")
        time.sleep(max(0.0, seconds - (time.monotonic() - begun)))
        waiting = CliRunner().invoke(spool_command, ["list", str(root / "spool"), "--json"])
        pair.secondary.restart()
        pair.primary.restart()
        wait_until(lambda: program.returned() > before + 3 * threads, "sends go on")
        found = program.end()
    finally:
        program.kill()
    return {**found, "returned": program.returned(), "waiting": json.loads(waiting.stdout)}


def certificate(pair: Pair, root: Path) -> dict[str, Any]:
    """What ``pairbus reconcile`` says of everything that returned."""
    pair.primary.stop()
    pair.secondary.stop()
    sent = [part for file in sorted(root.glob("sent-*.jsonl")) for part in ("--sent", str(file))]
    places = ["--received", str(pair.primary.data), "--backlog", str(pair.secondary.data)]
    result = CliRunner().invoke(
        reconcile,
        [*sent, *places, "--spool", str(root / "spool"), "--engine", "local", "--json", "--no-order"],
        standalone_mode=False,
    )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.promise("P1", "P50")
def test_a_program_killed_twice_while_both_are_away_loses_nothing(pair: Pair, tmp_path: Path) -> None:
    found = outage(pair, tmp_path, threads=4, rate=100, seconds=2)

    assert found["errors"] == []
    assert sum(row["messages"] for row in found["waiting"]) > 0
    assert found["left"] == 0
    judged = certificate(pair, tmp_path)
    assert judged["accepted"] == found["returned"]
    assert (judged["lost"], judged["in_spool"], judged["in_backlog"]) == (0, 0, 0)
    assert judged["arrived"] == found["returned"]


@pytest.mark.slow
@pytest.mark.promise("P1", "P50")
def test_a_minute_of_500_sends_a_second_while_both_are_away(pair: Pair, tmp_path: Path) -> None:
    found = outage(pair, tmp_path, threads=40, rate=500, seconds=60)
    judged = certificate(pair, tmp_path)

    print(
        json.dumps({**found, **{name: judged[name] for name in ("accepted", "arrived", "lost", "repeated")}})
    )
    assert found["errors"] == []
    assert found["left"] == 0
    assert judged["accepted"] == judged["arrived"] == found["returned"]
    assert (judged["lost"], judged["in_spool"], judged["in_backlog"]) == (0, 0, 0)


def test_the_certificate_says_what_is_still_in_a_spool(pair: Pair, tmp_path: Path) -> None:
    with paired(pair, options(spool=tmp_path / "spool")) as client:
        sender = client.get_queue_sender("orders")
        sender.send_messages(text("home"))
        kill(pair)
        sender.send_messages(text("here"))
    pair.primary.restart()
    pair.secondary.restart()
    pair.primary.stop()
    result = CliRunner().invoke(
        reconcile,
        [
            *("--sent", str(pair.primary.data), "--received", str(pair.primary.data)),
            *("--spool", str(tmp_path / "spool"), "--engine", "local", "--json"),
        ],
        standalone_mode=False,
    )
    found = json.loads(result.stdout)

    assert (found["accepted"], found["arrived"], found["in_spool"], found["lost"]) == (2, 1, 1, 0)


@pytest.mark.slow
@pytest.mark.promise("P15", "P51")
def test_a_replay_by_hand_goes_behind_what_is_parked(pair: Pair, tmp_path: Path) -> None:
    root = tmp_path / "spool"
    strings = {
        "PAIRBUS_PRIMARY": pair.primary.connection_string,
        "PAIRBUS_SECONDARY": pair.secondary.connection_string,
    }
    with (
        paired(pair, options(spool=root, order="session")) as client,
        client.get_queue_sender("orders") as sender,
    ):
        pair.primary.kill()
        sender.send_messages(text("parked", session_id="a"))
        queue = client.health()["orders"].backlog_queue
        assert queue is not None
        pair.secondary.kill()
        sender.send_messages([text("spooled", session_id="a"), text("of no session")])
        assert client.health()["orders"].spooled == 2
    pair.primary.restart()

    def replay(*given: str) -> Any:
        return CliRunner(env=strings).invoke(
            spool_command, ["replay", str(root), *given], standalone_mode=False
        )

    away = replay("--timeout", "2")
    assert away.return_value == 1, "the session waits while nobody can see what is parked"
    pair.secondary.restart()
    done = replay()

    assert done.return_value == 0, done.output
    with pair.secondary.client() as reader, reader.get_queue_receiver(queue) as receiver:
        found = receiver.peek_messages(max_message_count=10)
    assert [str(message) for message in found if message.session_id is None][:2] == ["parked", "spooled"]
    with pair.primary.client() as reader, reader.get_queue_receiver("orders") as receiver:
        assert "spooled" not in [str(message) for message in receiver.peek_messages(max_message_count=10)]
