"""An AMQP client without I/O: for tests and simulations that play a client against the broker's bytes.

    client = ClientConnection()
    sender = client.session().sender("orders")
    exchange(client, server)                 # the caller carries bytes both ways
    delivery_id = sender.send(encode_message(body="hello"))
    exchange(client, server)
    assert sender.outcomes[delivery_id].code == ACCEPTED_CODE

Everything is said at once and in order; what the peer answers is kept where a test can look at it. Nothing here is
meant to be fast, and nothing is hidden: a test may write any bytes with ``write``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.decode import decode_value
from pairbus.amqp.encode import encode_binary, encode_described
from pairbus.amqp.message.layout import DATA
from pairbus.amqp.message.whole import DecodedMessage, decode_message, encode_message
from pairbus.amqp.states import (
    DECLARED_CODE,
    STATE_ACCEPTED,
    STATE_RELEASED,
    Outcome,
    encode_modified,
    encode_rejected,
)
from pairbus.amqp.transport.framing import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    SASL_HEADER,
    amqp_frame,
)
from pairbus.amqp.transport.performatives import (
    Attach,
    Begin,
    Close,
    Coordinator,
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
from pairbus.amqp.transport.sasl import OUTCOME_OK, SASL_MECHANISMS, SASL_OUTCOME, SaslInit
from pairbus.amqp.types import Described
from pairbus.errors import LocalProtocolError

WINDOW: Final = 65536
BATCH_FORMAT: Final = 0x80013700
REPLY_CREDIT: Final = 10_000


def encode_batch(messages: list[bytes]) -> bytes:
    """A batch of encoded messages, to be sent with message-format 0x80013700."""
    return b"".join([encode_described(DATA, encode_binary(message)) for message in messages])


class Delivery:
    """A message that a receiver got."""

    def __init__(self, delivery_id: int, tag: bytes, settled: bool) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.settled = settled
        self.payload = b""

    @property
    def message(self) -> DecodedMessage:
        """The message, decoded anew at each call."""
        return decode_message(self.payload)

    def annotation(self, name: str) -> object:
        """A message-annotation by name."""
        return self.message.message_annotations.get(name)


class ClientLink:
    """What senders and receivers share."""

    def __init__(self, session: ClientSession, attach: Attach) -> None:
        self.session = session
        self.name = attach.name
        self.handle = attach.handle
        self.answer: Attach | None = None
        """The broker's attach, once it has come."""
        self.detached = False
        self.error: AmqpError | None = None
        self.credit = 0
        self.delivery_count = 0
        session.write(attach.encode())

    @property
    def is_attached(self) -> bool:
        """Answered with real ends, and not detached."""
        return self.answer is not None and self.answer.target is not None and not self.detached

    def detach(self, closed: bool = True, error: AmqpError | None = None) -> None:
        """Detach, or answer a detach."""
        if not self.detached:
            self.session.write(Detach(self.handle, closed, error).encode())
        self.detached = True
        self.session.links.pop(self.handle, None)

    def flow(self, credit: int, drain: bool = False, echo: bool = False) -> None:
        """Say where the link stands."""
        frame = self.session.flow_frame()
        frame.handle = self.handle
        frame.delivery_count = self.delivery_count
        frame.link_credit = credit
        frame.drain = drain
        frame.echo = echo
        self.session.write(frame.encode())

    def on_detach(self, frame: Detach) -> None:
        """The broker detaches or answers."""
        self.error = frame.error or self.error
        if not self.detached:
            self.detach(frame.closed)

    def on_flow(self, frame: Flow) -> None:
        """The broker's view of the link."""

    def on_transfer(self, frame: Transfer, payload: bytes) -> None:
        """Only receivers get these."""
        raise LocalProtocolError(
            f"{len(payload)} bytes of delivery {frame.delivery_id} for the sender {self.name!r}"
        )


