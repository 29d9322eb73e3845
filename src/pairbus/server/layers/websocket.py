"""AMQP over WebSocket without I/O: binary frames carry a byte stream, boundaries mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from websockets.exceptions import NegotiationError
from websockets.exceptions import ProtocolError as WebSocketProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

WEBSOCKET_PATHS: Final = ("/$servicebus/websocket", "")
"""Where AMQP over WebSocket is served, without a slash at the end. The Go client and generic clients take the root."""
SUBPROTOCOLS: Final = (Subprotocol("AMQPWSB10"), Subprotocol("amqp"))
"""The service's own name, and the registered one of OASIS's AMQP WebSocket binding, which the Go client and Qpid JMS send."""
FRAME_BYTES_MAX: Final = 1024 * 1024
"""The largest frame accepted; frames of an AMQP stream need not be large."""
SEND_BYTES_MAX: Final = 64 * 1024
"""The largest frame sent: some clients refuse messages beyond a few MiB."""


class AmqpServerProtocol(ServerProtocol):
    """Takes the client's first choice among the subprotocols.

    A function given to ``ServerProtocol`` would become a method of the object in the object, and so a circle.
    """

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        for subprotocol in subprotocols:
            if subprotocol in SUBPROTOCOLS:
                return subprotocol
        raise NegotiationError(f"none of the subprotocols is served here; offer {' or '.join(SUBPROTOCOLS)}")


class WebSocketLayer:
    """The server's side of one WebSocket, from its HTTP request on.

    Args:
        head: The whole HTTP request head as bytes.
    """

    __slots__ = ("_protocol", "is_accepted", "is_ended")

    def __init__(self, head: bytes) -> None:
        self._protocol = AmqpServerProtocol(subprotocols=SUBPROTOCOLS, max_size=FRAME_BYTES_MAX)
        self.is_accepted = False
        self.is_ended = False
        """Nothing more will come: the peer closed or broke the protocol."""
        self._protocol.receive_data(head)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                response = self._protocol.accept(event)
                self._protocol.send_response(response)
                self.is_accepted = response.status_code == 101
        if self._protocol.handshake_exc is not None:
            self.is_accepted = False
        self.is_ended = not self.is_accepted

    def receive(self, data: bytes) -> bytes:
        """The AMQP bytes that ``data`` completes; afterwards ``take_output`` may hold pongs or a close."""
        self._protocol.receive_data(data)
        parts: list[bytes] = []
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                parts.append(bytes(event.data))
            elif event.opcode is Opcode.TEXT:
                self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "AMQP comes in binary frames")
        if self._protocol.state is not State.OPEN:
            self.is_ended = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def frame(self, chunks: list[bytes]) -> list[bytes]:
        """The chunks as binary frames, ready to write."""
        if self._protocol.state is not State.OPEN:
            return []
        joined = b"".join(chunks)
        for start in range(0, len(joined), SEND_BYTES_MAX):
            self._protocol.send_binary(joined[start : start + SEND_BYTES_MAX])
        return self.take_output()

    def take_output(self) -> list[bytes]:
        """The output of WebSocket itself: the answer to the request, pongs, a close."""
        # An empty chunk stands for the end of the stream; the connection ends it by itself.
        return [bytes(chunk) for chunk in self._protocol.data_to_send() if chunk]

    def end(self) -> list[bytes]:
        """Say that nothing more comes."""
        if self._protocol.state is State.OPEN:
            try:
                self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            except WebSocketProtocolError:
                return []
        return self.take_output()

    def release(self) -> None:
        """The socket has gone: end the parser, which refers back to its protocol."""
        self._protocol.parser.close()


def is_websocket_path(target: str) -> bool:
    """Whether a request's target is where AMQP over WebSocket lives; clients write the dollar sign both ways.

    The .NET client and clients on uAMQP end it with a slash.
    """
    path = target.partition("?")[0]
    return path.replace("%24", "$").lower().removesuffix("/") in WEBSOCKET_PATHS
