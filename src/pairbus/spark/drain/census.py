"""What is in the backlog: which queues there are, how many messages, and the numbers of the first and the last."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from azure.core.exceptions import AzureError
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from pairbus.drain.lookups.search import no_queues
from pairbus.pairing.naming import backlog_index, backlog_queue, primaries_of
from pairbus.sdk.addresses import connect
from pairbus.sdk.connection_string import parse_connection_string
from pairbus.sdk.failures import Failure, classify
from pairbus.sdk.links import quick
from pairbus.sdk.links.browsing import Browser, open_without_link
from pairbus.sdk.trust import bundle_of


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
        self._client = quick.client_of(secondary, retry_total=1, **self._trust)
        self._browsers: dict[str, Browser] = {}
        self._primaries: list[str] = []
        self.may_list = False
        """Whether the key lets the queues be listed, so that one request shows them all."""

    def close(self) -> None:
        for browser in self._browsers.values():
            browser.close()
        self._client.close()
        self._files.close()

    def backlog(self) -> dict[str, int | None]:
        """Every backlog queue that exists, with its active messages; None where the number is not known.

        Counts need the right to manage; without it the queues are known by their names (P42).
        """
        counted = asyncio.run(self._counted())
        if counted is not None:
            return counted
        names = (backlog_queue(self._primary_name, index) for index in range(self._count))
        return {name: None if self.first(name) is not None else 0 for name in names if self._exists(name)}

    def nothing_found(self) -> tuple[str, bool]:
        """A sentence about a secondary without backlog queues of this primary, and whether it has those of others."""
        return no_queues(self._primary_name, self._primaries), bool(self._primaries)

    def first(self, queue: str) -> int | None:
        """The lowest sequence number of an active message in a queue."""
        return self._browser(queue).first()

    def highest(self, queue: str) -> int | None:
        """The highest sequence number in a queue now."""
        return self._browser(queue).highest()

    def _browser(self, queue: str) -> Browser:
        browser = self._browsers.get(queue)
        if browser is None:
            # A receiving link takes a message now and then, if only to release it: none is needed to look.
            receiver = open_without_link(self._client.get_queue_receiver(queue))
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
        # Heavy, and not needed where the queues may not be listed.
        from pairbus.sdk.management.admin import aio_admin_client

        counts: dict[str, int | None] = {}
        names = []
        async with connect(AsyncServiceBusClient, self._secondary, **self._trust) as client:
            try:
                async with aio_admin_client(client, self._trust, self._host) as management:
                    async for queue in management.list_queues_runtime_properties():
                        names.append(queue.name)
                        if backlog_index(self._primary_name, queue.name) is not None:
                            counts[queue.name] = queue.active_message_count
            except (AzureError, ServiceBusError):
                return None
        self._primaries = primaries_of(names)
        self.may_list = True
        return counts
