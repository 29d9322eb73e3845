"""Transactions: all or nothing, and nothing before the commit (B14)."""

from __future__ import annotations

import pytest

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.encode import encode_list, encode_value
from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import (
    ACCEPTED_CODE,
    MODIFIED_CODE,
    REJECTED_CODE,
    RELEASED_CODE,
    STATE_ACCEPTED,
    STATE_RELEASED,
    TRANSACTIONAL_CODE,
    Outcome,
    encode_rejected,
    encode_transactional,
)
from pairbus.amqp.types import Described, Symbol, ULong
from pairbus.engine.entity import Entity
from pairbus.gateway.transactions import LIFETIME_MS, STRANGER_TRANSACTIONS_MAX, TRANSACTIONS_MAX, WORK_MAX
from pairbus.model.entity import Settings
from tests.simulation.wire import ClientReceiver, ClientSender, declared_txn_id
from tests.unit.gateway.wire_bench import Peer, WireBench, message, token


class Desk:
    """A client with a controller link, a sender and a receiver."""

    def __init__(self, settings: Settings | None = None, user: str | None = "root") -> None:
        self.bench = WireBench()
        self.entity: Entity = self.bench.queue("q", settings)
        self.peer: Peer = self.bench.peer(user)
        self.controller: ClientSender = self.peer.session.sender(None, coordinator=True)
        if user is not None:
            self.attach_sender()
        self.bench.settle()

    def attach_sender(self) -> None:
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


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.promise("B14")
def test_nothing_is_visible_before_the_commit_and_all_is_after(desk: Desk) -> None:
    txn_id = desk.declare()
    for _ in range(2):
        assert desk.send(txn_id).txn_id == txn_id
    assert desk.active == 0

    assert desk.discharge(txn_id).code == ACCEPTED_CODE
    assert desk.active == 2


@pytest.mark.promise("M6")
def test_a_transaction_declared_before_the_token_does_what_the_token_allows() -> None:
    """The Java and .NET clients attach the controller link and declare before they put any token."""
    desk = Desk(user=None)
    txn_id = desk.declare()
    assert desk.peer.put_token(token("sender", "sender-1", "q"), "q") == 202
    desk.attach_sender()
    assert desk.send(txn_id).txn_id == txn_id

    assert desk.discharge(txn_id).code == ACCEPTED_CODE
    assert desk.active == 1


@pytest.mark.promise("M3")
def test_a_transaction_does_nothing_once_the_token_has_ended() -> None:
    desk = Desk(user=None)
    txn_id = desk.declare()
    assert (
        desk.peer.put_token(token("sender", "sender-1", "q", expires_at=desk.bench.now + 60_000), "q") == 202
    )
    desk.attach_sender()
    desk.send(txn_id)
    desk.bench.wait(60_000)

    error = desk.discharge(txn_id).error
    assert error is not None
    assert error.condition == "amqp:transaction:rollback"
    assert desk.active == 0


@pytest.mark.promise("M6")
def test_a_stranger_has_few_transactions_and_no_work() -> None:
    desk = Desk(user=None)
    for _ in range(STRANGER_TRANSACTIONS_MAX):
        txn_id = desk.declare()
    error = desk._tell(0x31, [None]).error
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    sender, receiver = desk.peer.session.sender("q"), desk.peer.session.receiver("q")
    desk.bench.settle()
    assert sender.detached
    assert receiver.detached
    assert desk.discharge(txn_id).code == ACCEPTED_CODE


@pytest.mark.promise("M6")
def test_a_transaction_id_tells_no_count(desk: Desk) -> None:
    first, second = desk.declare(), desk.declare()

    assert abs(int.from_bytes(second, "big") - int.from_bytes(first, "big")) > 1_000_000


@pytest.mark.promise("B14")
def test_a_rollback_leaves_nothing(desk: Desk) -> None:
    txn_id = desk.declare()
    desk.send(txn_id)
    assert desk.discharge(txn_id, fail=True).code == ACCEPTED_CODE
    assert desk.active == 0


@pytest.mark.promise("B14")
@pytest.mark.parametrize("end", ["connection", "controller"])
def test_the_end_of_the_connection_or_the_controller_rolls_back(end: str, desk: Desk) -> None:
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
def test_settlements_and_sends_happen_together(desk: Desk) -> None:
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


