"""The replay of a spool in which a message cannot be read: that one stays, and holds up no other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from pairbus.pairing import parking, spool_rows
from pairbus.pairing.events import Kind
from pairbus.pairing.parking import Passport, Restored
from pairbus.sdk.messages import message_bytes, sections
from pairbus.spool.store import Append
from tests.unit.pairing.fake_sdk import Bench, Stage, text


def damaged_by_the_sdk(number: int) -> bytes:
    """What the SDK writes when the user id is text: bytes that no AMQP peer reads."""
    properties = AmqpMessageProperties(message_id=f"damaged {number}", user_id="me")
    return message_bytes.encoded(AmqpAnnotatedMessage(data_body=b"x", properties=properties))


def bodies(stored: list[bytes]) -> list[str]:
    parts = [sections.find(sections.split(payload), 0x75) or b"" for payload in stored]
    return [part[2:].decode() for part in parts]


def replayed(stage: Stage, root: Path, payloads: list[bytes]) -> tuple[list[str], list[str]]:
    """Replay messages that an earlier client has left; what the primary has then, and the details of what stays."""
    found: list[str] = []
    named: list[str] = []

    async def act() -> None:
        bench = Bench(spool=root)
        client = bench.paired()
        assert client._spooling is not None
        client._spooling.open()
        spools = client._state.spools
        assert spools is not None
        append = Append("orders", "orders", payloads, client._state.wall_clock())
        spools.enter(append).commit(append)
        client._spooling.start()
        for _ in range(600):
            # The event, not a count of 0: until the replay has ended a send still joins the spool.
            if Kind.SPOOL_REPLAYED in [event.kind for event in client.events()]:
                break
            await asyncio.sleep(0.1)
        events = [event.text for event in client.events() if event.kind is Kind.SPOOL_UNDELIVERABLE]
        named.extend(events)
        assert len(events) == client.health()["orders"].spool_undeliverable
        await client.get_queue_sender("orders").send_messages(text("new"))
        assert client.statistics().to_primary == 1, "it does not join the spool"
        found.extend(bodies(bench.primary.stored["orders"]))
        await client.close()

    stage.play(act)
    rows = list(spool_rows.rows(root, []))
    for row, event in zip(rows, named, strict=True):
        assert f"message {row['number']} ({row['message_id']!r}) stays in the spool" in event
    return found, [f"{row['message_id']}: {row['detail']}" for row in rows]


def encoded(*given: str) -> list[bytes]:
    return [message_bytes.encoded(ServiceBusMessage(body, message_id=body)) for body in given]


@pytest.mark.promise("P50")
def test_messages_that_cannot_be_read_stay_and_the_others_go_on(stage: Stage, tmp_path: Path) -> None:
    one, two, three = encoded("one", "two", "three")
    payloads = [one, damaged_by_the_sdk(1), two, damaged_by_the_sdk(2), b"no message", three]

    sent, details = replayed(stage, tmp_path, payloads)

    assert sent == ["one", "two", "three", "new"]
    ids, reasons = zip(*(detail.split(": ", 1) for detail in details), strict=True)
    assert ids == ("damaged 1", "damaged 2", "")
    for reason in reasons:
        assert reason.startswith("it cannot be read: RemoteProtocolError: ")


@pytest.mark.parametrize("step", ["park", "restore"])
def test_whatever_goes_wrong_with_one_message_of_a_read_holds_up_no_other(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    park, restore = parking.park, parking.restore

    def parked(payload: bytes, path: str, passport: Passport, *, is_checked: bool = False) -> bytes:
        if step == "park" and b"middle" in payload:
            raise ZeroDivisionError("in the middle")
        return park(payload, path, passport, is_checked=is_checked)

    def restored(payload: bytes, now_ms: int, *, elapsed_ms: int = 0) -> Restored:
        if step == "restore" and b"middle" in payload:
            raise ZeroDivisionError("in the middle")
        return restore(payload, now_ms, elapsed_ms=elapsed_ms)

    monkeypatch.setattr(parking, "park", parked)
    monkeypatch.setattr(parking, "restore", restored)

    sent, details = replayed(stage, tmp_path, encoded("one", "middle", "two"))

    assert sent == ["one", "two", "new"]
    assert details == ["middle: it cannot be read: ZeroDivisionError: in the middle"]
