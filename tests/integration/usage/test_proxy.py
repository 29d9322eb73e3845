"""An hour of operations by the official client: the usage log equals what a proxy saw on the wire, to the unit (D6)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from pairbus.local.management import ManagementClient
from pairbus.server.config.addresses import parse_address
from pairbus.testing import Namespace, Queue, VirtualClock
from tests.integration.usage.proxy import AmqpTap, Counts, HttpTap, Ledger, Proxy
from tests.waiting import wait_until

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
WAIT_SECONDS = 60.0
EMPTY_SECONDS = 0.3
BACKLOG = "contoso/x-servicebus-transfer/0"


class Bench:
    """The official client on one side of the proxies, a namespace with a clock of its own on the other."""

    def __init__(self, namespace: Namespace, clock: VirtualClock) -> None:
        self.namespace = namespace
        self.clock = clock
        self.ledger = Ledger(clock)
        self._amqp = Proxy(parse_address(namespace.amqp_address, "amqp"), lambda: AmqpTap(self.ledger))
        self._http = Proxy(parse_address(namespace.http_address, "http"), lambda: HttpTap(self.ledger))
        self.management = ManagementClient(f"127.0.0.1:{self._http.port}", namespace.connection_string)

    def client(self) -> ServiceBusClient:
        text = re.sub(
            r"Endpoint=sb://[^;/]+",
            f"Endpoint=sb://127.0.0.1:{self._amqp.port}",
            self.namespace.connection_string,
        )
        client = ServiceBusClient.from_connection_string(text, retry_total=0)
        get_sender, get_receiver = client.get_queue_sender, client.get_queue_receiver

        def sender(queue: str, **options: Any) -> ServiceBusSender:
            self.wait_until_all_left()
            return get_sender(queue, **options)

        def receiver(queue: str, **options: Any) -> ServiceBusReceiver:
            self.wait_until_all_left()
            return get_receiver(queue, **options)

        vars(client).update(get_queue_sender=sender, get_queue_receiver=receiver)
        return client

    def wait_until_all_left(self) -> None:
        """Who comes before everybody has noticed that another left makes two, for one side or for both."""
        some = re.compile(r'^pairbus_connections\{protocol="amqp[a-z-]*"\} [1-9]', re.MULTILINE)
        wait_until(
            lambda: not self.ledger.open_count and not some.search(self.metrics()), "no connection stays"
        )

    def minutes_pass(self, count: int) -> None:
        """Once the broker has noticed that everybody left: connections count in the minutes they were there."""
        self.wait_until_all_left()
        self.clock.advance(count * MINUTE_MS - self.clock() % MINUTE_MS)

    def metrics(self) -> str:
        client = ManagementClient(self.namespace.http_address, self.namespace.connection_string)
        return client.request("GET", "/metrics").decode()

    def close(self) -> None:
        self._amqp.close()
        self._http.close()


def read_usage(data: Path) -> tuple[Counts, dict[int, int], dict[str, set[str]]]:
    """Operations, peaks of connections by minute, and entities by stage."""
    counts: Counts = {}
    peaks: dict[int, int] = {}
    stages: dict[str, set[str]] = {}
    for file in data.glob("usage/hour=*/part-*.parquet"):
        for row in pyarrow.parquet.ParquetFile(file).read().to_pylist():
            minute = int(row["bucket"].timestamp() * 1000)
            assert file.parent.name == f"hour={row['bucket']:%Y-%m-%dT%H}"
            if row["operation"] == "connections":
                peaks[minute] = row["connection_peak"]
                assert (row["count"], row["units"]) == (0, 0)
                continue
            key = (minute, row["entity"], row["operation"])
            assert key not in counts, "a minute, entity and operation have one row"
            counts[key] = (row["count"], row["bytes"], row["units"])
            stages.setdefault(row["stage"], set()).add(row["entity"])
    return counts, peaks, stages


# --- what happens in the hour: one story per client --------------------------------------------------


def send_and_settle(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(
            [ServiceBusMessage(b"a" * size, message_id=f"m{size}") for size in (10, 70_000, 150_000)]
        )
        for number in range(4):
            sender.send_messages(ServiceBusMessage(b"b", message_id=f"n{number}"))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 300_000, message_id="too large"))
    with client.get_queue_receiver(queue) as receiver:
        messages: list[Any] = []
        while len(messages) < 7:
            messages += receiver.receive_messages(7 - len(messages), max_wait_time=WAIT_SECONDS)
        for message in messages[:2]:
            receiver.complete_message(message)
        receiver.renew_message_lock(messages[2])
        receiver.complete_message(messages[2])
        receiver.abandon_message(messages[3])
        receiver.dead_letter_message(messages[4])  # a reason would be more than was sent
        receiver.defer_message(messages[5])
        deferred = receiver.receive_deferred_messages([messages[5].sequence_number])
        receiver.complete_message(deferred[0])
        receiver.complete_message(messages[6])
        again = receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)
        receiver.complete_message(again[0])


def look_and_wait(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_receiver(queue) as receiver:
        assert receiver.peek_messages(10) == []
        for _ in range(3):
            assert receiver.receive_messages(5, max_wait_time=EMPTY_SECONDS) == []
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        assert len(receiver.peek_messages(10)) == 1
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)[0])


def schedule_and_cancel(client: ServiceBusClient, queue: str, clock: VirtualClock) -> None:
    later = datetime.fromtimestamp(clock() / 1000, UTC) + timedelta(hours=5)
    with client.get_queue_sender(queue) as sender:
        messages = [ServiceBusMessage(b"later", message_id=f"s{number}") for number in range(3)]
        numbers = sender.schedule_messages(messages, later)
        sender.cancel_scheduled_messages(numbers[:2])
        sender.cancel_scheduled_messages(numbers[2])


def receive_and_delete(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(b"d" * 65_000, message_id=f"d{n}") for n in range(3)])
    with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        messages: list[Any] = []
        while len(messages) < 3:
            messages += receiver.receive_messages(3 - len(messages), max_wait_time=WAIT_SECONDS)


@contextmanager
def seconds_pass(clock: VirtualClock) -> Iterator[None]:
    """Let the broker's time run as fast as ours, half a minute at the most, while the client waits for something to time out."""
    is_done = threading.Event()

    def run() -> None:
        for _ in range(300):
            if is_done.wait(0.1):
                return
            clock.advance(100)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def sessions(client: ServiceBusClient, queue: str, clock: VirtualClock) -> None:

    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(b"s", session_id="one", message_id="s1"))
    with client.get_queue_receiver(queue, session_id="one") as receiver:
        receiver.session.set_state(b"state" * 20_000)
        assert receiver.session.get_state() is not None
        receiver.session.renew_lock()
        receiver.complete_message(receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)[0])
        receiver.session.set_state(None)
        assert receiver.receive_messages(1, max_wait_time=EMPTY_SECONDS) == []
    with (
        seconds_pass(clock),
        pytest.raises(OperationTimeoutError),
        client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1) as receiver,
    ):
        receiver.receive_messages(1)


