"""Every protocol through a node that relays, with the official clients, and the authority that all nodes share."""

from __future__ import annotations

import functools
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.cli.kit.namespace import administration_client
from pairbus.gateway.own_addresses import OWN_ADDRESSES
from pairbus.sdk.addresses import connect
from tests.conformance.sdk import endpoint_for
from tests.integration.cluster.kit import QUEUE, Cluster, NodeProcess
from tests.postgres_kit import shared_server
from tests.waiting import wait_until

pytestmark = pytest.mark.long
BODY = bytes(range(256)) * 200
"""More than a frame of any of the transports."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """The owner and a node that relays."""
    made = Cluster(tmp_path_factory.mktemp("relay"), shared_server().url(), "a", "b", namespace="relayed")
    try:
        made.start()
        yield made.owner_and_other()
    finally:
        made.kill()


def authority(node: NodeProcess) -> str:
    return str(node.ready["ca_file"])


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss"])
def test_messages_pass_through_a_relay_unchanged(
    nodes: tuple[NodeProcess, NodeProcess], transport: str
) -> None:
    owner, other = nodes
    # The authority is the owner's: clients of any node trust the same one.
    endpoint = endpoint_for(transport, other.connection_string, authority(owner))
    before = other.relayed()
    with ServiceBusClient.from_connection_string(endpoint.connection_string, **endpoint.options) as client:
        with client.get_queue_sender(QUEUE) as sender:
            sender.send_messages(ServiceBusMessage(BODY, application_properties={"by": transport}))
        with client.get_queue_receiver(QUEUE) as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=30)
            assert b"".join(message.body) == BODY
            assert message.application_properties == {b"by": transport.encode()}
            receiver.complete_message(message)
    assert other.relayed() >= before + 2


@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
def test_several_addresses_are_used_over_tls_and_websocket(
    nodes: tuple[NodeProcess, NodeProcess], transport: TransportType
) -> None:
    owner, other = nodes
    # Nobody listens at the first address.
    listed = other.connection_string.replace("sb://", "sb://127.0.0.1:1,").replace(
        ";UseDevelopmentEmulator=true", ""
    )
    with (
        connect(
            ServiceBusClient, listed, connection_verify=authority(owner), transport_type=transport
        ) as client,
        client.get_queue_sender("later") as sender,
    ):
        sender.send_messages(ServiceBusMessage("through the second address"))


def test_management_passes_through_a_relay(nodes: tuple[NodeProcess, NodeProcess]) -> None:
    owner, other = nodes
    with ServiceBusAdministrationClient.from_connection_string(
        other.connection_string, connection_verify=authority(owner)
    ) as management:
        management.create_queue("made-through-a-relay")
        names = [queue.name for queue in management.list_queues()]
        assert "made-through-a-relay" in names
        management.delete_queue("made-through-a-relay")


@pytest.mark.parametrize("name", [address.removeprefix("/") for address in OWN_ADDRESSES])
@pytest.mark.parametrize("is_plain", [True, False])
def test_entities_named_as_the_brokers_addresses_are_managed_through_any_node(
    nodes: tuple[NodeProcess, NodeProcess], name: str, is_plain: bool
) -> None:
    owner, _ = nodes
    for node in nodes:
        with administration_client(
            node.connection_string, None if is_plain else authority(owner), {}
        ) as management:
            management.create_queue(name)
            found = management.get_queue(name)
            management.update_queue(found, user_metadata="mine")
            assert management.get_queue(name).user_metadata == "mine"
            management.delete_queue(name)
            with pytest.raises(ResourceNotFoundError):
                management.get_queue(name)
        assert node.health()["node"] == node.name


@pytest.mark.parametrize("path", ["/", "/$page/app.js", "/$page/app.css", "/$page/icon.svg"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_page_is_the_same_through_a_relay(
    nodes: tuple[NodeProcess, NodeProcess], path: str, scheme: str
) -> None:
    trust = ssl.create_default_context(cafile=authority(nodes[1]))
    found = []
    for node in nodes:
        address = f"{scheme}://127.0.0.1:{node.port}{path}"
        with urllib.request.urlopen(
            address, timeout=30, context=trust if scheme == "https" else None
        ) as answer:
            found.append((answer.headers["content-type"], answer.headers["etag"], answer.read()))
    assert found[0] == found[1]
    assert found[0][2]


def test_all_nodes_have_one_authority_and_one_certificate(
    nodes: tuple[NodeProcess, NodeProcess],
) -> None:
    owner, _ = nodes
    files = [Path(authority(node)) for node in nodes]
    assert files[0] != files[1]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (files[0].parent / "ca.key").read_bytes() == (files[1].parent / "ca.key").read_bytes()
    certificates = {
        ssl.get_server_certificate(("127.0.0.1", node.port), ca_certs=authority(owner)) for node in nodes
    }
    assert len(certificates) == 1, "TLS ends at the owner, whichever node is asked"


def test_every_change_of_owner_is_an_event_and_is_counted(nodes: tuple[NodeProcess, NodeProcess]) -> None:
    for node in nodes:
        wait_until(functools.partial(seen, node), f"{node.name} has seen the owner")
        seen_owners = [event for event in node.events() if event.get("event") == "cluster.owner"]
        epochs = [event["epoch"] for event in seen_owners if event["owner"]]
        assert node.metric("pairbus_cluster_owner_changes_total") == len(epochs) - 1, "the first is no change"
        assert node.metric("pairbus_cluster_epoch") == epochs[-1]
    assert nodes[0].metric(f'pairbus_cluster_role{{node="{nodes[0].name}",role="owner"}}') == 1
    assert nodes[1].metric(f'pairbus_cluster_role{{node="{nodes[1].name}",role="relay"}}') == 1


def seen(node: NodeProcess) -> bool:
    return any(event.get("event") == "cluster.owner" and event["owner"] for event in node.events())
