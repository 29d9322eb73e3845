"""One connection as a state machine: bytes in, calls to the handler, bytes out (AMQP 1.0, 2.4).

    SASL_HEADER --> SASL_INIT --> AMQP_HEADER --> FRAMES --close--> closed

Rule 1: nothing the peer sends raises out of ``receive``. At worst the connection closes (B59).
Rule 2: how the bytes are cut into chunks never matters.
Rule 3: before SASL has succeeded only the handshake is read, and little of it (M6).
Rule 4: no clock. Time arrives as ``now`` in milliseconds and only drives idle timeouts.
"""

from __future__ import annotations

from typing import Final, Protocol

from pairbus.amqp.conditions import CONNECTION_FORCED, FRAMING_ERROR, NOT_ALLOWED, AmqpError
from pairbus.amqp.framing import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    MIN_MAX_FRAME_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    amqp_frame,
)
from pairbus.amqp.hot import read_flow
from pairbus.amqp.link import Link
from pairbus.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    NAMES,
    OPEN,
    TRANSFER,
    Begin,
    Close,
    Open,
    attach_from,
    begin_from,
    decode_fields,
    descriptor_code,
    detach_from,
    open_from,
    optional_error,
)
from pairbus.amqp.sasl import (
    OUTCOME_AUTH,
    OUTCOME_OK,
    MECHANISMS,
    PLAIN,
    decode_init,
    mechanisms_frame,
    outcome_frame,
    plain_credentials,
)
from pairbus.amqp.session import FIRST_TRANSFER_ID, OUTGOING_WINDOW, Session
from pairbus.amqp.states import Outcome
from pairbus.errors import RemoteProtocolError

_SASL_HEADER_STAGE: Final = 0
_SASL_INIT_STAGE: Final = 1
_AMQP_HEADER_STAGE: Final = 2
_FRAMES_STAGE: Final = 3

HEARTBEAT_MS_MAX: Final = 30_000
"""JavaScript clients want a frame within 60 s; half of that, whatever longer time they ask for."""
PEER_IDLE_MS_MIN: Final = 100
"""A peer that wants frames more often than this asks too much (AMQP 1.0, 2.4.5)."""
CLOSE_WAIT_MS: Final = 10_000
"""How long the peer may take to answer our close."""


class Handler(Protocol):
    """Who owns the connection. Every call comes from inside ``receive``, ``tick``, ``lost`` or ``close``."""

    def sasl_plain(self, user: str, password: str) -> bool:
        """Whether these credentials are good."""

    def opened(self, connection: Connection) -> None:
        """The peer's open has come; ours follows unless ``connection.close`` is called."""

    def session_began(self, session: Session) -> None:
        """A session is there."""

    def session_ended(self, session: Session) -> None:
        """A session has gone; its links went before."""

    def link_attached(self, link: Link) -> None:
        """A link asks to attach: answer now or later with ``accept`` or ``refuse``."""

    def link_detached(self, link: Link, closed: bool, error: AmqpError | None) -> None:
        """A link has gone, by the peer's doing or with its session; already answered."""

    def transfer(
        self,
        link: Link,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        state: Outcome | None,
    ) -> None:
        """A whole delivery from the peer."""

    def transfer_too_large(self, link: Link, delivery_id: int, settled: bool, size: int) -> None:
        """A delivery that exceeded the link's limit; its bytes were not kept."""

    def settled(self, link: Link, delivery_id: int, context: object | None, outcome: Outcome, settled: bool) -> None:
        """The peer's verdict on one of our deliveries. Unsettled: it waits for ``session.settle_outgoing``."""

    def credit(self, link: Link) -> None:
        """A link where we send has new credit, drain or window."""


