"""A proxy between client and broker that reads what passes and counts it as the bill would: an independent second opinion.

It knows the wire and nothing of the broker's own counts. Each event belongs to the minute that the clock shows when it passes.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from typing import Final, Protocol

from pairbus.amqp.decode import skip_value
from pairbus.amqp.message.whole import DecodedMessage, decode_message
from pairbus.amqp.states import ACCEPTED_CODE, Outcome
from pairbus.amqp.transport.framing import AMQP_FRAME, FRAME_HEADER, HEADER_SIZE
from pairbus.amqp.transport.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    decode_performative,
)

Counts = dict[tuple[int, str, str], tuple[int, int, int]]
"""(minute, entity, operation) to (count, bytes, units)."""
PING_TYPE: Final = "application/vnd.ms-servicebus-ping"
BATCH: Final = 0x80013700
ONE_EACH: Final = {
    "set-session-state": "session",
    "get-session-state": "session",
    "get-message-sessions": "session",
    "renew-session-lock": "renew",
    "batch-delete-messages": "delete",
}


def sections(payload: bytes) -> list[tuple[int, int, int]]:
    """Code, start of the value and end of every section."""
    found, offset = [], 0
    while offset < len(payload):
        code, at = payload[offset + 2], offset + 3
        offset = skip_value(payload, at, len(payload))
        found.append((code, at, offset))
    return found


def size_of(payload: bytes) -> int:
    """Bare message, and what annotations hold: all that is billed."""
    size = 0
    for code, at, end in sections(payload):
        if code >= 0x73:
            size += end - at + 3
        elif code != 0x70 and payload[at] != 0x45:
            size += end - at - (3 if payload[at] == 0xC1 else 9)
    return size


def bare_size(payload: bytes) -> int:
    return sum(end - at + 3 for code, at, end in sections(payload) if code >= 0x73)


def parts_of(message_format: int, payload: bytes) -> list[bytes]:
    if message_format != BATCH:
        return [payload]
    parts = []
    for code, at, end in sections(payload):
        if code == 0x75:
            parts.append(payload[at + (2 if payload[at] == 0xA0 else 5) : end])
    return parts


class Ledger:
    """What was counted, by all connections of a test."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.counts: Counts = {}
        self.peaks: dict[int, int] = {}
        self._open = 0

    def minute(self) -> int:
        now = self._clock()
        return now - now % 60_000

    def add(self, path: str, operation: str, size: int = 0) -> None:
        with self._lock:
            key = (self.minute(), path, operation)
            count, total, units = self.counts.get(key, (0, 0, 0))
            self.counts[key] = (count + 1, total + size, units + max(1, (size + 65_535) // 65_536))

    @property
    def open_count(self) -> int:
        """How many connections there are."""
        with self._lock:
            return self._open

    def opened(self, step: int) -> None:
        with self._lock:
            self._open += step
            minute = self.minute()
            self.peaks[minute] = max(self.peaks.get(minute, 0), self._open)


class LinkSeen:
    def __init__(self, frame: Attach) -> None:
        terminus = frame.source if frame.role else frame.target
        address = terminus.address if isinstance(terminus, Source | Target) else ""
        path = re.sub(r"^[a-z]+://[^/]+/", "", address or "").strip("/")
        self.is_receiver = frame.role
        self.is_management = path.endswith("/$management")
        self.is_entity = not path.startswith("$") and not self.is_management
        self.path = path.removesuffix("/$management")
        filters = frame.source.filter if frame.role and frame.source is not None else None
        self.wants_session = bool(filters) and "com.microsoft:session-filter" in (filters or {})
        self.is_polling = False
        self.partial = b""
        self.delivery_id = -1
        self.message_format = -1


class Tap(Protocol):
    """Reads one connection."""

    def from_client(self, data: bytes) -> None: ...

    def from_broker(self, data: bytes) -> None: ...

    def ended(self) -> None: ...


class AmqpTap:
    """Follows one AMQP connection through both of its directions."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._buffers = [b"", b""]
        self._lock = threading.Lock()
        self._links: dict[tuple[int, int], LinkSeen] = {}
        self._sent: dict[tuple[int, int], tuple[str, list[tuple[str, int]]]] = {}
        self._delivered: dict[tuple[int, int], str] = {}
        self._asked: dict[tuple[int, int], tuple[str, int]] = {}
        self._requests: dict[bytes, tuple[str, str, DecodedMessage]] = {}
        self._is_open = False

    def from_client(self, data: bytes) -> None:
        self._read(0, data)

    def from_broker(self, data: bytes) -> None:
        self._read(1, data)

    def ended(self) -> None:
        with self._lock:
            for link in self._links.values():
                self._end_receive(link)
            self._links.clear()
            if self._is_open:
                self._is_open = False
                self._ledger.opened(-1)

    def _read(self, side: int, data: bytes) -> None:
        with self._lock:
            data = self._buffers[side] + data
            offset = 0
            while len(data) - offset >= HEADER_SIZE:
                if data[offset : offset + 4] == b"AMQP":
                    offset += HEADER_SIZE
                    continue
                size, doff, kind, channel = FRAME_HEADER.unpack_from(data, offset)
                if len(data) - offset < size:
                    break
                body, end = offset + 4 * doff, offset + size
                offset = end
                if kind == AMQP_FRAME and body < end:
                    frame, payload = decode_performative(data, body, end)
                    (self._client_says if side == 0 else self._broker_says)(channel, frame, data[payload:end])
            self._buffers[side] = data[offset:]

    # -- client to broker ----------------------------------------------------------------------

    def _client_says(self, channel: int, frame: Performative, payload: bytes) -> None:
        if isinstance(frame, Open):
            self._is_open = True
            self._ledger.opened(1)
        elif isinstance(frame, Attach):
            self._links[channel, frame.handle] = LinkSeen(frame)
        elif isinstance(frame, Detach):
            link = self._links.pop((channel, frame.handle), None)
            if link is not None:
                self._end_receive(link)
        elif isinstance(frame, Flow) and frame.handle >= 0:
            link = self._links[channel, frame.handle]
            if link.is_receiver and link.is_entity:
                self._end_receive(link)
                link.is_polling = frame.link_credit > 0
        elif isinstance(frame, Transfer):
            self._client_sends(channel, frame, payload)
        elif isinstance(frame, Disposition) and frame.role and frame.state is not None:
            self._client_settles(channel, frame, frame.state)

    def _end_receive(self, link: LinkSeen) -> None:
        if link.is_polling:
            link.is_polling = False
            self._ledger.add(link.path, "empty_receive")

    def _client_sends(self, channel: int, frame: Transfer, payload: bytes) -> None:
        link = self._links[channel, frame.handle]
        whole = self._assembled(link, frame, payload)
        if whole is None:
            return
        if link.is_management:
            request = decode_message(whole)
            name = str(request.application_properties["operation"]).removeprefix("com.microsoft:")
            self._requests[request.properties.message_id_raw] = (link.path, name, request)
        elif link.is_entity:
            messages = []
            for part in parts_of(link.message_format, whole):
                is_ping = decode_message(part).properties.content_type == PING_TYPE
                messages.append(("ping" if is_ping else "send", size_of(part)))
            self._sent[channel, link.delivery_id] = (link.path, messages)

    @staticmethod
    def _assembled(link: LinkSeen, frame: Transfer, payload: bytes) -> bytes | None:
        if frame.delivery_id >= 0:
            link.delivery_id = frame.delivery_id
            link.message_format = frame.message_format
        link.partial += payload
        if frame.more:
            return None
        whole, link.partial = link.partial, b""
        return whole

    def _client_settles(self, channel: int, frame: Disposition, state: Outcome) -> None:
        for delivery_id in range(frame.first, frame.last + 1):
            path = self._delivered.get((channel, delivery_id))
            if path is None:
                continue
            if frame.settled:
                del self._delivered[channel, delivery_id]
                self._ledger.add(path, "settle")
            else:
                self._asked[channel, delivery_id] = (path, state.code)

    # -- broker to client ----------------------------------------------------------------------

    def _broker_says(self, channel: int, frame: Performative, payload: bytes) -> None:
        if isinstance(frame, Attach):
            attached = self._links.get((channel, frame.handle))
            if attached is not None and attached.wants_session and frame.source is not None:
                self._ledger.add(attached.path, "session")
        elif isinstance(frame, Detach):
            link_or_none = self._links.get((channel, frame.handle))
            if link_or_none is not None:
                if frame.error is not None and frame.error.condition == "com.microsoft:timeout":
                    self._ledger.add(link_or_none.path, "empty_receive")
                self._end_receive(link_or_none)
        elif isinstance(frame, Transfer):
            self._broker_sends(channel, frame, payload)
        elif isinstance(frame, Disposition) and frame.state is not None:
            self._broker_answers(channel, frame, frame.state)

    def _broker_sends(self, channel: int, frame: Transfer, payload: bytes) -> None:
        link = self._links.get((channel, frame.handle))
        if link is None:
            return
        whole = self._assembled(link, frame, payload)
        if whole is None:
            return
        if link.is_management:
            response = decode_message(whole)
            path, name, request = self._requests.pop(response.properties.correlation_id_raw)
            if response.application_properties["statusCode"] in (200, 202, 204):
                self._answered(path, name, request, response)
        elif link.is_entity:
            link.is_polling = False
            self._ledger.add(link.path, "receive", bare_size(whole))
            if not frame.settled:
                self._delivered[channel, link.delivery_id] = link.path

    def _answered(self, path: str, name: str, request: DecodedMessage, response: DecodedMessage) -> None:
        asked, given = request.body, response.body
        assert isinstance(asked, dict)
        entries = (
            [bytes(entry["message"]) for entry in given.get("messages", [])]
            if isinstance(given, dict)
            else []
        )
        if name == "renew-lock":
            for _ in asked["lock-tokens"]:
                self._ledger.add(path, "renew")
        elif name == "peek-message":
            self._ledger.add(path, "peek", sum(bare_size(entry) for entry in entries))
        elif name == "schedule-message":
            for entry in asked["messages"]:
                self._ledger.add(path, "schedule", size_of(bytes(entry["message"])))
        elif name == "cancel-scheduled-message":
            for _ in asked["sequence-numbers"]:
                self._ledger.add(path, "cancel")
        elif name == "receive-by-sequence-number":
            for entry in entries:
                self._ledger.add(path, "receive", bare_size(entry))
        elif name == "update-disposition":
            for _ in asked["lock-tokens"]:
                self._ledger.add(path, "settle")
        elif name in ("set-session-state", "get-session-state"):
            body = asked if name == "set-session-state" else given
            assert isinstance(body, dict)
            self._ledger.add(path, "session", len(body.get("session-state") or b""))
        else:
            self._ledger.add(path, ONE_EACH.get(name, "management"))

    def _broker_answers(self, channel: int, frame: Disposition, state: Outcome) -> None:
        for delivery_id in range(frame.first, frame.last + 1):
            if frame.role:
                path, messages = self._sent.pop((channel, delivery_id), ("", []))
                if state.code == ACCEPTED_CODE:
                    for operation, size in messages:
                        self._ledger.add(path, operation, size)
                continue
            asked = self._asked.pop((channel, delivery_id), None)
            self._delivered.pop((channel, delivery_id), None)
            if asked is not None and asked[1] == state.code and state.error is None:
                self._ledger.add(asked[0], "settle")


class HttpTap:
    """Counts management requests that were answered with success. One request per connection."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asked = b""
        self._is_answered = False

    def from_client(self, data: bytes) -> None:
        self._asked += data

    def from_broker(self, data: bytes) -> None:
        target = self._asked.split(b" ", 2)[1].decode().partition("?")[0]
        if not self._is_answered and target != "/metrics":
            self._is_answered = True
            if data.startswith(b"HTTP/1.1 2"):
                path = target.strip("/").replace("%2F", "/")
                self._ledger.add("" if path.startswith("$") else path, "management")

    def ended(self) -> None:
        return None


class Proxy:
    """Listens on a free port and passes everything on."""

    def __init__(self, target: tuple[str, int], make_tap: Callable[[], Tap]) -> None:
        self._target = target
        self._make_tap = make_tap
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._target)
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tap = self._make_tap()
            there = threading.Thread(target=self._pass, args=(client, broker, tap.from_client), daemon=True)
            back = threading.Thread(target=self._pass, args=(broker, client, tap.from_broker), daemon=True)
            threading.Thread(
                target=self._attend, args=(there, back, tap, client, broker), daemon=True
            ).start()

    @staticmethod
    def _attend(
        there: threading.Thread,
        back: threading.Thread,
        tap: Tap,
        client: socket.socket,
        broker: socket.socket,
    ) -> None:
        there.start()
        back.start()
        there.join()
        back.join()
        tap.ended()
        client.close()
        broker.close()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, read: Callable[[bytes], None]) -> None:
        try:
            while data := source.recv(65_536):
                read(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass


__all__ = ["AmqpTap", "Counts", "HttpTap", "Ledger", "Proxy"]
