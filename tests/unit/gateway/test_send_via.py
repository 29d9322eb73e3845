"""Send-via: a link's messages are taken at its own entity and transferred to the destination that the link names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.amqp.states import ACCEPTED_CODE, REJECTED_CODE, Outcome, encode_transactional
from pairbus.amqp.types import Described, Symbol
from pairbus.gateway.broker import Broker
from pairbus.gateway.telemetry.audit_rows import AuditRows
from pairbus.model.access import LISTEN, SEND
from pairbus.model.entity import DISABLED, SUBSCRIPTION, TOPIC, Settings
from pairbus.storage.memory import MemoryStore
from tests.simulation.wire import BATCH_FORMAT, ClientSender, declared_txn_id, encode_batch
from tests.unit.engine.engine_kit import TRUE_RULE
from tests.unit.gateway.wire_bench import Peer, WireBench, message, rule, token

DESTINATION = Symbol("com.microsoft:transfer-destination-address")
TRANSFER_DEAD_LETTER = "via/$Transfer/$DeadLetterQueue"


def _bench(via: Settings | None = None, destination: Settings | None = None) -> WireBench:
    bench = WireBench()
    bench.queue("via", via)
    bench.queue("destination", destination)
    return bench


def _sender(
    bench: WireBench, peer: Peer, destination: object = "destination", via: str = "via"
) -> ClientSender:
    sender = peer.session.sender(via, properties={DESTINATION: destination})
    bench.settle()
    return sender


def _send(
    bench: WireBench, sender: ClientSender, payload: bytes, state: bytes = b"", message_format: int = 0
) -> Outcome:
    sent = sender.send(payload, state=state, message_format=message_format)
    bench.settle()
    return sender.outcomes[sent]


def _bodies(bench: WireBench, peer: Peer, path: str) -> list[object]:
    receiver = peer.session.receiver(path, credit=100, receive_and_delete=True)
    bench.settle()
    receiver.detach()
    return [delivery.message.body for delivery in receiver.deliveries]


@pytest.mark.parametrize(
    "name", ["destination", "/Destination", "amqps://localhost/destination", b"destination"]
)
def test_the_message_ends_in_the_destination_and_nowhere_else(name: object) -> None:
    bench = _bench()
    peer = bench.peer()
    sender = _sender(bench, peer, name)

    assert _send(bench, sender, message("x")).code == ACCEPTED_CODE

    assert _bodies(bench, peer, "via") == []
    assert _bodies(bench, peer, "destination") == ["x"]


def test_the_number_at_the_via_entity_is_the_enqueue_sequence_number() -> None:
    bench = _bench()
    peer = bench.peer()
    plain = peer.session.sender("via")
    bench.settle()
    _send(bench, plain, message("stays"))
    _send(bench, _sender(bench, peer), message("goes"))

    receiver = peer.session.receiver("destination", credit=1)
    bench.settle()

    assert receiver.deliveries[0].annotation("x-opt-enqueue-sequence-number") == 2
    assert receiver.deliveries[0].annotation("x-opt-sequence-number") == 1
    _send(bench, plain, message("stays too"))
    assert bench.namespace.find("via").numbers.next_sequence_number == 4  # type: ignore[union-attr]


def test_a_topic_may_be_the_destination_and_may_be_passed_through() -> None:
    bench = _bench()
    bench.namespace.create(TOPIC, "t", Settings(), bench.now)
    bench.namespace.create(SUBSCRIPTION, "t/Subscriptions/s", Settings(rules=(TRUE_RULE,)), bench.now)
    peer = bench.peer()
    _send(bench, _sender(bench, peer, "t"), message("to a topic"))
    through = _sender(bench, peer, "destination", via="t")
    _send(bench, through, message("through a topic"))

    assert _bodies(bench, peer, "t/Subscriptions/s") == ["to a topic"]
    assert _bodies(bench, peer, "destination") == ["through a topic"]

    bench.namespace.delete(bench.namespace.find("destination"), bench.now)  # type: ignore[arg-type]
    _send(bench, through, message("nowhere to go"))
    assert _bodies(bench, peer, "t/$Transfer/$DeadLetterQueue") == ["nowhere to go"]


def test_a_via_entity_with_sessions_asks_for_none() -> None:
    bench = _bench(via=Settings(requires_session=True))
    peer = bench.peer()

    assert _send(bench, _sender(bench, peer), message("x")).code == ACCEPTED_CODE

    assert _bodies(bench, peer, "destination") == ["x"]


def test_a_batch_and_duplicates_are_the_destinations_business() -> None:
    bench = _bench(destination=Settings(requires_duplicate_detection=True))
    peer = bench.peer()
    sender = _sender(bench, peer)
    batch = encode_batch(
        [message("a", message_id="1"), message("b", message_id="1"), message("c", message_id="2")]
    )

    assert _send(bench, sender, batch, message_format=BATCH_FORMAT).code == ACCEPTED_CODE
    assert _bodies(bench, peer, "destination") == ["a", "c"]


def test_what_the_destination_refuses_lies_in_the_transfer_dead_letter_queue() -> None:
    bench = _bench(destination=Settings(requires_session=True))
    peer = bench.peer()
    sender = _sender(bench, peer)

    assert _send(bench, sender, message("no session")).code == ACCEPTED_CODE
    entity = bench.namespace.find("destination")
    assert entity is not None
    bench.namespace.update(entity, replace(entity.settings, status=DISABLED), bench.now)
    assert _send(bench, sender, message("disabled")).code == ACCEPTED_CODE
    bench.namespace.delete(entity, bench.now)
    assert _send(bench, sender, message("deleted")).code == ACCEPTED_CODE

    receiver = peer.session.receiver(TRANSFER_DEAD_LETTER, credit=10, receive_and_delete=True)
    bench.settle()
    found = [
        (d.message.body, d.message.application_properties["DeadLetterReason"]) for d in receiver.deliveries
    ]
    assert found == [
        ("no session", "NotAllowed"),
        ("disabled", "EntityDisabled"),
        ("deleted", "EntityNotFound"),
    ]
    assert receiver.deliveries[0].annotation("x-opt-deadletter-source") == "via"
    assert _bodies(bench, peer, "via") == []


def test_a_via_entity_that_takes_nothing_refuses() -> None:
    bench = _bench()
    peer = bench.peer()
    sender = _sender(bench, peer)
    entity = bench.namespace.find("via")
    assert entity is not None
    bench.namespace.update(entity, replace(entity.settings, status=DISABLED), bench.now)

    assert _send(bench, sender, message("x")).code == REJECTED_CODE
    assert _bodies(bench, peer, "destination") == []


def _declared(bench: WireBench, peer: Peer) -> tuple[ClientSender, bytes]:
    coordinator = peer.session.sender(None, coordinator=True)
    bench.settle()
    return coordinator, declared_txn_id(_send(bench, coordinator, message(Described(0x31, [None]))))


@pytest.mark.promise("B14")
@pytest.mark.parametrize("fails", [False, True])
def test_in_a_transaction_it_is_transferred_at_the_commit_or_not_at_all(fails: bool) -> None:
    bench = _bench()
    peer = bench.peer()
    sender = _sender(bench, peer)
    coordinator, txn_id = _declared(bench, peer)

    _send(bench, sender, message("x"), state=encode_transactional(txn_id, None))
    assert _bodies(bench, peer, "destination") == []
    _send(bench, coordinator, message(Described(0x32, [txn_id, fails])))

    assert _bodies(bench, peer, "via") == []
    assert _bodies(bench, peer, "destination") == ([] if fails else ["x"])


@pytest.mark.promise("M3")
@pytest.mark.parametrize("covered", ["via", "destination"])
def test_send_is_needed_on_both(covered: str) -> None:
    bench = _bench()
    peer = bench.peer(user=None)
    assert peer.put_token(token("sender", "sender-1", covered), covered) == 202

    sender = _sender(bench, peer)

    assert sender.detached
    assert sender.error is not None
    assert sender.error.condition == "amqp:unauthorized-access"
    assert "Send" in sender.error.description


@pytest.mark.promise("M5")
def test_the_link_ends_when_the_right_on_the_destination_goes() -> None:
    bench = _bench()
    via, destination = bench.namespace.find("via"), bench.namespace.find("destination")
    assert via is not None
    assert destination is not None
    for entity in (via, destination):
        own = replace(entity.settings, access_rules=(rule("own", SEND),))
        bench.namespace.update(entity, own, bench.now)
    peer = bench.peer(user=None)
    for path in ("via", "destination"):
        assert peer.put_token(token("own", "own-1", path), path) == 202
    sender = _sender(bench, peer)
    assert _send(bench, sender, message("x")).code == ACCEPTED_CODE

    bench.namespace.update(
        destination, replace(destination.settings, access_rules=(rule("own", LISTEN),)), bench.now
    )
    bench.settle()

    assert sender.detached


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("missing", "amqp:not-found"),
        ("destination/$DeadLetterQueue", "amqp:not-allowed"),
        (7, "com.microsoft:argument-error"),
    ],
)
def test_a_destination_that_cannot_be_is_refused_at_the_attach(name: object, condition: str) -> None:
    bench = _bench()
    sender = _sender(bench, bench.peer(), name)

    assert sender.detached
    assert sender.error is not None
    assert sender.error.condition == condition


def test_a_management_node_with_a_destination_is_refused() -> None:
    bench = _bench()
    sender = _sender(bench, bench.peer(), via="via/$management")

    assert sender.detached
    assert sender.error is not None
    assert sender.error.condition == "amqp:not-implemented"


@pytest.mark.promise("B1")
def test_the_transfer_survives_a_restart() -> None:
    bench = _bench()
    peer = bench.peer()
    sender = _sender(bench, peer)
    _send(bench, sender, message("x"))
    bench.namespace.delete(bench.namespace.find("destination"), bench.now)  # type: ignore[arg-type]
    _send(bench, sender, message("set aside"))
    bench.queue("destination")
    _send(bench, sender, message("y"))

    again = MemoryStore(bench.store.disk)
    broker = Broker("contoso", again, bytes(16))
    for record in again.replay():
        broker.namespace.fold(record)
    broker.namespace.replayed()

    entity = broker.namespace.find("via")
    assert entity is not None
    assert entity.numbers.next_sequence_number == 4, "numbers at the via entity are not given twice"
    assert list(entity.transfer_dead_letter.messages) == [2]
    assert not entity.main.messages


def test_the_trail_tells_of_the_transfer() -> None:
    bench = _bench()
    audit_rows = AuditRows()
    bench.broker.serve(audit_rows)
    peer = bench.peer()
    _send(bench, _sender(bench, peer), message("x"))

    assert [(row.kind, row.path, row.detail) for row in audit_rows.take()] == [
        ("forwarded", "via", "destination"),
        ("sent", "via", ""),
    ]