class ConnectionSettings:
    """What a connection announces and allows."""

    __slots__ = (
        "channel_max",
        "container_id",
        "handle_max",
        "idle_timeout_ms",
        "incoming_window",
        "link_credit",
        "max_frame_size",
        "mechanisms",
        "pre_auth_bytes_max",
        "properties",
        "send_frame_max",
        "unknown_delivery",
    )

    def __init__(
        self,
        container_id: str,
        max_frame_size: int = 65536,
        send_frame_max: int = 1 << 20,
        channel_max: int = 4999,
        handle_max: int = 255,
        idle_timeout_ms: int = 240_000,
        incoming_window: int = 5000,
        link_credit: int = 1000,
        pre_auth_bytes_max: int = 16384,
    ) -> None:
        self.container_id = container_id
        self.max_frame_size = max_frame_size
        self.send_frame_max = send_frame_max
        """Ours to keep even with peers that would take 4 GiB, as rhea says it does."""
        self.channel_max = channel_max
        self.handle_max = handle_max
        self.idle_timeout_ms = idle_timeout_ms
        self.incoming_window = incoming_window
        self.link_credit = link_credit
        self.pre_auth_bytes_max = pre_auth_bytes_max
        self.mechanisms: tuple[str, ...] = MECHANISMS
        self.properties: dict[str, object] = {}
        self.unknown_delivery = AmqpError(
            "com.microsoft:message-lock-lost",
            "The lock supplied is invalid. Either the lock expired, or the message has already been removed from "
            "the queue.",
        )
        """What a client hears that settles a delivery which is settled, expired or never was."""


