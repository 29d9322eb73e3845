"""One sending link on a socket that keeps any number of sends in flight, which the official clients do not offer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from pairbus.errors import BrokerNotReady
from pairbus.sdk.credentials import credentials_of
from tests.simulation.wire import ClientConnection

ANSWER_SECONDS_MAX: Final = 60.0
READ_BYTES: Final = 1 << 16


class PipelinedLink:
    """A link to one entity. Use as a context manager: it is attached, with credit, on entry."""

    def __init__(self, address: str, connection_string: str, entity: str) -> None:
        who = credentials_of(connection_string)
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = ClientConnection("pairbus-bench", user=who.key_name, password=who.key)
        self._sender = self._connection.session().sender(entity)

    def __enter__(self) -> Self:
        try:
            self._until(lambda: self._sender.is_attached and self._sender.credit > 0)
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, payload: bytes, count: int, in_flight: int) -> float:
        """Send the payload so often, never more than so many unanswered; the seconds until the last answer."""
        outcomes = self._sender.outcomes
        before = len(outcomes)
        sent = 0
        begun = time.perf_counter()
        while len(outcomes) - before < count:
            while sent < count and sent - (len(outcomes) - before) < in_flight:
                self._sender.send(payload)
                sent += 1
            self._until(partial(self._has_answers, len(outcomes) + 1))
        return time.perf_counter() - begun

    def _has_answers(self, count: int) -> bool:
        return len(self._sender.outcomes) >= count

    def _until(self, condition: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            output = self._connection.take_output()
            if output:
                self._socket.sendall(output)
            if condition():
                return
            self._socket.settimeout(max(0.01, give_up_at - time.monotonic()))
            data = self._socket.recv(READ_BYTES)
            if not data or self._connection.closed or self._sender.detached:
                raise BrokerNotReady(
                    f"the broker ended the link: {self._sender.error or self._connection.error}"
                )
            self._connection.receive(data)
