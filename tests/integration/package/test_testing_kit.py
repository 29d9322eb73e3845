"""The public test kit against real brokers: in a thread, in a process, killed, frozen, on a clock that obeys."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.errors import BrokerNotReady, ManagementFailed, UsageError
from pairbus.testing import Namespace, Pair, Queue, VirtualClock

WAIT_S = 45


def send(namespace: Namespace, text: str, queue: str = "orders") -> None:
    with namespace.client() as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(text))


def take(namespace: Namespace, queue: str = "orders") -> list[str]:
    """Receive and complete what is there, at least one message."""
    with namespace.client() as client, client.get_queue_receiver(queue) as receiver:
        received = receiver.receive_messages(max_message_count=10, max_wait_time=WAIT_S)
        for message in received:
            receiver.complete_message(message)
        return [str(message) for message in received]


@pytest.mark.promise("B17")
@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_messages_survive_a_kill_and_clients_find_the_broker_where_it_was(process: bool) -> None:
    with Namespace("contoso", process=process, queues=["orders"]) as namespace:
        before = (namespace.connection_string, namespace.amqp_address, namespace.http_address)
        send(namespace, "kept")

        namespace.kill()
        assert not namespace.is_running
        namespace.restart()

        assert (namespace.connection_string, namespace.amqp_address, namespace.http_address) == before
        assert take(namespace) == ["kept"]


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_temporary_data_goes_and_given_data_stays(process: bool, tmp_path: Path) -> None:
    with Namespace(process=process, queues=["orders"]) as temporary:
        gone = temporary.data
        assert gone.exists()
    with Namespace(process=process, queues=["orders"], data=tmp_path / "mine") as given:
        send(given, "kept")

    assert not gone.exists()
    with Namespace(process=process, data=tmp_path / "mine") as again:
        assert take(again) == ["kept"]


@pytest.mark.namespace(queues=[Queue("baskets", requires_session=True)])
def test_namespace_fixture_has_the_queues_it_was_asked_for(namespace: Namespace) -> None:
    with namespace.client() as client:
        with client.get_queue_sender("baskets") as sender:
            sender.send_messages(ServiceBusMessage("boots", session_id="alice"))
        with client.get_queue_receiver("baskets", session_id="alice") as receiver:
            [message] = receiver.receive_messages(max_wait_time=WAIT_S)
            receiver.complete_message(message)

    assert str(message) == "boots"


@pytest.mark.namespace("contoso")
def test_namespace_fixture_has_the_name_it_was_given_first(namespace: Namespace) -> None:
    assert namespace.connection_string.endswith("Namespace=contoso")


@pytest.mark.parametrize("fixture", ["namespace", "pair"])
@pytest.mark.namespace(queus=["orders"])
def test_fixtures_refuse_options_that_they_do_not_have(fixture: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(
        UsageError, match=rf"queus=\['orders'\].*`{fixture}` has no such option.*queues, topics"
    ):
        request.getfixturevalue(fixture)


@pytest.mark.namespace("contoso", "orders")
def test_namespace_fixture_takes_one_name_only(request: pytest.FixtureRequest) -> None:
    with pytest.raises(UsageError, match=r"several names, \('contoso', 'orders'\)"):
        request.getfixturevalue("namespace")


@pytest.mark.namespace("contoso", queues=["orders"])
def test_pair_fixture_has_names_of_its_own(request: pytest.FixtureRequest) -> None:
    with pytest.raises(UsageError, match="name='contoso'.*`pair` has no such option"):
        request.getfixturevalue("pair")


def test_queues_can_be_made_later_and_a_refusal_is_told(namespace: Namespace) -> None:
    namespace.create_queue("later/on", lock_duration=timedelta(seconds=30), max_delivery_count=2)
    send(namespace, "there", "later/on")

    assert take(namespace, "later/on") == ["there"]
    with pytest.raises(ManagementFailed, match="409"):
        namespace.create_queue("later/on")


def test_administration_client_trusts_the_broker(namespace: Namespace) -> None:
    with namespace.administration_client() as administration:
        administration.create_queue("made", max_delivery_count=7)

        assert administration.get_queue("made").max_delivery_count == 7


@pytest.mark.namespace(queues=["orders"])
async def test_async_client_is_connected(namespace: Namespace) -> None:
    async with namespace.aio_client() as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("async"))

    assert take(namespace) == ["async"]


@pytest.mark.promise("B31")
@pytest.mark.namespace(queues=[Queue("orders", lock_duration=timedelta(minutes=5))])
def test_a_lock_expires_when_the_virtual_clock_says_so(
    namespace: Namespace, virtual_clock: VirtualClock
) -> None:
    send(namespace, "locked")
    with namespace.client() as client, client.get_queue_receiver("orders") as holder:
        [first] = holder.receive_messages(max_wait_time=WAIT_S)

        virtual_clock.advance(5 * 60 * 1000 + 1)

        with client.get_queue_receiver("orders") as other:
            [again] = other.receive_messages(max_wait_time=WAIT_S)
            other.complete_message(again)
    assert (again.sequence_number, again.delivery_count) == (first.sequence_number, 1)


def test_a_paused_broker_holds_its_tongue_and_goes_on_when_resumed() -> None:
    greeting = b"AMQP\x03\x01\x00\x00"
    with Namespace("contoso", process=True) as namespace:
        namespace.pause()
        host, port = namespace.amqp_address.rsplit(":", 1)
        # The system accepts the connection for the process that cannot.
        with socket.create_connection((host, int(port)), timeout=0.3) as connection:
            connection.sendall(greeting)
            with pytest.raises(TimeoutError):
                connection.recv(len(greeting))

            namespace.resume()

            connection.settimeout(WAIT_S)
            assert connection.recv(len(greeting)) == greeting


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a directory should be")

    with pytest.raises(BrokerNotReady, match=r"ended with code [23]:\n(.|\n)*data"):
        Namespace(process=True, data=tmp_path / "data").start()


@pytest.mark.namespace(queues=["orders"])
def test_pair_survives_the_death_of_its_primary(pair: Pair) -> None:
    send(pair.primary, "kept")

    pair.primary.kill()
    pair.secondary.create_queue("backlog")
    send(pair.secondary, "meanwhile", "backlog")
    pair.primary.restart()

    assert take(pair.primary) == ["kept"]
    assert take(pair.secondary, "backlog") == ["meanwhile"]


@pytest.mark.namespace(queues=["orders"])
def test_a_fault_strikes_as_often_as_it_was_told(namespace: Namespace) -> None:
    namespace.faults.throttle("orders", count=1)
    with namespace.client(retry_total=0) as client, client.get_queue_sender("orders") as sender:
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("refused"))
        sender.send_messages(ServiceBusMessage("accepted"))

    assert take(namespace) == ["accepted"]


@pytest.mark.namespace(queues=["orders"])
def test_a_counted_refusal_strikes_the_send_and_not_the_opening_of_its_sender(namespace: Namespace) -> None:
    namespace.faults.refuse("orders", count=1)
    with namespace.client(retry_total=0) as client, client.get_queue_sender("orders") as sender:
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("refused"))
        sender.send_messages(ServiceBusMessage("accepted"))

    assert take(namespace) == ["accepted"]


@pytest.mark.namespace(queues=["orders"])
def test_a_fault_of_an_entity_that_does_not_exist_names_those_that_do(namespace: Namespace) -> None:
    with pytest.raises(ManagementFailed, match=r"entity is 'order'.*There are: orders\."):
        namespace.faults.refuse("order")


@pytest.mark.namespace(queues=["orders"], faults=False)
def test_the_switchboard_is_off_unless_asked_for(namespace: Namespace) -> None:
    with pytest.raises(ManagementFailed, match=r"40[34]"):
        namespace.faults.clear()


def test_a_namespace_and_a_pair_show_their_names_and_no_key() -> None:
    pair = Pair(Namespace("contoso"), Namespace("fabrikam"))
    assert repr(pair) == "<Pair <Namespace contoso: not running> with <Namespace fabrikam: not running>>"
    with Namespace("contoso") as namespace:
        shown = repr(namespace)
        assert shown == f"<Namespace contoso: serving {namespace.amqp_address}>"
        assert "SharedAccessKey" not in shown
