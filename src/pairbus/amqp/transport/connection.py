"""One connection as a state machine: bytes in, calls to the handler, bytes out (AMQP 1.0, 2.4).

    handshake --> frames --open, sessions, close--> closed

Rule 1: nothing the peer sends raises out of ``receive``. At worst the connection closes (B59).
Rule 2: how the bytes are cut into chunks never matters.
Rule 3: before SASL has succeeded only the handshake is read, and little of it (M6).
Rule 4: no clock. Time arrives as ``now`` in milliseconds and only drives idle timeouts.
Rule 5: ``receive`` does as much work as its caller allows. The rest waits here, in order, until ``receive`` is called again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.conditions import (
    CONNECTION_FORCED,
    FRAMING_ERROR,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
)
from pairbus.amqp.decode import read_u32
from pairbus.amqp.transport.fast import read_flow
from pairbus.amqp.transport.framing import (
    AMQP_FRAME,
    EMPTY_FRAME,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    MIN_MAX_FRAME_SIZE,
    amqp_frame,
)
from pairbus.amqp.transport.handler import NO_HANDLER, ConnectionSettings, Handler
from pairbus.amqp.transport.handshake import Handshake
from pairbus.amqp.transport.performatives import (
    ALL_FIELDS,
    ATTACH,
    ATTACH_VALUES_MAX,
    BEGIN,
    BEGIN_FIELDS,
    CLOSE,
    DISPOSITION,
    END,
    FLOW,
    NAMES,
    OPEN,
    OPEN_FIELDS,
    TRANSFER,
    VALUES_MAX,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Open,
    decode_items,
    descriptor_code,
    read_performative,
)
from pairbus.amqp.transport.session import FIRST_TRANSFER_ID, OUTGOING_WINDOW, Session
from pairbus.errors import RemoteProtocolError

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["Connection", "ConnectionSettings", "Handler"]

HEARTBEAT_MS_MAX: Final = 30_000
"""JavaScript clients want a frame within 60 s; half of that, whatever longer time they ask for."""
PEER_IDLE_MS_MIN: Final = 100
"""A peer that wants frames more often than this asks too much (AMQP 1.0, 2.4.5)."""
ATTACH_BYTES_MAX: Final = 16384
"""Bytes of one attach; a larger one closes the connection."""
LINK_NAME_CHARACTERS_MAX: Final = 1024
"""Characters of a link's name, which the link keeps as long as it lives. A longer one closes the connection."""
CLOSE_WAIT_MS: Final = 10_000
"""How long the peer may take to answer our close."""
ALL_WORK: Final = 1 << 62
"""More work than any input can be: ``receive`` acts on everything."""
CONTROL_WORK: Final = 8
"""The work of one attach, detach, begin or the like, where a transfer, flow or settlement of one delivery is 1."""


