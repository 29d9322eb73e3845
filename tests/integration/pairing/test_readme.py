"""The program of the README through its first outage: it goes on sending, and no exception reaches it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import bodies
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
README = Path(__file__).parents[3] / "README.md"
FIRST_SEND_SECONDS = 30.0
"""Bound of the first send after the kill on a slow machine; it takes some seconds."""


def client_of_the_readme(pair: Pair) -> Any:
    """What the README's program calls ``client``, with this pair's connection strings."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    program = next(block for block in blocks if "from_connection_strings" in block)
    construction, _, use = program.partition("with client")
    assert "send_messages" in use
    for side, namespace in (("primary", pair.primary), ("secondary", pair.secondary)):
        construction = construction.replace(
            f'{side}="Endpoint=sb://…"', f"{side}={namespace.connection_string!r}"
        )
    names: dict[str, Any] = {}
    exec(construction, names)
    return names["client"]


def test_the_readmes_program_sends_on_through_its_first_outage() -> None:
    primary = Namespace("contoso", process=True, queues=["orders"])
    with Pair(primary, Namespace("fabrikam")) as pair:
        client = client_of_the_readme(pair)
        with client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("0"))
            primary.kill()
            begun = time.monotonic()
            sender.send_messages(ServiceBusMessage("1"))
            assert time.monotonic() - begun < FIRST_SEND_SECONDS
            for number in range(2, 6):
                sender.send_messages(ServiceBusMessage(str(number)))
            assert client.statistics().to_backlog == 5
            primary.restart()
            client.mark_healthy("orders")
            wait_until(lambda: client.statistics().restored == 5, "the backlog is drained")
        assert bodies(primary, "orders", 6) == {str(number): 1 for number in range(6)}
