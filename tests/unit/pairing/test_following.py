"""A client with an order and messages of its session in a spool that another client has open."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.pairing.client.aio import PairedServiceBusClient
from pairbus.pairing.errors import SessionFencedError
from pairbus.pairing.events import Kind
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import Bench, refuse, text

REFUSED = ServiceBusConnectionError(message="refused")


def opened(bench: Bench) -> PairedServiceBusClient:
    """A client that knows that nothing is in the backlog."""
    client = bench.paired()
    client._state.order._unseen.clear()
    client._state.order._settle()
    assert client._spooling is not None
    client._spooling.open()
    client._spooling.start()
    return client


async def hung(spool: Path) -> PairedServiceBusClient:
    """Another client, which has a message of session x in its spool and no namespace that takes it."""
    other = Bench(spool=spool, order="session")
    client = opened(other)
    other.primary.answer = other.secondary.answer = refuse(REFUSED)
    await client.get_queue_sender("orders").send_messages(text("theirs", session_id="x"))
    assert client.statistics().spool_messages == 1
    return client


@pytest.mark.promise("P51")
@pytest.mark.parametrize("policy", ["wait", "raise", "overtake"])
async def test_a_session_waits_behind_a_client_that_hangs_as_the_policy_says(
    policy: Any, loop: VirtualLoop, tmp_path: Path
) -> None:
    other = await hung(tmp_path)
    bench = Bench(spool=tmp_path, order="session", fence_policy=policy, fence_timeout=timedelta(seconds=5))
    client = opened(bench)
    sender = client.get_queue_sender("orders")
    await sender.send_messages(text("free", session_id="y"))
    assert len(bench.primary.stored["orders"]) == 1
    await sender.send_messages(text("behind", session_id="x"))
    assert client.statistics().spool_messages == 1
    assert len(bench.primary.stored["orders"]) == 1

    await asyncio.sleep(10)
    kinds = [event.kind for event in client.events()]
    if policy == "overtake":
        assert Kind.FENCE_OVERTAKEN in kinds
        assert client.statistics().spool_messages == 0
    else:
        assert Kind.FENCE_TIMED_OUT in kinds
        assert client.statistics().spool_messages == 1
    if policy == "raise":
        with pytest.raises(SessionFencedError, match="another client has open"):
            await sender.send_messages(text("late", session_id="x"))
    await client.close()
    await other.close()