def ping(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        for _ in range(2):
            sender.send_messages(
                ServiceBusMessage(
                    b"",
                    content_type="application/vnd.ms-servicebus-ping",
                    time_to_live=timedelta(seconds=1),
                    session_id="throw-away",
                    message_id="ping",
                )
            )


def duplicates(client: ServiceBusClient, queue: str) -> None:
    with client.get_queue_sender(queue) as sender:
        for _ in range(3):
            sender.send_messages(ServiceBusMessage(b"once", message_id="once"))


@pytest.mark.promise("D6")
@pytest.mark.timeout(300)
def test_an_hour_of_operations_equals_what_a_proxy_saw(tmp_path: Path) -> None:
    # The hour begins with a whole minute, and not around the full hour, so that it spans two files.
    now = int(time.time() * 1000)
    start = now - now % MINUTE_MS
    while start // MINUTE_MS % 60 in (59, 0):
        start -= MINUTE_MS
    clock = VirtualClock(start)
    # The client looks at its own clock: a lock must not seem to be over because that is a little ahead.
    locks = timedelta(minutes=5)
    queues: list[str | Queue] = [
        Queue("orders", lock_duration=locks),
        Queue(BACKLOG, lock_duration=locks),
        Queue("sessions", requires_session=True, lock_duration=locks),
        Queue("unique", requires_duplicate_detection=True),
    ]
    with Namespace("usage", queues=queues, clock=clock, data=tmp_path / "data") as namespace:
        bench = Bench(namespace, clock)
        try:
            stories: list[tuple[int, Callable[[ServiceBusClient], None]]] = [
                (1, lambda client: send_and_settle(client, "orders")),
                (4, lambda client: look_and_wait(client, "orders")),
                (7, lambda client: schedule_and_cancel(client, "orders", clock)),
                (5, lambda client: receive_and_delete(client, BACKLOG)),
                (3, lambda client: sessions(client, "sessions", clock)),
                (12, lambda client: ping(client, "sessions")),
                (2, lambda client: duplicates(client, "unique")),
                (15, lambda client: send_and_settle(client, BACKLOG)),
                (9, lambda client: look_and_wait(client, BACKLOG)),
            ]
            for minutes, story in stories:
                bench.minutes_pass(minutes)
                with bench.client() as client:
                    story(client)
            bench.minutes_pass(1)
            bench.management.request("GET", "/$Resources/queues?api-version=2021-05")
            bench.management.request("GET", "/orders?api-version=2021-05")
            bench.management.request("DELETE", "/unique?api-version=2021-05")
            bench.minutes_pass(1)
            told = bench.metrics()
        finally:
            bench.close()
        namespace.stop()
        counts, peaks, stages = read_usage(tmp_path / "data")
        expected = bench.ledger.counts

    assert counts == expected
    assert {minute: peak for minute, peak in peaks.items() if peak} == {
        m: p for m, p in bench.ledger.peaks.items() if p
    }
    operations = {key[2] for key in expected}
    assert operations == {
        "send", "ping", "receive", "empty_receive", "settle", "peek", "renew", "schedule", "cancel", "session", "management",
    }  # fmt: skip
    assert stages["backlog"] == {BACKLOG, f"{BACKLOG}/$DeadLetterQueue"}
    assert len({key[0] // HOUR_MS for key in counts}) == 2
    # The metrics tell the same totals for what still exists.
    sends = sum(value[0] for key, value in counts.items() if key[1:] == ("orders", "send"))
    assert f'pairbus_operations_total{{entity="orders",operation="send"}} {sends}' in told