class Connection:
    """The server's end of one AMQP connection, without a socket."""

    __slots__ = (
        "_close_deadline",
        "_handshake",
        "_heartbeat_ms",
        "_held",
        "_last_received",
        "_last_sent",
        "_needed",
        "_now",
        "_open_sent",
        "_rest",
        "_rest_at",
        "closing",
        "context",
        "dirty",
        "handler",
        "is_closed",
        "is_open",
        "link_count",
        "output",
        "output_size",
        "partial_size",
        "remote_open",
        "sasl_identity",
        "sasl_mechanism",
        "send_frame_max",
        "sessions",
        "settings",
        "waiting_size",
        "work_left",
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
        """Our close is sent; nothing more is acted upon."""
        self.is_closed = False
        """The socket should be closed once the output is written."""
        self.output: list[bytes] = []
        self.output_size: i64 = 0
        self.dirty: list[Session] = []
        """Sessions with gathered dispositions."""
        self.link_count: i64 = 0
        self.partial_size: i64 = 0
        """Bytes held of unfinished deliveries."""
        self.waiting_size: i64 = 0
        """What the transfers cost that wait for the windows of sessions, in bytes."""
        self.send_frame_max = MIN_MAX_FRAME_SIZE
        self._handshake: Handshake | None = Handshake(handler, settings)
        self._held = bytearray()
        self._needed = HEADER_SIZE
        self._rest: bytes = b""
        """Input with whole frames that wait, because the work allowed at once was done; from ``_rest_at`` on."""
        self._rest_at: i64 = 0
        self.work_left: i64 = 0
        """Work that ``receive`` may still do. A handler that does much for one frame takes it from here."""
        self._open_sent = False
        self._now: i64 = 0
        self._last_received: i64 = 0
        self._last_sent: i64 = 0
        self._heartbeat_ms: i64 = 0
        self._close_deadline: i64 = 0

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

    def has_enough_waiting(self) -> bool:
        """Whether nothing more should be made to wait for the client's windows. One delivery may always wait."""
        waiting, settings = self.waiting_size, self.settings
        return waiting > settings.waiting_bytes_max or (
            waiting > 0 and settings.waiting.size > settings.waiting_bytes_total_max
        )

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
        deadline = (
            self._last_received + self.settings.idle_timeout_ms if self.settings.idle_timeout_ms else None
        )
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
        if self._handshake is not None:
            self.is_closed = True  # without AMQP there is no way to send the reason
            return
        self._end_sessions(error)
        self._send_close(error)
        self._close_deadline = self._now + CLOSE_WAIT_MS

    def lost(self) -> None:
        """The socket has gone: end every link and session, then drop the reference to the owner.

        Owner and connection refer to each other. Without this they would wait for the garbage collector, which a broker
        with a million messages runs rarely.
        """
        self.is_closed = True
        self._end_sessions(None)
        self.output = []
        self.output_size = 0
        self._held = bytearray()
        self._rest = b""
        self._handshake = None
        self.remote_open = None
        self.context = None
        self.handler = NO_HANDLER

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
            # Deliveries accepted before this moment are still answered.
            session.flush_dispositions()
            session.vanish(error)
        self.sessions.clear()
        self.dirty.clear()

    def _fail(self, error: AmqpError) -> None:
        """Close the connection because the peer broke the protocol."""
        if self._handshake is None and not self.closing:
            self._end_sessions(error)
            self._send_close(error)
        else:
            self._end_sessions(error)
        self.is_closed = True
        self._held.clear()

    # ---- input ----

    @property
    def is_behind(self) -> bool:
        """Whether whole frames wait for the next ``receive``, for which no bytes need to come."""
        return bool(self._rest) and not self.is_closed

    def receive(self, data: bytes, now: i64, work: i64 = ALL_WORK) -> None:
        """Read what the peer sent and act on it, until that much work is done. A frame that has been begun is finished."""
        self._now = now
        self._last_received = now
        self.work_left = work
        offset: i64 = 0
        if self._rest:
            offset = self._rest_at
            if data:
                data, offset = self._rest[offset:] + data, 0
            else:
                data = self._rest
            self._rest = b""
        if self.is_closed:
            return
        if self._held:
            if len(self._held) + len(data) < self._needed:
                self._held += data
                return
            data = b"".join((self._held, data))
            self._held.clear()
        try:
            if self._handshake is not None:
                offset = self._shake_hands(self._handshake, data)
            if self._handshake is None:
                offset = self._read_frames(data, offset)
        except RemoteProtocolError as error:
            self._fail(AmqpError(error.condition, error.description))
            return
        if offset < len(data):
            self._held += data[offset:]

    def _shake_hands(self, handshake: Handshake, data: bytes) -> int:
        try:
            offset = handshake.read(data)
        finally:
            self.output.extend(handshake.output)
            handshake.output.clear()
        self._needed = handshake.needed
        if handshake.is_failed:
            self.is_closed = True
        elif handshake.is_done:
            self.sasl_identity = handshake.identity
            self.sasl_mechanism = handshake.mechanism
            self._handshake = None
        return offset

    def _read_frames(self, data: bytes, offset: i64) -> i64:
        """Act on every whole frame, within the work allowed; return where the first incomplete one starts."""
        size_max: i64 = self.settings.max_frame_size
        size: i64 = len(data)
        while not self.is_closed:
            if size - offset < FRAME_HEADER_SIZE:
                self._needed = FRAME_HEADER_SIZE
                break
            length = read_u32(data, offset)
            doff: i64 = data[offset + 4]
            kind: i64 = data[offset + 5]
            channel: i64 = data[offset + 6] << 8 | data[offset + 7]
            if length > size_max or length < FRAME_HEADER_SIZE or kind != AMQP_FRAME:
                raise RemoteProtocolError(
                    FRAMING_ERROR, f"a frame of type {kind} and {length} bytes; at most {size_max}"
                )
            if size - offset < length:
                self._needed = length
                break
            if self.work_left <= 0:
                self._rest = data
                self._rest_at = offset
                return size
            self.work_left -= 1
            end = offset + length
            body = offset + doff * 4
            if doff < 2 or body > end:
                raise RemoteProtocolError(FRAMING_ERROR, f"a frame of {length} bytes has data offset {doff}")
            offset = end
            if body == end:
                continue  # an empty frame only shows that the peer is alive
            if end - body >= 4 and data[body] == 0 and data[body + 1] == 0x53:
                code: i64 = data[body + 2]
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

    def _dispatch(self, code: i64, channel: i64, data: bytes, body: i64, end: i64) -> None:
        """Everything but transfer, disposition and flow."""
        self.work_left -= CONTROL_WORK - 1
        if not OPEN <= code <= CLOSE:
            raise RemoteProtocolError("amqp:decode-error", f"descriptor {code} is no performative")
        if code == ATTACH and end - body > ATTACH_BYTES_MAX:
            raise RemoteProtocolError(
                RESOURCE_LIMIT_EXCEEDED, f"an attach of {end - body} bytes exceeds {ATTACH_BYTES_MAX}"
            )
        wanted = OPEN_FIELDS if code == OPEN else BEGIN_FIELDS if code == BEGIN else ALL_FIELDS
        values_max = ATTACH_VALUES_MAX if code == ATTACH else VALUES_MAX
        items, _ = decode_items(data, body, end, code, wanted, values_max)
        if code == CLOSE:
            self._incoming_close(read_performative(Close, items).error)
        elif self.closing:
            return  # AMQP 1.0, 2.4.6: after our close only theirs matters
        elif code == OPEN:
            self._incoming_open(read_performative(Open, items))
        elif not self.is_open:
            raise RemoteProtocolError(NOT_ALLOWED, f"{NAMES[code - OPEN]} came before open")
        elif code == BEGIN:
            self._incoming_begin(channel, read_performative(Begin, items))
        elif code == END:
            self._incoming_end(channel, read_performative(End, items).error)
        else:
            session = self.sessions.get(channel)
            if session is None or session.is_ended:
                self._no_session(channel, code)
            elif code == ATTACH:
                attach = read_performative(Attach, items)
                if len(attach.name) > LINK_NAME_CHARACTERS_MAX:
                    text = f"a link name of {len(attach.name)} characters exceeds {LINK_NAME_CHARACTERS_MAX}"
                    raise RemoteProtocolError(RESOURCE_LIMIT_EXCEEDED, text)
                session.incoming_attach(attach)
            else:
                session.incoming_detach(read_performative(Detach, items))

    def _no_session(self, channel: i64, code: i64) -> None:
        # What crosses our end or close on its way is no offence (AMQP 1.0, 2.5.5).
        if not self.closing and channel not in self.sessions:
            raise RemoteProtocolError(
                NOT_ALLOWED, f"{NAMES[code - OPEN]} on channel {channel}, which has no session"
            )

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
        settings = self.settings
        frame = Open(
            settings.container_id,
            max_frame_size=settings.max_frame_size,
            channel_max=settings.channel_max,
            idle_timeout_ms=settings.idle_timeout_ms,
            properties=settings.properties,
        )
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
        settings = self.settings
        answer = Begin(
            FIRST_TRANSFER_ID, settings.incoming_window, OUTGOING_WINDOW, channel, settings.handle_max
        )
        session.write(answer.encode())
        self.handler.session_began(session)

    def _incoming_end(self, channel: int, error: AmqpError | None) -> None:
        session = self.sessions.pop(channel, None)
        if session is None:
            raise RemoteProtocolError(NOT_ALLOWED, f"end on channel {channel}, which has no session")
        if not session.end_sent:
            session.flush_dispositions()
            session.vanish(error)
            session.end_sent = True
            self.write_frame(amqp_frame(channel, End(None).encode()))
