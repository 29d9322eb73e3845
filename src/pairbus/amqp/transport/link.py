"""One link of a session, from either end: credit, whole deliveries, attach and detach (AMQP 1.0, 2.6).

PENDING --accept--> ATTACHED --detach (ours)--> DETACH_SENT --detach (theirs)--> DETACHED
   |                   |                            ^                               ^
   +------refuse-------|----------------------------+                               |
                       +--detach (theirs), answered at once-------------------------+
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.states import Outcome
from pairbus.amqp.transport.fast import (
    SETTLED_TAIL,
    TAG_HEAD,
    TRANSFER_SIZE,
    UNSETTLED_TAIL,
    transfer_head,
)
from pairbus.amqp.transport.framing import FRAME_HEADER_SIZE, amqp_frame
from pairbus.amqp.transport.performatives import (
    Attach,
    Detach,
    Flow,
    Target,
    Transfer,
    answered_source,
    answered_target,
)
from pairbus.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from mypy_extensions import i64

    from pairbus.amqp.transport.connection import Connection
    from pairbus.amqp.transport.session import Session

PENDING: Final = 0
ATTACHED: Final = 1
DETACH_SENT: Final = 2
DETACHED: Final = 3

SERIAL: Final = 0xFFFFFFFF
"""Delivery ids and counts are 32-bit serial numbers (RFC 1982)."""
SERIAL_HALF: Final = 0x80000000

MESSAGE_SIZE_DEFAULT: Final = 320 * 1024
"""Bytes of a delivery before the owner has set its own limit: 256 KiB and some slack."""


@dataclass(slots=True)
class Partial:
    """A delivery of which some frames have come."""

    delivery_id: int
    message_format: int
    settled: bool = False
    state: Outcome | None = None
    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    """Bytes that the client has sent of it."""
    held: int = 0
    """Bytes that are kept of those."""
    is_too_large: bool = False


class Link:
    """One end of a link. ``role_is_sender``: the broker sends on it."""

    __slots__ = (
        "asked",
        "connection",
        "context",
        "credit",
        "credit_granted",
        "delivery_count",
        "drain",
        "envelope_bytes_max",
        "flows",
        "frame_head",
        "frame_size",
        "handle",
        "max_message_size",
        "name",
        "partial",
        "role_is_sender",
        "session",
        "state",
        "target_address",
        "transfer_head",
        "unsettled_count",
    )

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session = session
        self.connection: Connection = session.connection
        self.asked: Attach | None = attach
        """What the client asked for, until it is answered: decoded, it takes many times its bytes."""
        target = attach.target
        self.target_address = target.address if isinstance(target, Target) else None
        self.name = attach.name
        # Our handle equals the client's: a link has one of each, so both number spaces stay free of clashes.
        self.handle = attach.handle
        self.role_is_sender = attach.role
        self.context: object | None = None
        self.state: i64 = PENDING
        self.credit: i64 = 0
        """As sender: how many deliveries the client will take. As receiver: how many of ours it still has."""
        self.credit_granted: i64 = 0
        self.delivery_count: i64 = attach.initial_delivery_count if not attach.role else 0
        self.drain = False
        self.flows: i64 = 0
        """As sender: how many flows of the client have come."""
        self.max_message_size: i64 = MESSAGE_SIZE_DEFAULT
        self.envelope_bytes_max: i64 = 0
        """How much a delivery of another message format than 0 may take beyond that: what is around the messages in it."""
        self.partial: Partial | None = None
        self.unsettled_count: i64 = 0
        self.transfer_head = transfer_head(session.channel, attach.handle)
        # Messages of a queue are often of one size: how the last transfer began, up to its delivery-id.
        self.frame_size: i64 = 0
        self.frame_head = b""

    @property
    def attach(self) -> Attach:
        """What the client asked for; only until the attach is answered."""
        if self.asked is None:
            raise LocalProtocolError(f"link {self.name!r} was answered already")
        return self.asked

    @property
    def is_attached(self) -> bool:
        """Accepted and not detached by anybody."""
        return self.state == ATTACHED

    def can_send(self) -> bool:
        """Whether a delivery would leave now: credit and session window allow it."""
        return self.credit > 0 and self.state == ATTACHED and self.session.can_send()

    # ---- attach and detach ----

    def accept(
        self,
        max_message_size: int = 0,
        properties: dict[str, object] | None = None,
        filter: dict[str, object] | None = None,
        source_address: str | None = None,
        target_address: str | None = None,
        credit: int = -1,
        initial_delivery_count: int = 0,
    ) -> None:
        """Answer the client's attach; as receiver, grant credit at once.

        Addresses that are not given are the client's own. ``filter`` holds the filters that are in place.
        """
        if self.state != PENDING:
            raise LocalProtocolError(f"link {self.name!r} was answered already")
        asked = self.attach
        self.asked = None
        answer = self._answer()
        answer.snd_settle_mode = asked.snd_settle_mode
        answer.rcv_settle_mode = asked.rcv_settle_mode
        # Both ends are never null in a success: the clients take null for a refusal.
        answer.source = answered_source(asked.source, source_address, filter)
        answer.target = answered_target(asked.target, target_address)
        answer.max_message_size = max_message_size
        answer.properties = properties or {}
        if self.role_is_sender:
            self.delivery_count = answer.initial_delivery_count = initial_delivery_count
        elif max_message_size:
            self.max_message_size = max_message_size
        self.state = ATTACHED
        self.session.write(answer.encode())
        if not self.role_is_sender:
            self.grant(self.connection.settings.link_credit if credit < 0 else credit)

    def refuse(self, error: AmqpError) -> None:
        """Answer the client's attach with null ends, then detach with the reason (AMQP 1.0, 2.6.3)."""
        if self.state != PENDING:
            raise LocalProtocolError(f"link {self.name!r} was answered already")
        self.session.write(self._answer().encode())
        self._send_detach(True, error)

    def detach(self, error: AmqpError | None = None) -> None:
        """Close the link from our side. The owner is not called back for it."""
        if self.state == PENDING:
            # Python closes its connection over a detach for a link it has not seen answered.
            self.session.write(self._answer().encode())
        if self.state <= ATTACHED:
            self._send_detach(True, error)

    def _answer(self) -> Attach:
        is_sender = self.role_is_sender
        return Attach(self.name, self.handle, not is_sender, initial_delivery_count=0 if is_sender else -1)

    def _send_detach(self, closed: bool, error: AmqpError | None) -> None:
        self.session.flush_dispositions()
        self.session.write_error(Detach(self.handle, closed, error))
        self.state = DETACH_SENT
        self.forget()

    def incoming_detach(self, frame: Detach) -> None:
        """The client detaches, or answers our detach."""
        session = self.session
        session.links.pop(self.handle, None)
        self.connection.link_count -= 1
        if self.state == DETACH_SENT:
            # An answer is never answered: rhea throws on a second detach.
            self.state = DETACHED
            return
        if self.state == PENDING:
            session.write(self._answer().encode())
        session.flush_dispositions()
        session.write(Detach(self.handle, frame.closed, None).encode())
        self.state = DETACHED
        self.connection.handler.link_detached(self, frame.closed, frame.error)
        self.forget()

    def vanish(self, error: AmqpError | None) -> None:
        """End the link without a detach, because its session or connection has gone; the owner is called."""
        was = self.state
        self.state = DETACHED
        if was <= ATTACHED:
            self.connection.handler.link_detached(self, False, error)
        self.forget()

    def unsettled(self) -> list[tuple[int, object]]:
        """Delivery id and context of each of our deliveries that is not settled; still there in ``link_detached``."""
        if self.unsettled_count == 0:
            return []
        return [(key, entry[1]) for key, entry in self.session.unsettled.items() if entry[0] is self]

    def forget(self) -> None:
        """Drop what was in flight, and what the client asked for."""
        self.asked = None
        if self.partial is not None:
            self.connection.partial_size -= self.partial.held
            self.partial = None
        if self.unsettled_count:
            entries = self.session.unsettled
            for key in [key for key, entry in entries.items() if entry[0] is self]:
                del entries[key]
            self.unsettled_count = 0

    # ---- credit ----

    def grant(self, credit: int) -> None:
        """As receiver: let the client send this many from now on."""
        self.credit = self.credit_granted = credit
        self.send_flow(False)

    def send_flow(self, drain: bool) -> None:
        """Send the state of this link to the client."""
        frame: Flow = self.session.flow()
        frame.handle = self.handle
        frame.delivery_count = self.delivery_count
        frame.link_credit = self.credit
        if self.role_is_sender:
            frame.available = 0
        frame.drain = drain
        self.session.write(frame.encode())

    def drained(self) -> None:
        """As sender: nothing more to send now; give the rest of the credit back (AMQP 1.0, 2.6.7)."""
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL
        self.credit = 0
        self.drain = False
        self.send_flow(True)

    def incoming_flow(self, frame: Flow) -> None:
        """The client's view of the link: its credit and delivery count."""
        if self.role_is_sender:
            self._take_credit(frame)
        elif frame.delivery_count >= 0 and self.state == ATTACHED:
            # The sender owns the delivery count; what it skipped has used up credit (AMQP 1.0, 2.6.7).
            skipped = (frame.delivery_count - self.delivery_count) & SERIAL
            if 0 < skipped < SERIAL_HALF:
                self.delivery_count = frame.delivery_count
                self.credit -= skipped
                self.top_up()
        if frame.echo and self.state == ATTACHED:
            self.send_flow(False)

    def _take_credit(self, frame: Flow) -> None:
        if frame.link_credit >= 0:
            # AMQP 1.0, 2.6.7: a receiver that has not seen our attach does not know our count yet.
            count = frame.delivery_count if frame.delivery_count >= 0 else 0
            credit = (count + frame.link_credit - self.delivery_count) & SERIAL
            # Python lowers credit below what is on its way: a negative rest is none.
            self.credit = credit if credit < SERIAL_HALF or frame.link_credit >= SERIAL_HALF else 0
        self.drain = frame.drain
        self.flows += 1
        if self.state == ATTACHED:
            self.connection.handler.credit(self)

    def top_up(self) -> None:
        """As receiver: grant again once half is used. Overdrawn credit is no offence: Python ignores it."""
        if self.credit * 2 <= self.credit_granted and self.credit_granted:
            self.grant(self.credit_granted)

    # ---- deliveries ----

    def send(
        self,
        tag: bytes,
        parts: list[bytes],
        settled: bool,
        context: object | None = None,
        message_format: i64 = 0,
    ) -> i64:
        """Send one delivery and return its id. Credit is the caller's to respect (``can_send``)."""
        if self.state != ATTACHED:
            raise LocalProtocolError(f"link {self.name!r} is not attached")
        session = self.session
        delivery_id = session.next_delivery_id
        session.next_delivery_id = (delivery_id + 1) & SERIAL
        self.delivery_count = (self.delivery_count + 1) & SERIAL
        if self.credit > 0:
            self.credit -= 1
        if not settled:
            session.unsettled[delivery_id] = (self, context)
            self.unsettled_count += 1
        size: i64 = TRANSFER_SIZE
        for part in parts:
            size += len(part)
        connection = self.connection
        if (
            len(tag) == 16
            and message_format == 0
            and size <= connection.send_frame_max
            and session.remote_window > 0
            and not session.queued
        ):
            if size != self.frame_size:
                frame_size: int = size
                self.frame_head = frame_size.to_bytes(4, "big") + self.transfer_head
                self.frame_size = size
            number: int = delivery_id
            output = connection.output
            tail = SETTLED_TAIL if settled else UNSETTLED_TAIL
            output += (self.frame_head, number.to_bytes(4, "big"), TAG_HEAD, tag, tail)
            output += parts
            connection.output_size += size
            session.next_outgoing_id = (session.next_outgoing_id + 1) & SERIAL
            session.remote_window -= 1
        else:
            self._send_in_frames(delivery_id, tag, b"".join(parts), settled, message_format)
        return delivery_id

    def _send_in_frames(
        self, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int
    ) -> None:
        frame = Transfer(self.handle, delivery_id, tag, message_format, settled, more=True)
        limit = self.connection.send_frame_max - FRAME_HEADER_SIZE
        offset = 0
        while frame.more:
            frame.more = False
            head = frame.encode()
            if len(head) + len(payload) - offset > limit:
                frame.more = True
                head = frame.encode()
            piece = payload[offset : offset + limit - len(head)]
            offset += len(piece)
            self.session.send_transfer_frame(amqp_frame(self.session.channel, head + piece))
            # Continuations leave id and tag out: a client that gets the id again wants the tag again too.
            frame.delivery_id = -1
            frame.delivery_tag = None
            frame.message_format = -1

    def incoming_transfer(
        self,
        delivery_id: i64,
        message_format: i64,
        settled: bool,
        more: bool,
        aborted: bool,
        state: Outcome | None,
        payload: bytes,
    ) -> None:
        """One frame of a delivery from the client."""
        if self.role_is_sender:
            raise RemoteProtocolError(
                "amqp:not-allowed", f"a transfer came on link {self.name!r}, where we send"
            )
        if self.state != ATTACHED:
            if self.state == PENDING:
                raise RemoteProtocolError(
                    "amqp:not-allowed", f"a transfer came on link {self.name!r} before its attach"
                )
            return  # it crossed our detach on the way
        if self.partial is None and not more and not aborted and delivery_id >= 0:
            self.delivery_count = (self.delivery_count + 1) & SERIAL
            self.credit -= 1
            if len(payload) > self.max_message_size and len(payload) > self._limit(message_format):
                self.connection.handler.transfer_too_large(self, delivery_id, settled, len(payload))
            else:
                self.connection.handler.transfer(self, delivery_id, message_format, settled, payload, state)
        elif not self._assemble(delivery_id, message_format, settled, more, aborted, state, payload):
            return
        if self.credit * 2 <= self.credit_granted and self.state == ATTACHED:
            self.top_up()

    def _assemble(
        self,
        delivery_id: i64,
        message_format: i64,
        settled: bool,
        more: bool,
        aborted: bool,
        state: Outcome | None,
        payload: bytes,
    ) -> bool:
        """Add a frame to the delivery it belongs to. True when that delivery has ended."""
        partial = self.partial
        if partial is None:
            if delivery_id < 0:
                raise RemoteProtocolError(
                    "amqp:invalid-field", "the first transfer of a delivery lacks its delivery-id"
                )
            partial = self.partial = Partial(delivery_id, message_format)
        elif delivery_id >= 0 and delivery_id != partial.delivery_id:
            raise RemoteProtocolError(
                "amqp:not-allowed",
                f"delivery {delivery_id} began before delivery {partial.delivery_id} ended",
            )
        partial.settled = partial.settled or settled
        if state is not None:
            partial.state = state
        partial.size += len(payload)
        if partial.size > self._limit(partial.message_format):
            # What exceeds the limit is counted, not kept.
            partial.is_too_large = True
            partial.chunks.clear()
            self.connection.partial_size -= partial.held
            partial.held = 0
        elif payload:
            self._hold(partial, payload)
        if more and not aborted:
            return False
        self.connection.partial_size -= partial.held
        self.partial = None
        self.delivery_count = (self.delivery_count + 1) & SERIAL
        self.credit -= 1
        # AMQP 1.0, 2.6.14: an aborted delivery leaves nothing behind and is not settled.
        if not aborted:
            self._hand_over(partial)
        return True

    def _limit(self, message_format: i64) -> i64:
        return self.max_message_size + (self.envelope_bytes_max if message_format > 0 else 0)

    def _hold(self, partial: Partial, payload: bytes) -> None:
        connection = self.connection
        partial.chunks.append(payload)
        partial.held += len(payload)
        connection.partial_size += len(payload)
        # One delivery of the size allowed must always fit, however small the limit over all.
        limit = max(connection.settings.partial_bytes_max, 2 * self.max_message_size)
        if connection.partial_size > limit:
            raise RemoteProtocolError(
                "amqp:resource-limit-exceeded", f"unfinished deliveries of more than {limit} bytes"
            )

    def _hand_over(self, partial: Partial) -> None:
        handler = self.connection.handler
        if partial.is_too_large:
            handler.transfer_too_large(self, partial.delivery_id, partial.settled, partial.size)
            return
        payload = b"".join(partial.chunks)
        handler.transfer(
            self,
            partial.delivery_id,
            partial.message_format,
            partial.settled,
            payload,
            partial.state,
        )
