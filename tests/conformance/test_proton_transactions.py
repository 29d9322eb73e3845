"""Transactions over the coordinator link, through Apache Qpid Proton: no official Python or JavaScript client has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("proton", reason="needs python-qpid-proton, see requirements/conformance.lock")

from proton import Delivery, Message
from proton.handlers import TransactionHandler
from proton.utils import LinkDetached

from tests.conformance.sdk import Bus, endpoint_for, spec
from tests.conformance.test_proton import SECONDS_MAX, connect, send

ROLLBACK = "amqp:transaction:rollback"
TIMEOUT = "amqp:transaction:timeout"
UNKNOWN_ID = "amqp:transaction:unknown-id"
LIFETIME_MS = 120_000
TRANSACTIONAL = 0x34


def texts(messages: list[Any]) -> list[str]:
    """Bodies that proton wrote as AMQP values, and that the official client hands out as bytes."""
    return [message.body.decode() for message in messages]


class Told(TransactionHandler):
    """Remembers what the broker said about the transactions of one connection."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.error: Any = None

    def on_transaction_declared(self, event: Any) -> None:
        self.words.append("declared")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self._failed("declare failed", event)

    def on_transaction_committed(self, event: Any) -> None:
        self.words.append("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self.words.append("aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._failed("commit failed", event)

    def _failed(self, word: str, event: Any) -> None:
        self.error = event.delivery.remote.condition
        self.words.append(word)


class Controller:
    """A blocking face for proton's transactions."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.told = Told()

    def declare(self, settle_before_discharge: bool = False) -> Any:
        connection = self.connection
        transaction = connection.container.declare_transaction(
            connection.conn, self.told, settle_before_discharge
        )
        self._wait_for_word()
        return transaction

    def commit(self, transaction: Any) -> str:
        transaction.commit()
        return self._wait_for_word()

    def abort(self, transaction: Any) -> str:
        transaction.abort()
        return self._wait_for_word()

    def send(self, transaction: Any, sender: Any, *messages: Message) -> list[Any]:
        """Send within the transaction and wait until the broker has taken note of every message."""
        deliveries = [transaction.send(sender.link, message) for message in messages]
        self.connection.wait(lambda: all(delivery.settled for delivery in deliveries), timeout=SECONDS_MAX)
        return deliveries

    def settle(self, transaction: Any, receiver: Any, state: int = Delivery.ACCEPTED) -> Any:
        """Settle the oldest message that was received, within the transaction."""
        delivery = receiver.fetcher.unsettled.popleft()
        if state == Delivery.ACCEPTED:
            transaction.accept(delivery)
        else:
            transaction.update(delivery, state)
        if not transaction.settle_before_discharge:  # then the delivery is forgotten at once
            self.connection.wait(lambda: delivery.remote_state == TRANSACTIONAL, timeout=SECONDS_MAX)
            assert not delivery.settled
        return delivery

    def _wait_for_word(self) -> str:
        had = len(self.told.words)
        self.connection.wait(lambda: len(self.told.words) > had, timeout=SECONDS_MAX)
        return self.told.words[-1]


@pytest.fixture
def connection(namespace: Any) -> Iterator[Any]:
    opened = connect(namespace)
    yield opened
    opened.close()


@pytest.fixture
def controller(connection: Any) -> Controller:
    return Controller(connection)


@pytest.fixture
def sdk(namespace: Any) -> Iterator[Bus]:
    """The official client on another connection: what everybody else sees."""
    opened = Bus("sync", endpoint_for("tcp", namespace.connection_string, str(namespace.ca_file)))
    yield opened
    opened.close()


@pytest.mark.promise("B14")
@spec("declare, work, discharge: visible together at the commit")
def test_commit_makes_all_sends_visible_together(
    connection: Any, controller: Controller, sdk: Bus, make_queue: Callable[..., str]
) -> None:
    one, two = make_queue(), make_queue()
    to_one, to_two = connection.create_sender(one), connection.create_sender(two)

    transaction = controller.declare()
    assert controller.told.words == ["declared"]
    controller.send(transaction, to_one, Message(body="a"), Message(body="b"))
    controller.send(transaction, to_two, Message(body="c"))
    assert sdk.peek(one) == []
    assert sdk.peek(two) == []

    assert controller.commit(transaction) == "committed"
    assert texts(sdk.peek(one)) == ["a", "b"]
    assert texts(sdk.peek(two)) == ["c"]


@pytest.mark.promise("B14")
@spec("discharge with fail: nothing of it happened")
def test_abort_leaves_no_trace(connection: Any, controller: Controller, sdk: Bus, queue: str) -> None:
    sender = connection.create_sender(queue)
    transaction = controller.declare()
    controller.send(transaction, sender, Message(body="never"))

    assert controller.abort(transaction) == "aborted"
    assert sdk.peek(queue) == []

    assert sender.send(Message(body="plain")).remote_state == Delivery.ACCEPTED
    assert texts(sdk.take(queue, 1)) == ["plain"]


@pytest.mark.promise("B14")
@spec("a settlement and a send in one transaction: take here, put there")
@pytest.mark.parametrize("settle_before_discharge", [False, True])
def test_take_and_put_in_one_transaction(
    connection: Any,
    controller: Controller,
    sdk: Bus,
    make_queue: Callable[..., str],
    settle_before_discharge: bool,
) -> None:
    source, target = make_queue(), make_queue()
    send(connection, source, Message(body="work"))
    receiver, sender = connection.create_receiver(source, credit=1), connection.create_sender(target)
    assert receiver.receive(SECONDS_MAX).body == "work"

    transaction = controller.declare(settle_before_discharge)
    controller.settle(transaction, receiver)
    controller.send(transaction, sender, Message(body="result"))
    assert texts(sdk.peek(source)) == ["work"]
    assert sdk.peek(target) == []

    assert controller.commit(transaction) == "committed"
    assert sdk.peek(source) == []
    assert texts(sdk.peek(target)) == ["result"]


@pytest.mark.promise("B14")
@spec("after a rollback the message is still locked, and can still be settled")
def test_aborted_settlement_leaves_the_message_where_it_was(
    connection: Any, controller: Controller, sdk: Bus, make_queue: Callable[..., str]
) -> None:
    source = make_queue(lock_duration="PT5S")
    send(connection, source, Message(body="work"))
    receiver = connection.create_receiver(source, credit=1)
    assert receiver.receive(SECONDS_MAX).body == "work"

    transaction = controller.declare()
    controller.settle(transaction, receiver)
    assert controller.abort(transaction) == "aborted"
    receiver.close()

    assert texts(sdk.peek(source)) == ["work"]
    assert texts(sdk.take(source, 1)) == ["work"]  # once the lock has ended


@pytest.mark.promise("B14")
@spec("every outcome can be part of a transaction")
def test_dead_letter_release_and_complete_in_one_transaction(
    connection: Any, controller: Controller, sdk: Bus, queue: str
) -> None:
    send(connection, queue, *(Message(body=text) for text in ("dead", "released", "done")))
    receiver = connection.create_receiver(queue, credit=3)
    assert [receiver.receive(SECONDS_MAX).body for _ in range(3)] == ["dead", "released", "done"]

    transaction = controller.declare()
    for state in (Delivery.REJECTED, Delivery.RELEASED, Delivery.ACCEPTED):
        controller.settle(transaction, receiver, state)
    assert len(sdk.peek(queue)) == 3
    assert sdk.peek(queue, sub_queue="deadletter") == []

    assert controller.commit(transaction) == "committed"
    receiver.close()
    assert texts(sdk.peek(queue)) == ["released"]
    assert texts(sdk.peek(queue, sub_queue="deadletter")) == ["dead"]


@pytest.mark.promise("B14")
@spec("a lost connection before the commit means rollback")
def test_connection_that_closes_rolls_back(namespace: Any, sdk: Bus, make_queue: Callable[..., str]) -> None:
    source, target = make_queue(lock_duration="PT5S"), make_queue()
    doomed = connect(namespace)
    send(doomed, source, Message(body="work"))
    receiver = doomed.create_receiver(source, credit=1)
    receiver.receive(SECONDS_MAX)
    controller = Controller(doomed)
    transaction = controller.declare()
    controller.settle(transaction, receiver)
    controller.send(transaction, doomed.create_sender(target), Message(body="result"))

    doomed.close()

    assert texts(sdk.take(source, 1)) == ["work"]
    assert sdk.peek(target) == []


@pytest.mark.promise("B14")
@spec("closing the controller link rolls back what it declared")
def test_controller_link_that_closes_rolls_back(
    connection: Any, controller: Controller, sdk: Bus, queue: str
) -> None:
    sender = connection.create_sender(queue)
    transaction = controller.declare()
    controller.send(transaction, sender, Message(body="never"))

    link = transaction.txn_ctrl
    link.close()
    connection.wait(lambda: link.state & link.REMOTE_CLOSED, timeout=SECONDS_MAX)

    assert sdk.peek(queue) == []


@pytest.mark.promise("B14")
@spec("a part that is refused fails the whole; discharge says rollback")
def test_refused_part_fails_the_whole(
    connection: Any, controller: Controller, sdk: Bus, queue: str, session_queue: str
) -> None:
    sender, strict = connection.create_sender(queue), connection.create_sender(session_queue)
    transaction = controller.declare()
    controller.send(transaction, sender, Message(body="fine"))
    (refused,) = controller.send(transaction, strict, Message(body="no session"))
    assert refused.remote_state == Delivery.REJECTED

    assert controller.commit(transaction) == "commit failed"
    assert controller.told.error.name == ROLLBACK
    assert sdk.peek(queue) == []


@spec("an id that was discharged is unknown")
def test_discharged_id_is_unknown(connection: Any, controller: Controller, sdk: Bus, queue: str) -> None:
    sender = connection.create_sender(queue)
    transaction = controller.declare()
    controller.commit(transaction)

    (late,) = controller.send(transaction, sender, Message(body="late"))
    assert late.remote_state == Delivery.REJECTED
    assert late.remote.condition.name == UNKNOWN_ID
    assert controller.commit(transaction) == "commit failed"
    assert controller.told.error.name == UNKNOWN_ID
    assert sdk.peek(queue) == []


@spec("at most 100 messages in one transaction")
def test_hundred_and_first_message_is_refused(
    connection: Any, controller: Controller, sdk: Bus, queue: str
) -> None:
    sender = connection.create_sender(queue)
    transaction = controller.declare()
    taken = controller.send(transaction, sender, *(Message(body=i) for i in range(100)))
    assert {delivery.remote_state for delivery in taken} == {0x34}
    (refused,) = controller.send(transaction, sender, Message(body=100))
    assert refused.remote_state == Delivery.REJECTED

    assert controller.commit(transaction) == "commit failed"
    assert sdk.peek(queue) == []


@pytest.mark.promise("B14", "B15")
@spec("a transaction publishes to a topic like any sender")
def test_publish_in_a_transaction(namespace: Any, connection: Any, controller: Controller, sdk: Bus) -> None:
    with namespace.administration_client() as admin:
        admin.create_topic("transacted")
        for name in ("one", "two"):
            admin.create_subscription("transacted", name)
    transaction = controller.declare()
    controller.send(transaction, connection.create_sender("transacted"), Message(body="x"))

    def seen(name: str) -> list[str]:
        with sdk.client().get_subscription_receiver("transacted", name) as receiver:
            return texts(receiver.peek_messages(10))

    assert (seen("one"), seen("two")) == ([], [])
    assert controller.commit(transaction) == "committed"
    assert (seen("one"), seen("two")) == (["x"], ["x"])


@pytest.mark.promise("B14", "B16")
@spec("an entity that is deleted before the commit fails the whole")
def test_entity_that_is_deleted_before_the_commit(
    namespace: Any, connection: Any, controller: Controller, sdk: Bus, make_queue: Callable[..., str]
) -> None:
    doomed, other = make_queue(), make_queue()
    transaction = controller.declare()
    controller.send(transaction, connection.create_sender(other), Message(body="x"))
    sender = connection.create_sender(doomed)
    controller.send(transaction, sender, Message(body="x"))
    with namespace.administration_client() as admin:
        admin.delete_queue(doomed)
    with pytest.raises(LinkDetached):
        connection.wait(lambda: False, timeout=SECONDS_MAX)

    assert controller.commit(transaction) == "commit failed"
    assert controller.told.error.name == ROLLBACK
    assert sdk.peek(other) == []


@spec("a transaction lives two minutes")
def test_transaction_ends_after_two_minutes() -> None:
    from pairbus.testing import Namespace, VirtualClock

    clock = VirtualClock()
    with Namespace("contoso", queues=["q"], clock=clock) as namespace:
        connection = connect(namespace)
        controller = Controller(connection)
        sender = connection.create_sender("q")
        in_time, late = controller.declare(), controller.declare()
        controller.send(in_time, sender, Message(body="in time"))
        controller.send(late, sender, Message(body="late"))

        clock.advance(LIFETIME_MS - 1)
        assert controller.commit(in_time) == "committed"
        clock.advance(1)
        assert controller.commit(late) == "commit failed"
        assert controller.told.error.name == TIMEOUT

        with namespace.client() as client, client.get_queue_receiver("q") as receiver:
            assert texts(receiver.peek_messages(10)) == ["in time"]
        connection.close()
