"""A generic AMQP 1.0 client: Apache Qpid Proton over SASL PLAIN. Nothing of Service Bus is known to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("proton", reason="needs python-qpid-proton, see requirements/conformance.lock")

from azure.servicebus import ServiceBusMessage
from proton import ConnectionException, Delivery, Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import AtLeastOnce, AtMostOnce, Container, Copy, Filter, Selector
from proton.utils import BlockingConnection, LinkDetached, SendException

from pairbus.testing import Namespace
from tests.conformance.sdk import connection_part, spec
from tests.waiting import wait_until

SECONDS_MAX = 10


def connect(namespace: Any, user: str | None = None, password: str | None = None) -> Any:
    text = namespace.connection_string
    return BlockingConnection(
        f"amqp://{namespace.amqp_address}",
        timeout=SECONDS_MAX,
        user=user or connection_part(text, "SharedAccessKeyName"),
        password=password or connection_part(text, "SharedAccessKey"),
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
    )


@pytest.fixture
def connection(namespace: Any) -> Iterator[Any]:
    opened = connect(namespace)
    yield opened
    opened.close()


def send(connection: Any, queue: str, *messages: Message) -> None:
    sender = connection.create_sender(queue)
    for message in messages:
        assert sender.send(message).remote_state == Delivery.ACCEPTED
    sender.close()


@spec("PLAIN with a rule's name and key; no token needed")
def test_message_round_trip(connection: Any, queue: str) -> None:
    sent = Message(
        body={"deep": [1, "two"]},
        id="id",
        subject="s",
        properties={"p": 2**62},
        annotations={symbol("x-mine"): "a"},
    )
    send(connection, queue, sent)

    receiver = connection.create_receiver(queue, credit=1)
    message = receiver.receive(SECONDS_MAX)
    receiver.accept()
    receiver.close()

    assert (message.body, message.id, message.subject, message.properties) == (
        sent.body,
        "id",
        "s",
        {"p": 2**62},
    )
    assert message.annotations[symbol("x-mine")] == "a"
    assert message.annotations[symbol("x-opt-sequence-number")] == 1
    assert message.delivery_count == 0


def settle_first(connection: Any, path: str, outcome: str, **details: Any) -> tuple[Any, int]:
    """Receive one message, settle it, close; its body and delivery count."""
    receiver = connection.create_receiver(path, credit=1)
    message = receiver.receive(SECONDS_MAX)
    getattr(receiver, outcome)(**details)
    receiver.close()
    return message.body, message.delivery_count


@spec("proton's settled dispositions: release, modify, reject, accept")
def test_every_outcome(connection: Any, queue: str) -> None:
    send(connection, queue, *(Message(body=text) for text in ("a", "b")))

    assert settle_first(connection, queue, "release", delivered=False) == ("a", 0)
    assert settle_first(connection, queue, "release", delivered=True) == ("a", 0)
    # That was a modified outcome: an abandon.
    assert settle_first(connection, queue, "reject") == ("a", 1)
    assert settle_first(connection, queue, "accept") == ("b", 0)

    assert settle_first(connection, f"{queue}/$DeadLetterQueue", "accept") == ("a", 1)


@spec("at-most-once is receive-and-delete")
def test_at_most_once_deletes(connection: Any, queue: str) -> None:
    send(connection, queue, Message(body="a"), Message(body="b"))

    first = connection.create_receiver(queue, credit=1, options=AtMostOnce())
    assert first.receive(SECONDS_MAX).body == "a"
    first.close()

    second = connection.create_receiver(queue, credit=1, options=AtMostOnce())
    assert second.receive(SECONDS_MAX).body == "b"
    second.close()


@spec("a session by its filter; null takes the next one")
def test_session_by_filter(connection: Any, session_queue: str) -> None:
    send(
        connection,
        session_queue,
        Message(body="x1", group_id="x"),
        Message(body="y1", group_id="y"),
        Message(body="x2", group_id="x"),
    )

    wanted: Any = {symbol("com.microsoft:session-filter"): "x"}
    filters = Filter(wanted)
    receiver = connection.create_receiver(session_queue, credit=2, options=[filters, AtLeastOnce()])
    for body in ("x1", "x2"):
        message = receiver.receive(SECONDS_MAX)
        assert (message.body, message.group_id) == (body, "x")
        receiver.accept()
    receiver.close()


@spec("a queue browser (distribution mode copy) is refused, and takes nothing")
def test_browser_is_refused(connection: Any, queue: str) -> None:
    send(connection, queue, Message(body="a"))

    with pytest.raises(LinkDetached, match="com.microsoft:peek-message"):
        connection.create_receiver(queue, credit=10, options=Copy())

    assert settle_first(connection, queue, "accept") == ("a", 0)


@spec("a selector is not applied, and the answer does not say that it is; AMQP 1.0, 3.5.3")
def test_selector_is_not_said_to_be_in_place(connection: Any, queue: str) -> None:
    receiver = connection.create_receiver(queue, credit=1, options=Selector("colour = 'green'"))

    answered = receiver.link.remote_source.filter
    answered.rewind()
    assert answered.next() is None
    receiver.close()


@pytest.mark.promise("M1")
@spec("wrong credentials: outcome code 1")
def test_wrong_password_is_refused(namespace: Any) -> None:
    with pytest.raises(ConnectionException):
        connect(namespace, password="wrong").close()
    with pytest.raises(ConnectionException):
        connect(namespace, user="nobody").close()


@spec("an unknown queue: null attach, then detach with amqp:not-found")
def test_unknown_queue_is_detached(connection: Any) -> None:
    with pytest.raises(LinkDetached) as caught:
        connection.create_sender("no-such-queue")

    assert caught.value.condition == "amqp:not-found"


@spec("a refused message: rejected")
def test_refused_message(connection: Any, session_queue: str) -> None:
    sender = connection.create_sender(session_queue)
    with pytest.raises(SendException):
        sender.send(Message(body="no session"))
    assert sender.send(Message(body="fine", group_id="s")).remote_state == Delivery.ACCEPTED
    sender.close()


@pytest.mark.promise("B35")
@spec("drain consumes the credit that is left")
def test_drain_is_answered(connection: Any, queue: str) -> None:
    send(connection, queue, Message(body="a"))
    receiver = connection.create_receiver(queue, credit=10)
    assert receiver.receive(SECONDS_MAX).body == "a"
    receiver.accept()

    receiver.link.drain(0)
    connection.wait(lambda: receiver.link.credit == 0, timeout=SECONDS_MAX, msg="waiting for the drain")
    receiver.close()


@spec("large messages in many frames")
def test_large_message(connection: Any, make_queue: Callable[..., str]) -> None:
    queue = make_queue(max_message_size_in_kilobytes=2048)
    body = bytes(range(256)) * 6000
    send(connection, queue, Message(body=body))

    receiver = connection.create_receiver(queue, credit=1)
    assert bytes(receiver.receive(SECONDS_MAX).body) == body
    receiver.accept()
    receiver.close()


class _Collecting(MessagingHandler):
    """A receiver that lets Proton reconnect by itself."""

    def __init__(self, address: str, queue: str, user: str, password: str) -> None:
        super().__init__()
        self._target = address, queue, user, password
        self.received: list[str] = []

    def on_start(self, event: Any) -> None:
        address, queue, user, password = self._target
        connection = event.container.connect(
            f"amqp://{address}",
            user=user,
            password=password,
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
        )
        event.container.create_receiver(connection, queue)

    def on_message(self, event: Any) -> None:
        self.received.append(str(event.message.id))


@spec(
    "a session that Proton uses again on a new connection begins with delivery-id 0",
    source="AMQP 1.0 §2.6.12",
)
def test_a_receiver_goes_on_after_a_restart_of_the_broker() -> None:
    with Namespace("contoso", process=True, queues=["q"]) as broker:
        text = broker.connection_string
        handler = _Collecting(
            broker.amqp_address,
            "q",
            connection_part(text, "SharedAccessKeyName"),
            connection_part(text, "SharedAccessKey"),
        )
        container = Container(handler)
        thread = threading.Thread(target=container.run, daemon=True)
        thread.start()
        try:
            _send_by_sdk(broker, "before")
            wait_until(lambda: handler.received == ["before"])
            broker.kill()
            broker.restart()
            _send_by_sdk(broker, "after")
            wait_until(lambda: handler.received == ["before", "after"])
        finally:
            container.stop()
            thread.join(SECONDS_MAX)


def _send_by_sdk(broker: Namespace, message_id: str) -> None:
    with broker.client() as client, client.get_queue_sender("q") as sender:
        sender.send_messages(ServiceBusMessage("x", message_id=message_id))
