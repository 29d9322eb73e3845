"""A whole broker in memory for the fuzzer: conversations of a well-behaved client, bent on the way in (B59).

The handshake is left alone, so that what is bent is met by links, sessions, engine and management, not by the door.
"""

from __future__ import annotations

from typing import Final

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import Int
from pairbus.gateway.broker import Broker
from pairbus.model.access import ROOT_RULE
from pairbus.model.entity import QUEUE, Settings
from pairbus.server.assemble import declare_access_rules, recover
from pairbus.server.config.declarations import Declarations
from pairbus.storage.memory import MemoryStore
from tests.simulation.wire import ClientConnection

START_MS: Final = 1_750_000_000_000
MESSAGES_MAX: Final = 2_000
"""A broker that holds more than this is replaced by a fresh one: memory is not what is tested."""


class FuzzedBroker:
    """Takes bent conversations one after another, each on a connection of its own."""

    def __init__(self) -> None:
        self._begin()
        self.handshake, self.sample = self._record()

    def run(self, data: bytes) -> None:
        """One conversation: handshake, then ``data``, then the socket is gone. Afterwards the broker must still serve."""
        self._now += 1
        connection = self._broker.connect("127.0.0.1:1", False, True, self._now)
        for chunk in (self.handshake, data):
            connection.receive(chunk, self._now)
            self._turn()
            connection.take_output()
        connection.lost(self._now)
        self._turn()
        self._conversations += 1
        if self._conversations % 500 == 0:
            self._record()
        if self._conversations % MESSAGES_MAX == 0:
            self._begin()
            self.handshake, self.sample = self._record()

    def _begin(self) -> None:
        self._now = START_MS
        self._conversations = 0
        self._store = MemoryStore()
        self._broker = Broker("fuzz", self._store, bytes(16))
        self._broker.offers_faults = True
        recover(self._broker.namespace, self._store)
        self._key = declare_access_rules(self._broker.namespace, Declarations(), self._now)
        self._broker.namespace.create(QUEUE, "plain", Settings(), self._now)
        self._broker.namespace.create(QUEUE, "sessions", Settings(requires_session=True), self._now)

    def _turn(self) -> None:
        self._broker.tick(self._now)
        self._broker.pump(self._now)
        batch = self._store.seal()
        if batch is not None:
            self._store.commit(batch)

    def _record(self) -> tuple[bytes, bytes]:
        """A conversation that works, as the bytes of its handshake and those of the rest."""
        client = ClientConnection(user=ROOT_RULE, password=self._key)
        server = self._broker.connect("127.0.0.1:1", False, True, self._now)
        said: list[bytes] = []

        def exchange() -> None:
            for _ in range(6):
                chunk = client.take_output()
                said.append(chunk)
                server.receive(chunk, self._now)
                self._turn()
                for answer in server.take_output():
                    client.receive(answer)

        exchange()
        handshake = b"".join(said)
        said.clear()
        session = client.session()
        sender = session.sender("plain")
        receiver = session.receiver("plain")
        exchange()
        delivery = sender.send(encode_message(body="hello"))
        receiver.grant(5)
        exchange()
        assert delivery in sender.outcomes, "a send was not answered: the broker does not serve any more"
        assert receiver.deliveries, "a message was not delivered: the broker does not serve any more"
        receiver.complete(receiver.deliveries[0])
        receiver.abandon(receiver.deliveries[-1])
        peek = session.request_link("plain/$management")
        exchange()
        peek.request(
            {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 0, "message-count": Int(1)}
        )
        exchange()
        for link in (sender, receiver):
            link.detach()
        session.end()
        client.close()
        exchange()
        server.lost(self._now)
        self._turn()
        return handshake, b"".join(said)
