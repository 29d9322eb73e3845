"""A paired client whose spool has no room on its disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

from pairbus import outcome_of
from pairbus.pairing.errors import SpoolRefusedError
from pairbus.pairing.events import Kind
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import Bench, refuse, text
from tests.unit.spool import full_disk

REFUSED = ServiceBusConnectionError(message="refused")


async def test_a_client_works_without_its_spool_until_the_disk_has_room(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    bench = Bench(spool=tmp_path / "spool")
    client = bench.paired()
    assert client._spooling is not None
    with pytest.MonkeyPatch.context() as patch:
        full_disk.fill(patch)
        client._spooling.open()
        client._spooling.start()
        (event,) = [event for event in client.events() if event.kind is Kind.SPOOL_UNUSABLE]
        assert "disk is full: free space" in event.text
        assert "is sent all the same" in event.text
        sender = client.get_queue_sender("orders")
        await sender.send_messages(text(0))
        bench.primary.answer = bench.secondary.answer = refuse(REFUSED)
        with pytest.raises(SpoolRefusedError, match="disk is full: free space"):
            await sender.send_messages(text(1))
        assert list((tmp_path / "spool").iterdir()) == []
    assert client.statistics().spool_messages == 0

    await sender.send_messages(text(2))
    assert client.health()["orders"].spooled == 1
    await client.close()


async def test_a_refusal_of_the_spool_does_not_deny_what_the_primary_may_have(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    bench = Bench(spool=tmp_path / "spool", spool_max_bytes=1)
    client = bench.paired()
    assert client._spooling is not None
    client._spooling.open()
    client._spooling.start()
    sender = client.get_queue_sender("orders")
    silence = OperationTimeoutError(message="no answer")
    bench.primary.answer, bench.secondary.answer = refuse(silence), refuse(REFUSED)
    with pytest.raises(
        SpoolRefusedError, match="had no answer, so a namespace may have the message"
    ) as caught:
        await sender.send_messages(text(1))
    assert outcome_of(caught.value) == "unknown"
    assert caught.value.__cause__ is silence
    await client.close()


@pytest.mark.promise("P51")
async def test_a_send_waits_for_a_full_spool_that_is_being_replayed(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    first = Bench(spool=tmp_path / "spool")
    client = first.paired()
    assert client._spooling is not None
    client._spooling.open()
    first.primary.answer = first.secondary.answer = refuse(REFUSED)
    await client.get_queue_sender("orders").send_messages(text("first"))
    await client.close()

    bench = Bench(spool=tmp_path / "spool", spool_max_bytes=1)
    client = bench.paired()
    assert client._spooling is not None
    client._spooling.open()
    client._spooling.start()
    sender = client.get_queue_sender("orders")
    await sender.send_messages(text("second"))
    arrived = bench.primary.stored["orders"]
    assert [b"first" in payload for payload in arrived] == [True, False]
    assert b"second" in arrived[1]

    bench.primary.answer = bench.secondary.answer = refuse(REFUSED)
    with pytest.raises(SpoolRefusedError) as caught:
        await sender.send_messages(text(2))
    assert caught.value.__cause__ is REFUSED
    await client.close()
