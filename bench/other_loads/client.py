"""A client in Python for what the load generator does not do: sessions, and messages of several frames."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from bench.peer import BenchError, Peer
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import Symbol
from tests.simulation.wire import ClientConnection, ClientReceiver, ClientSender

ANSWER_SECONDS_MAX: Final = 60.0
READ_BYTES: Final = 1 << 18
HANDLES: Final = 100
"""Links of one AMQP session; their numbers are not used again."""
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")


class Client:
    """One connection. Use as a context manager."""

    def __init__(self, peer: Peer) -> None:
        self._socket = socket.create_connection((peer.host, peer.port), ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = ClientConnection("bench", user=peer.user, password=peer.password)
        self.session = self.connection.session()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def until(self, condition: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            output = self.connection.take_output()
            if output:
                self._socket.sendall(output)
            if condition():
                return
            self._socket.settimeout(max(0.01, give_up_at - time.monotonic()))
            data = self._socket.recv(READ_BYTES)
            if not data or self.connection.closed:
                raise BenchError(f"the broker ended the connection: {self.connection.error}")
            self.connection.receive(data)


def send(peer: Peer, address: str, body: bytes, count: int, in_flight: int) -> int:
    """Send so many messages of this body, so many of them unanswered at most; how many were accepted."""
    with Client(peer) as client:
        sender: ClientSender = client.session.sender(address)
        client.until(lambda: sender.is_attached and sender.credit > 0)
        payload = encode_message(body=body, body_kind="data")
        sent = 0
        while len(sender.outcomes) < count:
            while sent < count and sent - len(sender.outcomes) < in_flight:
                sender.send(payload)
                sent += 1
            known = len(sender.outcomes)
            client.until(lambda known=known: len(sender.outcomes) > known)  # type: ignore[misc]
        return len(sender.outcomes)


def receive(peer: Peer, address: str, count: int, credit: int) -> int:
    """Receive and complete so many messages; how many there were."""
    with Client(peer) as client:
        receiver = client.session.receiver(address, credit=credit)
        done = 0
        while done < count:
            client.until(lambda: bool(receiver.deliveries))
            done += _complete(receiver)
            if receiver.credit <= credit // 2 and done < count:
                receiver.grant(min(credit, count - done))
        client.until(lambda: len(receiver.outcomes) >= done)
        return done


def receive_in_visits(peer: Peer, address: str, visits: int, each: int, *, by_session: bool) -> int:
    """Attach a receiver, take a few messages, detach; so many times. With sessions each visit takes the next one."""
    wanted: dict[str, object] | None = {SESSION_FILTER: None} if by_session else None
    done = 0
    with Client(peer) as client:
        for visit in range(visits):
            if visit % HANDLES == 0:
                session = client.connection.session()
            receiver = session.receiver(address, credit=each, filter=wanted)
            client.until(lambda it=receiver: len(it.deliveries) >= each)  # type: ignore[misc]
            done += _complete(receiver)
            client.until(lambda it=receiver: len(it.outcomes) >= each)  # type: ignore[misc]
            receiver.detach()
            if visit % HANDLES == HANDLES - 1:
                session.end()
        client.until(lambda: True)
    return done


def _complete(receiver: ClientReceiver) -> int:
    for delivery in receiver.deliveries:
        receiver.complete(delivery)
    count = len(receiver.deliveries)
    receiver.deliveries.clear()
    return count
