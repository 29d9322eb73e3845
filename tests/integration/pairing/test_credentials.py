"""Pairing with whatever a program proves itself with: keys without Manage, keys and tokens of azure-core."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.servicebus import ServiceBusClient
from azure.servicebus._base_handler import _generate_sas_token
from azure.servicebus.management import AccessRights, AuthorizationRule, EntityStatus

from pairbus import NoBacklogQueuesError, OtherPrimaryError, PairedServiceBusClient
from pairbus.pairing.events import Kind
from pairbus.testing import Namespace, Pair
from tests.integration.pairing.kit import bodies, by_hand, options, paired, text
from tests.waiting import wait_until

KEY = "cHJpbWFyeS1rZXktb2YtdGhlLXJ1bGUtMDEyMzQ1Njc="
BACKLOG = "contoso/x-servicebus-transfer/"


def parts(namespace: Namespace) -> dict[str, str]:
    return dict(part.split("=", 1) for part in namespace.connection_string.split(";") if part)


def sender_key(pair: Pair, *indexes: int, may_listen: bool = True) -> str:
    """A connection string whose key may send and listen to these backlog queues, and nothing more."""
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND, AccessRights.LISTEN] if may_listen else [AccessRights.SEND],
        key_name="worker",
        primary_key=KEY,
        secondary_key=KEY,
    )
    with pair.secondary.administration_client() as management:
        for index in indexes:
            management.create_queue(f"{BACKLOG}{index}", authorization_rules=[rule])
    endpoint = parts(pair.secondary)["Endpoint"]
    return f"Endpoint={endpoint};SharedAccessKeyName=worker;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def test_a_key_without_manage_is_enough_for_the_queues_that_exist(pair: Pair) -> None:
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        sender_key(pair, 0, 1),
        options=by_hand(backlog_queue_count=3),
        retry_total=0,
    )
    with client, client.get_queue_sender("orders") as sender:
        client.fail_over("orders")
        sender.send_messages(text(1))

        assert client.backlog_queue_count == 2, "the usable number"
        unusable = [event.subject for event in client.events() if event.kind is Kind.QUEUE_UNUSABLE]
        assert unusable == [f"{BACKLOG}2"]
        assert client.statistics().to_backlog == 1


def test_a_drain_that_may_not_listen_says_so(pair: Pair) -> None:
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string,
        sender_key(pair, 0, may_listen=False),
        options=by_hand(backlog_queue_count=1, enable_syphon=True),
        retry_total=0,
    )

    def refused() -> list[tuple[str, bool]]:
        return [
            (event.subject, "needs the right to listen" in event.text)
            for event in client.events()
            if event.kind is Kind.SYPHON_REFUSED
        ]

    with client:
        wait_until(refused, "the drain says that it may not listen")
        assert refused() == [(f"{BACKLOG}0", True)]


def test_a_key_without_manage_finds_out_that_a_topic_is_no_queue(pair: Pair) -> None:
    worker = sender_key(pair, 0)
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        key_name="worker",
        primary_key=KEY,
        secondary_key=KEY,
    )
    with pair.secondary.administration_client() as management:
        management.create_topic(f"{BACKLOG}1", authorization_rules=[rule])
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, worker, options=by_hand(backlog_queue_count=2), retry_total=0
    )
    with client:
        assert client.backlog_queue_count == 1
        unusable = [event for event in client.events() if event.kind is Kind.QUEUE_UNUSABLE]
        assert [event.subject for event in unusable] == [f"{BACKLOG}1"]


@pytest.mark.promise("P29")
def test_a_key_without_manage_is_told_of_queues_that_leak_or_cannot_be_drained(pair: Pair) -> None:
    worker = sender_key(pair, 0, 1, 2)
    pair.secondary.create_queue("elsewhere")
    with pair.secondary.administration_client() as management:
        forwarding, disabled = (management.get_queue(f"{BACKLOG}{index}") for index in (1, 2))
        forwarding.forward_to, disabled.status = "elsewhere", EntityStatus.RECEIVE_DISABLED
        management.update_queue(forwarding)
        management.update_queue(disabled)
    with PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, worker, options=by_hand(backlog_queue_count=3), retry_total=0
    ) as client:
        told = [(event.kind, event.subject) for event in client.events() if event.is_loud]
        assert told == [
            (Kind.QUEUE_UNUSABLE, f"{BACKLOG}1"),
            (Kind.PROPERTY_DIFFERENCE, f"{BACKLOG}2"),
        ]
        assert sorted(client._state.usable_queues) == [f"{BACKLOG}0", f"{BACKLOG}2"]


def test_a_key_without_manage_sees_that_the_backlog_is_anothers(pair: Pair) -> None:
    worker = sender_key(pair, 0)
    with paired(pair, by_hand(backlog_queue_count=1)) as first, first.get_queue_sender("orders") as sender:
        first.fail_over("orders")
        sender.send_messages(text(1))
    with Namespace("contoso") as twin:
        second = PairedServiceBusClient.from_connection_strings(
            twin.connection_string, worker, options=by_hand(backlog_queue_count=1), retry_total=0
        )
        with pytest.raises(OtherPrimaryError):
            second.pair()
        second.close()


def test_a_key_without_manage_and_no_queue_at_all_is_refused_with_the_way_out(pair: Pair) -> None:
    client = PairedServiceBusClient.from_connection_strings(
        pair.primary.connection_string, sender_key(pair), options=options(), retry_total=0
    )
    with pytest.raises(
        NoBacklogQueuesError, match="create the queues, or give a credential with Manage"
    ) as raised:
        client.pair()
    # The rule of the key would be one of the queue that nobody has made.
    assert "status 401: InvalidSignature" in str(raised.value), "what the broker said, not the SDK's own text"
    assert not client.is_paired
    client.close()


class SignedTokens:
    """A token credential, as those of azure-identity are: it has ``get_token`` and nothing else to show."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        found = parts(self._namespace)
        return _generate_sas_token(scopes[0], found["SharedAccessKeyName"], found["SharedAccessKey"])


def official(namespace: Namespace, credential: Any) -> ServiceBusClient:
    return ServiceBusClient(namespace.amqp_address, credential, use_tls=False, retry_total=0)


@pytest.mark.parametrize("kind", ["named key", "token"])
def test_credentials_of_azure_core_pair_detour_and_drain(kind: str, pair: Pair) -> None:
    clients = []
    for namespace in (pair.primary, pair.secondary):
        found = parts(namespace)
        key = AzureNamedKeyCredential(found["SharedAccessKeyName"], found["SharedAccessKey"])
        clients.append(official(namespace, key if kind == "named key" else SignedTokens(namespace)))
    if kind == "token":
        # The administration client sends any token as a bearer's, which this broker does not take.
        for index in range(2):
            pair.secondary.create_queue(f"{BACKLOG}{index}")
    paired = PairedServiceBusClient(
        clients[0], clients[1], options=by_hand(enable_syphon=True), primary_namespace="contoso"
    )
    with paired, paired.get_queue_sender("orders") as sender:
        assert paired.backlog_queue_count == 2
        paired.fail_over("orders")
        sender.send_messages(text(1))
        paired.mark_healthy("orders")
        sender.send_messages(text(2))
        wait_until(lambda: paired.statistics().restored == 1, "home")

    assert bodies(pair.primary, "orders", 2) == {"1": 1, "2": 1}
