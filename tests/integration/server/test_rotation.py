"""Keys are replaced while clients work: those with the other key notice nothing, the replaced key ends at once (M5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient

from pairbus.testing import Namespace
from tests.conformance.haste import make_haste
from tests.conformance.sdk import connection_part

QUEUE, TOPIC, SUBSCRIPTION = "orders", "events", "s"
RULE, SECONDARY = "worker", "c2Vjb25kYXJ5"
ROTATIONS = 12
STEP_SECONDS_MAX = 90
"""How long anything may take that a test waits for."""


def rule(primary: str) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        key_name=RULE,
        primary_key=primary,
        secondary_key=SECONDARY,
    )


def with_key(namespace: Namespace, key: str) -> ServiceBusClient:
    endpoint = connection_part(namespace.connection_string, "Endpoint")
    text = f"Endpoint={endpoint};SharedAccessKeyName={RULE};SharedAccessKey={key};UseDevelopmentEmulator=true"
    # No retries: one refused operation is one failed test.
    return ServiceBusClient.from_connection_string(text, retry_total=0)


class Load:
    """Clients with the secondary key. Every error is kept."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._threads: list[threading.Thread] = []
        self.is_over = threading.Event()
        self.progress = threading.Condition()
        self.errors: list[str] = []
        self.sent: dict[str, list[str]] = {QUEUE: [], TOPIC: []}
        self.received: dict[str, list[str]] = {QUEUE: [], TOPIC: []}

    def start(self) -> None:
        for place in (QUEUE, TOPIC):
            for work in (self._send, self._receive):
                thread = threading.Thread(target=self._run, args=(work, place), daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(STEP_SECONDS_MAX)
            assert not thread.is_alive()

    def wait_for_more(self) -> None:
        """Until every client has done something since now."""
        before = self._counts()
        with self.progress:
            moved = self.progress.wait_for(
                lambda: self.errors or all(a > b for a, b in zip(self._counts(), before, strict=True)),
                STEP_SECONDS_MAX,
            )
        assert moved, f"no progress since {before}: {self._counts()}"

    def _counts(self) -> list[int]:
        return [len(lines) for told in (self.sent, self.received) for lines in told.values()]

    def _run(self, work: Any, place: str) -> None:
        try:
            with with_key(self._namespace, SECONDARY) as client:
                work(client, place)
        except Exception as error:  # noqa: BLE001  whatever it is, it is a failed operation
            self._note(self.errors, f"{work.__name__} {place}: {error!r}")

    def _note(self, lines: list[str], line: str) -> None:
        with self.progress:
            lines.append(line)
            self.progress.notify_all()

    def _send(self, client: ServiceBusClient, place: str) -> None:
        sender = client.get_queue_sender(place) if place == QUEUE else client.get_topic_sender(place)
        with sender:
            number = 0
            while not self.is_over.is_set():
                number += 1
                sender.send_messages(ServiceBusMessage(str(number)))
                self._note(self.sent[place], str(number))

    def _receive(self, client: ServiceBusClient, place: str) -> None:
        with receiver_at(client, place) as receiver:
            while not self.is_over.is_set():
                for message in receiver.receive_messages(10, max_wait_time=0.2):
                    receiver.complete_message(message)
                    self._note(self.received[place], str(message))


def receiver_at(client: ServiceBusClient, place: str) -> Any:
    if place == QUEUE:
        return client.get_queue_receiver(place)
    return client.get_subscription_receiver(place, SUBSCRIPTION)


def replace_primary(admin: ServiceBusAdministrationClient, key: str) -> None:
    queue, topic = admin.get_queue(QUEUE), admin.get_topic(TOPIC)
    queue.authorization_rules = topic.authorization_rules = [rule(key)]
    admin.update_queue(queue)
    admin.update_topic(topic)


@contextmanager
def attached(namespace: Namespace, key: str) -> Iterator[tuple[Any, Any]]:
    """A sender and a receiver that have worked with this key."""
    with with_key(namespace, key) as client:
        sender, receiver = (
            client.get_queue_sender(QUEUE),
            client.get_subscription_receiver(TOPIC, SUBSCRIPTION),
        )
        with sender, receiver:
            receiver.peek_messages(1)
            yield sender, receiver


@pytest.mark.promise("M5")
@pytest.mark.timeout(400)
def test_other_key_works_on_while_a_key_is_replaced_under_load() -> None:
    make_haste()
    with Namespace("contoso", process=True) as namespace, namespace.administration_client() as admin:
        admin.create_queue(QUEUE, authorization_rules=[rule("a2V5LTA=")])
        admin.create_topic(TOPIC, authorization_rules=[rule("a2V5LTA=")])
        admin.create_subscription(TOPIC, SUBSCRIPTION)
        load = Load(namespace)
        load.start()
        old = "a2V5LTA="
        for number in range(1, ROTATIONS + 1):
            load.wait_for_more()
            new = f"a2V5LTE{number:03d}="
            with attached(namespace, old) as (sender, receiver):
                replace_primary(admin, new)
                # The replaced key fails at once, on links that are attached and on new ones.
                with pytest.raises(ServiceBusError):
                    sender.send_messages(ServiceBusMessage("refused"))
                with pytest.raises(ServiceBusError):
                    receiver.peek_messages(1)
            with pytest.raises(ServiceBusError), with_key(namespace, old) as client:
                client.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("refused"))
            with with_key(namespace, new) as client, receiver_at(client, QUEUE) as fresh:
                fresh.peek_messages(1)
            old = new
            assert load.errors == []
        load.stop()

        assert load.errors == []
        for place in (QUEUE, TOPIC):
            with with_key(namespace, SECONDARY) as client, receiver_at(client, place) as receiver:
                rest: list[str] = []
                while page := receiver.peek_messages(1000):
                    rest += [str(message) for message in page]
            assert "refused" not in load.received[place] + rest
            # Nothing was delivered twice: no lock was lost. The client gives back what comes between two calls, so that
            # a neighbour may overtake it.
            assert sorted(load.received[place] + rest, key=int) == load.sent[place]
            assert len(load.sent[place]) >= ROTATIONS
