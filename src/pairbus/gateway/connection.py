"""One client connection: links are attached here, transfers and settlements are sent on to the engine.

Rule 1: nothing before authentication: a link to an entity is answered only after its right has been checked (M6).
Rule 2: every refusal reaches the client as the condition its SDK turns into its own exception.

When a receiver gets no deliveries, although there are messages:

    is_paused          the socket's buffer is full                       } ``consumer.is_suspended`` on every
    is_backed_up       enough output of this turn waits for the commit   } link of the connection
    credit 0           the client gave none, or the window of its AMQP session is shut (``outgoing.flow`` gives it back)
    is_window_limited  enough waits for the windows of all sessions: only a window that takes a whole message counts as open
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.transport.connection import ALL_WORK, Connection
from pairbus.amqp.transport.handler import Handler
from pairbus.amqp.transport.performatives import Coordinator as CoordinatorTarget
from pairbus.amqp.types import text_of
from pairbus.engine.records import TRANSFER_DEAD_LETTER
from pairbus.errors import ArgumentError, MessageTooLarge, NotAllowed, NotSupported, Refusal, Unauthorized
from pairbus.gateway import incoming, outgoing, transactions
from pairbus.gateway.addressing import CBS, find_entity, node_scope, parse, path_of, queue_at
from pairbus.gateway.faults import BLACK_HOLE
from pairbus.gateway.links import (
    RECHECK_MS,
    Coordinator,
    LinkContext,
    ManagementRequests,
    ReceiveLink,
    Replies,
    SendLink,
    TokenRequests,
)
from pairbus.gateway.management import node as management
from pairbus.gateway.rights import tokens
from pairbus.gateway.rights.access import Grant, covers, missing_claim
from pairbus.gateway.rights.stranger import (
    STRANGER_SESSIONS_MAX,
    TOO_MANY_BYTES,
    TOO_MANY_LINKS,
    TOO_MANY_REFUSALS,
    TOO_MANY_SESSIONS,
    StrangerLimits,
)
from pairbus.model.access import LISTEN, SEND
from pairbus.model.entity import SUBSCRIPTION, TOPIC
from pairbus.model.names import canonical

if TYPE_CHECKING:
    from pairbus.amqp.states import Outcome
    from pairbus.amqp.transport.link import Link
    from pairbus.amqp.transport.session import Session
    from pairbus.engine.entity import Entity
    from pairbus.gateway.addressing import Address
    from pairbus.gateway.broker import Broker
    from pairbus.gateway.transactions import Transaction


FIRST_TOKEN_MS: Final = 20_000
"""How long a connection may go without a valid token, as on the service; then it is closed."""
FIRST_LINK_MS: Final = 60_000
"""How long a new connection may take to attach its first link, as on the service; then it is closed."""
TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
"""The link property of send-via: the entity that messages sent on the link are transferred to."""
NO_LINK_MS: Final = 300_000
"""How long a connection that has had a link may go without any."""
REQUEST_WORK: Final = 16
"""The work of a request to a management node, of a token or of a transaction's begin or end, on top of its transfer's."""
NOT_ARMED: Final = 1 << 62
"""An ``armed_at`` that no deadline comes after."""


class GatewayConnection(Handler):
    """The handler of one AMQP connection."""

    def __init__(self, broker: Broker, number: int, peer: str, now: int) -> None:
        self.broker = broker
        self.number = number
        self.peer = peer
        self.now = now
        self.amqp = Connection(self, broker.connection_settings)
        self.context: object | None = None
        """The server hangs its transport here."""
        self.grants: dict[str, Grant] = {}
        """Verified tokens by the audience they were put for."""
        self._proof: Grant | None = None
        """The valid token that lasts longest, whether or not its entity exists."""
        self.login: Grant | None = None
        self.links: dict[Link, LinkContext] = {}
        self.transactions: dict[bytes, Transaction] = {}
        self.is_paused = False
        self.is_backed_up = False
        self.is_window_limited = False
        """Enough waits for the windows of its sessions: only a session whose window takes a whole message gets one."""
        self.is_counted = False
        """It has been opened and is counted among the connections."""
        self.is_cut = False
        self.armed_at = now
        """When the broker will call ``tick`` next."""
        self.armed_steady = NOT_ARMED
        """The limit in real time (``Broker.steady_ms``) that it was armed for."""
        self._linked_at = self._stranger_since = broker.steady_ms()
        self._no_link_ms = FIRST_LINK_MS
        self.is_stranger = True
        """It has shown no valid token and no password; limits hold that it is free of afterwards (M6)."""
        self._limits = StrangerLimits()
        """They count while it is a stranger."""

    # -- the server's side ---------------------------------------------------------------------

    def receive(self, data: bytes, now: int, work: int = ALL_WORK) -> None:
        """Bytes came in, or none and the rest of those before is due."""
        self.now = now
        self.broker.let_in(now)
        if self.broker.faults.is_on and self.broker.strikes.meet_bytes(self, data, now):
            return
        steady = self.broker.steady_ms()
        if self.is_stranger:
            self._receive_from_stranger(data, steady)
        else:
            self.amqp.receive(data, steady, work)
        self.broker.touch(self)
        deadline = self.amqp.next_deadline()
        if deadline is not None and deadline < self.armed_steady:
            self.broker.arm(self)  # opening, or beginning to close, set a nearer one than was known

    def _receive_from_stranger(self, data: bytes, steady: int) -> None:
        """Read no more than a stranger may send; all of it, if the beginning proves a right."""
        allowed = self._limits.add_bytes(len(data))
        if len(data) <= allowed:
            self.amqp.receive(data, steady)
            return
        self.amqp.receive(data[:allowed], steady)
        if self.is_stranger:
            self._turn_away("amqp:resource-limit-exceeded", TOO_MANY_BYTES)
        else:
            self.amqp.receive(data[allowed:], steady)

    def _turn_away(self, condition: str, text: str) -> None:
        """Close and read no further: a peer beyond its limits must not keep us busy with the rest of its input."""
        self.close(condition, text)
        self.amqp.is_closed = True

    def known(self) -> None:
        """A token or password proved a right: the limits for strangers end."""
        self.is_stranger = False
        self._limits.forget()

    def prove(self, grant: Grant) -> None:
        """A valid token was put: until it ends, the peer has proved a right."""
        ends_at = self.broker.access.ends_at
        if self._proof is None or ends_at(grant) > ends_at(self._proof):
            self._proof = grant
        self.known()
        if ends_at(grant) < self.armed_at:
            self.broker.arm(self)

    def request_refused(self) -> None:
        """A token, or a request to the coordinator, was refused; a connection that shows nothing but such is closed."""
        if self.is_stranger and not self._limits.add_refusal():
            self._turn_away("amqp:unauthorized-access", TOO_MANY_REFUSALS)

    def take_output(self) -> list[bytes]:
        """What is to be written, once it may be."""
        if self.is_backed_up:
            self.is_backed_up = False
            self._set_suspended(self.is_paused)
        if self.broker.faults.is_on and self.broker.faults.strike(BLACK_HOLE, "", self.now) is not None:
            self.amqp.take_output()
            return []
        return self.amqp.take_output()

    def hold_back(self) -> None:
        """More than enough waits for the commit already: no further deliveries in this turn (B62)."""
        self.is_backed_up = True
        self._set_suspended(True)

    @property
    def is_open(self) -> bool:
        """SASL is done and the peer has opened; until then the server's handshake limit runs (M6)."""
        return self.amqp.is_open

    @property
    def is_behind(self) -> bool:
        """Whole frames wait for the next ``receive``."""
        return self.amqp.is_behind

    @property
    def is_closed(self) -> bool:
        """Close the socket once the output is written."""
        return self.is_cut or self.amqp.is_closed

    def close(self, condition: str, description: str) -> None:
        """Tell the peer why, and close."""
        self.amqp.close(AmqpError(condition, description))
        self.broker.touch(self)

    def lost(self, now: int) -> None:
        """The socket is gone."""
        self.now = now
        self.broker.let_in(now)
        self.transactions.clear()  # rolled back; what they would have settled stays locked, as all that the peer received
        self.amqp.lost()
        if self.is_counted:
            self.is_counted = False
            self.broker.meter.disconnected()
        # The server may hold this object for a while: it must hold nothing itself.
        self.links = {}
        self.grants = {}
        self.broker.forget(self)

    def cut(self) -> None:
        """End without a word, as a broken network would."""
        self.is_cut = True
        self.broker.touch(self)

    def pause(self) -> None:
        """The socket takes no more: no deliveries meanwhile (B63)."""
        self.is_paused = True
        self._set_suspended(True)

    def resume(self, now: int) -> None:
        self.now = now
        self.is_paused = False
        self._set_suspended(self.is_backed_up)

    def _set_suspended(self, suspended: bool) -> None:
        for context in self.links.values():
            if isinstance(context, ReceiveLink):
                context.consumer.is_suspended = suspended or context.is_silent
                if not context.consumer.is_suspended:
                    context.queue.set_credit(context.consumer, context.consumer.credit)

    def next_steady(self) -> int | None:
        """When ``tick`` has something to do, in real time: the peer was silent, without a link or without a token for too long."""
        deadline = self.amqp.next_deadline()
        if self.amqp.closing or self.is_closed:
            return deadline
        if not self.links:
            own = self._linked_at + self._no_link_ms
            deadline = own if deadline is None or own < deadline else deadline
        if self.is_stranger:
            own = self._stranger_since + FIRST_TOKEN_MS
            deadline = own if deadline is None or own < deadline else deadline
        return deadline

    def next_expiry(self) -> int | None:
        """When ``tick`` has something to do because a token ends: an instant."""
        if self.amqp.closing or self.is_closed:
            return None
        deadline: int | None = None
        if not self.is_stranger and self._proof is not None and not self.grants:
            deadline = self.broker.access.ends_at(self._proof)
        for grant in self.grants.values():
            own = self.broker.access.ends_at(grant)
            deadline = own if deadline is None or own < deadline else deadline
        return deadline

    def tick(self, now: int) -> None:
        """Let time pass: idle peers go (B64)."""
        self.now = now
        steady = self.broker.steady_ms()
        self.amqp.tick(steady)
        ends_at = self.broker.access.ends_at
        expired = [path for path, grant in self.grants.items() if ends_at(grant) <= now]
        if expired:
            # What the token allowed ends with it, deliveries to a quiet receiver among it (M3).
            for path in expired:
                del self.grants[path]
            self.recheck()
        if self._proof is not None and ends_at(self._proof) <= now:
            self._proof = None
            if self.login is None and not self.grants:
                self.is_stranger = True
                self._stranger_since = steady
        if self.is_stranger and steady >= self._stranger_since + FIRST_TOKEN_MS:
            self._time_out(
                f"No valid token was put for {FIRST_TOKEN_MS} milliseconds, and the connection is closed."
            )
        elif not self.links and steady >= self._linked_at + self._no_link_ms:
            self._time_out(
                f"The connection was inactive for more than the allowed {self._no_link_ms} milliseconds and is closed."
            )
        if self.amqp.has_output() or self.amqp.is_closed:
            self.broker.touch(self)

    def _time_out(self, text: str) -> None:
        if not self.amqp.closing:
            self.amqp.close(AmqpError("amqp:connection:forced", text))

    # -- rights --------------------------------------------------------------------------------

    def authorize(self, path: str, right: str) -> int:
        """Until when this connection may do this; raises Unauthorized if it may not now."""
        access, now = self.broker.access, self.now
        if self.login is not None and access.allows(self.login, path, right, now):
            return now + RECHECK_MS
        # Most clients put a token for just what they attach to; looking at all of them is for the others.
        own = self.grants.get(canonical(path))
        if own is not None and access.allows(own, path, right, now):
            return min(access.ends_at(own), now + RECHECK_MS)
        latest = 0
        for grant in self.grants.values():
            if access.ends_at(grant) > latest and access.allows(grant, path, right, now):
                latest = access.ends_at(grant)
        if not latest:
            raise Unauthorized(missing_claim(right, f"sb://{self.broker.namespace.name}/{path}"))
        return min(latest, now + RECHECK_MS)

    def rule_for(self, path: str, right: str) -> str:
        """The name of the access rule by which this connection may do this; empty: by none."""
        for grant in (self.login, *self.grants.values()):
            if grant is not None and self.broker.access.allows(grant, path, right, self.now):
                return grant.rule_name
        return ""

    def recheck(self, scope: str = "") -> None:
        """Tokens or rules have changed: links within the scope that are no longer allowed end at once (M3–M5)."""
        for link, context in list(self.links.items()):
            if not context.right or not self._concerns(scope, context):
                continue
            try:
                context.allowed_until = self.authorize_link(context)
            except Unauthorized as refusal:
                self.end_link(link, refusal, context.path)

    def _concerns(self, scope: str, context: LinkContext) -> bool:
        if covers(scope, canonical(context.scope)):
            return True
        return isinstance(context, SendLink) and bool(
            context.destination and covers(scope, canonical(context.destination))
        )

    def authorize_link(self, context: LinkContext) -> int:
        """Until when a link may do what it is there for; raises Unauthorized if it may not now."""
        until = self.authorize(context.scope, context.right)
        if isinstance(context, SendLink) and context.destination:
            until = min(until, self.authorize(context.destination, SEND))
        return until

    def end_link(self, link: Link, refusal: Refusal, path: str) -> None:
        self.forget_link(link)
        link.detach(self.broker.tracker.error(refusal, path, self.now))
        self.broker.touch(self)

    # -- the handler's side: connection, sessions, links ---------------------------------------

    def sasl_plain(self, user: str, password: str) -> bool:
        """SASL PLAIN with a namespace rule."""
        self.login = self.broker.access.log_in(user, password)
        if self.login is None:
            self.broker.refused_login(self.peer, user, self.now)
            return False
        self.known()
        return True

    def opened(self, connection: Connection) -> None:  # noqa: ARG002 - the handler's shape
        """The peer opened: from now on it is a connection that counts."""
        self.is_counted = True
        self.broker.meter.connected()

    def session_began(self, session: Session) -> None:  # noqa: ARG002 - the handler's shape
        """A session began; it needs nothing of its own."""
        if self.is_stranger and len(self.amqp.sessions) > STRANGER_SESSIONS_MAX:
            self._turn_away("amqp:resource-limit-exceeded", TOO_MANY_SESSIONS)

    def session_ended(self, session: Session) -> None:
        """A session ended; its links have been detached one by one."""

    def link_attached(self, link: Link) -> None:
        """A link asks to be attached: check the right, then existence, then answer."""
        attach = link.attach
        if self.is_stranger and not self._limits.add_link():
            self._turn_away("amqp:resource-limit-exceeded", TOO_MANY_LINKS)
            return
        try:
            if isinstance(attach.target, CoordinatorTarget):
                # Before any token: the .NET and Java clients begin with it. What a transaction does is checked piece by piece.
                self.add(Coordinator(self, link, "", ""))
                link.accept(max_message_size=transactions.REQUEST_BYTES_MAX)
                return
            terminus = attach.source if link.role_is_sender else attach.target
            if terminus is not None and terminus.dynamic:
                self._refuse_dynamic()
            address = "" if terminus is None or terminus.address is None else terminus.address
            if canonical(path_of(address)) == CBS:
                self._attach_tokens(link)
                return
            self._attach_entity(link, address)
        except Refusal as refusal:
            self.links.pop(link, None)
            link.context = None
            link.refuse(self.broker.tracker.error(refusal, _path_for_people(link), self.now))

    def _refuse_dynamic(self) -> None:
        if self.is_stranger:
            raise Unauthorized("A link needs a connection that has authenticated: put a token first.")  # M6
        raise NotSupported(
            "The link asked for a dynamic node, which is not offered: create a queue with the management API, with "
            "AutoDeleteOnIdle if it is temporary, and attach to its name."
        )

    def _attach_tokens(self, link: Link) -> None:
        context = Replies(self, link, CBS, "") if link.role_is_sender else TokenRequests(self, link, CBS, "")
        self.add(context)
        link.accept(max_message_size=tokens.REQUEST_BYTES_MAX)

    def _attach_entity(self, link: Link, text: str) -> None:
        address = parse(text)
        if address.is_management:
            self._attach_management(link, text, address)
            return
        until = self.authorize(address.scope, LISTEN if link.role_is_sender else SEND)
        entity = find_entity(self.broker.namespace, address)
        if self.broker.strikes.meet_attach(self, link, entity.path):
            return
        if link.role_is_sender:
            if entity.kind == TOPIC and address.sub != TRANSFER_DEAD_LETTER:
                raise NotAllowed(f"'{entity.path}' is a topic: receive from one of its subscriptions.")
            outgoing.attach(self, link, entity, queue_at(entity, address), address.scope, until)
        else:
            self._attach_sender(link, entity, address, until)

    def _attach_management(self, link: Link, text: str, address: Address) -> None:
        if TRANSFER_DESTINATION in link.attach.properties:
            raise NotSupported(
                f"'{text}' was attached with '{TRANSFER_DESTINATION}': a management node transfers nothing. Schedule the "
                "message at its destination, or send it on a link with this property."
            )
        self._check_any_right(node_scope(address.scope))
        entity = find_entity(self.broker.namespace, address)
        if self.broker.strikes.meet_attach(self, link, entity.path):
            return
        path = canonical(path_of(text))
        self.add(
            Replies(self, link, path, "")
            if link.role_is_sender
            else ManagementRequests(self, link, path, address)
        )
        link.accept(max_message_size=self.broker.request_bytes_max)

    def _attach_sender(self, link: Link, entity: Entity, address: Address, until: int) -> None:
        if entity.kind == SUBSCRIPTION or address.sub:
            raise NotAllowed(
                f"Messages cannot be sent to '{address.path}' directly: it is filled by the broker."
            )
        incoming.check_attach(entity)
        context = SendLink(self, link, entity.path, SEND, entity)
        context.allowed_until = until
        properties = link.attach.properties
        if TRANSFER_DESTINATION in properties:
            context.destination = self._destination(entity, properties[TRANSFER_DESTINATION])
            context.allowed_until = self.authorize_link(context)
        self.add(context)
        link.envelope_bytes_max = incoming.ENVELOPE_BYTES_MAX
        link.accept(max_message_size=entity.settings.max_message_kb * 1024)

    def _destination(self, via: Entity, value: object) -> str:
        """Where a link's messages are transferred to; empty: they stay at the via entity itself. Raises a Refusal."""
        text = text_of(value)
        if not text:
            if value is None or text == "":
                return ""
            raise ArgumentError(
                f"The link property '{TRANSFER_DESTINATION}' is a {type(value).__name__}: it must be a string."
            )
        address = parse(text)
        self.authorize(address.scope, SEND)
        entity = find_entity(self.broker.namespace, address)
        if entity.kind == SUBSCRIPTION or address.sub or address.is_management:
            raise NotAllowed(
                f"Messages cannot be sent to '{text}' via '{via.path}': name a queue or a topic."
            )
        return "" if entity is via else entity.path

    def _check_any_right(self, path: str) -> None:
        try:
            self.authorize(path, LISTEN)
        except Unauthorized:
            self.authorize(path, SEND)

    def add(self, context: LinkContext) -> None:
        self.links[context.link] = context
        context.link.context = context
        self._no_link_ms = NO_LINK_MS

    def link_detached(self, link: Link, closed: bool, error: AmqpError | None) -> None:  # noqa: ARG002
        """The peer detached, or its session or connection ended."""
        self.forget_link(link)

    def dropped(self, link: Link) -> None:
        """The engine has ended a receiver: its link is no longer one of ours."""
        context = self.links.pop(link, None)
        if context is not None:
            _release(context)
            if not self.links:
                self.now = max(self.now, self.broker.now)
                self._linked_at = self.broker.steady_ms()

    def forget_link(self, link: Link) -> None:
        self.broker.strikes.held.pop(link, None)
        context = self.links.pop(link, None)
        if isinstance(context, ReceiveLink):
            context.end_receive()
            # A change of the configuration ends links of connections that were silent for long.
            self.now = max(self.now, self.broker.now)
            context.queue.detach(context.consumer, self.now)
        elif isinstance(context, Coordinator):
            for transaction in [t for t in self.transactions.values() if t.controller is link]:
                transactions.roll_back(self, transaction)
        if context is not None:
            _release(context)
        if not self.links:
            self._linked_at = self.broker.steady_ms()

    # -- the handler's side: messages ----------------------------------------------------------

    def transfer(
        self,
        link: Link,
        delivery_id: int,
        message_format: int,
        settled: bool,
        payload: bytes,
        state: Outcome | None,
    ) -> None:
        """A whole delivery came in."""
        context = link.context
        if isinstance(context, SendLink):
            incoming.receive(self, context, delivery_id, message_format, settled, payload, state)
            return
        self.amqp.work_left -= REQUEST_WORK
        if isinstance(context, ManagementRequests):
            management.receive(self, context, delivery_id, settled, payload, state)
        elif isinstance(context, TokenRequests):
            tokens.receive(self, context, delivery_id, settled, payload)
        elif isinstance(context, Coordinator):
            transactions.receive(self, context, delivery_id, payload)

    def transfer_too_large(self, link: Link, delivery_id: int, settled: bool, size: int) -> None:
        """A delivery exceeded the link's limit and was discarded as it came (B61)."""
        if settled:
            return
        refusal = MessageTooLarge(size, link.max_message_size)
        path = link.context.path if isinstance(link.context, LinkContext) else ""
        link.session.reject_incoming(delivery_id, self.broker.tracker.error(refusal, path, self.now))

    def settled(self, link: Link, delivery_id: int, context: object, outcome: Outcome, settled: bool) -> None:
        """The receiver says what became of one of our deliveries."""
        outgoing.settle(self, link, delivery_id, context, outcome, settled)

    def settled_many(
        self, link: Link, ids: list[int], contexts: list[object | None], outcome: Outcome, settled: bool
    ) -> None:
        """The receiver says the same of several of our deliveries."""
        done = outgoing.complete_many(self, link, ids, contexts, outcome, settled)
        super().settled_many(link, ids[done:], contexts[done:], outcome, settled)

    def credit(self, link: Link) -> None:
        """A flow came for a link on which we send."""
        context = link.context
        if isinstance(context, ReceiveLink):
            outgoing.flow(self, context)


def _release(context: LinkContext) -> None:
    """A link has ended: undo the references back, so that nothing of it waits for the garbage collector."""
    context.link.context = None
    if isinstance(context, ReceiveLink):
        context.consumer.owner = None


def _path_for_people(link: Link) -> str:
    terminus = link.attach.source if link.role_is_sender else link.attach.target
    if terminus is None or isinstance(terminus, CoordinatorTarget) or terminus.address is None:
        return ""
    return path_of(terminus.address)
