"""Drills on real pairs: they pass, they end by themselves, they leave nothing, they say when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage

from pairbus.errors import PairingError, UsageError
from pairbus.stage.drill.card import Card
from pairbus.stage.drill.plan import PROPERTY, DrillOptions
from pairbus.stage.drill.run import play
from pairbus.stage.drill.view import Scene
from pairbus.testing import Namespace, Pair
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(180)
SUBSCRIPTIONS = {"Topics": [{"Name": "events", "Subscriptions": [{"Name": "billing"}]}]}


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    primary = Namespace("contoso", queues=["orders"], config=SUBSCRIPTIONS)
    with Pair(primary, Namespace("backup")) as running:
        yield running


def options(pair: Pair, **changes: Any) -> DrillOptions:
    """A short drill; how late things may be is not what is tested here."""
    values: dict[str, Any] = {
        "lasts": timedelta(seconds=3),
        "rate": 20.0,
        "failover_interval": timedelta(seconds=1),
        "ping_interval": timedelta(seconds=1),
        "queues": 2,
        "timeout": timedelta(seconds=30),
        "slack": timedelta(seconds=90),
        "calm": timedelta(milliseconds=300),
    }
    return DrillOptions(
        primary=pair.primary.connection_string,
        secondary=pair.secondary.connection_string,
        **{**values, **changes},
    )


def hold(
    chosen: DrillOptions, work: Path, stop: threading.Event | None = None, scene: Scene | None = None
) -> Card:
    return play(chosen, scene or Scene(), stop or threading.Event(), work)


def figures(card: Card) -> dict[str, Any]:
    return dict(card.as_json())


def faults(namespace: Namespace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(namespace._management().request("GET", "/$faults"))["faults"]
    return found


def queues(namespace: Namespace) -> list[str]:
    with namespace.administration_client() as admin:
        return [queue.name for queue in admin.list_queues()]


def failed(card: Card) -> list[str]:
    return [f"{line.name}: {line.figure}" for line in card.lines if line.verdict == "fail"]


def test_a_drill_passes_and_leaves_nothing(pair: Pair, tmp_path: Path) -> None:
    card = hold(options(pair), tmp_path)

    assert failed(card) == []
    told = figures(card)
    assert told["outage"] == "refuse", "there is a switchboard"
    assert told["parked"] == told["home"] > 0
    assert (told["lost"], told["duplicates"], told["set_aside"]) == (0, 0, 0)
    assert told["accepted"] == told["probes"]
    assert told["failover_seconds"] >= 0.99, "two readings of a clock, each cut to whole milliseconds"
    assert told["pings"] > 0
    assert told["operations"] >= told["probes"] * 2 + told["parked"] * 2
    assert faults(pair.primary) == []
    assert [name for name in queues(pair.primary) if "drill" in name] == []


def test_without_a_switchboard_the_client_is_switched_by_hand(tmp_path: Path) -> None:
    with Pair(Namespace("contoso", faults=False), Namespace("backup")) as pair:
        with pytest.raises(PairingError, match="pairbus serve --faults"):
            hold(options(pair, fault="refuse"), tmp_path)

        card = hold(options(pair, lasts=timedelta(seconds=1)), tmp_path)

    assert failed(card) == []
    assert card.outage == "manual"
    assert figures(card)["parked"] > 0


def test_ended_before_its_time_the_fault_is_off_and_everything_home(pair: Pair, tmp_path: Path) -> None:
    stop, scene = threading.Event(), Scene()

    def end_when_parked() -> None:
        wait_until(lambda: any(probe.is_parked for probe in scene.book.messages()), "a parked probe")
        stop.set()

    ending = threading.Thread(target=end_when_parked)
    ending.start()
    card = hold(options(pair, lasts=timedelta(minutes=5)), tmp_path, stop, scene)
    ending.join()

    assert card.is_early
    assert failed(card) == []
    assert figures(card)["parked"] == figures(card)["home"] > 0
    assert figures(card)["outage_seconds"] < 200
    assert faults(pair.primary) == []


def test_on_entities_in_use_real_messages_stay_untouched(pair: Pair, tmp_path: Path) -> None:
    with pair.primary.client() as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("a real order", message_id="real"))
    chosen = options(
        pair, entities=("orders", "events"), may_touch=True, fault="manual", lasts=timedelta(seconds=1)
    )

    card = hold(chosen, tmp_path)

    assert failed(card) == []
    assert figures(card)["parked"] == figures(card)["home"] > 0
    with pair.primary.client() as client, client.get_queue_receiver("orders") as receiver:
        seen = receiver.peek_messages(max_message_count=200)
    probes = [message for message in seen if PROPERTY.encode() in (message.application_properties or {})]
    [real] = [message for message in seen if message.message_id == "real"]
    assert real.delivery_count == 0
    assert len(probes) == len(seen) - 1 > 0, "the consumers get the probes, marked"
    with pair.primary.administration_client() as admin:
        assert [one.name for one in admin.list_subscriptions("events")] == ["billing"]


@pytest.mark.slow
def test_strangers_in_the_backlog_want_to_be_asked_for(pair: Pair, tmp_path: Path) -> None:
    hold(
        options(pair, fault="manual", lasts=timedelta(seconds=1)), tmp_path
    )  # the backlog queues exist from here on
    backlog = "contoso/x-servicebus-transfer/1"
    with pair.secondary.client() as client:
        with client.get_queue_sender(backlog) as sender:
            sender.send_messages(
                ServiceBusMessage("somebody's", application_properties={"x-ms-path": "orders"})
            )

        with pytest.raises(UsageError, match="--syphon running"):
            hold(options(pair), tmp_path)

        with client.get_queue_receiver(backlog) as receiver:
            [message] = receiver.receive_messages(max_wait_time=10)
            assert message.delivery_count == 0
            receiver.complete_message(message)
    assert [name for name in queues(pair.primary) if "drill" in name] == []


@pytest.mark.slow
def test_nobody_brings_the_backlog_home_and_the_card_says_so(tmp_path: Path) -> None:
    with Pair(Namespace("contoso"), Namespace("backup")) as pair:
        chosen = options(
            pair,
            fault="manual",
            lasts=timedelta(seconds=1),
            syphon="running",
            drain_within=timedelta(seconds=1),
        )
        card = hold(chosen, tmp_path)

        assert [name.partition(":")[0] for name in failed(card)] == ["drain", "tidy"]
        assert figures(card)["lost"] == 0, "what waits in the backlog is not lost"
        [own] = [name for name in queues(pair.primary) if "drill" in name]
        assert own in figures(card)["left_behind"][0], "it stays: the probes need it to come home to"


def test_a_pair_that_is_not_well_is_left_alone(pair: Pair, tmp_path: Path) -> None:
    with pair.primary.administration_client() as admin:
        orders = admin.get_queue("orders")
        orders.status = "SendDisabled"
        admin.update_queue(orders)
        try:
            with pytest.raises(PairingError, match="nothing was broken"):
                # No failover meanwhile: its parked probes would be strangers to the next drill on this pair.
                late = {"failover_interval": timedelta(minutes=5), "lasts": timedelta(minutes=10)}
                impatient = options(
                    pair, entities=("orders",), may_touch=True, timeout=timedelta(seconds=1), **late
                )
                hold(impatient, tmp_path)
        finally:
            orders.status = "Active"
            admin.update_queue(orders)
    assert faults(pair.primary) == []


@pytest.mark.slow
def test_killed_it_leaves_an_outage_that_ends_by_itself(pair: Pair) -> None:
    environment = {
        **os.environ,
        "PAIRBUS_PRIMARY": pair.primary.connection_string,
        "PAIRBUS_SECONDARY": pair.secondary.connection_string,
    }
    asked = "drill --for 4s --failover-interval 1s --queues 2"
    command = [sys.executable, "-m", "pairbus", *asked.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "ends by itself" in line:
                break
        process.kill()

    [fault] = faults(pair.primary)
    assert fault["remaining_ms"] <= 4_000
    wait_until(lambda: faults(pair.primary) == [], "the fault's own end")
    [own] = [name for name in queues(pair.primary) if "drill" in name]
    with pair.primary.administration_client() as admin:
        idle = admin.get_queue(own).auto_delete_on_idle
        assert isinstance(idle, timedelta)
        assert idle < timedelta(hours=1), "it goes by itself"
        admin.delete_queue(own)
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue(own)


@pytest.mark.promise("M7")
def test_as_a_command_it_prints_one_object_and_no_key(pair: Pair) -> None:
    environment = {
        **os.environ,
        "PAIRBUS_PRIMARY": pair.primary.connection_string,
        "PAIRBUS_SECONDARY": pair.secondary.connection_string,
    }
    asked = "drill --json --fault manual --for 60s --queues 2 --slack 90s --yes"
    command = [sys.executable, "-m", "pairbus", *asked.split()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        shown = ""
        for line in process.stderr:
            shown += line
            if "ends by itself" in line:
                break
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=120)

    told = json.loads(out)
    assert process.returncode == 130, (told, shown + rest)
    assert told["ended_early"] is True
    assert told["passed"] is True, told
    for side in (pair.primary, pair.secondary):
        key = side.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
        assert key not in out + shown + rest
    assert "\x1b[" not in shown + rest, "calm when nobody watches"


def test_a_drill_that_is_planned_can_be_called_off(pair: Pair) -> None:
    environment = {
        **os.environ,
        "PAIRBUS_PRIMARY": pair.primary.connection_string,
        "PAIRBUS_SECONDARY": pair.secondary.connection_string,
    }
    command = [sys.executable, "-m", "pairbus", "drill", "--in", "1h"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        assert "refuse begins at" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=60)

    assert (process.returncode, out) == (130, "")
    assert "called off" in rest
    assert faults(pair.primary) == []
    assert [name for name in queues(pair.primary) if "drill" in name] == []
