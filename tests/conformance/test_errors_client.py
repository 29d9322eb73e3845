"""Every refusal reaches the caller as the client's own exception class."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import AccessRights, AuthorizationRule

from tests.conformance.sdk import Bus, connection_part, sas_token, spec, take, texts
from tests.waiting import wait_until

KIB = 1024
WAIT_SECONDS = 45
"""How long an error is waited for, at the most: it ends the wait at once."""


def with_key(connection_string: str, rule: str, key: str) -> str:
    """The same namespace with another key."""
    kept = [
        part
        for part in connection_string.split(";")
        if part and not part.startswith(("SharedAccessKeyName=", "SharedAccessKey="))
    ]
    return ";".join([*kept, f"SharedAccessKeyName={rule}", f"SharedAccessKey={key}"])


# --- entities ---------------------------------------------------------------------------------------


@spec("an unknown queue fails the token, so: authentication error")
def test_unknown_queue_is_an_authentication_error(bus: Bus) -> None:
    with pytest.raises(ServiceBusAuthenticationError):
        bus.send("no-such-queue", ServiceBusMessage("x"))
    with pytest.raises(ServiceBusAuthenticationError), bus.receiver("no-such-queue") as receiver:
        receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)


@spec("a queue deleted under its links: detach with amqp:not-found")
def test_deleted_queue_is_not_found(bus: Bus, queue: str, namespace: Any) -> None:
    with bus.client(retry_total=1).get_queue_sender(queue) as sender, bus.receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("x"))
        with namespace.administration_client() as admin:
            admin.delete_queue(queue)

        with pytest.raises(MessagingEntityNotFoundError):
            receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)
        # A sender of this client does not look at the reason of a detach; its second attempt fails at the token.
        with pytest.raises(ServiceBusAuthenticationError):
            sender.send_messages(ServiceBusMessage("y"))


def set_status(namespace: Any, queue: str, status: str) -> None:
    with namespace.administration_client() as admin:
        properties = admin.get_queue(queue)
        properties.status = status
        admin.update_queue(properties)


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
@spec("entity-disabled for sends")
def test_sending_to_a_disabled_queue(bus: Bus, queue: str, namespace: Any, status: str) -> None:
    set_status(namespace, queue, status)

    with pytest.raises(MessagingEntityDisabledError):
        bus.send(queue, ServiceBusMessage("x"))

    set_status(namespace, queue, "Active")
    bus.send(queue, ServiceBusMessage("y"))
    assert texts(bus.take(queue, 1)) == ["y"]


@pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled"])
@spec("entity-disabled for receives")
def test_receiving_from_a_disabled_queue(bus: Bus, queue: str, namespace: Any, status: str) -> None:
    bus.send(queue, ServiceBusMessage("x"))
    set_status(namespace, queue, status)

    with pytest.raises(MessagingEntityDisabledError), bus.receiver(queue) as receiver:
        receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)

    set_status(namespace, queue, "Active")
    assert texts(bus.take(queue, 1)) == ["x"]


@spec("a dead-letter queue takes no sends")
def test_sending_to_a_dead_letter_queue_is_refused(bus: Bus, queue: str) -> None:
    with pytest.raises(ServiceBusError):
        bus.send(f"{queue}/$DeadLetterQueue", ServiceBusMessage("x"))


# --- sizes and quotas -------------------------------------------------------------------------------


@spec("size limits as for send")
def test_scheduling_a_message_that_is_too_large(bus: Bus, queue: str) -> None:
    due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)

    with bus.sender(queue) as sender, pytest.raises(MessageSizeExceededError):
        sender.schedule_messages(ServiceBusMessage(b"x" * 257 * KIB), due)

    assert bus.peek(queue) == []


@spec("entity full: resource-limit-exceeded, and space returns")
def test_full_queue_is_a_quota_error(bus: Bus, queue: str, faults: Any) -> None:
    faults.fill(queue)
    with bus.sender(queue) as sender:
        with pytest.raises(ServiceBusQuotaExceededError):
            sender.send_messages(ServiceBusMessage("x"))
        faults.clear()
        sender.send_messages(ServiceBusMessage("y"))

    assert texts(bus.take(queue, 1)) == ["y"]


# --- rights -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(namespace: Any) -> tuple[str, dict[str, str]]:
    """A queue with a key for each right alone; gives its name and a connection string for each."""
    name = f"guarded-{uuid.uuid4().hex[:8]}"
    primary = "cHJpbWFyeS1rZXktb2YtdGhlLXJ1bGUtMDEyMzQ1Njc="
    secondary = "c2Vjb25kYXJ5LWtleS1vZi10aGUtcnVsZS0wMTIzNDU="
    rules = [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=[right],
            key_name=rule,
            primary_key=primary,
            secondary_key=secondary,
            created_at_utc=dt.datetime.now(dt.UTC),
            modified_at_utc=dt.datetime.now(dt.UTC),
        )
        for rule, right in (("listen", AccessRights.LISTEN), ("send", AccessRights.SEND))
    ]
    with namespace.administration_client() as admin:
        admin.create_queue(name, authorization_rules=rules)
    text = namespace.connection_string
    return name, {
        "listen": with_key(text, "listen", primary),
        "send": with_key(text, "send", primary),
        "second": with_key(text, "send", secondary),
    }


@spec("a listen-only key that sends: authorization error")
def test_sending_with_a_listen_key(bus: Bus, guarded: tuple[str, dict[str, str]]) -> None:
    name, strings = guarded
    client = bus.client(strings["listen"])

    with pytest.raises(ServiceBusAuthorizationError), client.get_queue_sender(name) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    with client.get_queue_receiver(name) as receiver:
        assert receiver.peek_messages(1) == []


@spec("a send-only key that receives: authorization error")
def test_receiving_with_a_send_key(bus: Bus, guarded: tuple[str, dict[str, str]]) -> None:
    name, strings = guarded
    client = bus.client(strings["send"])

    with pytest.raises(ServiceBusAuthorizationError), client.get_queue_receiver(name) as receiver:
        receiver.receive_messages(1, max_wait_time=WAIT_SECONDS)


@pytest.mark.promise("M5")
@spec("both keys of a rule work")
def test_secondary_key_works(bus: Bus, guarded: tuple[str, dict[str, str]]) -> None:
    name, strings = guarded

    with bus.client(strings["second"]).get_queue_sender(name) as sender:
        sender.send_messages(ServiceBusMessage("by the second key"))

    assert texts(bus.take(name, 1)) == ["by the second key"]


@pytest.mark.promise("M2")
@spec("a key of one queue does not open another")
def test_key_of_another_queue(bus: Bus, queue: str, guarded: tuple[str, dict[str, str]]) -> None:
    client = bus.client(guarded[1]["send"])

    with (
        pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)),
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))

    assert bus.peek(queue) == []


@pytest.mark.promise("M1")
@pytest.mark.parametrize("missing", [False, True], ids=["existing queue", "missing queue"])
@pytest.mark.parametrize("rule", ["RootManageSharedAccessKey", "no-such-rule"])
@spec("wrong key or rule: 401, before the question whether the queue exists")
def test_wrong_key_is_an_authentication_error(
    bus: Bus, queue: str, rule: str, missing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "azure.servicebus")
    client = bus.client(with_key(bus.endpoint.connection_string, rule, "d3Jvbmcta2V5"))

    with (
        pytest.raises(ServiceBusAuthenticationError),
        client.get_queue_sender("missing" if missing else queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))

    # The client keeps the status to itself and its log.
    assert "Status code: 401" in caplog.text


def with_signature(connection_string: str, token: str) -> str:
    kept = [
        part
        for part in connection_string.split(";")
        if part and not part.startswith(("SharedAccessKeyName=", "SharedAccessKey="))
    ]
    return ";".join([*kept, f"SharedAccessSignature={token}"])


@spec("a connection string with a ready signature")
def test_shared_access_signature_in_the_connection_string(bus: Bus, queue: str) -> None:
    text = bus.endpoint.connection_string
    host = connection_part(text, "Endpoint").removeprefix("sb://").rstrip("/")
    client = bus.client(with_signature(text, sas_token(text, f"sb://{host}/{queue}", 600)))

    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("signed"))

    assert texts(bus.take(queue, 1)) == ["signed"]


@pytest.mark.promise("M1", "M2")
@pytest.mark.parametrize("case", ["expired", "other queue", "prefix of the name"])
@spec("expired or for another path: refused")
def test_signature_that_does_not_cover(bus: Bus, queue: str, case: str) -> None:
    text = bus.endpoint.connection_string
    host = connection_part(text, "Endpoint").removeprefix("sb://").rstrip("/")
    path = {"expired": queue, "other queue": "other", "prefix of the name": queue[:-1]}[case]
    token = sas_token(text, f"sb://{host}/{path}", -30 if case == "expired" else 600)
    client = bus.client(with_signature(text, token))

    with (
        pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)),
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))

    assert bus.peek(queue) == []


@spec("EntityPath in the connection string")
def test_entity_path_in_the_connection_string(bus: Bus, queue: str) -> None:
    client = bus.client(f"{bus.endpoint.connection_string.rstrip(';')};EntityPath={queue}")

    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))

    assert texts(bus.take(queue, 1)) == ["x"]


# --- failures ---------------------------------------------------------------------------------------


@spec("throttled: server-busy")
def test_throttled_send_is_server_busy(bus: Bus, queue: str, faults: Any) -> None:
    faults.throttle(queue)
    with bus.sender(queue) as sender:
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("x"))
        faults.clear()
        sender.send_messages(ServiceBusMessage("y"))

    assert texts(bus.take(queue, 1)) == ["y"]


@spec("the client's own retry gets through once the fault has passed")
def test_retry_of_the_client_gets_through(bus: Bus, queue: str, faults: Any) -> None:
    faults.refuse(queue, count=1)

    with bus.client(retry_total=3).get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))

    assert texts(bus.take(queue, 1)) == ["x"]


@spec("refused: internal-error")
def test_refused_send_is_an_error(bus: Bus, queue: str, faults: Any) -> None:
    faults.refuse(queue, count=1)

    with pytest.raises(ServiceBusError, match="amqp:internal-error"):
        bus.send(queue, ServiceBusMessage("x"))

    assert bus.peek(queue) == []


@spec("a lost lock on the link: MessageLockLostError; the message is not gone")
def test_lost_lock_is_told_on_settlement(bus: Bus, queue: str, faults: Any) -> None:
    bus.send(queue, ServiceBusMessage("x"))
    with bus.receiver(queue) as receiver:
        message = take(receiver, 1)[0]
        faults.lose_locks(queue)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        faults.clear()

    assert wait_until(lambda: texts(bus.peek(queue)) == ["x"])


@spec("no answer to a send: the client's own timeout")
def test_missing_acknowledgement_is_a_timeout(bus: Bus, queue: str, faults: Any) -> None:
    with bus.sender(queue) as sender:
        sender.create_message_batch()
        faults.drop_acknowledgements(queue, count=1)
        with pytest.raises(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("stored, not told"), timeout=1.5)
        faults.clear()

    assert texts(bus.take(queue, 1)) == ["stored, not told"]


@spec("a link that is force detached: ServiceBusConnectionError without retries, unnoticed with")
def test_cut_link_is_retried(bus: Bus, queue: str, faults: Any) -> None:
    with bus.client(retry_total=3).get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        faults.cut(queue, count=1)
        sender.send_messages(ServiceBusMessage("after"))

    assert texts(bus.peek(queue))[0] == "before"
    assert "after" in texts(bus.peek(queue))


@spec("a link that is force detached: ServiceBusConnectionError without retries")
def test_cut_link_without_retry(bus: Bus, queue: str, faults: Any) -> None:
    with bus.sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        faults.cut(queue, seconds=300)  # until the end of the test
        with pytest.raises((ServiceBusConnectionError, OperationTimeoutError)):
            sender.send_messages(ServiceBusMessage("during"), timeout=10)


@spec("a closed handler cannot be used", source="azure-servicebus _check_live")
def test_closed_sender_cannot_send(bus: Bus, queue: str) -> None:
    sender = bus.sender(queue)
    with sender:
        pass

    with pytest.raises(ValueError, match="shutdown"):
        sender.send_messages(ServiceBusMessage("x"))


@spec("a partition key that differs from the session id is refused")
def test_partition_key_must_equal_the_session_id(bus: Bus, make_queue: Callable[..., str]) -> None:
    # The client itself refuses the pair when it builds the message; raw annotations get past it.
    from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

    queue = make_queue(requires_session=True)
    message = AmqpAnnotatedMessage(
        data_body=b"x",
        properties=AmqpMessageProperties(group_id="a"),
        annotations={"x-opt-partition-key": "b"},
    )
    with pytest.raises(ServiceBusError):
        bus.send(queue, message)

    assert bus.peek(queue, session_id="a") == []
