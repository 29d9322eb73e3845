"""One session: transfer windows, delivery ids, dispositions in both directions (AMQP 1.0, 2.5).

Delivery ids of ours are one contiguous sequence over all links of the session; rhea insists. Answers that are
plain "accepted" are gathered into ranges and leave as one disposition per turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from pairbus.amqp.conditions import (
    HANDLE_IN_USE,
    RESOURCE_LIMIT_EXCEEDED,
    STOLEN,
    UNATTACHED_HANDLE,
    AmqpError,
)
from pairbus.amqp.states import (
    ACCEPTED_CODE,
    RECEIVED_CODE,
    RELEASED_CODE,
    Outcome,
    encode_outcome_code,
    encode_rejected,
)
from pairbus.amqp.transport.fast import accepted_range, disposition, read_disposition, read_transfer
from pairbus.amqp.transport.framing import FRAME_HEADER_SIZE, amqp_frame
from pairbus.amqp.transport.link import DETACH_SENT, SERIAL, SERIAL_HALF, Link
from pairbus.amqp.transport.performatives import Attach, Begin, Detach, End, Flow
from pairbus.errors import RemoteProtocolError

if TYPE_CHECKING:
    from mypy_extensions import i64

    from pairbus.amqp.transport.connection import Connection

OUTGOING_WINDOW: Final = 5000
"""What we announce; nothing of ours is bounded by it but credit."""
FIRST_TRANSFER_ID: Final = 1
FIRST_DELIVERY_ID: Final = 0
"""Qpid Proton expects 0 when it uses a session again on a new connection, and ends the connection at any other number."""
IDLE_STEPS_MAX: Final = 200_000
"""Unknown deliveries that a client may name, beyond those it settles, before its connection is closed."""
DISPOSITION_OVERHEAD: Final = 32
"""What a disposition takes beside its state."""
FRAME_COST: Final = 64
"""Bytes that a waiting frame takes in memory beside its own."""
UNSETTLED_MAX: Final = 200_000
"""How many deliveries of ours may wait for settlement at once; beyond it nothing more is sent."""


class Session:
    __slots__ = (
        "accept_first",
        "accept_last",
        "channel",
        "connection",
        "context",
        "echo_first",
        "echo_last",
        "end_sent",
        "idle_steps",
        "incoming_window",
        "is_ended",
        "links",
        "next_delivery_id",
        "next_incoming_id",
        "next_outgoing_id",
        "queued",
        "queued_bytes",
        "remote_window",
        "unsettled",
    )

    def __init__(self, connection: Connection, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.channel = channel
        self.context: object | None = None
        self.links: dict[int, Link] = {}
        self.is_ended = False
        self.end_sent = False
        self.next_incoming_id: i64 = begin.next_outgoing_id
        self.incoming_window: i64 = connection.settings.incoming_window
        self.next_outgoing_id: i64 = FIRST_TRANSFER_ID
        self.remote_window: i64 = begin.incoming_window
        self.next_delivery_id: i64 = FIRST_DELIVERY_ID
        self.unsettled: dict[int, tuple[Link, object | None]] = {}
        """Our deliveries that wait for the client's settlement, in the order of their ids."""
        self.queued: deque[bytes] = deque()
        """Transfer frames that wait for the client's window."""
        self.queued_bytes: i64 = 0
        self.idle_steps: i64 = 0
        # Ranges of deliveries to call accepted; -1: none. Theirs to us, and ours that they settled.
        self.accept_first: i64 = -1
        self.accept_last: i64 = -1
        self.echo_first: i64 = -1
        self.echo_last: i64 = -1

    # ---- output ----

    def write(self, body: bytes) -> None:
        self.connection.write_frame(amqp_frame(self.channel, body))

    def write_error(self, frame: Detach | End) -> None:
        """Queue a performative whose error may have to shrink to fit the client's frames (B61)."""
        body = frame.encode()
        if frame.error is not None and len(body) + FRAME_HEADER_SIZE > self.connection.send_frame_max:
            frame.error = frame.error.shortened()
            body = frame.encode()
        self.write(body)

    def flow(self) -> Flow:
        """A flow with the session's half filled in; our window is open again with it."""
        self.incoming_window = self.connection.settings.incoming_window
        # next-incoming-id is always there: without it rhea's window becomes NaN and it never sends again.
        return Flow(self.next_incoming_id, self.incoming_window, self.next_outgoing_id, OUTGOING_WINDOW)

    def can_send(self) -> bool:
        """Whether a transfer would leave at once."""
        return self.has_window() and len(self.unsettled) < UNSETTLED_MAX

    def has_window(self) -> bool:
        """Whether the client's window lets a transfer out; what is sent without it waits here, in memory."""
        return self.remote_window > 0 and not self.queued

    def send_transfer_frame(self, frame: bytes) -> None:
        """Send a transfer frame now, or when the client's window opens (AMQP 1.0, 2.5.6)."""
        self.queued.append(frame)
        self._wait(len(frame) + FRAME_COST)
        self._send_queued()

    def _send_queued(self) -> None:
        while self.queued and self.remote_window > 0:
            frame = self.queued.popleft()
            self._wait(-len(frame) - FRAME_COST)
            self.connection.write_frame(frame)
            self.remote_window -= 1
            self.next_outgoing_id = (self.next_outgoing_id + 1) & SERIAL

    def _wait(self, cost: i64) -> None:
        """So much more (or less) waits for the client's window."""
        self.queued_bytes += cost
        self.connection.waiting_size += cost
        self.connection.settings.waiting.size += cost

    def end(self, error: AmqpError | None = None) -> None:
        """End the session from our side; its links vanish."""
        if self.is_ended or self.end_sent:
            return
        self.flush_dispositions()
        self.write_error(End(error))
        self.end_sent = True
        self.vanish(error)

    def vanish(self, error: AmqpError | None) -> None:
        """Tell the owner that all links and then the session have gone."""
        if self.is_ended:
            return
        self.is_ended = True
        for link in list(self.links.values()):
            link.vanish(error)
        self.connection.link_count -= len(self.links)
        self.links.clear()
        self.unsettled.clear()
        self.queued.clear()
        self._wait(-self.queued_bytes)
        self.accept_first = self.echo_first = -1
        self.connection.handler.session_ended(self)

    # ---- settlement of what the client sent us ----

    def accept_incoming(self, delivery_id: i64) -> None:
        """``accepted`` and settled; gathered into a range."""
        if self.accept_first >= 0:
            if delivery_id == (self.accept_last + 1) & SERIAL and delivery_id:
                self.accept_last = delivery_id
                return
            self._flush_accepted()
        else:
            self.connection.dirty.append(self)
        self.accept_first = self.accept_last = delivery_id

    def reject_incoming(self, delivery_id: int, error: AmqpError) -> None:
        """``rejected`` with an error: with accepted, the only outcome Python's senders survive."""
        self._write_disposition(True, delivery_id, self._rejected(error))

    def settle_incoming_state(self, delivery_id: int, state: bytes) -> None:
        """Settle with any encoded state: declared, transactional."""
        self._write_disposition(True, delivery_id, state)

    # ---- settlement of what we sent the client ----

    def settle_outgoing(self, delivery_id: i64, code: i64, error: AmqpError | None = None) -> None:
        """Answer a settlement: echo its outcome, or reject it with an error. The delivery is forgotten."""
        self.forget_outgoing(delivery_id)
        if error is not None:
            self._write_disposition(False, delivery_id, self._rejected(error))
        elif code != ACCEPTED_CODE:
            self._write_disposition(False, delivery_id, encode_outcome_code(code))
        elif self.echo_first < 0:
            self.connection.dirty.append(self)
            self.echo_first = self.echo_last = delivery_id
        elif delivery_id == (self.echo_last + 1) & SERIAL and delivery_id:
            self.echo_last = delivery_id
        else:
            self._flush_echoed()
            self.echo_first = self.echo_last = delivery_id

    def answer_outgoing(self, delivery_id: int, state: bytes, settled: bool) -> None:
        """Answer a disposition with an encoded state, a transactional one. Once it is settled, the delivery is forgotten."""
        if settled:
            self.forget_outgoing(delivery_id)
        if not self.is_ended:
            self.write(disposition(False, delivery_id, delivery_id, state, settled=settled))

    def awaits_settlement(self, delivery_id: int, context: object) -> bool:
        """Whether a delivery of ours with this context is not settled by anybody."""
        entry = self.unsettled.get(delivery_id)
        return entry is not None and entry[1] is context

    def forget_outgoing(self, delivery_id: i64) -> None:
        """Forget a delivery without an answer."""
        entry = self.unsettled.get(delivery_id)
        if entry is not None:
            del self.unsettled[delivery_id]
            entry[0].unsettled_count -= 1

    def forget_many(self, link: Link, delivery_ids: list[int]) -> None:
        """Forget deliveries of a link, which are known here."""
        entries = self.unsettled
        for delivery_id in delivery_ids:
            del entries[delivery_id]
        link.unsettled_count -= len(delivery_ids)

    def flush_dispositions(self) -> None:
        """Queue the gathered ranges. A range never wraps around: Python compares ids as plain numbers."""
        if self.accept_first >= 0:
            self._flush_accepted()
        if self.echo_first >= 0:
            self._flush_echoed()

    def _flush_accepted(self) -> None:
        if not self.is_ended:
            self.connection.write_frame(
                accepted_range(self.channel, True, self.accept_first, self.accept_last)
            )
        self.accept_first = -1

    def _flush_echoed(self) -> None:
        if not self.is_ended:
            self.connection.write_frame(accepted_range(self.channel, False, self.echo_first, self.echo_last))
        self.echo_first = -1

    def _rejected(self, error: AmqpError) -> bytes:
        """``rejected`` with an error that fits the client's frames."""
        state = encode_rejected(error)
        if len(state) + DISPOSITION_OVERHEAD > self.connection.send_frame_max:
            state = encode_rejected(error.shortened())
        return state

    def _write_disposition(self, is_receiver: bool, delivery_id: int, state: bytes) -> None:
        if self.is_ended:
            return
        self.write(disposition(is_receiver, delivery_id, delivery_id, state))

    # ---- input ----

    def incoming_transfer(self, data: bytes, offset: i64, end: i64) -> None:
        handle, delivery_id, message_format, settled, more, aborted, state, payload = read_transfer(
            data, offset, end
        )
        self.next_incoming_id = (self.next_incoming_id + 1) & SERIAL
        self.incoming_window -= 1
        link = self.links.get(handle)
        if link is None:
            self._unattached(handle)
            return
        link.incoming_transfer(delivery_id, message_format, settled, more, aborted, state, data[payload:end])
        if self.incoming_window * 2 < self.connection.settings.incoming_window and not self.is_ended:
            self.write(self.flow().encode())

    def incoming_disposition(self, data: bytes, offset: i64, end: i64) -> None:
        """The client settles deliveries, or reports their state."""
        role, first, last, settled, outcome = read_disposition(data, offset, end)
        if not role:
            return  # about its own deliveries to us: those we settle at once, so nothing is left to do
        if outcome is None or outcome.code == RECEIVED_CODE:
            if not settled:
                return
            outcome = Outcome(RELEASED_CODE)  # settled without a verdict: nothing may be lost by it
        if first == last:
            entry = self.unsettled.get(first)
            if entry is None:
                self._settled_in_vain(first, first, settled)
                return
            if settled:
                del self.unsettled[first]
                entry[0].unsettled_count -= 1
            self.connection.handler.settled(entry[0], first, entry[1], outcome, settled)
        else:
            self._settle_range(first, last, outcome, settled)

    def _settle_range(self, first: i64, last: i64, outcome: Outcome, settled: bool) -> None:
        span = (last - first) & SERIAL
        if span >= SERIAL_HALF:
            raise RemoteProtocolError(
                "amqp:invalid-field", f"a disposition ends at {last} before it begins at {first}"
            )
        entries = self.unsettled
        # The ids are the client's claim: walk the range or what we know, whichever is shorter.
        if span < len(entries):
            known = [key & SERIAL for key in range(first, first + span + 1) if key & SERIAL in entries]
            self._count_idle_steps(span + 1 - len(known))
        else:
            known = [key for key in entries if (key - first) & SERIAL <= span]
            self._count_idle_steps(len(entries) - len(known))
        if not known:
            self._settled_in_vain(first, last, settled)
            return
        self.connection.work_left -= len(known) - 1
        if not settled and len(known) <= span:
            self._answer_gaps(first, last, known)
        handler = self.connection.handler
        ids: list[int] = []
        contexts: list[object | None] = []
        link = entries[known[0]][0]
        for key in known:
            entry = entries.get(key)
            if entry is not None and entry[0] is not link:
                handler.settled_many(link, ids, contexts, outcome, settled)
                ids, contexts = [], []
                link = entry[0]
                entry = entries.get(key)
            if entry is not None:  # the owner's answer on another link may have taken it away
                ids.append(key)
                contexts.append(entry[1])
        handler.settled_many(link, ids, contexts, outcome, settled)

    def _answer_gaps(self, first: int, last: int, known: list[int]) -> None:
        """Within a range, deliveries that are not known were settled or lost before: reject them, or the client waits a minute."""
        start = first
        for key in [*known, (last + 1) & SERIAL]:
            if key != start:
                self._settled_in_vain(start, (key - 1) & SERIAL, False)
            start = (key + 1) & SERIAL

    def _settled_in_vain(self, first: i64, last: i64, settled: bool) -> None:
        self._count_idle_steps(1)
        if not settled:
            state = self._rejected(self.connection.settings.unknown_delivery)
            self.write(disposition(False, first, last, state))

    def _count_idle_steps(self, steps: i64) -> None:
        self.idle_steps += steps
        if self.idle_steps > IDLE_STEPS_MAX + self.next_delivery_id:
            raise RemoteProtocolError(
                RESOURCE_LIMIT_EXCEEDED, "too many dispositions for deliveries that are not there"
            )

    def incoming_flow(self, frame: Flow) -> None:
        """The client's windows and, with a handle, a link's credit."""
        had_window = self.has_window()
        base = frame.next_incoming_id if frame.next_incoming_id >= 0 else FIRST_TRANSFER_ID
        window = (base + frame.incoming_window - self.next_outgoing_id) & SERIAL
        huge = frame.incoming_window >= SERIAL_HALF
        self.remote_window = window if window < SERIAL_HALF or huge else 0
        self._send_queued()
        if frame.handle < 0:
            if frame.echo:
                self.write(self.flow().encode())
        else:
            link = self.links.get(frame.handle)
            if link is None:
                self._unattached(frame.handle)
                return
            link.incoming_flow(frame)
        # While much waits for other windows, a window that was there may have been too small to be used.
        if self.has_window() and (not had_window or self.connection.has_enough_waiting()):
            for link in list(self.links.values()):
                if link.role_is_sender and link.credit > 0 and link.is_attached:
                    self.connection.handler.credit(link)

    def incoming_attach(self, frame: Attach) -> None:
        if frame.handle > self.connection.settings.handle_max:
            raise RemoteProtocolError(
                "amqp:connection:framing-error",
                f"handle {frame.handle} exceeds handle-max {self.connection.settings.handle_max}",
            )
        existing = self.links.get(frame.handle)
        # Python never answers the detach that follows a refusal; its handle is free again all the same.
        if existing is not None and existing.state != DETACH_SENT:
            self.end(AmqpError(HANDLE_IN_USE, f"handle {frame.handle} is attached to link {existing.name!r}"))
            return
        for other in list(self.links.values()):
            if other.name == frame.name and other.role_is_sender == frame.role and other.state != DETACH_SENT:
                self.connection.handler.link_detached(
                    other, True, AmqpError(STOLEN, "attached again by its name")
                )
                other.detach(
                    AmqpError(STOLEN, f"link {frame.name!r} was attached again on handle {frame.handle}")
                )
        link = Link(self, frame)
        self.links[frame.handle] = link
        connection = self.connection
        if existing is None:
            connection.link_count += 1
        if connection.link_count > connection.settings.links_max:
            link.refuse(
                AmqpError(RESOURCE_LIMIT_EXCEEDED, f"more than {connection.settings.links_max} links")
            )
        else:
            connection.handler.link_attached(link)

    def incoming_detach(self, frame: Detach) -> None:
        """The end of a link, or the answer to ours."""
        link = self.links.get(frame.handle)
        if link is None:
            self._unattached(frame.handle)
        else:
            link.incoming_detach(frame)

    def _unattached(self, handle: int) -> None:
        self.end(AmqpError(UNATTACHED_HANDLE, f"handle {handle} is not attached"))