@pytest.mark.promise("B12", "B14")
def test_a_transaction_needs_room_for_the_changes_of_all_its_settlements(desk: Desk) -> None:
    receiver = received(desk, 4)
    desk.bench.store.has_room = lambda size: size <= 3_500  # type: ignore[method-assign]
    fields = [encode_value(True), encode_value(False), encode_value({Symbol("note"): "y" * 1_000})]
    modified = encode_value(Described(ULong(MODIFIED_CODE), []))[:-1] + encode_list(fields)
    txn_id = desk.declare()
    for delivery in receiver.deliveries:
        receiver.settle(delivery, encode_transactional(txn_id, modified))
    desk.bench.settle()

    refused = desk.discharge(txn_id)

    assert refused.error is not None
    assert "no room" in (refused.error.description or "")
    assert len(desk.entity.main.locks) == 4, "none was settled"
    txn_id = desk.declare()
    for delivery in receiver.deliveries[:3]:
        receiver.settle(delivery, encode_transactional(txn_id, modified))
    assert desk.discharge(txn_id).code == ACCEPTED_CODE
    assert len(desk.entity.main.locks) == 1


@pytest.mark.promise("B14")
def test_a_lock_lost_before_the_commit_rolls_everything_back(desk: Desk) -> None:
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
def test_a_refused_part_spoils_the_whole(desk: Desk) -> None:
    txn_id = desk.declare()
    desk.send(txn_id)
    spoilt = message(message_annotations={Symbol("x-opt-partition-key"): "p" * 200})
    assert desk.send(txn_id, spoilt).error is not None
    error = desk.discharge(txn_id).error
    assert error is not None
    assert error.condition == "amqp:transaction:rollback"
    assert desk.active == 0


def received(desk: Desk, count: int = 1) -> ClientReceiver:
    """A receiver that got so many messages."""
    for number in range(count):
        desk.sender.send(message(number))
    receiver = desk.peer.session.receiver("q", credit=count)
    desk.bench.settle()
    assert len(receiver.deliveries) == count
    return receiver


@pytest.mark.promise("B14")
def test_a_settlement_in_a_transaction_leaves_the_delivery_unsettled_until_the_commit(desk: Desk) -> None:
    receiver = received(desk, 2)
    first, second = (delivery.delivery_id for delivery in receiver.deliveries)
    txn_id = desk.declare()
    receiver.settle(receiver.deliveries[0], encode_transactional(txn_id, STATE_ACCEPTED))
    error = AmqpError("com.microsoft:dead-letter", "", {"DeadLetterReason": "testing"})
    receiver.settle(receiver.deliveries[1], encode_transactional(txn_id, encode_rejected(error)))
    desk.bench.settle()

    unsettled = desk.peer.session.received
    assert set(unsettled) == {first, second}
    assert {receiver.outcomes[one].txn_id for one in (first, second)} == {txn_id}  # type: ignore[union-attr]
    assert desk.discharge(txn_id).code == ACCEPTED_CODE
    assert not unsettled
    # The Java client compares states with what it asked for; .NET takes an error in an outcome for a refusal.
    assert [receiver.outcomes[one] for one in (first, second)] == [
        Outcome(TRANSACTIONAL_CODE, txn_id=txn_id, inner=Outcome(code))
        for code in (ACCEPTED_CODE, REJECTED_CODE)
    ]
    assert desk.active == 0
    assert desk.entity.counts().dead_letter == 1


@pytest.mark.promise("B14")
@pytest.mark.parametrize("fail", [False, True])
def test_a_delivery_that_a_closing_receiver_releases_before_the_discharge_follows_the_transaction(
    fail: bool, desk: Desk
) -> None:
    """As the Java client does for what it has settled in a transaction that is still open."""
    receiver = received(desk)
    delivery = receiver.deliveries[0]
    txn_id = desk.declare()
    receiver.settle(delivery, encode_transactional(txn_id, STATE_ACCEPTED))
    desk.bench.settle()
    receiver.settle(delivery, STATE_RELEASED)
    desk.bench.settle()
    assert receiver.outcomes[delivery.delivery_id].code == RELEASED_CODE  # type: ignore[union-attr]

    assert desk.discharge(txn_id, fail=fail).code == ACCEPTED_CODE
    desk.bench.settle()

    assert desk.active == int(fail)


@pytest.mark.promise("B14")
@pytest.mark.parametrize("again", ["plainly", "plainly and settled", "in a transaction"])
@pytest.mark.parametrize("end", ["rollback", "refused commit", "lifetime", "controller"])
def test_after_a_rollback_a_delivery_can_be_settled_again(end: str, again: str) -> None:
    desk = Desk(Settings(lock_duration_ms=300_000))
    receiver = received(desk)
    delivery = receiver.deliveries[0]
    txn_id = desk.declare()
    receiver.settle(delivery, encode_transactional(txn_id, STATE_ACCEPTED))
    desk.bench.settle()
    if end == "rollback":
        desk.discharge(txn_id, fail=True)
    elif end == "refused commit":
        desk.send(txn_id, message(message_annotations={Symbol("x-opt-partition-key"): "p" * 200}))
        assert desk.discharge(txn_id).error is not None
    elif end == "lifetime":
        desk.bench.wait(LIFETIME_MS)
        assert desk.discharge(txn_id).error is not None
    else:
        desk.controller.detach()
        desk.bench.settle()
        desk.controller = desk.peer.session.sender(None, coordinator=True)
        desk.bench.settle()
    assert desk.active == 1

    if again == "in a transaction":
        second = desk.declare()
        receiver.settle(delivery, encode_transactional(second, STATE_ACCEPTED))
        assert desk.discharge(second).code == ACCEPTED_CODE
    else:
        receiver.complete(delivery, settled=again == "plainly and settled")
        desk.bench.settle()
    assert desk.active == 0
    assert not desk.peer.session.received
    assert len(receiver.deliveries) == 1
    if again != "plainly and settled":
        expected = TRANSACTIONAL_CODE if again == "in a transaction" else ACCEPTED_CODE
        assert receiver.outcomes[delivery.delivery_id].code == expected  # type: ignore[union-attr]