class Connection:
    """The server's end of one AMQP connection, without a socket."""

    __slots__ = (
        "_close_deadline",
        "_handshake_bytes",
        "_heartbeat_ms",
        "_held",
        "_last_received",
        "_last_sent",
        "_needed",
        "_now",
        "_open_sent",
        "_stage",
        "closing",
        "context",
        "dirty",
        "handler",
        "is_closed",
        "is_open",
        "output",
        "output_size",
        "remote_open",
        "sasl_identity",
        "sasl_mechanism",
        "send_frame_max",
        "sessions",
        "settings",
    )

    def __init__(self, handler: Handler, settings: ConnectionSettings) -> None:
        self.handler = handler
        self.settings = settings
        self.context: object | None = None
        self.sessions: dict[int, Session] = {}
        self.remote_open: Open | None = None
        self.sasl_identity: str | None = None
        """The user of a PLAIN login; None for the anonymous mechanisms, which prove themselves by tokens later."""
        self.sasl_mechanism = ""
        self.is_open = False
        self.closing = False
        """Our close is said; nothing more is acted upon."""
        self.is_closed = False
        """The socket should be closed once the output is written."""
        self.output: list[bytes] = []
        self.output_size = 0
        self.dirty: list[Session] = []
        """Sessions with gathered dispositions."""
        self.send_frame_max = MIN_MAX_FRAME_SIZE
        self._stage = _SASL_HEADER_STAGE
        self._handshake_bytes = 0
        self._held = bytearray()
        self._needed = HEADER_SIZE
        self._open_sent = False
        self._now = 0
        self._last_received = 0
        self._last_sent = 0
        self._heartbeat_ms = 0
        self._close_deadline = 0

    # ---- output ----

    def write_frame(self, frame: bytes) -> None:
        """Queue one whole frame. A frame that the peer would not take closes the connection instead (B61)."""
        if self.closing:
            return
        if len(frame) > self.send_frame_max:
            text = f"an answer of {len(frame)} bytes exceeds max-frame-size {self.send_frame_max}"
            self._fail(AmqpError("amqp:frame-size-too-small", text))
            return
        self.output.append(frame)
        self.output_size += len(frame)

    def take_output(self) -> list[bytes]:
        """Everything to write since the last call."""
        if self.dirty:
            self._flush_dirty()
        output = self.output
        if output:
            self.output = []
            self.output_size = 0
            self._last_sent = self._now
        return output

    def has_output(self) -> bool:
        """Whether ``take_output`` would return something."""
        return bool(self.output) or bool(self.dirty)

    def _flush_dirty(self) -> None:
        for session in self.dirty:
            session.flush_dispositions()
        self.dirty.clear()

    # ---- time ----

    def next_deadline(self) -> int | None:
        """When ``tick`` should be called next."""
        if self.is_closed:
            return None
        if self.closing:
            return self._close_deadline
        if not self.is_open:
            return None
        deadline = self._last_received + self.settings.idle_timeout_ms if self.settings.idle_timeout_ms else None
        if self._heartbeat_ms:
            heartbeat = self._last_sent + self._heartbeat_ms
            if deadline is None or heartbeat < deadline:
                deadline = heartbeat
        return deadline

    def tick(self, now: int) -> None:
        """Time has passed: send an empty frame if one is due, close a peer that has been silent too long (B64)."""
        self._now = now
        if self.is_closed:
            return
        if self.closing:
            self.is_closed = now >= self._close_deadline
            return
        if not self.is_open:
            return
        idle = self.settings.idle_timeout_ms
        if idle and now >= self._last_received + idle:
            self._fail(AmqpError(CONNECTION_FORCED, f"nothing was received for {idle} milliseconds"))
        elif self._heartbeat_ms and now >= self._last_sent + self._heartbeat_ms:
            if not self.has_output():
                self.write_frame(EMPTY_FRAME)
            self._last_sent = now

    # ---- end ----

    def close(self, error: AmqpError | None = None) -> None:
        """Close from our side; the peer may answer within CLOSE_WAIT_MS."""
        if self.closing or self.is_closed:
            return
        if self._stage < _FRAMES_STAGE:
            self.is_closed = True  # no AMQP has been agreed on in which to say why
            return
        self._end_sessions(error)
        self._send_close(error)
        self._close_deadline = self._now + CLOSE_WAIT_MS

    def lost(self) -> None:
        """The socket has gone: tell the owner that every link and session has."""
        self.is_closed = True
        self._end_sessions(None)

    def _send_close(self, error: AmqpError | None) -> None:
        self._flush_dirty()
        if not self._open_sent:
            self._send_open()  # AMQP 1.0, 2.4.3: an open goes before every close
        body = Close(error).encode()
        if error is not None and len(body) + FRAME_HEADER_SIZE > self.send_frame_max:
            body = Close(error.shortened()).encode()
        self.write_frame(amqp_frame(0, body))
        self.closing = True

    def _end_sessions(self, error: AmqpError | None) -> None:
        for session in list(self.sessions.values()):
            # What was accepted before this moment is still said.
            session.flush_dispositions()
            session.vanish(error)
        self.sessions.clear()

    def _fail(self, error: AmqpError) -> None:
        """The peer broke the protocol: say so and let go."""
        if self._stage == _FRAMES_STAGE and not self.closing:
            self._end_sessions(error)
            self._send_close(error)
        else:
            self._end_sessions(error)
        self.is_closed = True
        self._held.clear()

    # ---- input ----

    def receive(self, data: bytes, now: int) -> None:
        """Read what the peer sent and act on it."""
        self._now = now
        self._last_received = now
        if self.is_closed:
            return
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held.clear()
        try:
            offset = 0
            if self._stage != _FRAMES_STAGE:
                offset = self._read_handshake(data)
            if self._stage == _FRAMES_STAGE:
                offset = self._read_frames(data, offset)
        except RemoteProtocolError as error:
            self._fail(AmqpError(error.condition, error.description))
            return
        if offset < len(data):
            self._held += data[offset:]

    def _read_frames(self, data: bytes, offset: int) -> int:
        """Act on every whole frame; return where the first incomplete one starts."""
        size_max = self.settings.max_frame_size
        size = len(data)
        while not self.is_closed:
            if size - offset < FRAME_HEADER_SIZE:
                self._needed = FRAME_HEADER_SIZE
                break
            length, doff, kind, channel = FRAME_HEADER.unpack_from(data, offset)
            if length > size_max or length < FRAME_HEADER_SIZE or kind != AMQP_FRAME:
                raise RemoteProtocolError(FRAMING_ERROR, f"a frame of type {kind} and {length} bytes; at most {size_max}")
            if size - offset < length:
                self._needed = length
                break
            end = offset + length
            body = offset + doff * 4
            if doff < 2 or body > end:
                raise RemoteProtocolError(FRAMING_ERROR, f"a frame of {length} bytes has data offset {doff}")
            offset = end
            if body == end:
                continue  # an empty frame only says that the peer lives
            if end - body >= 4 and data[body] == 0 and data[body + 1] == 0x53:
                code = data[body + 2]
                body += 3
            else:
                code, body = descriptor_code(data, body, end)
            if code == TRANSFER or code == DISPOSITION or code == FLOW:
                session = self.sessions.get(channel)
                if session is None or session.is_ended or self.closing:
                    self._no_session(channel, code)
                elif code == TRANSFER:
                    session.incoming_transfer(data, body, end)
                elif code == DISPOSITION:
                    session.incoming_disposition(data, body, end)
                else:
                    session.incoming_flow(read_flow(data, body, end))
            else:
                self._dispatch(code, channel, data, body, end)
        return offset

    def _dispatch(self, code: int, channel: int, data: bytes, body: int, end: int) -> None:
        """Everything but transfer, disposition and flow."""
        if not OPEN <= code <= CLOSE:
            raise RemoteProtocolError("amqp:decode-error", f"descriptor {code} is no performative")
        fields, _ = decode_fields(data, body, end, NAMES[code - OPEN])
        if code == CLOSE:
            self._incoming_close(optional_error(fields.value(0)))
        elif self.closing:
            return  # AMQP 1.0, 2.4.6: after our close only theirs matters
        elif code == OPEN:
            self._incoming_open(open_from(fields))
        elif not self.is_open:
            raise RemoteProtocolError(NOT_ALLOWED, f"{NAMES[code - OPEN]} came before open")
        elif code == BEGIN:
            self._incoming_begin(channel, begin_from(fields))
        elif code == END:
            self._incoming_end(channel, optional_error(fields.value(0)))
        else:
            session = self.sessions.get(channel)
            if session is None or session.is_ended:
                self._no_session(channel, code)
            elif code == ATTACH:
                session.incoming_attach(attach_from(fields))
            elif code == DETACH:
                session.incoming_detach(detach_from(fields))

    def _no_session(self, channel: int, code: int) -> None:
        # What crosses our end or close on its way is no offence (AMQP 1.0, 2.5.5).
        if not self.closing and channel not in self.sessions:
            raise RemoteProtocolError(NOT_ALLOWED, f"{NAMES[code - OPEN]} on channel {channel}, which has no session")

    def _incoming_open(self, frame: Open) -> None:
        if self.remote_open is not None:
            raise RemoteProtocolError("amqp:illegal-state", "a second open")
        if frame.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise RemoteProtocolError(
                "amqp:invalid-field", f"max-frame-size {frame.max_frame_size} is below {MIN_MAX_FRAME_SIZE}"
            )
        if 0 < frame.idle_timeout_ms < PEER_IDLE_MS_MIN:
            raise RemoteProtocolError(
                NOT_ALLOWED, f"idle-time-out {frame.idle_timeout_ms} is below {PEER_IDLE_MS_MIN} milliseconds"
            )
        self.remote_open = frame
        self.send_frame_max = min(frame.max_frame_size, self.settings.send_frame_max)
        if frame.idle_timeout_ms:
            self._heartbeat_ms = min(frame.idle_timeout_ms // 2, HEARTBEAT_MS_MAX)
        self.is_open = True
        self.handler.opened(self)
        if not self._open_sent:
            self._send_open()

    def _send_open(self) -> None:
        frame = Open(self.settings.container_id)
        frame.max_frame_size = self.settings.max_frame_size
        frame.channel_max = self.settings.channel_max
        frame.idle_timeout_ms = self.settings.idle_timeout_ms
        frame.properties = self.settings.properties
        self._open_sent = True
        body = frame.encode()
        if len(body) + FRAME_HEADER_SIZE > MIN_MAX_FRAME_SIZE:
            # Before sizes are agreed on, no frame may be larger (AMQP 1.0, 2.3.1).
            frame.properties = {}
            body = frame.encode()
        self.write_frame(amqp_frame(0, body))

    def _incoming_close(self, error: AmqpError | None) -> None:
        if not self.closing:
            self._end_sessions(error)
            self._send_close(None)
        self.is_closed = True

    def _incoming_begin(self, channel: int, frame: Begin) -> None:
        if channel > self.settings.channel_max:
            raise RemoteProtocolError(
                FRAMING_ERROR, f"channel {channel} exceeds channel-max {self.settings.channel_max}"
            )
        if channel in self.sessions:
            raise RemoteProtocolError(NOT_ALLOWED, f"channel {channel} has a session already")
        session = Session(self, channel, frame)
        self.sessions[channel] = session
        answer = Begin(FIRST_TRANSFER_ID, self.settings.incoming_window, OUTGOING_WINDOW)
        answer.remote_channel = channel
        answer.handle_max = self.settings.handle_max
        session.write(answer.encode())
        self.handler.session_began(session)

    def _incoming_end(self, channel: int, error: AmqpError | None) -> None:
        session = self.sessions.get(channel)
        if session is None:
            self._no_session(channel, END)
            return
        if not session.end_sent:
            session.flush_dispositions()
            session.vanish(error)
            session.end_sent = True
            self.write_frame(amqp_frame(channel, b"\x00\x53\x17\xc0\x02\x01\x40"))
        self.sessions.pop(channel, None)

    # ---- handshake ----

    def _read_handshake(self, data: bytes) -> int:
        """Headers and SASL, up to the first AMQP frame."""
        offset = 0
        while self._stage != _FRAMES_STAGE and not self.is_closed:
            left = len(data) - offset
            self._needed = HEADER_SIZE
            if left < HEADER_SIZE:
                break
            if self._stage == _SASL_INIT_STAGE:
                size = FRAME_HEADER.unpack_from(data, offset)[0]
                self._spend(size)
                if left < size:
                    self._handshake_bytes -= size  # counted again when it is whole
                    self._needed = size
                    break
                self._read_sasl_frame(data, offset, offset + size)
                offset += size
            else:
                self._read_header(data[offset : offset + HEADER_SIZE])
                offset += HEADER_SIZE
        return offset

    def _spend(self, size: int) -> None:
        self._handshake_bytes += size
        if self._handshake_bytes > self.settings.pre_auth_bytes_max:
            raise RemoteProtocolError(
                FRAMING_ERROR, f"more than {self.settings.pre_auth_bytes_max} bytes before authentication"
            )

    def _read_header(self, header: bytes) -> None:
        if self._stage == _SASL_HEADER_STAGE:
            self.output.append(SASL_HEADER)
            if header != SASL_HEADER:
                # AMQP 1.0, 2.2: answer with the header we would have taken, then close.
                self.is_closed = True
                return
            self._spend(HEADER_SIZE)
            self.output.append(mechanisms_frame(self.settings.mechanisms))
            self._stage = _SASL_INIT_STAGE
            return
        self.output.append(AMQP_HEADER)
        if header != AMQP_HEADER:
            self.is_closed = True
            return
        self._stage = _FRAMES_STAGE

    def _read_sasl_frame(self, data: bytes, offset: int, end: int) -> None:
        size, doff, kind, _ = FRAME_HEADER.unpack_from(data, offset)
        if kind != SASL_FRAME or doff < 2 or doff * 4 >= size:
            raise RemoteProtocolError(FRAMING_ERROR, f"a frame of type {kind} came before authentication")
        init = decode_init(data, offset + doff * 4, end)
        accepted = init.mechanism in self.settings.mechanisms
        if accepted and init.mechanism == PLAIN:
            credentials = plain_credentials(init.initial_response)
            accepted = credentials is not None and self.handler.sasl_plain(credentials[0], credentials[1])
            if accepted and credentials is not None:
                self.sasl_identity = credentials[0]
        # Whatever the anonymous mechanisms carry is ignored: rhea puts a rule name there.
        self.output.append(outcome_frame(OUTCOME_OK if accepted else OUTCOME_AUTH))
        if not accepted:
            self.is_closed = True
            return
        self.sasl_mechanism = init.mechanism
        self._stage = _AMQP_HEADER_STAGE
