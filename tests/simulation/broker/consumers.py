"""Who receives in a simulated world: consumers, session holders, and those who empty dead-letter queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pairbus.amqp.states import ACCEPTED_CODE
from pairbus.amqp.types import Int, Symbol, Timestamp, UInt
from pairbus.gateway.outgoing import LOCKED_UNTIL, TICKS_AT_EPOCH, TICKS_PER_MS
from tests.simulation.broker.checkers import Delivered, PromiseBroken
from tests.simulation.broker.clients import Client
from tests.simulation.wire import ClientReceiver, Delivery, RequestLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.amqp.message.whole import DecodedMessage
    from tests.simulation.broker.scene import Scene
    from tests.simulation.wire import ClientSession

SESSION_FILTER: Final = "com.microsoft:session-filter"
ACCEPT_TIMEOUT: Final = "com.microsoft:timeout"
DEAD_LETTER: Final = "/$deadletterqueue"


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
