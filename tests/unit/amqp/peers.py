"""Two ends to test with: a handler that writes down what happens, and a client that writes frames by hand."""

from __future__ import annotations

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.states import STATE_ACCEPTED, Outcome
from pairbus.amqp.transport.connection import Connection, ConnectionSettings
from pairbus.amqp.transport.framing import AMQP_HEADER, FRAME_HEADER, SASL_HEADER, amqp_frame
from pairbus.amqp.transport.handler import Handler
from pairbus.amqp.transport.link import Link
from pairbus.amqp.transport.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    decode_performative,
)
from pairbus.amqp.transport.sasl import SaslInit
from pairbus.amqp.transport.session import Session


class Recorder(Handler):
    """A handler that accepts everything at once and writes down every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.links: dict[str, Link] = {}
        self.sessions: list[Session] = []
        self.answers_attach = True
        self.accepts_transfers = True
        self.echoes_settlements = True
        self.open_error: AmqpError | None = None

    def names(self) -> list[object]:
        return [call[0] for call in self.calls]

    def of(self, name: str) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]

    def sasl_plain(self, user: str, password: str) -> bool:
        self.calls.append(("sasl_plain", user))
        return password == "secret"

    def opened(self, connection: Connection) -> None:
        self.calls.append(("opened",))
        if self.open_error is not None:
            connection.close(self.open_error)

    def session_began(self, session: Session) -> None:
        self.calls.append(("session_began", session.channel))
        self.sessions.append(session)

    def session_ended(self, session: Session) -> None:
        self.calls.append(("session_ended", session.channel))

    def link_attached(self, link: Link) -> None:
        self.calls.append(("link_attached", link.name))
        self.links[link.name] = link
        if self.answers_attach:
            link.accept(max_message_size=4096)

    def link_detached(self, link: Link, closed: bool, error: AmqpError | None) -> None:
        self.calls.append(("link_detached", link.name, closed, None if error is None else error.condition))

    def transfer(
        self,
        link: Link,
        delivery_id: int,
        message_format: int,
        settled: bool,
        payload: bytes,
        state: Outcome | None,
    ) -> None:
        txn_id = None if state is None else state.txn_id
        self.calls.append(("transfer", link.name, delivery_id, message_format, settled, payload, txn_id))
        if self.accepts_transfers and not settled:
            link.session.accept_incoming(delivery_id)

    def transfer_too_large(self, link: Link, delivery_id: int, settled: bool, size: int) -> None:
        self.calls.append(("transfer_too_large", link.name, delivery_id, settled, size))

    def settled(
        self, link: Link, delivery_id: int, context: object | None, outcome: Outcome, settled: bool
    ) -> None:
        self.calls.append(("settled", link.name, delivery_id, context, outcome.code, settled))
        if self.echoes_settlements and not settled:
            link.session.settle_outgoing(delivery_id, outcome.code)

    def credit(self, link: Link) -> None:
        self.calls.append(("credit", link.name, link.credit, link.drain))


class Wire:
    """A server connection and a client that says exactly what a test tells it to."""

    def __init__(self, settings: ConnectionSettings | None = None, now: int = 0) -> None:
        self.handler = Recorder()
        self.settings = settings or ConnectionSettings("broker")
        self.connection = Connection(self.handler, self.settings)
        self.now = now
        self.seen: list[tuple[int, Performative, bytes]] = []
        self._headers = 0
        self._input = b""

    # ---- what the client says ----

    def raw(self, data: bytes) -> Wire:
        self.connection.receive(data, self.now)
        return self

    def say(self, *frames: Performative, channel: int = 0, payload: bytes = b"") -> Wire:
        return self.raw(b"".join(amqp_frame(channel, frame.encode() + payload) for frame in frames))

    def authenticated(self) -> Wire:
        return self.raw(SASL_HEADER + SaslInit("ANONYMOUS", b"", "localhost").frame() + AMQP_HEADER)

    def opened(self, max_frame_size: int = 65536, idle_timeout_ms: int = 0) -> Wire:
        frame = Open("client")
        frame.max_frame_size = max_frame_size
        frame.idle_timeout_ms = idle_timeout_ms
        return self.authenticated().say(frame)

    def begun(self, incoming_window: int = 1000, max_frame_size: int = 65536) -> Wire:
        return self.opened(max_frame_size).say(Begin(0, incoming_window, 1000))

    def attached(self, role: bool, name: str = "link", handle: int = 0, channel: int = 0) -> Link:
        """Attach a link; ``role`` is the client's: True when it receives."""
        frame = Attach(name, handle, role)
        frame.source = Source("orders")
        frame.target = Target("orders")
        self.say(frame, channel=channel)
        return self.handler.links[name]

    def flow(self, handle: int = -1, credit: int = -1, delivery_count: int = 0, drain: bool = False) -> Wire:
        frame = Flow()
        frame.next_incoming_id = 1
        frame.incoming_window = 1000
        frame.next_outgoing_id = 0
        frame.outgoing_window = 1000
        frame.handle = handle
        if handle >= 0:
            frame.delivery_count = delivery_count
            frame.link_credit = credit
            frame.drain = drain
        return self.say(frame)

    def transfer(
        self,
        payload: bytes = b"x",
        delivery_id: int = 0,
        handle: int = 0,
        more: bool = False,
        settled: bool = False,
        aborted: bool = False,
    ) -> Wire:
        frame = Transfer(handle)
        frame.delivery_id = delivery_id
        frame.delivery_tag = b"tag"
        frame.message_format = 0
        frame.more = more
        frame.settled = settled
        frame.aborted = aborted
        return self.say(frame, payload=payload)

    def dispose(self, first: int, last: int, settled: bool = True, state: bytes = STATE_ACCEPTED) -> Wire:
        frame = Disposition(True, first, last)
        frame.settled = settled
        frame.state_bytes = state
        return self.say(frame)

    def detach(self, handle: int = 0, closed: bool = True) -> Wire:
        return self.say(Detach(handle, closed, None))

    def end(self, channel: int = 0) -> Wire:
        return self.say(End(None), channel=channel)

    # ---- what the server said ----

    def answers(self) -> list[Performative]:
        """Performatives since the last call."""
        return [frame for _, frame, _ in self.frames()]

    def frames(self) -> list[tuple[int, Performative, bytes]]:
        """Channel, performative and payload of each frame since the last call."""
        data = b"".join(self.connection.take_output())
        found: list[tuple[int, Performative, bytes]] = []
        offset = 0
        while offset < len(data):
            if data[offset : offset + 4] == b"AMQP":
                offset += 8
                continue
            size, doff, kind, channel = FRAME_HEADER.unpack_from(data, offset)
            if kind == 0 and size > 8:
                frame, payload = decode_performative(data, offset + 4 * doff, offset + size)
                found.append((channel, frame, data[payload : offset + size]))
            offset += size
        self.seen += found
        return found

    def is_closed(self) -> bool:
        """Whether the socket should be closed; a call, so that checkers do not take the last answer for the next."""
        return self.connection.is_closed

    def closed_with(self) -> str:
        """The condition of the server's close; empty when it gave none."""
        for frame in self.answers():
            if isinstance(frame, Close):
                return "" if frame.error is None else frame.error.condition
        raise AssertionError("the server did not close")
