"""What is in the backlog: which queues there are, how many messages, and the numbers of the first and the last."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import Any, Final

from azure.core.exceptions import AzureError
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.pairing.naming import backlog_index, backlog_queue
from pairbus.sdk.connection_string import parse_connection_string
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.trust import bundle_of, reaching
from pairbus.spark.connector import sdk
from pairbus.spark.drain.order import active_number, sequence_number

HEAD_PAGE: Final = 50
NUMBER_MAX: Final = 2**48
"""Sequence numbers above this carry a partition in their high bits."""


class Browser:
    """Looks at one entity without taking anything."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    def first(self, from_number: int = 1) -> int | None:
        """The lowest sequence number of an active message."""
        while True:
            page = sdk.browse(self._receiver, from_number, 1)
            if not page:
                return None
            number = active_number(page[0])
            if number is not None:
                return number
            page = sdk.browse(self._receiver, from_number, HEAD_PAGE)
            numbers = [number for number in map(active_number, page) if number is not None]
            if numbers:
                return numbers[0]
            from_number = _number(page[-1]) + 1

    def highest(self, known: int = 0) -> int | None:
        """The highest sequence number there is now, by halving: a few dozen requests whatever the length.

        Args:
            known: A number to begin the search at; the highest number from there on is returned, or None.
        """
        first = sdk.browse(self._receiver, max(1, known), 1)
        if not first:
            return None
        low = _number(first[0])
        step = 1
        while True:
            page = sdk.browse(self._receiver, low + step, 1)
            if not page:
                break
            low, step = _number(page[0]), step * 2
        beyond = low + step
        while low + 1 < beyond:
            middle = (low + beyond) // 2
            page = sdk.browse(self._receiver, middle, 1)
            if page:
                low = _number(page[0])
            else:
                beyond = middle
        return low

    def close(self) -> None:
        """Let go of the link."""
        with suppress(Exception):
            self._receiver.close()


def _number(payload: bytes) -> int:
    return sequence_number(payload)


class Census:
    """The backlog queues of one primary in its secondary."""

    def __init__(self, secondary: str, primary_name: str, count: int, authorities: str = "") -> None:
        self._secondary = secondary
        self._host = parse_connection_string(secondary, "secondary").host
        self._primary_name = primary_name
        self._count = count
        self._files = ExitStack()
        bundle = self._files.enter_context(bundle_of(authorities))
        self._trust: dict[str, Any] = {"connection_verify": bundle} if bundle else {}
        self._reach = {**reaching(secondary), **self._trust}
        self._client = sdk.client_of(secondary, retry_total=1, **self._reach)
        self._browsers: dict[str, Browser] = {}

    def close(self) -> None:
        """Let go of every link."""
        for browser in self._browsers.values():
            browser.close()
        self._client.close()
        self._files.close()

    def backlog(self) -> dict[str, int | None]:
        """Every backlog queue that exists, with its active messages; None where only an attempt can tell.

        Counts need the right to manage; without it the queues are known by their names (P42).
        """
        counted = asyncio.run(self._counted())
        if counted is not None:
            return counted
        names = (backlog_queue(self._primary_name, index) for index in range(self._count))
        return {name: None if self.first(name) is not None else 0 for name in names if self._exists(name)}

    def first(self, queue: str) -> int | None:
        """The lowest sequence number of an active message in a queue."""
        return self._browser(queue).first()

    def highest(self, queue: str) -> int | None:
        """The highest sequence number in a queue now."""
        return self._browser(queue).highest()

    def _browser(self, queue: str) -> Browser:
        browser = self._browsers.get(queue)
        if browser is None:
            receiver = self._client.get_queue_receiver(queue)
            # A receiving link takes a message now and then, if only to give it back: none is needed to look.
            sdk.open_without_link(receiver)
            browser = self._browsers[queue] = Browser(receiver)
        return browser

    def _exists(self, queue: str) -> bool:
        try:
            self.first(queue)
        except ServiceBusError as error:
            self._browsers.pop(queue).close()
            if classify(error) is Failure.NOT_FOUND:
                return False
            raise
        return True

    async def _counted(self) -> dict[str, int | None] | None:
        # Heavy, and the source, which only browses, needs none of it.
        from pairbus.pairing._async.management import Management

        counts: dict[str, int | None] = {}
        async with AsyncServiceBusClient.from_connection_string(self._secondary, **self._reach) as client:
            try:
                async with Management(client, self._trust, self._host)._client() as management:
                    async for queue in management.list_queues_runtime_properties():
                        if backlog_index(self._primary_name, queue.name) is not None:
                            counts[queue.name] = queue.active_message_count
            except (AzureError, ServiceBusError):
                return None
        return counts
