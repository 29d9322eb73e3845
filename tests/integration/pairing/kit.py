"""What the end-to-end tests of pairing share."""

from __future__ import annotations

import re
import time
from collections import Counter
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage

from pairbus import PairedServiceBusClient, SendAvailabilityOptions
from pairbus.testing import Namespace, Pair

WAIT_SECONDS = 90.0


def options(**changes: Any) -> SendAvailabilityOptions:
    """Quick ones, so that an outage fits into a test."""
    values: dict[str, Any] = {
        "backlog_queue_count": 2,
        "failover_interval": timedelta(0),
        "ping_primary_interval": timedelta(seconds=1),
    }
    return SendAvailabilityOptions(**{**values, **changes})


def by_hand(**changes: Any) -> SendAvailabilityOptions:
    """For outages that are declared by hand: no ping finds out meanwhile that the primary is well."""
    return options(**{"ping_primary_interval": timedelta(minutes=5), **changes})


def paired(
    pair: Pair, changed: SendAvailabilityOptions | None = None, **further: Any
) -> PairedServiceBusClient:
    """The paired client of a pair."""
    further.setdefault("retry_total", 0)
    return PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        pair.secondary.connection_string,
        options=changed or options(),
        **further,
    )


def bodies(namespace: Namespace, queue: str, expected: int, **receiver: Any) -> Counter[str]:
    """Receive and complete everything in a queue: at least ``expected`` messages."""
    found: Counter[str] = Counter()
    with namespace.client() as client, client.get_queue_receiver(queue, **receiver) as reader:
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            wait = 20 if sum(found.values()) < expected else 0.5
            messages = reader.receive_messages(max_message_count=200, max_wait_time=wait)
            if not messages and sum(found.values()) >= expected:
                return found
            for message in messages:
                names = [str(key).lower() for key in message.application_properties or {}]
                assert not [name for name in names if "x-ms-" in name or "x-pairbus-" in name], "P9"
                assert message.content_type != "application/vnd.ms-servicebus-ping", "P23"
                found[str(message)] += 1
                reader.complete_message(message)
    return found


def take(receiver: Any, count: int) -> list[Any]:
    """Receive exactly so many, in as many calls as it needs."""
    found: list[Any] = []
    until = time.monotonic() + WAIT_SECONDS
    while len(found) < count:
        assert time.monotonic() < until, f"{len(found)} of {count} messages came within {WAIT_SECONDS} s"
        found += receiver.receive_messages(max_message_count=count - len(found), max_wait_time=20)
    return found


def text(number: object, **details: Any) -> ServiceBusMessage:
    """A message that can be told from others."""
    return ServiceBusMessage(str(number), **details)


def operations(namespace: Namespace) -> Counter[tuple[str, str]]:
    """What the broker itself has counted for the bill, by entity and operation."""
    page = namespace._management().request("GET", "/metrics").decode()
    pattern = r'pairbus_operations_total\{entity="([^"]*)",operation="([^"]*)"\} (\d+)'
    return Counter(
        {(entity, operation): int(count) for entity, operation, count in re.findall(pattern, page)}
    )
