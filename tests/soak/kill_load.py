"""Clients under fire: official senders and receivers that write down what they were told, and the last drain."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
)
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tests.soak.kill_history import Event, Operation, Outcome, Place

ORDERS, SESSIONS = "orders", "sessions"
LOCK_SECONDS = 30
SCHEDULE_SECONDS_MAX = 90
DRAIN_SECONDS_MAX = 90
"""How long the last reader waits for a message that it has seen."""
DEFINITE = (MessageSizeExceededError, ServiceBusQuotaExceededError, ServiceBusServerBusyError)
"""Errors that can only come from a broker that understood and said no to a send."""

SETTLED_BY = {
    Operation.COMPLETE: "complete_message",
    Operation.ABANDON: "abandon_message",
    Operation.DEFER: "defer_message",
    Operation.DEAD_LETTER: "dead_letter_message",
}


def body_of(uid: str, size: int) -> bytes:
    """The uid, its length and bytes that follow from them, so that a changed body is noticed."""
    head = f"{uid}|{size}|".encode()
    filler = hashlib.sha256(head).digest()
    return head + (filler * (size // len(filler) + 1))[: max(0, size)]


def read_body(body: bytes) -> tuple[str, bool]:
    """The uid of a body, and whether the rest is what it must be."""
    uid, size, _ = body.split(b"|", 2)
    return uid.decode(), body == body_of(uid.decode(), int(size))


class History:
    """Events from many threads, numbered in the order in which they were written down."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._numbers = count(1)
        self._lock = threading.Lock()

    def now(self) -> int:
        with self._lock:
            return next(self._numbers)

    def add(self, operation: Operation, began: int, **fields: Any) -> None:
        with self._lock:
            event = Event(
                index=next(self._numbers),
                began=began,
                operation=operation,
                at_ms=int(time.time() * 1000),
                **fields,
            )
            self.events.append(event)


class Yard:
    """What all clients share: where the broker is, whether it is up, whether to stop, and the history."""

    def __init__(self, connection_string: str, ca_file: str, seed: int) -> None:
        self.connection_string = connection_string
        self.ca_file = ca_file
        self.seed = seed
        self.history = History()
        self.is_up = threading.Event()
        self.is_over = threading.Event()
        self.unexpected: list[str] = []
        """Errors that no kill explains; a run with any of these has failed."""

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.connection_string, retry_total=0)