class ClientSender(ClientLink):
    """A link on which the client sends."""

    def __init__(self, session: ClientSession, attach: Attach) -> None:
        super().__init__(session, attach)
        self.outcomes: dict[int, Outcome] = {}
        """What the broker said, by delivery id."""

    def on_flow(self, frame: Flow) -> None:
        """New credit."""
        if frame.link_credit >= 0 and frame.delivery_count >= 0:
            self.credit = frame.delivery_count + frame.link_credit - self.delivery_count

    def send(
        self,
        payload: bytes,
        settled: bool = False,
        message_format: int = 0,
        state: bytes = b"",
        tag: bytes = b"",
    ) -> int:
        """Send one delivery in as many frames as it takes; credit is not looked at, as Python's client does not."""
        session = self.session
        delivery_id = session.next_delivery_id
        session.next_delivery_id += 1
        self.delivery_count += 1
        self.credit -= 1
        frame = Transfer(self.handle)
        frame.delivery_id = delivery_id
        frame.delivery_tag = tag or delivery_id.to_bytes(4, "big")
        frame.message_format = message_format
        frame.settled = settled
        frame.state_bytes = state
        limit = session.connection.send_frame_max - FRAME_HEADER_SIZE - len(frame.encode())
        for offset in range(0, max(len(payload), 1), limit):
            frame.more = offset + limit < len(payload)
            session.next_outgoing_id += 1
            session.write(frame.encode() + payload[offset : offset + limit])
        if not settled:
            session.sent[delivery_id] = self
        return delivery_id


