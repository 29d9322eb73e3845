"""A local port whose bytes go on through TLS or WebSocket, so that the load generator, which speaks neither, can be used."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Final, Protocol

from bench.peer import BenchError

READ_BYTES: Final = 256 * 1024
HEAD_BYTES_MAX: Final = 8192
PATH: Final = "/$servicebus/websocket"


class Wire(Protocol):
    """One connection to the broker through some layer."""

    def send(self, data: bytes) -> None: ...

    def receive(self) -> bytes: ...

    def close(self) -> None: ...


class TlsWire:
    def __init__(self, address: tuple[str, int]) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the broker's own certificate, on this machine
        self._socket = context.wrap_socket(_connect(address))
        # One lock: OpenSSL's object must not be used by two threads at once. So reading does not block.
        self._lock = threading.Lock()
        self._socket.setblocking(False)

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            with self._lock:
                try:
                    rest = rest[self._socket.send(rest) :]
                    continue
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    pass
            _wait(self._socket, writing=True)

    def receive(self) -> bytes:
        while True:
            with self._lock:
                try:
                    return self._socket.recv(READ_BYTES)
                except ssl.SSLWantReadError:
                    pass
                except OSError:
                    return b""
            _wait(self._socket, writing=False)

    def close(self) -> None:
        self._socket.close()


class WebSocketWire:
    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = _connect(address)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {PATH} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._socket.recv(1)
            if len(head) > HEAD_BYTES_MAX:
                raise BenchError("the broker answers the WebSocket request with an endless head")
        if b" 101 " not in head.split(b"\r\n", 1)[0]:
            raise BenchError(f"the broker refuses WebSocket: {head.splitlines()[0]!r}")
        self._buffer = b""

    def send(self, data: bytes) -> None:
        size, mask = len(data), os.urandom(4)
        head = b"\x82" + (
            bytes([0x80 | size])
            if size < 126
            else b"\xfe" + size.to_bytes(2, "big")
            if size < 65536
            else b"\xff" + size.to_bytes(8, "big")
        )
        whole = (mask * (size // 4 + 1))[:size]
        masked = int.from_bytes(data, "little") ^ int.from_bytes(whole, "little")
        self._socket.sendall(head + mask + masked.to_bytes(size, "little"))

    def receive(self) -> bytes:
        parts: list[bytes] = []
        while not parts:
            more = self._socket.recv(READ_BYTES)
            if not more:
                return b""
            self._buffer += more
            while (part := self._next()) is not None:
                parts.append(part)
        return b"".join(parts)

    def _next(self) -> bytes | None:
        """The payload of the next whole frame; those of control frames are empty."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1] & 0x7F, 2
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(buffer) < 2 + width:
                return None
            size, start = int.from_bytes(buffer[2 : 2 + width], "big"), 2 + width
        if len(buffer) < start + size:
            return None
        self._buffer = buffer[start + size :]
        return buffer[start : start + size] if buffer[0] & 0x0F in (0, 2) else b""

    def close(self) -> None:
        self._socket.close()


LAYERS: Final = {"TLS": TlsWire, "WebSocket": WebSocketWire}


def _connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _wait(connection: socket.socket, *, writing: bool) -> None:
    descriptors = [connection]
    with contextlib.suppress(OSError, ValueError):
        select.select([] if writing else descriptors, descriptors if writing else [], [], 1.0)


def _pass_on(client: socket.socket, layer: str, address: tuple[str, int]) -> None:
    wire: Wire = LAYERS[layer](address)

    def back() -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := wire.receive():
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=back, daemon=True).start()
    with contextlib.suppress(OSError, ValueError):
        while data := client.recv(READ_BYTES):
            wire.send(data)
    wire.close()
    client.close()


@contextlib.contextmanager
def tunnel(layer: str, address: tuple[str, int]) -> Iterator[int]:
    """A port on this machine that goes to the broker at ``address`` through the layer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_pass_on, args=(client, layer, address), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.close()
