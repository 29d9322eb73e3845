"""Whoever looks through an entity does not wait for ever on a connection that has fallen silent, and goes on over another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError
from click.testing import CliRunner

from pairbus.cli.root import root
from pairbus.drain.backlog import MessageRow, row_of
from pairbus.sdk.links import browsing
from pairbus.sdk.links.browsing import Browsed
from pairbus.spark.connector.entity import Entity
from pairbus.spark.connector.options import parse_source
from pairbus.spark.drain.census import Census
from pairbus.testing import Namespace, Queue
from tests.swallowing import SwallowingWay, swallowing_way

QUEUE = "contoso/x-servicebus-transfer/0"
MESSAGES = 3
ANSWER_SECONDS = 1.0
BACK_SECONDS = 1.5
"""After so many seconds of silence everything comes through again, where a test wants that."""


@dataclass(frozen=True)
class Secondary:
    way: SwallowingWay
    connection_string: str

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.way.port}"

    def fall_silent(self, *, is_for_good: bool) -> None:
        self.way.swallow()
        if not is_for_good:
            threading.Timer(BACK_SECONDS, self.way.pass_on).start()


@pytest.fixture
def secondary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Secondary]:
    """A namespace behind a way that can go silent, with pages of one message."""
    monkeypatch.setattr(browsing, "ANSWER_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr(browsing, "BROWSE_SECONDS", 20.0)
    monkeypatch.setattr("pairbus.drain.backlog.PAGE", 1)
    monkeypatch.setattr("pairbus.spark.connector.entity.PAGE", 1)
    with Namespace("fabrikam", queues=[Queue(QUEUE)], process=True) as namespace:
        with namespace.client() as client, client.get_queue_sender(QUEUE) as sender:
            sender.send_messages([ServiceBusMessage(f"{number}") for number in range(MESSAGES)])
        given = namespace.connection_string
        port = int(given.split("sb://127.0.0.1:")[1].split("/")[0])
        with swallowing_way(("127.0.0.1", port)) as way:
            yield Secondary(way, given.replace(f":{port}", f":{way.port}"))


@pytest.mark.parametrize("is_for_good", [True, False])
def test_a_list_of_backlog_messages_ends_when_its_connection_falls_silent(
    secondary: Secondary, is_for_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def silent_after_one(queue: str, browsed: Browsed) -> MessageRow:
        seen.append(browsed.sequence_number)
        if len(seen) == 1:
            secondary.fall_silent(is_for_good=is_for_good)
        return row_of(queue, browsed)

    monkeypatch.setattr("pairbus.drain.backlog.row_of", silent_after_one)
    command = ["backlog", "--namespace", "contoso", "list", "--messages", "10", "--json"]
    result = CliRunner().invoke(root, command, env={"PAIRBUS_SECONDARY": secondary.connection_string})

    if is_for_good:
        error = str(result.exception) + result.output
        assert (result.exit_code != 0, seen) == (True, [1])
        assert (
            f"the secondary {secondary.address}: the namespace could not be reached (no answer for 1 s"
            in error
        )
    else:
        assert (result.exit_code, seen) == (0, [1, 2, 3]), result.output


@pytest.mark.parametrize("is_for_good", [True, False])
def test_a_task_of_the_spark_source_ends_or_goes_on_when_its_connection_falls_silent(
    secondary: Secondary, is_for_good: bool
) -> None:
    options = {"connectionString": secondary.connection_string, "queue": QUEUE}
    entity = Entity(parse_source(options, is_stream=False), is_task=True)
    found = entity.browse(1)
    try:
        assert next(found).number == 1
        secondary.fall_silent(is_for_good=is_for_good)
        if is_for_good:
            with pytest.raises(OperationTimeoutError, match=f"{secondary.address}: no answer for 1 s"):
                next(found)
        else:
            assert [message.number for message in found] == [2, 3]
    finally:
        secondary.way.pass_on()
        entity.close()


def test_the_driver_of_the_spark_drain_does_not_wait_for_ever(secondary: Secondary) -> None:
    census = Census(secondary.connection_string, "contoso", 1)
    try:
        assert census.first(QUEUE) == 1
        secondary.fall_silent(is_for_good=True)
        with pytest.raises(OperationTimeoutError, match="no answer for 1 s"):
            census.highest(QUEUE)
    finally:
        secondary.way.pass_on()
        census.close()
