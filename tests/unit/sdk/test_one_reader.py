"""The SDK's synchronous receiver reads its connection in two threads. Those that PairBus opens itself are read in one."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from azure.servicebus import ServiceBusClient
from azure.servicebus._common.utils import create_authentication
from azure.servicebus._pyamqp._connection import Connection
from azure.servicebus._pyamqp.constants import ConnectionState
from azure.servicebus._pyamqp.receiver import ReceiverLink

from pairbus.amqp.message.whole import encode_message
from pairbus.cli.entities import messages
from pairbus.sdk.links.receivers import read_in_one_thread

TEXT = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
FRAMES = 4
WAIT_SECONDS = 30.0


class Transport:
    """Gives the frames of one delivery, in order. The second reader loses its turn after it has read one."""

    def __init__(self, payload: bytes) -> None:
        step = -(-len(payload) // FRAMES)
        pieces = [payload[start : start + step] for start in range(0, len(payload), step)]
        self._frames = [
            (20, [0, None if index else 1, b"tag", 0, True, index < FRAMES - 1, *[None] * 5, piece])
            for index, piece in enumerate(pieces)
        ]
        self._lock = threading.Lock()
        self.has_read = threading.Event()
        self.may_go_on = threading.Event()

    def receive_frame(self, **_options: object) -> tuple[int, Any]:
        with self._lock:
            frame = self._frames.pop(0)
        if threading.current_thread().name == "second":
            self.has_read.set()
            assert self.may_go_on.wait(WAIT_SECONDS)
        return 0, frame


def received(payload: bytes, *, in_two_threads: bool) -> bytes:
    """The body that the SDK makes of a delivery in four frames."""
    bodies: list[bytes] = []

    def arrived(_frame: object, message: Any) -> None:
        bodies.append(bytes(message.value or b"".join(message.data)))

    transport = Transport(payload)
    link: Any = ReceiverLink.__new__(ReceiverLink)
    link.network_trace, link.current_link_credit, link.delivery_count = False, 1, 0
    link._received_payload, link._first_frame, link._received_delivery_tags = bytearray(), None, set()
    link._on_transfer = arrived
    connection: Any = Connection("amqp://localhost")
    connection._transport = transport
    connection.state = ConnectionState.OPENED
    connection._incoming_endpoints = {0: SimpleNamespace(_incoming_transfer=link._incoming_transfer)}
    connection.listen()
    if in_two_threads:
        second = threading.Thread(target=connection.listen, name="second")
        second.start()
        assert transport.has_read.wait(WAIT_SECONDS)
        connection.listen()
        transport.may_go_on.set()
        second.join(WAIT_SECONDS)
    else:
        connection.listen(batch=2)
    connection.listen()
    return bodies[0]


def test_a_message_that_two_threads_read_arrives_mixed_up() -> None:
    """Why ``read_in_one_thread`` exists. If this fails, the SDK puts frames in order by now."""
    body = bytes(range(256)) * 40
    payload = encode_message(body=body)

    assert received(payload, in_two_threads=False) == body
    mixed = received(payload, in_two_threads=True)
    assert mixed != body
    assert sorted(mixed) == sorted(body), "nothing is missing, but it is in another order"


def interval_of(receiver: Any) -> int:
    receiver._create_handler(create_authentication(receiver))
    return int(receiver._handler._keep_alive_interval)


def test_the_sdk_reads_in_a_second_thread_unless_told_otherwise() -> None:
    with ServiceBusClient.from_connection_string(TEXT) as client:
        assert interval_of(client.get_queue_receiver("orders")) > 0
        assert interval_of(read_in_one_thread(client.get_queue_receiver("orders"))) == 0


def test_a_program_can_turn_the_second_reader_off() -> None:
    with ServiceBusClient.from_connection_string(TEXT) as client:
        assert interval_of(client.get_queue_receiver("orders", prefetch_count=1, keep_alive=0)) == 0


def test_the_commands_read_in_one_thread() -> None:
    with ServiceBusClient.from_connection_string(TEXT) as client:
        for entity in ("orders", "orders/$deadletterqueue", "news/Subscriptions/all"):
            flags = messages.ReceiveFlags(entity=entity)
            assert interval_of(messages._receiver(client, flags, 1.0)) == 0
