"""Under fire: transactions that take from one queue and put into two others. No official Python client has them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Self

from azure.servicebus import ServiceBusClient

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import ACCEPTED_CODE, REJECTED_CODE, STATE_ACCEPTED, encode_transactional
from pairbus.amqp.states import Outcome as WireOutcome
from pairbus.amqp.types import Described, ULong
from tests.conformance.sdk import connection_part
from tests.simulation.wire import ClientConnection, ClientReceiver, ClientSender, Delivery, declared_txn_id
from tests.soak.kill_history import Operation, Outcome, Place
from tests.soak.kill_load import LOCK_SECONDS, Actor, Drain, Receiver, Sender, Yard, body_of, read_body

INBOX, OUTBOX, LEDGER = "inbox", "outbox", "ledger"
ANSWER_SECONDS_MAX = 60.0
DECLARE, DISCHARGE = ULong(0x31), ULong(0x32)


def queues() -> list[Any]:
    """Where transactions take from, and where they put."""
    from pairbus.testing import Queue

    return [Queue(name, lock_duration=f"PT{LOCK_SECONDS}S") for name in (INBOX, OUTBOX, LEDGER)]


class Wire:
    """The kit's AMQP client on a real socket."""

    def __init__(self, connection_string: str) -> None:
        address = connection_part(connection_string, "Endpoint").removeprefix("sb://").rstrip("/")
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX)
        user = connection_part(connection_string, "SharedAccessKeyName")
        self.connection = ClientConnection(
            user=user, password=connection_part(connection_string, "SharedAccessKey")
        )

    def until(self, condition: Callable[[], object]) -> None:
        """Carry bytes both ways until it holds. Raises ConnectionError when the broker goes."""
        give_up_at = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            output = self.connection.take_output()
            if output:
                self._socket.sendall(output)
            if condition():
                return
            self._socket.settimeout(max(0.01, give_up_at - time.monotonic()))
            data = self._socket.recv(1 << 16)
            if not data or self.connection.closed:
                raise ConnectionError("the broker is gone")
            self.connection.receive(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


class Links:
    """What one worker needs on its connection."""

    def __init__(self, wire: Wire) -> None:
        session = wire.connection.session()
        self.wire = wire
        self.controller: ClientSender = session.sender(None, coordinator=True)
        self.inbox: ClientReceiver = session.receiver(INBOX)
        self.targets: dict[str, ClientSender] = {name: session.sender(name) for name in (OUTBOX, LEDGER)}
        links = (self.controller, self.inbox, *self.targets.values())
        wire.until(lambda: all(link.is_attached for link in links))

    def receive(self, amount: int) -> list[Delivery]:
        """What is there now, up to so many."""
        self.inbox.grant(amount, drain=True)
        self.wire.until(lambda: self.inbox.credit <= 0)
        found = list(self.inbox.deliveries)
        self.inbox.deliveries.clear()
        return found

    def control(self, kind: ULong, fields: list[object]) -> Any:
        """Declare or discharge; what the broker said."""
        sent = self.controller.send(encode_message(body=Described(kind, fields)))
        self.wire.until(lambda: sent in self.controller.outcomes)
        return self.controller.outcomes.pop(sent)


class Worker(Actor):
    """Takes messages from the inbox and puts a result into two queues for each, in one transaction."""

    def __init__(self, yard: Yard, name: str) -> None:
        super().__init__(yard, name)
        self._transactions = count(1)

    def work(self, client: ServiceBusClient) -> None:
        with Wire(self.yard.connection_string) as wire:
            links = Links(wire)
            while self.goes_on():
                began = self.yard.history.now()
                deliveries = links.receive(self.random.randint(1, 4))
                if deliveries:
                    self.transact(links, [(self.saw(d, began), d) for d in deliveries])
                self.pause(0.05)

    def saw(self, delivery: Delivery, began: int) -> str:
        message = delivery.message
        assert isinstance(message.body, bytes), message.body_kind
        uid, is_intact = read_body(message.body)
        self.yard.history.add(
            Operation.DELIVERY,
            began,
            actor=self.name,
            entity=INBOX,
            uid=uid,
            is_intact=is_intact,
            sequence_number=delivery.annotation("x-opt-sequence-number"),
            delivery_count=message.header[4] if len(message.header) > 4 else 0,
        )
        return uid

    def transact(self, links: Links, taken: list[tuple[str, Delivery]]) -> None:
        txn_id = declared_txn_id(links.control(DECLARE, [None]))
        batch = f"{self.name}/{next(self._transactions)}"
        one = {"batch": batch, "promise": "B14"}
        results = [f"{self.name}-{next(self._uids)}" for _ in taken]
        sends = [{"entity": name, "uid": f"{uid}@{name}", **one} for name in links.targets for uid in results]
        takes = [{"entity": INBOX, "uid": uid, **one} for uid, _ in taken]
        outcome = Outcome.FAIL  # until the commit has been asked for, nothing of it can happen
        began = self.yard.history.now()
        try:
            self.plan(links, txn_id, results, [delivery for _, delivery in taken])
            die = self.random.random()
            if die < 0.05:
                raise ConnectionError("the client goes away before the commit")
            if die < 0.2:
                assert links.control(DISCHARGE, [txn_id, True]).code == ACCEPTED_CODE, "an abort was refused"
            else:
                outcome = Outcome.UNKNOWN
                answer = links.control(DISCHARGE, [txn_id, False])
                outcome = Outcome.OK if answer.code == ACCEPTED_CODE else Outcome.FAIL
        finally:
            for operation, lines in ((Operation.SEND, sends), (Operation.COMPLETE, takes)):
                for order, line in enumerate(lines):
                    self.yard.history.add(
                        operation, began, actor=self.name, outcome=outcome, order=order, **line
                    )

    def plan(self, links: Links, txn_id: bytes, results: list[str], taken: list[Delivery]) -> None:
        """All of the work, and the broker's word on each piece."""
        sent = []
        for name, sender in links.targets.items():
            for uid in results:
                body = body_of(f"{uid}@{name}", self.random.choice((10, 800)))
                payload = encode_message(body=body, body_kind="data")
                sent.append((sender, sender.send(payload, state=encode_transactional(txn_id, None))))
        for delivery in taken:
            links.inbox.settle(delivery, encode_transactional(txn_id, STATE_ACCEPTED))
        links.wire.until(
            lambda: (
                all(number in sender.outcomes for sender, number in sent)
                and all(delivery.delivery_id in links.inbox.outcomes for delivery in taken)
            )
        )
        answers: list[WireOutcome | None] = [sender.outcomes.pop(number) for sender, number in sent]
        answers += [links.inbox.outcomes.pop(delivery.delivery_id) for delivery in taken]
        refused = [answer for answer in answers if answer is None or answer.code == REJECTED_CODE]
        assert not refused, f"a part of a transaction was refused: {refused[0]!r}"


def crew(yard: Yard) -> list[Actor]:
    """Who feeds the inbox, who transacts, and who reads one of the results; the other waits for the end."""
    return [
        Sender(yard, "inbox-sender", INBOX, []),
        *(Worker(yard, f"worker{i}") for i in range(2)),
        Receiver(yard, "outbox-receiver", OUTBOX),
    ]


def drain(yard: Yard, client: ServiceBusClient) -> None:
    """Read everything that is left."""
    for name in (INBOX, OUTBOX, LEDGER):
        last = Drain(yard, name)
        last.empty(client, Place.MAIN)
        last.empty(client, Place.DEAD_LETTER, sub_queue="deadletter")