class Actor(threading.Thread):
    """One client. It opens its links, works until they break, and opens them again."""

    def __init__(self, yard: Yard, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.yard = yard
        self.random = random.Random(f"{yard.seed}/{name}")
        self._uids = count(1)

    def run(self) -> None:
        while not self.yard.is_over.is_set():
            if not self.yard.is_up.wait(0.1):
                continue
            try:
                with self.yard.client() as client:
                    self.work(client)
            except AssertionError as error:
                self.yard.unexpected.append(f"{self.name}: {error!r}")
            except Exception:  # noqa: BLE001  the broker dies under every call; what was told is written down
                self.yard.is_over.wait(0.02)

    def work(self, client: ServiceBusClient) -> None:
        raise NotImplementedError

    def goes_on(self) -> bool:
        return not self.yard.is_over.is_set()

    def pause(self, seconds_max: float) -> None:
        self.yard.is_over.wait(self.random.uniform(0, seconds_max))

    def new_message(self, session: str | None = None) -> tuple[str, ServiceBusMessage]:
        uid = f"{self.name}-{next(self._uids)}"
        size = self.random.choice((10, 100, 1000, 1000, 4000, 50_000 if self.random.random() < 0.1 else 500))
        return uid, ServiceBusMessage(body_of(uid, size), session_id=session)

    def tell(self, operation: Operation, call: Callable[[], Any], lines: list[dict[str, Any]]) -> Any:
        """Do it, write down what was told for each line, and hand on the answer or the error."""
        began = self.yard.history.now()
        outcome, answer, error = Outcome.OK, None, None
        try:
            answer = call()
        except Exception as caught:  # noqa: BLE001  every error is an outcome here
            is_definite = isinstance(caught, DEFINITE) and operation is Operation.SEND
            outcome, error = Outcome.FAIL if is_definite else Outcome.UNKNOWN, caught
        for place, line in enumerate(lines):
            if operation is Operation.SCHEDULE and answer:
                line = {**line, "sequence_number": answer[place]}
            self.yard.history.add(operation, began, actor=self.name, outcome=outcome, order=place, **line)
        if error is not None:
            raise error
        return answer


class Sender(Actor):
    """Sends one by one and in batches, waits for each answer."""

    def __init__(
        self, yard: Yard, name: str, entity: str, sessions: list[str], arrives_at: str | None = None
    ) -> None:
        super().__init__(yard, name)
        self.entity = entity
        self.arrives_at = arrives_at or entity
        """Where a message is to be found once it has been forwarded."""
        self.sessions = sessions
        self._batches = count(1)

    def work(self, client: ServiceBusClient) -> None:
        with client.get_queue_sender(self.entity) as sender:
            while self.goes_on():
                self.send_some(sender)
                self.pause(0.04)

    def send_some(self, sender: Any) -> None:
        session = self.random.choice(self.sessions) if self.sessions else None
        is_batch = self.random.random() < 0.35
        made = [self.new_message(session) for _ in range(self.random.randint(2, 8) if is_batch else 1)]
        batch = f"{self.name}/{next(self._batches)}" if is_batch else ""
        messages = [message for _, message in made]
        lines = [
            {"entity": self.arrives_at, "uid": uid, "batch": batch, "session": session or ""}
            for uid, _ in made
        ]
        self.tell(Operation.SEND, lambda: sender.send_messages(messages if is_batch else messages[0]), lines)


class Scheduler(Actor):
    """Schedules a little ahead and changes its mind now and then."""

    def work(self, client: ServiceBusClient) -> None:
        with client.get_queue_sender(ORDERS) as sender:
            while self.goes_on():
                made = [self.new_message() for _ in range(self.random.randint(1, 3))]
                ahead = dt.timedelta(seconds=self.random.uniform(0.3, 3))
                due = dt.datetime.now(dt.UTC) + ahead
                due_ms = int(due.timestamp() * 1000)
                lines = [{"entity": ORDERS, "uid": uid, "due_ms": due_ms} for uid, _ in made]
                messages = [message for _, message in made]
                numbers = self.tell(
                    Operation.SCHEDULE, partial(sender.schedule_messages, messages, due), lines
                )
                if self.random.random() < 0.3 and ahead.total_seconds() > 1:
                    line = {"entity": ORDERS, "uid": made[0][0]}
                    self.tell(Operation.CANCEL, partial(sender.cancel_scheduled_messages, numbers[0]), [line])
                self.pause(0.25)


class Receiver(Actor):
    """Receives and settles in every way, and forgets a message now and then."""

    def __init__(self, yard: Yard, name: str, entity: str, place: Place = Place.MAIN) -> None:
        super().__init__(yard, name)
        self.entity = entity
        self.place = place
        self.deferred: list[tuple[str, int]] = []

    def opened(self, client: ServiceBusClient, **options: Any) -> Any:
        """A receiver at the place where this one works."""
        if self.place is Place.DEAD_LETTER:
            options["sub_queue"] = "deadletter"
        return client.get_queue_receiver(self.entity, **options)

    def copy_of(self, uid: str) -> str:
        """The uid of the copy that lies here."""
        return uid

    def work(self, client: ServiceBusClient) -> None:
        with self.opened(client) as receiver:
            while self.goes_on():
                self.receive_some(receiver)
                if self.deferred and self.random.random() < 0.2:
                    self.fetch_deferred(receiver)

    def receive_some(self, receiver: Any) -> None:
        began = self.yard.history.now()
        for message in receiver.receive_messages(self.random.randint(1, 10), max_wait_time=0.5):
            uid = self.saw(message, began, self.place)
            self.settle(receiver, message, uid, self.place)

    def saw(self, message: Any, began: int, place: Place, operation: Operation = Operation.DELIVERY) -> str:
        uid, is_intact = read_body(b"".join(message.body))
        uid = self.copy_of(uid)
        self.yard.history.add(
            operation,
            began,
            actor=self.name,
            entity=self.entity,
            uid=uid,
            is_intact=is_intact,
            sequence_number=message.sequence_number,
            delivery_count=message.delivery_count,
            place=place,
        )
        return uid

    def settle(self, receiver: Any, message: Any, uid: str, place: Place) -> None:
        weights = (70, 12, 0, 0, 5) if place is Place.DEAD_LETTER else (70, 12, 6, 7, 5)
        operation = self.random.choices((*SETTLED_BY, None), weights)[0]
        if operation is None:
            return
        line = {"entity": self.entity, "uid": uid, "place": place}
        self.tell(operation, lambda: getattr(receiver, SETTLED_BY[operation])(message), [line])
        if operation is Operation.DEFER:
            self.deferred.append((uid, message.sequence_number))

    def fetch_deferred(self, receiver: Any) -> None:
        uid, number = self.deferred.pop(self.random.randrange(len(self.deferred)))
        began = self.yard.history.now()
        for message in receiver.receive_deferred_messages(number):
            assert self.saw(message, began, Place.DEFERRED) == uid, (
                f"deferred number {number} is another message"
            )
            line = {"entity": self.entity, "uid": uid, "place": Place.DEFERRED}
            self.tell(Operation.COMPLETE, partial(receiver.complete_message, message), [line])

    def read_state(self, receiver: Any, session: str) -> None:
        began = self.yard.history.now()
        value = (receiver.session.get_state() or b"").decode()
        self.yard.history.add(
            Operation.GET_STATE, began, actor=self.name, entity=self.entity, session=session, value=value
        )


class SessionReceiver(Receiver):
    """Takes the next session, reads and writes its state, settles a few messages, lets go."""

    def work(self, client: ServiceBusClient) -> None:
        while self.goes_on():
            try:
                with client.get_queue_receiver(
                    self.entity, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1
                ) as receiver:
                    self.hold(receiver)
            except OperationTimeoutError:
                continue

    def hold(self, receiver: Any) -> None:
        session = receiver.session.session_id
        self.read_state(receiver, session)
        line = {"entity": self.entity, "session": session, "value": f"{self.name}-{next(self._uids)}"}
        self.tell(Operation.SET_STATE, lambda: receiver.session.set_state(line["value"]), [line])
        for _ in range(3):
            self.receive_some(receiver)


def crew(yard: Yard) -> list[Actor]:
    """Everybody who works while the broker is being killed."""
    names = [f"session-{i}" for i in range(6)]
    return [
        *(Sender(yard, f"sender{i}", ORDERS, []) for i in range(3)),
        *(Sender(yard, f"session-sender{i}", SESSIONS, names) for i in range(2)),
        Scheduler(yard, "scheduler"),
        *(Receiver(yard, f"receiver{i}", ORDERS) for i in range(3)),
        Receiver(yard, "undertaker", ORDERS, Place.DEAD_LETTER),
        *(SessionReceiver(yard, f"session-receiver{i}", SESSIONS) for i in range(2)),
    ]


class Drain(Receiver):
    """The last reader: everything that is left, wherever it lies."""

    def __init__(self, yard: Yard, entity: str = ORDERS) -> None:
        super().__init__(yard, "drain", entity)

    def everything(self) -> None:
        with self.yard.client() as client:
            self.wait_for_schedules(client)
            self.empty(client, Place.MAIN)
            self.empty(client, Place.DEAD_LETTER, sub_queue="deadletter")
            self.entity = SESSIONS
            self.empty(client, Place.DEAD_LETTER, sub_queue="deadletter")
            self.empty_sessions(client)

    def wait_for_schedules(self, client: ServiceBusClient) -> None:
        """Schedules lie a few seconds ahead at most."""
        give_up_at = time.monotonic() + SCHEDULE_SECONDS_MAX
        with self.opened(client) as receiver:
            while any(m.state is ServiceBusMessageState.SCHEDULED for m in peek_all(receiver)):
                assert time.monotonic() < give_up_at, "scheduled messages did not fall due"
                time.sleep(0.2)

    def empty(self, client: ServiceBusClient, place: Place, **options: Any) -> None:
        """Take out everything, for good: nobody works any more and every lock has ended."""
        with self.opened(client, receive_mode="receiveanddelete", **options) as receiver:
            self.empty_receiver(receiver, place)

    def empty_receiver(self, receiver: Any, place: Place) -> None:
        lying = peek_all(receiver)
        deferred = [m.sequence_number for m in lying if m.state is ServiceBusMessageState.DEFERRED]
        for start in range(0, len(deferred), 50):
            began = self.yard.history.now()
            for message in receiver.receive_deferred_messages(deferred[start : start + 50]):
                self.saw(message, began, Place.DEFERRED, Operation.DRAINED)
        left = len(lying) - len(deferred)
        while left:
            began = self.yard.history.now()
            messages = receiver.receive_messages(min(left, 250), max_wait_time=DRAIN_SECONDS_MAX)
            assert messages, f"{left} messages of {self.entity} can be seen and do not come"
            for message in messages:
                self.saw(message, began, place, Operation.DRAINED)
            left -= len(messages)

    def empty_sessions(self, client: ServiceBusClient) -> None:
        for session in list(client.list_queue_sessions(self.entity)):
            with client.get_queue_receiver(
                self.entity, session_id=session, receive_mode="receiveanddelete"
            ) as receiver:
                self.read_state(receiver, session)
                self.empty_receiver(receiver, Place.MAIN)


def peek_all(receiver: Any) -> list[Any]:
    """Every message of one place, page by page."""
    seen: list[Any] = []
    while page := receiver.peek_messages(250, sequence_number=seen[-1].sequence_number + 1 if seen else 1):
        seen += page
    return seen
