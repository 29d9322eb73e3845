"""What we write is read by the official client's own decoder, whose limits are narrower than the standard's."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_frame, decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.message.delivery import delivery_parts
from pairbus.amqp.message.scan import scan
from pairbus.amqp.message.view import PropertiesView
from pairbus.amqp.transport.framing import FRAME_HEADER
from tests.unit.amqp.peers import Wire

TOKEN = bytes(range(16))


def read(output: list[bytes]) -> list[tuple[int, list[Any]]]:
    """Every frame as ``_pyamqp`` decodes it."""
    data = b"".join(output)
    frames: list[tuple[int, list[Any]]] = []
    offset = 0
    while offset < len(data):
        if data[offset : offset + 4] == b"AMQP":
            offset += 8
            continue
        size, _, kind, _ = FRAME_HEADER.unpack_from(data, offset)
        if kind == 0:
            frames.append(decode_frame(memoryview(data)[offset + 8 : offset + size]))
        offset += size
    return frames


def test_open_begin_attach_flow_are_read(wire: Wire) -> None:
    wire.attached(role=False)

    frames = read(wire.connection.take_output())

    assert [code for code, _ in frames] == [0x10, 0x11, 0x12, 0x13]
    assert frames[0][1][2] == 65536
    assert frames[1][1][:2] == [0, 1]
    attach = frames[2][1]
    assert attach[5]
    assert attach[6]
    assert frames[3][1][6] == 1000


def test_dispositions_are_read(wire: Wire) -> None:
    session = wire.attached(role=False).session
    wire.connection.take_output()
    session.accept_incoming(1)
    session.reject_incoming(2, AmqpError("amqp:not-allowed", "why"))
    session.settle_outgoing(3, 0x25)
    session.settle_outgoing(4, 0x27)

    frames = [fields for _, fields in read(wire.connection.take_output())]

    states = {fields[1]: fields[4] for fields in frames}
    assert states[1] == {"accepted": []}
    assert states[2] == {"rejected": [[b"amqp:not-allowed", b"why", None]]}
    assert states[3] == {"rejected": [None]}
    assert "modified" in states[4]


def test_errors_are_read_with_three_fields(wire: Wire) -> None:
    link = wire.attached(role=True)
    wire.connection.take_output()
    link.detach(AmqpError("amqp:not-found", "gone"))
    wire.connection.close(AmqpError("amqp:connection:forced", "bye"))

    (_, detach), (_, close) = read(wire.connection.take_output())

    assert detach[2] == [b"amqp:not-found", b"gone", None]
    assert close[0] == [b"amqp:connection:forced", b"bye", None]


def outgoing(message: ServiceBusMessage) -> bytes:
    output = bytearray()
    encode_payload(output, PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message))
    return bytes(output)


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_messages_of_the_sdk_go_through(size: int) -> None:
    message = ServiceBusMessage(
        b"x" * size,
        session_id="s",
        partition_key="s",
        subject="label",
        application_properties={"a": 1, "b": "text", "c": True},
    )

    found = scan(outgoing(message), want_message_id=True)
    parts = delivery_parts(found.blob, 0, 5, 1000, 2000, TOKEN)
    decoded: Any = decode_payload(memoryview(b"".join(parts)))

    assert (found.session_id, found.partition_key) == ("s", "s")
    view = PropertiesView(found.blob)
    assert (view.system("Label"), view.user("b"), view.user("c")) == ("label", "text", True)
    assert view.body_bytes() == b"x" * size
    assert decoded.message_annotations[b"x-opt-sequence-number"] == 5
    assert decoded.delivery_annotations[b"x-opt-lock-token"].bytes == TOKEN
    assert decoded.header.delivery_count == 0
    assert b"".join(decoded.data) == b"x" * size
    assert decoded.properties.group_id == b"s"