@pytest.mark.promise("B14")
def test_what_the_receiver_settled_itself_is_given_back_by_a_rollback(desk: Desk) -> None:
    receiver = received(desk)
    txn_id = desk.declare()
    receiver.settle(receiver.deliveries[0], encode_transactional(txn_id, STATE_ACCEPTED), settled=True)
    desk.discharge(txn_id, fail=True)
    receiver.grant(1)
    desk.bench.settle()

    assert [delivery.message.header[4] for delivery in receiver.deliveries] == [0, 1]
    second = desk.declare()
    receiver.settle(receiver.deliveries[1], encode_transactional(second, STATE_ACCEPTED), settled=True)
    assert desk.discharge(second).code == ACCEPTED_CODE
    assert desk.active == 0


@pytest.mark.promise("B14")
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("fail", [False, True])
def test_a_delivery_that_the_receiver_settles_before_the_discharge_follows_the_transaction(
    with_state: bool, fail: bool, desk: Desk
) -> None:
    receiver = received(desk)
    txn_id = desk.declare()
    state = encode_transactional(txn_id, STATE_ACCEPTED)
    receiver.settle(receiver.deliveries[0], state)
    desk.bench.settle()
    receiver.settle(receiver.deliveries[0], state if with_state else b"", settled=True)
    desk.bench.settle()

    assert desk.discharge(txn_id, fail=fail).code == ACCEPTED_CODE
    assert desk.active == (1 if fail else 0)
    receiver.grant(1)
    desk.bench.settle()
    assert len(receiver.deliveries) == (2 if fail else 1)


@pytest.mark.promise("B14")
def test_a_settlement_that_is_repeated_in_its_transaction_counts_once(desk: Desk) -> None:
    desk.sender.send(message("work"))
    receiver = desk.peer.session.receiver("q", credit=1)
    desk.bench.settle()
    txn_id = desk.declare()
    for _ in range(2):
        receiver.settle(receiver.deliveries[0], encode_transactional(txn_id, STATE_ACCEPTED))
        desk.bench.settle()
    assert desk.discharge(txn_id).code == ACCEPTED_CODE
    assert not desk.peer.client.closed
    assert desk.entity.counts().total == 0


@pytest.mark.promise("B14")
def test_two_outcomes_for_one_message_in_one_transaction_are_refused(desk: Desk) -> None:
    receiver = received(desk)
    txn_id = desk.declare()
    for state in (STATE_ACCEPTED, STATE_RELEASED):
        receiver.settle(receiver.deliveries[0], encode_transactional(txn_id, state))
        desk.bench.settle()
    assert desk.discharge(txn_id).error is not None
    assert desk.active == 1


def test_a_transaction_has_a_lifetime(desk: Desk) -> None:
    txn_id = desk.declare()
    desk.bench.now += LIFETIME_MS
    error = desk.discharge(txn_id).error
    assert error is not None
    assert desk.discharge(txn_id).error is not None
    assert desk.send(txn_id).error is not None


def test_an_id_is_good_once_and_on_its_connection_only(desk: Desk) -> None:
    txn_id = desk.declare()
    desk.discharge(txn_id)
    for wrong in (txn_id, b"unknown"):
        error = desk.discharge(wrong).error
        assert error is not None
        assert error.condition == "amqp:transaction:unknown-id"


@pytest.mark.promise("M12")
def test_transactions_and_their_work_are_bounded(desk: Desk) -> None:
    txn_id = desk.declare()
    for _ in range(WORK_MAX):
        assert desk.send(txn_id).error is None
    assert desk.send(txn_id).error is not None
    for _ in range(TRANSACTIONS_MAX - 1):
        desk.declare()
    assert desk._tell(0x31, [None]).error is not None


def test_a_controller_takes_nothing_else(desk: Desk) -> None:
    assert desk._tell(0x33, []).error is not None
    delivery_id = desk.controller.send(message("hello"))
    desk.bench.settle()
    assert desk.controller.outcomes[delivery_id].error is not None
