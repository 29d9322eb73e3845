"""Backlogs for Spark tests: filled quickly with parked messages, and destinations read to the last one."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pairbus.amqp.message.whole import decode_message
from pairbus.pairing.parking import Passport, park
from pairbus.sdk.messages import message_bytes
from pairbus.spark import register
from pairbus.spark.connector.entity import Entity
from pairbus.spark.connector.options import parse_source
from pairbus.spark.session import spark_session
from pairbus.testing import Pair

_NUMBERS = itertools.count(1)
BATCH_BYTES = 200_000
LISTENERS_MS_MAX = 120_000
T = TypeVar("T")


def parked(path: str, message_id: str, body: bytes, session_id: str | None = None) -> bytes:
    """A message for ``path`` in its parked form."""
    message = ServiceBusMessage(body, message_id=message_id, session_id=session_id)
    return park(message_bytes.encoded(message), path, passport())


def passport() -> Passport:
    """What a factory writes into each message that it parks: no two have the same."""
    return Passport("factory", next(_NUMBERS), 1, "connection refused or lost")


def send_payloads(client: ServiceBusClient, queue: str, payloads: Sequence[bytes]) -> None:
    """Send encoded messages as they are."""
    with client.get_queue_sender(queue) as sender:
        rest = list(payloads)
        while rest:
            batch = message_bytes.batch_of(sender.create_message_batch(max_size_in_bytes=BATCH_BYTES), rest)
            sender.send_messages(batch)
            rest = rest[len(batch) :]


def read_all(
    receiver: ServiceBusReceiver, expected: int, wait: float = 1.0
) -> list[tuple[str, str | None, bytes]]:
    """Receive and delete until nothing comes: message ids, sessions and bodies."""
    found: list[tuple[str, str | None, bytes]] = []
    while True:
        messages = receiver.receive_messages(
            max_message_count=1000, max_wait_time=wait if len(found) >= expected else 45
        )
        if not messages:
            return found
        found += [
            (str(message.message_id), message.session_id, b"".join(message.body)) for message in messages
        ]


def read_queue(
    client: ServiceBusClient, queue: str, expected: int = 0
) -> list[tuple[str, str | None, bytes]]:
    """Everything in a queue."""
    with client.get_queue_receiver(queue, receive_mode="receiveanddelete", prefetch_count=500) as receiver:
        return read_all(receiver, expected)


def read_subscription(
    client: ServiceBusClient, topic: str, subscription: str, expected: int = 0
) -> list[tuple[str, str | None, bytes]]:
    """Everything in a subscription."""
    with client.get_subscription_receiver(
        topic, subscription, receive_mode="receiveanddelete", prefetch_count=500
    ) as receiver:
        return read_all(receiver, expected)


def look_at(connection_string: str, **entity: str) -> list[tuple[str, str | None, bytes]]:
    """Everything in an entity, in order and without taking it: quick for entities with sessions too."""
    source = Entity(parse_source({"connectionString": connection_string, **entity}, is_stream=False))
    try:
        messages = [decode_message(found.payload) for found in source.browse(1)]
    finally:
        source.close()
    return [
        (str(message.properties.message_id), message.properties.group_id, bytes(str(message.body), "utf-8"))
        for message in messages
    ]


def copies(found: Iterable[tuple[str, str | None, bytes]]) -> Counter[str]:
    """How often each message id came."""
    return Counter(message_id for message_id, _, _ in found)


# --- Spark ----------------------------------------------------------------------------------------


@functools.cache
def event_log_directory() -> str:
    """Where Spark logs its events; one directory for the process."""
    return tempfile.mkdtemp(prefix="pairbus-events-")


def small_session() -> SparkSession:
    """One session for all tests of a process: small, quiet, with tasks that are tried again and a log of events."""
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{event_log_directory()}",
        # Spark's own pages are looked through for secrets.
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.sql.shuffle.partitions": "2",
        # Without the last one Java would have 48 MB for compiled code, and throw code away only to compile it again.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    }
    return register(spark_session("pairbus tests", master="local[2,3]", settings=settings))


def despite_slow_workers(run: Callable[[], T]) -> T:
    """Run a streaming query that can go on from its checkpoint.

    Spark gives a Python worker ten seconds to start and has no setting for it: a busy machine may need another try.
    """
    for _ in range(3):
        try:
            return run()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    return run()


def event_log() -> str:
    """Everything that Spark logged of its plans and settings so far; it writes behind what it does."""
    small_session().sparkContext._jsc.sc().listenerBus().waitUntilEmpty(LISTENERS_MS_MAX)
    return "".join(
        file.read_text(errors="replace") for file in Path(event_log_directory()).rglob("*") if file.is_file()
    )


def descendants(pid: int) -> list[tuple[int, str]]:
    """The processes below a process, with their command lines."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[tuple[int, str]] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            with suppress(OSError):
                command = (
                    Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                found.append((child, command))
                waiting.append(child)
    return found


TASK_DAEMON = "pyspark.daemon pyspark.worker"
"""What tasks run in; daemons with other names only plan."""


def workers_of(pid: int) -> list[int]:
    """The Python workers of a Spark driver: daemons fork them, so they bear the same name one level deeper."""
    family = {child for child, command in descendants(pid) if TASK_DAEMON in command}
    return [child for child in family if _parent(child) in family]


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def home(pair: Pair) -> int:
    """How many messages are in two of the destinations."""
    with pair.primary.administration_client() as client:
        return sum(
            int(client.get_queue_runtime_properties(queue).active_message_count or 0)
            for queue in ("plain", "unique")
        )