class ClientReceiver(ClientLink):
    """A link on which the client receives."""

    def __init__(self, session: ClientSession, attach: Attach) -> None:
        super().__init__(session, attach)
        self.deliveries: list[Delivery] = []
        """Everything that came, in order; a test may pop what it has seen."""
        self.outcomes: dict[int, Outcome | None] = {}
        """How the broker answered settlements, by delivery id."""
        self.on_delivery: Callable[[Delivery], None] | None = None
        self._partial: Delivery | None = None

    def grant(self, credit: int, drain: bool = False) -> None:
        """Ask for this many deliveries from now on."""
        self.credit = credit
        self.flow(credit, drain)

    def on_flow(self, frame: Flow) -> None:
        """The broker may have used up credit in answer to a drain."""
        if frame.delivery_count >= 0:
            self.delivery_count = frame.delivery_count
        if frame.link_credit >= 0:
            self.credit = frame.link_credit

    def on_transfer(self, frame: Transfer, payload: bytes) -> None:
        """A frame of a delivery."""
        if self._partial is None:
            if frame.delivery_tag is None:
                raise LocalProtocolError(
                    f"delivery {frame.delivery_id} on {self.name!r} has no tag: it is mandatory"
                )
            self._partial = Delivery(frame.delivery_id, frame.delivery_tag, frame.settled)
        self._partial.payload += payload
        if not frame.more:
            delivery, self._partial = self._partial, None
            self.delivery_count += 1
            self.credit -= 1
            if not delivery.settled:
                self.session.received[delivery.delivery_id] = self
            if self.on_delivery is not None:
                self.on_delivery(delivery)
            else:
                self.deliveries.append(delivery)

    def settle(self, delivery: Delivery, state: bytes, settled: bool = False) -> None:
        """Tell the broker an outcome; unsettled, it answers into ``outcomes`` (what the SDKs do)."""
        frame = Disposition(True, delivery.delivery_id, delivery.delivery_id)
        frame.settled = settled
        frame.state_bytes = state
        if settled:
            self.session.received.pop(delivery.delivery_id, None)
        self.session.write(frame.encode())

    def complete(self, delivery: Delivery, settled: bool = False) -> None:
        """Complete: the message is done."""
        self.settle(delivery, STATE_ACCEPTED, settled)

    def abandon(self, delivery: Delivery, settled: bool = False) -> None:
        """Abandon: give it back, its delivery count rises."""
        self.settle(delivery, encode_modified(True, False), settled)

    def defer(self, delivery: Delivery, settled: bool = False) -> None:
        """Defer: set aside, to be asked for by number."""
        self.settle(delivery, encode_modified(True, True), settled)

    def dead_letter(
        self, delivery: Delivery, reason: str = "", description: str = "", settled: bool = False
    ) -> None:
        """Dead-letter, as the SDKs say it."""
        info: dict[str, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        error = AmqpError("com.microsoft:dead-letter", description, info)
        self.settle(delivery, encode_rejected(error), settled)

    def release(self, delivery: Delivery, settled: bool = True) -> None:
        """Release: give it back, nothing counts."""
        self.settle(delivery, STATE_RELEASED, settled)


class RequestLink:
    """A pair of links to a node that answers: ``$cbs``, ``<entity>/$management``.

    It is as strict as clients on uAMQP: an answer that comes before the settlement of its request is an error.
    """

    def __init__(self, session: ClientSession, address: str) -> None:
        self.sender = session.sender(address)
        self.receiver = session.receiver(address, credit=REPLY_CREDIT)
        self.receiver.on_delivery = self._on_response
        self.responses: dict[object, DecodedMessage] = {}
        """Answers by the id of the request."""
        self._address = address
        self._next = 1
        self._asked: dict[object, int] = {}
        """The delivery of each request without an answer."""

    def request(
        self,
        application_properties: dict[str, object],
        body: object = None,
        message_id: object = None,
        state: bytes = b"",
    ) -> object:
        """Ask; the answer comes into ``responses`` under the id returned."""
        if message_id is None:
            message_id = f"{self.sender.name}-{self._next}"
            self._next += 1
        payload = encode_message(
            message_id=message_id,
            reply_to=self._address,
            application_properties=application_properties,
            body=body,
        )
        self._asked[message_id] = self.sender.send(payload, state=state)
        return message_id

    def _on_response(self, delivery: Delivery) -> None:
        message = delivery.message
        answered = message.properties.correlation_id
        if self._asked.pop(answered, None) in self.sender.session.sent:
            raise LocalProtocolError(
                f"the answer to {answered!r} of {self._address!r} came before its settlement"
            )
        self.responses[answered] = message


class ClientSession:
    """One session of the client."""

    def __init__(self, connection: ClientConnection, channel: int, window: int = WINDOW) -> None:
        self.connection = connection
        self.channel = channel
        self.window = window
        """Transfer frames that the broker may send from now on, as every flow frame says it."""
        self.links: dict[int, ClientLink] = {}
        self.sent: dict[int, ClientSender] = {}
        self.received: dict[int, ClientReceiver] = {}
        self.next_delivery_id = 0
        self.next_outgoing_id = 0
        self.next_incoming_id = -1
        self.is_begun = False
        self.ended = False
        self.error: AmqpError | None = None
        self._by_name: dict[tuple[str, bool], ClientLink] = {}
        self._next_handle = 0
        begin = Begin(self.next_outgoing_id, window, WINDOW)
        self.write(begin.encode())

    def write(self, body: bytes) -> None:
        """Queue one performative."""
        self.connection.write(amqp_frame(self.channel, body))

    def sender(
        self,
        address: str | None,
        name: str = "",
        properties: dict[str, object] | None = None,
        coordinator: bool = False,
        snd_settle_mode: int = 0,
        dynamic: bool = False,
    ) -> ClientSender:
        """Attach a link that sends to ``address``, or to the transaction coordinator."""
        attach = self._attach(name, False, properties)
        attach.snd_settle_mode = snd_settle_mode
        attach.source = Source(f"sender-{attach.name}")
        attach.target = Coordinator() if coordinator else Target(address, dynamic=dynamic)
        link = ClientSender(self, attach)
        self._keep(link, False)
        return link

    def receiver(
        self,
        address: str | None,
        name: str = "",
        credit: int = 0,
        receive_and_delete: bool = False,
        filter: dict[str, object] | None = None,
        properties: dict[str, object] | None = None,
        distribution_mode: str = "",
        dynamic: bool = False,
    ) -> ClientReceiver:
        """Attach a link that receives from ``address``; peek-lock with two-step settlement unless told otherwise."""
        attach = self._attach(name, True, properties)
        attach.snd_settle_mode = 1 if receive_and_delete else 0
        attach.rcv_settle_mode = 0 if receive_and_delete else 1
        attach.source = Source(address)
        attach.source.filter = filter
        attach.source.distribution_mode = distribution_mode
        attach.source.dynamic = dynamic
        attach.target = Target(f"receiver-{attach.name}")
        link = ClientReceiver(self, attach)
        self._keep(link, True)
        if credit:
            link.grant(credit)
        return link

    def request_link(self, address: str) -> RequestLink:
        """Attach a pair of links for requests and their answers."""
        return RequestLink(self, address)

    def end(self) -> None:
        """End the session."""
        if not self.ended:
            self.write(End(None).encode())
        self.ended = True

    def set_window(self, window: int) -> None:
        """Say how many frames the client takes from now on."""
        frame = self.flow_frame()
        frame.incoming_window = window
        self.write(frame.encode())

    def flow_frame(self) -> Flow:
        """A flow with the session's half filled in."""
        frame = Flow()
        frame.next_incoming_id = self.next_incoming_id
        frame.incoming_window = self.window
        frame.next_outgoing_id = self.next_outgoing_id
        frame.outgoing_window = WINDOW
        return frame

    def _attach(self, name: str, is_receiver: bool, properties: dict[str, object] | None) -> Attach:
        handle = self._next_handle
        self._next_handle += 1
        attach = Attach(name or f"link-{self.channel}-{handle}", handle, is_receiver)
        attach.properties = properties or {}
        return attach

    def _keep(self, link: ClientLink, is_receiver: bool) -> None:
        self.links[link.handle] = link
        self._by_name[link.name, is_receiver] = link

    def on_frame(self, frame: Performative, payload: bytes) -> None:
        """One performative on this channel."""
        if isinstance(frame, Begin):
            self.is_begun = True
            self.next_incoming_id = frame.next_outgoing_id
        elif isinstance(frame, Attach):
            # The one who answers has the other role. Our handle equals the broker's, which is its habit too.
            self._by_name[frame.name, not frame.role].answer = frame
        elif isinstance(frame, Transfer):
            self.next_incoming_id = (self.next_incoming_id + 1) & 0xFFFFFFFF
            if frame.handle in self.links:  # else it was under way when we detached
                self.links[frame.handle].on_transfer(frame, payload)
        elif isinstance(frame, Disposition):
            self._on_disposition(frame)
        elif isinstance(frame, Flow):
            if frame.handle in self.links:
                self.links[frame.handle].on_flow(frame)
        elif isinstance(frame, Detach):
            if frame.handle in self.links:
                self.links[frame.handle].on_detach(frame)
        elif isinstance(frame, End):
            self.error = frame.error
            self.end()

    def _on_disposition(self, frame: Disposition) -> None:
        for delivery_id in range(frame.first, frame.last + 1):
            if frame.role:
                sender = self.sent.pop(delivery_id, None)
                if sender is not None and frame.state is not None:
                    sender.outcomes[delivery_id] = frame.state
            else:
                receiver = self.received.get(delivery_id)
                if receiver is not None:
                    receiver.outcomes[delivery_id] = frame.state
                if frame.settled:
                    self.received.pop(delivery_id, None)


class ClientConnection:
    """The client's end of a connection. ``take_output`` has something to say from the start."""

    def __init__(
        self,
        container_id: str = "client",
        user: str | None = None,
        password: str = "",
        max_frame_size: int = 1 << 20,
        idle_timeout_ms: int = 0,
        skips_sasl: bool = False,
    ) -> None:
        self.container_id = container_id
        self.sessions: dict[int, ClientSession] = {}
        self.remote_open: Open | None = None
        self.is_refused = False
        """The broker did not take the credentials."""
        self.closed = False
        self.close_sent = False
        self.error: AmqpError | None = None
        self.send_frame_max = 512
        """What the broker takes in one frame; known for sure only once its open has come."""
        self._user = user
        self._password = password
        self._max_frame_size = max_frame_size
        self._idle_timeout_ms = idle_timeout_ms
        self._headers_due = 1 if skips_sasl else 2
        self._authenticated = False
        self._input = b""
        self._output: list[bytes] = [SASL_HEADER]
        self._later: list[bytes] = []
        self._next_channel = 0
        if skips_sasl:
            self._output.clear()
            self._open()

    def session(self, window: int = WINDOW) -> ClientSession:
        """Begin a session."""
        channel = self._next_channel
        self._next_channel += 1
        session = self.sessions[channel] = ClientSession(self, channel, window)
        return session

    def close(self) -> None:
        """Close the connection."""
        if not self.close_sent:
            self.write(amqp_frame(0, Close(None).encode()))
        self.close_sent = True

    def heartbeat(self) -> None:
        """Say nothing, but say it."""
        self.write(EMPTY_FRAME)

    def write(self, frame: bytes) -> None:
        """Queue bytes; before the broker has accepted us they wait."""
        (self._output if self._authenticated else self._later).append(frame)

    def take_output(self) -> bytes:
        """Everything to carry to the broker."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def receive(self, data: bytes) -> None:
        """Read what the broker wrote."""
        data = self._input + data
        offset = 0
        while len(data) - offset >= HEADER_SIZE:
            if self._headers_due and data[offset : offset + 4] == b"AMQP":
                self._headers_due -= 1
                offset += HEADER_SIZE
                continue
            size, doff, kind, channel = FRAME_HEADER.unpack_from(data, offset)
            if len(data) - offset < size:
                break
            body, end = offset + 4 * doff, offset + size
            offset = end
            if kind != AMQP_FRAME:
                self._on_sasl(data, body, end)
            elif body < end:
                frame, payload = decode_performative(data, body, end)
                self._on_frame(channel, frame, data[payload:end])
        self._input = data[offset:]

    def _on_sasl(self, data: bytes, body: int, end: int) -> None:
        value, _ = decode_value(data, body, end)
        if not isinstance(value, Described) or not isinstance(value.value, list):
            raise LocalProtocolError("a SASL frame without a described list")
        if value.descriptor == SASL_MECHANISMS:
            if self._user is None:
                init = SaslInit("ANONYMOUS", b"", "localhost")
            else:
                init = SaslInit("PLAIN", f"\0{self._user}\0{self._password}".encode(), "localhost")
            self._output.append(init.frame())
        elif value.descriptor == SASL_OUTCOME:
            if value.value[0] != OUTCOME_OK:
                self.is_refused = self.closed = True
                return
            self._open()

    def _open(self) -> None:
        frame = Open(self.container_id)
        frame.hostname = "localhost"
        frame.max_frame_size = self._max_frame_size
        frame.idle_timeout_ms = self._idle_timeout_ms
        self._output += [AMQP_HEADER, amqp_frame(0, frame.encode()), *self._later]
        self._later.clear()
        self._authenticated = True

    def _on_frame(self, channel: int, frame: Performative, payload: bytes) -> None:
        if isinstance(frame, Open):
            self.remote_open = frame
            self.send_frame_max = frame.max_frame_size
        elif isinstance(frame, Close):
            self.error = frame.error
            self.close()
            self.closed = True
        elif channel in self.sessions:
            self.sessions[channel].on_frame(frame, payload)


def declared_txn_id(outcome: Outcome) -> bytes:
    """The transaction's id from the answer to ``declare``."""
    if outcome.code != DECLARED_CODE or outcome.txn_id is None:
        raise LocalProtocolError(f"no transaction was declared: {outcome!r}")
    return outcome.txn_id
