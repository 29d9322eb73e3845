"""What one client can make the broker hold in memory is bounded."""

from __future__ import annotations

import pytest

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import STATE_ACCEPTED, encode_transactional
from pairbus.amqp.types import Array, Described, Long, ULong
from pairbus.model.entity import Settings
from tests.unit.gateway.wire_bench import WireBench, message

MEBIBYTE = 1_048_576


@pytest.mark.promise("B62")
def test_requests_in_one_burst_cannot_make_answers_without_bound(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer()
    sender = peer.session.sender("q")
    node = peer.session.request_link("q/$management")
    bench.settle()
    for _ in range(10):
        sender.send(message(bytes(200_000)))
    bench.settle()
    body = {"from-sequence-number": Long(0), "message-count": 250}
    for _ in range(100):
        node.request({"operation": "com.microsoft:peek-message"}, body)

    peer.gateway.receive(peer.client.take_output(), bench.now)

    assert peer.gateway.amqp.output_size < 24 * MEBIBYTE
    bench.settle()
    statuses = [answer.application_properties["statusCode"] for answer in node.responses.values()]
    assert len(statuses) == 100
    assert statuses[0] == 200
    assert set(statuses) == {200, 503}


@pytest.mark.promise("B62")
def test_transactions_hold_no_more_than_their_share_of_memory(bench: WireBench) -> None:
    bench.queue()
    peer = bench.peer()
    controller = peer.session.sender(None, coordinator=True)
    sender = peer.session.sender("q")
    bench.settle()
    refused = 0
    for _ in range(6):
        declared = controller.send(encode_message(body=Described(ULong(0x31), [None])))
        bench.settle()
        txn_id = controller.outcomes[declared].txn_id
        assert txn_id is not None
        for _ in range(100):
            sent = sender.send(message(bytes(250_000)), state=encode_transactional(txn_id, STATE_ACCEPTED))
            bench.settle()
            refused += sender.outcomes[sent].error is not None
    assert refused > 0


@pytest.mark.promise("B62")
def test_deferred_messages_of_one_request_are_bounded(bench: WireBench) -> None:
    bench.queue(settings=Settings(max_message_kb=20_480))
    peer = bench.peer()
    sender = peer.session.sender("q")
    receiver = peer.session.receiver("q", credit=5)
    bench.settle()
    for _ in range(5):
        sender.send(message(bytes(15 * MEBIBYTE)))
        bench.settle()
    for delivery in receiver.deliveries:
        receiver.defer(delivery)
    bench.settle()
    numbers = Array([Long(number) for number in range(1, 6)])

    body = {"sequence-numbers": numbers, "receiver-settle-mode": 0}
    assert peer.refusal("q", "receive-by-sequence-number", body)[0] == 400
    one = {"sequence-numbers": Array([Long(1)]), "receiver-settle-mode": 0}
    assert len(peer.answer("q", "receive-by-sequence-number", one)["messages"]) == 1  # type: ignore[arg-type]
