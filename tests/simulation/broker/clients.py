"""Who lives in a simulated world: producers, consumers, session holders, and those who empty dead-letter queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pairbus.amqp.encode import encode_binary, encode_described
from pairbus.amqp.message.layout import DATA
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import ACCEPTED_CODE
from pairbus.amqp.transport.handler import ConnectionSettings
from pairbus.amqp.types import Int, Symbol, Timestamp, UInt
from pairbus.gateway.outgoing import LOCKED_UNTIL, TICKS_AT_EPOCH, TICKS_PER_MS
from pairbus.model.access import ROOT_RULE
from tests.simulation.broker.checkers import FAILED, OK, UNKNOWN, Delivered, PromiseBroken, Sent, Stamp
from tests.simulation.broker.scene import ROOT_KEY
from tests.simulation.wire import (
    BATCH_FORMAT,
    ClientConnection,
    ClientReceiver,
    ClientSender,
    Delivery,
    RequestLink,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.amqp.message.whole import DecodedMessage
    from tests.simulation.broker.process import Socket
    from tests.simulation.broker.scene import Scene
    from tests.simulation.wire import ClientSession

SESSION_FILTER: Final = "com.microsoft:session-filter"
ACCEPT_TIMEOUT: Final = "com.microsoft:timeout"
DEAD_LETTER: Final = "/$deadletterqueue"
RETRY_MS: Final = 700
SILENCE_MS_MAX: Final = ConnectionSettings("client").idle_timeout_ms // 2


class Client:
    """Somebody with a connection who comes back when it breaks."""

    def __init__(self, world: Scene, name: str) -> None:
        self.world = world
        self.name = name
        self.connection = ClientConnection(name)
        self.socket: Socket | None = None
        self.stamp = Stamp(0, 0, 0, 0)
        self.is_connecting = False
        self._spoke_at = world.time
        world.clients.append(self)

    @property
    def is_finished(self) -> bool:
        """Nothing more will be done of its own will."""
        return True

    def connect(self) -> None:
        """Try to reach the broker."""
        world = self.world
        if self.socket is not None:
            return
        socket = world.connect(self)
        if socket is None:
            self._connect_later()
            return
        self.socket = socket
        self.connection = ClientConnection(self.name, ROOT_RULE, ROOT_KEY)
        self.attach(self.connection.session())
        self.flush()

    def _connect_later(self) -> None:
        if not self.is_connecting:
            self.is_connecting = True
            self.world.at(self.world.time + 1 + self.world.chance.randrange(RETRY_MS), self._connect_now)

    def _connect_now(self) -> None:
        self.is_connecting = False
        self.connect()

    def lost(self) -> None:
        """The connection broke."""
        self.socket = None
        self.forget()
        self._connect_later()

    def receive(self, data: bytes, stamp: Stamp) -> None:
        """Bytes came from the broker."""
        self.stamp = stamp
        self.connection.receive(data)
        self._check_closed()
        self.react()
        self.flush()

    def flush(self) -> None:
        """Send what is to be said."""
        data = self.connection.take_output()
        if data and self.socket is not None:
            self._spoke_at = self.world.time
            self.socket.send(data)

    def _check_closed(self) -> None:
        """A client that speaks often enough is not closed for its silence, however the machine's clock is set (B64)."""
        error = self.connection.error
        if error is None or self.world.closes_connections or error.condition != "amqp:connection:forced":
            return
        silence = self.world.time - self._spoke_at
        if silence < SILENCE_MS_MAX:
            raise PromiseBroken(f"B64: {self.name} spoke {silence} ms ago and is closed: {error.description}")

    def later(self, ms: int, action: Callable[..., None], *arguments: object) -> None:
        """Do something after a while, if the connection is still the same then."""
        self.world.at(self.world.time + ms, self._act, self.connection, action, arguments)

    def _act(
        self, connection: ClientConnection, action: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        if self.socket is not None and connection is self.connection:
            action(*arguments)
            self.flush()

    # -- what the kinds of clients differ in

    def attach(self, session: ClientSession) -> None:
        """A connection begins: ask for links."""
        raise NotImplementedError

    def react(self) -> None:
        """Something has come."""

    def forget(self) -> None:
        """The connection is gone: what had no answer has none."""

    def calm_down(self) -> None:
        """From now on behave."""


class Producer(Client):
    """Sends its messages, one by one or in batches, and remembers what it was told.

    Args:
        make: Gives the fields of a message by its number.
        refused: Whether the broker must refuse such a message.
    """

    def __init__(self, world: Scene, name: str, workload: Workload, count: int) -> None:
        super().__init__(world, name)
        self._workload = workload
        self._left = count
        self._again: list[str] = []
        self._sender: ClientSender | None = None
        self._waiting: dict[int, list[str]] = {}
        self._payloads: dict[str, bytes] = {}

    @property
    def is_finished(self) -> bool:
        """All sent, and every answer has come."""
        return not self._left and not self._again and not self._waiting

    def attach(self, session: ClientSession) -> None:
        """See Client."""
        self._sender = session.sender(self._workload.entity)
        self.later(self.world.chance.randrange(400), self._send)

    def _send(self) -> None:
        sender, chance = self._sender, self.world.chance
        if sender is None or self.is_finished:
            return
        if self.check_link() and sender.is_attached:
            if self._again:
                self._transfer(sender, [self._again.pop()], 0)
            elif self._left:
                size = min(self._left, chance.choice((1, 1, 1, 2, 4)))
                self._left -= size
                batch = self.world.next_emission() if size > 1 else 0
                uids = [self._new(batch) for _ in range(size)]
                self._transfer(sender, uids, batch)
        self.later(chance.choice((1, 20, 150, 900)), self._send)

    def check_link(self) -> bool:
        """Whether the link serves. Nobody here gives the broker a reason to end it."""
        if self._sender is not None and self._sender.detached:
            raise PromiseBroken(f"{self.name}: the broker detached a sender: {self._sender.error}")
        return True

    def _new(self, batch: int) -> str:
        number = len(self.world.ledger.sent)
        uid = f"uid-{self._workload.entity}-{number}"
        sent, payload = self._workload.message(self.world, uid, number, batch)
        self.world.ledger.sent[uid] = sent
        self._payloads[uid] = payload
        return uid

    def _transfer(self, sender: ClientSender, uids: list[str], batch: int) -> None:
        payloads = [self._payloads[uid] for uid in uids]
        if batch:
            payload = b"".join(encode_described(DATA, encode_binary(one)) for one in payloads)
            delivery_id = sender.send(payload, message_format=BATCH_FORMAT)
        else:
            delivery_id = sender.send(payloads[0])
        self._waiting[delivery_id] = uids
        self.world.say(self.name, f"sends {' '.join(uids)}")

    def react(self) -> None:
        """See Client."""
        sender = self._sender
        if sender is None:
            return
        for delivery_id in [one for one in self._waiting if one in sender.outcomes]:
            outcome = OK if sender.outcomes.pop(delivery_id).code == ACCEPTED_CODE else FAILED
            uids = self._waiting.pop(delivery_id)
            self.world.say(self.name, f"is told {outcome} for {' '.join(uids)}")
            for uid in uids:
                self.check_answer(uid, outcome)
                self.world.ledger.told(uid, outcome, self.world.time)

    def check_answer(self, uid: str, outcome: str) -> None:
        """A refusal must have a reason."""
        if outcome == FAILED and not self._workload.may_be_refused(self.world.ledger.sent[uid]):
            raise PromiseBroken(f"{uid} was refused for no reason")

    def forget(self) -> None:
        """See Client."""
        self._sender = None
        waiting, self._waiting = self._waiting, {}
        for uids in waiting.values():
            for uid in uids:
                self.world.ledger.told(uid, UNKNOWN, self.world.time)
                if self._workload.retries:
                    self._again.append(uid)
        if waiting:
            self.world.say(self.name, f"never learns of {sum(map(len, waiting.values()))} sends")


class Consumer(Client):
    """Receives from a place and settles, most of the time; in the calm always, by completing."""

    def __init__(
        self, world: Scene, name: str, path: str, *, deletes: bool = False, only_in_calm: bool = False
    ) -> None:
        super().__init__(world, name)
        self.path = path
        self.copy_path = path.removesuffix(DEAD_LETTER)
        self._deletes = deletes
        self._rests = only_in_calm
        self._credit = world.chance.choice((1, 3, 10))
        self.receiver: ClientReceiver | None = None
        self._settling: dict[int, str] = {}
        self._requests: RequestLink | None = None
        self._asked: dict[object, Callable[[DecodedMessage], None]] = {}
        self._last_delivery_id = -1
        self.in_hand: dict[str, None] = {}
        """What came on the present link."""
        self._taking: dict[str, None] = {}
        """Deferred messages that it asked for, to be deleted as they are given, without an answer so far."""

    def attach(self, session: ClientSession) -> None:
        """See Client."""
        if self._rests:
            return
        self._last_delivery_id = -1
        self.receiver = self.open(session)
        self.receiver.on_delivery = self._got
        self._requests = session.request_link(self.path + "/$management")
        if self.world.is_calm:
            self.later(100, self._fetch_deferred)

    def open(self, session: ClientSession) -> ClientReceiver:
        """Attach the receiving link."""
        return session.receiver(self.path, credit=self._credit, receive_and_delete=self._deletes)

    def calm_down(self) -> None:
        """See Client."""
        was_resting, self._rests = self._rests, False
        self._deletes = False
        if self.socket is not None and was_resting:
            self.attach(self.connection.session())
            self.flush()
        elif self.socket is not None:
            self.later(100, self._fetch_deferred)

    def forget(self) -> None:
        """See Client."""
        self.receiver = None
        self._requests = None
        self.in_hand.clear()
        self._settling.clear()
        self._asked.clear()
        taking, self._taking = self._taking, {}
        for uid in taking:
            # The broker may have given it and deleted it, and the answer got lost with the connection (B32).
            self.world.say(self.name, f"never learns whether it took {uid}")
            self.world.ledger.taken(self.copy_path, uid)

    # -- deliveries

    def _got(self, delivery: Delivery) -> None:
        if delivery.delivery_id <= self._last_delivery_id:
            raise PromiseBroken(
                f"{self.name}: delivery {delivery.delivery_id} comes after {self._last_delivery_id}"
            )
        self._last_delivery_id = delivery.delivery_id
        if self.receiver is not None and self.receiver.credit < 0:
            raise PromiseBroken(f"B35: {self.name} got more than it had given credit for")
        uid = self._note(delivery, delivery.settled)
        self.in_hand[uid] = None
        receiver, chance = self.receiver, self.world.chance
        if receiver is None:
            return
        if receiver.credit < self._credit and not receiver.detached:
            receiver.grant(self._credit)
        if not delivery.settled:
            self.later(chance.choice((0, 10, 300)), self.settle, receiver, delivery, uid)

    def _note(self, delivery: Delivery, settled: bool) -> str:
        message = delivery.message
        annotations = message.message_annotations
        until = annotations.get("x-opt-locked-until")
        number = annotations.get("x-opt-sequence-number")
        assert isinstance(number, int), number
        seen = Delivered(
            str(message.body),
            number,
            _failures(message),
            until.ms if isinstance(until, Timestamp) else 0,
            settled,
            self.path.endswith(DEAD_LETTER),
        )
        self.world.say(
            self.name, f"gets {seen.body.partition(':')[0]} as {seen.number}, failed {seen.count} times"
        )
        return self.world.ledger.delivered(self.copy_path, seen, self.stamp)

    def settle(self, receiver: ClientReceiver, delivery: Delivery, uid: str) -> None:
        """Do with a delivery what one does."""
        if receiver.detached:
            return
        world = self.world
        choices = ("abandon", "release", "dead-letter", "defer", "renew", "sleep", "leave")
        how = "complete"
        if not world.is_calm and world.chance.random() < world.roughness.mischief:
            how = world.chance.choice(choices)
        if how == "dead-letter" and self.path.endswith(DEAD_LETTER):
            how = "complete"
        if how == "defer" and not self.can_defer:
            how = "abandon"
        world.say(self.name, f"decides to {how} {uid}")
        if how == "leave" and self.socket is not None:
            self.socket.cut("the consumer crashed")
            return
        if how == "sleep":
            return  # its lock will expire
        if how == "renew":
            self._renew(delivery)
            self.later(1_000, self.settle, receiver, delivery, uid)
            return
        world.ledger.settling(self.copy_path, uid, completes=how == "complete")
        if how == "complete":
            self._settling[delivery.delivery_id] = uid
            receiver.complete(delivery)
        elif how == "abandon":
            receiver.abandon(delivery)
        elif how == "release":
            receiver.release(delivery)
        elif how == "dead-letter":
            receiver.dead_letter(delivery, "reason", "description")
        else:
            receiver.defer(delivery)

    @property
    def can_defer(self) -> bool:
        """Whether deferred messages can be asked for again without further ado."""
        return True

    def react(self) -> None:
        """See Client."""
        receiver, world = self.receiver, self.world
        if receiver is not None:
            for delivery_id in [one for one in self._settling if one in receiver.outcomes]:
                uid = self._settling.pop(delivery_id)
                outcome = receiver.outcomes.pop(delivery_id)
                if outcome is not None and outcome.code == ACCEPTED_CODE:
                    world.say(self.name, f"is told that {uid} is completed")
                    world.ledger.completed(self.copy_path, uid, world.time)
                else:
                    world.say(self.name, f"is told that {uid} is not completed")
        requests = self._requests
        if requests is not None:
            for message_id in [one for one in self._asked if one in requests.responses]:
                self._asked.pop(message_id)(requests.responses.pop(message_id))

    # -- requests

    def ask(self, operation: str, body: dict[str, object], then: Callable[[DecodedMessage], None]) -> None:
        """Ask the management node; the answer goes to ``then``."""
        requests, receiver = self._requests, self.receiver
        if requests is None or receiver is None:
            return
        properties: dict[str, object] = {
            "operation": "com.microsoft:" + operation,
            "associated-link-name": receiver.name,
        }
        self._asked[requests.request(properties, body)] = then

    def _renew(self, delivery: Delivery) -> None:
        token = delivery.message.delivery_annotations.get("x-opt-lock-token")
        if token is not None:
            self.ask("renew-lock", {"lock-tokens": [token]}, self._renewed)

    def _renewed(self, answer: DecodedMessage) -> None:
        """Whether it worked shows in what comes; the date must be right."""
        if answer.application_properties.get("statusCode") != 200 or not isinstance(answer.body, dict):
            return
        expirations = answer.body["expirations"]
        assert isinstance(expirations, list), expirations
        for expiration in expirations:
            self.world.ledger.locked(f"a renewed message of {self.path}", expiration.ms, self.stamp)

    def _fetch_deferred(self) -> None:
        """In the calm: look at what lies there, and take what is deferred."""
        if self.can_defer and self.world.is_calm:
            body: dict[str, object] = {"from-sequence-number": 0, "message-count": Int(200)}
            self.ask("peek-message", body, self._peeked)
            self.later(5_000, self._fetch_deferred)

    def _peeked(self, answer: DecodedMessage) -> None:
        found: dict[int, str] = {}
        for payload in _messages(answer):
            delivery = Delivery(0, b"", settled=True)
            delivery.payload = payload
            if delivery.annotation("x-opt-message-state") == 1:
                number = delivery.annotation("x-opt-sequence-number")
                assert isinstance(number, int), number
                found[number] = str(delivery.message.body).partition(":")[0]
        for number, uid in found.items():
            body: dict[str, object] = {"sequence-numbers": [number], "receiver-settle-mode": UInt(0)}
            self._taking[uid] = None
            self.ask("receive-by-sequence-number", body, partial(self._received_deferred, uid))

    def _received_deferred(self, uid: str, answer: DecodedMessage) -> None:
        self._taking.pop(uid, None)
        for payload in _messages(answer):
            delivery = Delivery(0, b"", settled=True)
            delivery.payload = payload
            self._note(delivery, settled=True)


class SessionConsumer(Consumer):
    """Holds one session after the other, works through it and keeps its state."""

    def __init__(self, world: Scene, name: str, path: str) -> None:
        super().__init__(world, name, path)
        self._session: ClientSession | None = None
        self._held = ""
        self._writes = 0

    @property
    def can_defer(self) -> bool:
        """See Consumer."""
        return False

    def attach(self, session: ClientSession) -> None:
        """See Client."""
        super().attach(session)
        self._session = session
        self._held = ""
        self.later(3_000, self._move_on, self.receiver)

    def open(self, session: ClientSession) -> ClientReceiver:
        """See Consumer."""
        return session.receiver(
            self.path,
            credit=self._credit,
            filter={Symbol(SESSION_FILTER): None},
            properties={Symbol(ACCEPT_TIMEOUT): UInt(4_000)},
        )

    def react(self) -> None:
        """See Client."""
        super().react()
        receiver = self.receiver
        if receiver is None:
            return
        if (
            receiver.is_attached
            and not self._held
            and receiver.answer is not None
            and receiver.answer.source is not None
        ):
            held = (receiver.answer.source.filter or {}).get(SESSION_FILTER)
            self._held = str(held)
            self.world.say(self.name, f"holds session {self._held}")
            ticks = receiver.answer.properties[LOCKED_UNTIL]
            assert isinstance(ticks, int), ticks
            until = (ticks - TICKS_AT_EPOCH) // TICKS_PER_MS
            self.world.ledger.locked(f"session {self._held} of {self.path}", until, self.stamp)
            self._read_state()
        if receiver.detached:
            self._again()

    def _move_on(self, receiver: ClientReceiver | None) -> None:
        """Give the session up, so that others are served."""
        if receiver is not None and receiver is self.receiver and receiver.is_attached:
            self.world.say(self.name, f"gives session {self._held} up")
            receiver.detach()
            self._again()
        else:
            self.later(3_000, self._move_on, self.receiver)

    def forget(self) -> None:
        """See Client: with the link the session goes, and its messages are free."""
        self._free()
        super().forget()

    def _free(self) -> None:
        for uid in self.in_hand:
            self.world.ledger.freed(self.path, uid)
        self.in_hand.clear()

    def _again(self) -> None:
        self._free()
        if self._session is None:
            return
        self._held = ""
        self._settling.clear()
        self.receiver = self.open(self._session)
        self.receiver.on_delivery = self._got
        self.later(3_000, self._move_on, self.receiver)

    def _read_state(self) -> None:
        held = self._held
        self.ask("get-session-state", {"session-id": held}, lambda answer: self._state_came(held, answer))

    def _state_came(self, held: str, answer: DecodedMessage) -> None:
        if answer.application_properties.get("statusCode") != 200 or not isinstance(answer.body, dict):
            return
        state = answer.body.get("session-state")
        self.world.ledger.state_read(self.path, held, state if isinstance(state, bytes) else None, self.stamp)
        self._writes += 1
        value = f"{self.name}-{self._writes}".encode()
        self.world.ledger.state_writing(self.path, held, value)
        self.ask(
            "set-session-state",
            {"session-id": held, "session-state": value},
            lambda done: self._state_kept(held, value, done),
        )

    def _state_kept(self, held: str, value: bytes, answer: DecodedMessage) -> None:
        if answer.application_properties.get("statusCode") == 200:
            self.world.ledger.state_written(self.path, held, value, self.world.time)
        else:
            self.world.ledger.state_refused(self.path, held, value)


class Workload:
    """What is sent to one entity, and where it must turn up."""

    def __init__(
        self,
        entity: str,
        *,
        sessions: int = 0,
        ttl_ms: tuple[int, ...] = (0,),
        schedules: float = 0.0,
        retries: bool = False,
        refusals: float = 0.0,
        destinations: Callable[[int], tuple[str, ...]] | None = None,
    ) -> None:
        self.entity = entity
        self.retries = retries
        """Whether a send without an answer is tried again: only where duplicates are detected."""
        self._sessions = sessions
        self._ttl_ms = ttl_ms
        self._schedules = schedules
        self._refusals = refusals
        self._destinations = destinations

    def message(self, world: Scene, uid: str, number: int, batch: int) -> tuple[Sent, bytes]:
        """Draw one message."""
        chance = world.chance
        body = f"{uid}:{'x' * chance.choice((0, 30, 400))}:"
        ttl_ms = chance.choice(self._ttl_ms)
        scheduled_at = 0
        annotations: dict[str, object] | None = None
        if chance.random() < self._schedules and (life := world.current()) is not None:
            scheduled_at = life.wall() + chance.choice((200, 3_000, 15_000))
            annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(scheduled_at)}
        if not batch and chance.random() < self._refusals:
            body += "y" * 3_000  # more than the entity takes
        kind = number % 4
        destinations = (self.entity,) if self._destinations is None else self._destinations(kind)
        payload = encode_message(
            message_id=uid,
            group_id=f"session-{chance.randrange(self._sessions)}" if self._sessions else None,
            header=[None, None, UInt(ttl_ms)] if ttl_ms else None,
            message_annotations=annotations,
            application_properties={"n": kind},
            body=body,
        )
        return Sent(uid, self.entity, body, destinations, scheduled_at, ttl_ms, batch, world.time), payload

    def may_be_refused(self, sent: Sent) -> bool:
        """Whether a refusal is what the entity's settings ask for."""
        return self._refusals > 0 and len(sent.body) > 2_000


def _failures(message: DecodedMessage) -> int:
    """The delivery count as the header tells it: failed deliveries so far."""
    count = message.header[4] if len(message.header) > 4 else None
    return count if isinstance(count, int) else 0


def _messages(answer: DecodedMessage) -> list[bytes]:
    if answer.application_properties.get("statusCode") != 200 or not isinstance(answer.body, dict):
        return []
    entries = answer.body.get("messages")
    assert isinstance(entries, list), entries
    return [entry["message"] for entry in entries]
