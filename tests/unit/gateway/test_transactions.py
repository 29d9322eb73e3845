"""Transactions: all or nothing, and nothing before the commit (B14)."""

from __future__ import annotations

import pytest

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import ACCEPTED_CODE, STATE_ACCEPTED, Outcome, encode_transactional
from pairbus.amqp.types import Described, Symbol, ULong
from pairbus.engine.entity import Entity
from pairbus.gateway.transactions import LIFETIME_MS, TRANSACTIONS_MAX, WORK_MAX
from pairbus.model.entity import Settings
from tests.simulation.wire import ClientSender, declared_txn_id
from tests.unit.gateway.wire_bench import Peer, WireBench, message


class Desk:
    """A client with a controller link, a sender and a receiver."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.bench = WireBench()
        self.entity: Entity = self.bench.queue("q", settings)
        self.peer: Peer = self.bench.peer()
        self.controller: ClientSender = self.peer.session.sender(None, coordinator=True)
        self.sender = self.peer.session.sender("q")
        self.bench.settle()

    def _tell(self, descriptor: int, fields: list[object]) -> Outcome:
        body = Described(ULong(descriptor), fields)
        delivery_id = self.controller.send(encode_message(body=body))
        self.bench.settle()
        return self.controller.outcomes[delivery_id]

    def declare(self) -> bytes:
        return declared_txn_id(self._tell(0x31, [None]))

    def discharge(self, txn_id: bytes, fail: bool = False) -> Outcome:
        return self._tell(0x32, [txn_id, fail])

    def send(self, txn_id: bytes, payload: bytes | None = None) -> Outcome:
        delivery_id = self.sender.send(payload or message(), state=encode_transactional(txn_id, None))
        self.bench.settle()
        return self.sender.outcomes[delivery_id]

    @property
    def active(self) -> int:
        return self.entity.counts().active


@pytest.mark.promise("B14")
def test_nothing_is_visible_before_the_commit_and_all_is_after() -> None:
    desk = Desk()
    txn_id = desk.declare()
    for _ in range(2):
        assert desk.send(txn_id).txn_id == txn_id
    assert desk.active == 0

    assert desk.discharge(txn_id).code == ACCEPTED_CODE
    assert desk.active == 2


@pytest.mark.promise("B14")
def test_a_rollback_leaves_nothing() -> None:
    desk = Desk()
    txn_id = desk.declare()
    desk.send(txn_id)
    assert desk.discharge(txn_id, fail=True).code == ACCEPTED_CODE
    assert desk.active == 0


@pytest.mark.promise("B14")
@pytest.mark.parametrize("end", ["connection", "controller"])
def test_the_end_of_the_connection_or_the_controller_rolls_back(end: str) -> None:
    desk = Desk()
    desk.send(desk.declare())
    if end == "connection":
        desk.peer.gateway.lost(desk.bench.now)
        desk.bench.peers.clear()
    else:
        desk.controller.detach()
    desk.bench.settle()

    assert desk.active == 0
    assert not desk.peer.gateway.transactions


@pytest.mark.promise("B14")
def test_settlements_and_sends_happen_together() -> None:
    desk = Desk()
    desk.sender.send(message("work"))
    receiver = desk.peer.session.receiver("q", credit=1)
    desk.bench.settle()
    txn_id = desk.declare()
    delivery = receiver.deliveries[0]
    receiver.settle(delivery, encode_transactional(txn_id, STATE_ACCEPTED))
    desk.send(txn_id, message("result"))
    assert desk.active == 1

    assert desk.discharge(txn_id).code == ACCEPTED_CODE
    assert desk.active == 1
    assert [m.sequence_number for m in desk.entity.main.messages.values()] == [2]


@pytest.mark.promise("B14")
def test_a_lock_lost_before_the_commit_rolls_everything_back() -> None:
    desk = Desk()
    desk.sender.send(message("work"))
    receiver = desk.peer.session.receiver("q", credit=1)
    desk.bench.settle()
    txn_id = desk.declare()
    receiver.settle(receiver.deliveries[0], encode_transactional(txn_id, STATE_ACCEPTED))
    desk.send(txn_id, message("result"))
    desk.bench.wait(60_000)

    error = desk.discharge(txn_id).error
    assert error is not None
    assert error.condition == "amqp:transaction:rollback"
    assert list(desk.entity.main.messages) == [1]


@pytest.mark.promise("B14")
def test_a_refused_part_spoils_the_whole() -> None:
    desk = Desk()
    txn_id = desk.declare()
    desk.send(txn_id)
    spoilt = message(message_annotations={Symbol("x-opt-partition-key"): "p" * 200})
    assert desk.send(txn_id, spoilt).error is not None
    error = desk.discharge(txn_id).error
    assert error is not None
    assert error.condition == "amqp:transaction:rollback"
    assert desk.active == 0


@pytest.mark.promise("B14")
def test_a_settlement_twice_in_one_transaction_is_refused() -> None:
    desk = Desk()
    desk.sender.send(message("work"))
    receiver = desk.peer.session.receiver("q", credit=1)
    desk.bench.settle()
    txn_id = desk.declare()
    for _ in range(2):
        receiver.settle(receiver.deliveries[0], encode_transactional(txn_id, STATE_ACCEPTED))
        desk.bench.settle()
    desk.discharge(txn_id)
    assert not desk.peer.client.closed
    assert desk.entity.counts().total in (0, 1)


def test_a_transaction_has_a_lifetime() -> None:
    desk = Desk()
    txn_id = desk.declare()
    desk.bench.now += LIFETIME_MS
    error = desk.discharge(txn_id).error
    assert error is not None
    assert desk.discharge(txn_id).error is not None
    assert desk.send(txn_id).error is not None


def test_an_id_is_good_once_and_on_its_connection_only() -> None:
    desk = Desk()
    txn_id = desk.declare()
    desk.discharge(txn_id)
    for wrong in (txn_id, b"unknown"):
        error = desk.discharge(wrong).error
        assert error is not None
        assert error.condition == "amqp:transaction:unknown-id"


@pytest.mark.promise("M12")
def test_transactions_and_their_work_are_bounded() -> None:
    desk = Desk()
    txn_id = desk.declare()
    for _ in range(WORK_MAX):
        assert desk.send(txn_id).error is None
    assert desk.send(txn_id).error is not None
    for _ in range(TRANSACTIONS_MAX - 1):
        desk.declare()
    assert desk._tell(0x31, [None]).error is not None


def test_a_controller_takes_nothing_else() -> None:
    desk = Desk()
    assert desk._tell(0x33, []).error is not None
    delivery_id = desk.controller.send(message("hello"))
    desk.bench.settle()
    assert desk.controller.outcomes[delivery_id].error is not None
