"""The client without I/O plays against the server without I/O."""

from __future__ import annotations

import pytest

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.message.whole import decode_message, encode_message
from pairbus.amqp.states import ACCEPTED, ACCEPTED_CODE, MODIFIED_CODE, REJECTED_CODE, encode_declared
from pairbus.amqp.transport.link import Link
from pairbus.amqp.types import Described, Int
from pairbus.errors import LocalProtocolError
from pairbus.gateway.management.replies import settle_request
from tests.simulation.wire import BATCH_FORMAT, ClientConnection, declared_txn_id, encode_batch
from tests.unit.amqp.peers import Recorder, Wire

TOKEN = bytes(range(16))


def exchange(client: ClientConnection, wire: Wire) -> None:
    """Carry bytes both ways until nobody has anything to say."""
    while True:
        there = client.take_output()
        wire.connection.receive(there, wire.now)
        back = b"".join(wire.connection.take_output())
        client.receive(back)
        if not there and not back:
            return


def connected(**options: object) -> tuple[ClientConnection, Wire]:
    client, wire = ClientConnection(**options), Wire()  # type: ignore[arg-type]
    exchange(client, wire)
    return client, wire


def test_client_opens_anonymously_or_with_a_password() -> None:
    assert connected()[0].remote_open is not None
    assert connected(user="rule", password="secret")[0].remote_open is not None
    refused, _ = connected(user="rule", password="wrong")
    assert refused.is_refused
    assert refused.closed


def test_what_is_asked_for_before_the_handshake_is_said_after_it() -> None:
    client, wire = ClientConnection(), Wire()
    sender = client.session().sender("orders")

    exchange(client, wire)

    assert sender.is_attached
    assert sender.credit == 1000


def test_sends_are_answered() -> None:
    client, wire = connected()
    sender = client.session().sender("orders")
    exchange(client, wire)

    ids = [sender.send(encode_message(body=n)) for n in range(3)]
    sender.send(encode_message(body="x"), settled=True)
    batch = sender.send(encode_batch([b"a"]), message_format=BATCH_FORMAT)
    exchange(client, wire)

    assert [sender.outcomes[n].code for n in [*ids, batch]] == [ACCEPTED_CODE] * 4
    assert wire.handler.of("transfer")[-1][2] == BATCH_FORMAT


def test_large_messages_go_both_ways_in_frames() -> None:
    client, wire = connected(max_frame_size=512)
    session = client.session()
    receiver = session.receiver("orders", credit=5)
    sender = session.sender("orders")
    exchange(client, wire)

    sender.send(b"x" * 4000)
    wire.handler.links[receiver.name].send(TOKEN, [b"y" * 4000], False)
    exchange(client, wire)

    assert wire.handler.of("transfer")[0][4] == b"x" * 4000
    (delivery,) = receiver.deliveries
    assert (delivery.payload, delivery.tag) == (b"y" * 4000, TOKEN)


def test_settlements_are_answered_in_two_steps() -> None:
    client, wire = connected()
    receiver = client.session().receiver("orders", credit=10)
    exchange(client, wire)
    link = wire.handler.links[receiver.name]
    for _ in range(5):
        link.send(TOKEN, [encode_message(body="x", message_annotations={"k": 5})], False)
    exchange(client, wire)
    one, two, three, four, five = receiver.deliveries
    assert one.message.body == "x"
    assert one.annotation("k") == 5
    assert receiver.credit == 5

    receiver.complete(one)
    receiver.abandon(two)
    receiver.defer(three)
    receiver.dead_letter(four, "reason", "description")
    receiver.release(five)
    exchange(client, wire)

    outcomes = [receiver.outcomes[delivery.delivery_id] for delivery in (one, two, three, four)]
    codes = [ACCEPTED_CODE, MODIFIED_CODE, MODIFIED_CODE, REJECTED_CODE]
    assert [outcome.code for outcome in outcomes if outcome is not None] == codes
    assert [call[4] for call in wire.handler.of("settled")] == [False, False, False, False, True]


def test_drain_takes_the_credit_back() -> None:
    client, wire = connected()
    receiver = client.session().receiver("orders")
    receiver.grant(5, drain=True)
    exchange(client, wire)

    wire.handler.links[receiver.name].drained()
    exchange(client, wire)

    assert (receiver.credit, receiver.delivery_count) == (0, 5)


def test_refused_and_detached_links_know_why() -> None:
    client, wire = connected()
    wire.handler.answers_attach = False
    refused = client.session().sender("nowhere")
    exchange(client, wire)
    wire.handler.links[refused.name].refuse(AmqpError("amqp:not-found", "x"))
    exchange(client, wire)
    wire.handler.answers_attach = True
    attached = client.session().receiver("orders")
    exchange(client, wire)
    wire.handler.links[attached.name].detach(AmqpError("amqp:link:detach-forced", "y"))
    exchange(client, wire)

    assert not refused.is_attached
    assert refused.error == AmqpError("amqp:not-found", "x")
    assert not attached.is_attached
    assert attached.error == AmqpError("amqp:link:detach-forced", "y")
    assert wire.connection.link_count == 0


class Answering(Recorder):
    """A node that answers requests."""

    def transfer(self, link: Link, *arguments: object) -> None:
        delivery_id, _, _, payload, _ = arguments
        request = decode_message(payload)  # type: ignore[arg-type]
        settle_request(link, delivery_id)  # type: ignore[arg-type]
        reply = encode_message(
            correlation_id_raw=request.properties.message_id_raw,
            application_properties={"statusCode": Int(200)},
            body=request.body,
        )
        (out,) = (other for other in self.links.values() if other.role_is_sender)
        out.send(b"r", [reply], True)


def test_requests_find_their_answers() -> None:
    client, wire = ClientConnection(), Wire()
    wire.handler = Answering()
    wire.connection.handler = wire.handler
    node = client.session().request_link("orders/$management")
    exchange(client, wire)

    first = node.request({"operation": "peek"}, {"n": 1})
    second = node.request({"operation": "peek"}, {"n": 2}, message_id=TOKEN)
    exchange(client, wire)

    assert node.responses[first].body == {"n": 1}
    assert node.responses[second].application_properties == {"statusCode": 200}


def test_a_coordinator_declares() -> None:
    client, wire = connected()
    wire.handler.accepts_transfers = False
    controller = client.session().sender(None, coordinator=True)
    exchange(client, wire)
    delivery_id = controller.send(encode_message(body=Described(0x31, [None])))
    exchange(client, wire)

    wire.handler.sessions[0].settle_incoming_state(delivery_id, encode_declared(b"txn"))
    exchange(client, wire)

    assert declared_txn_id(controller.outcomes[delivery_id]) == b"txn"
    with pytest.raises(LocalProtocolError):
        declared_txn_id(ACCEPTED)


def test_sessions_end_and_connections_close_from_either_side() -> None:
    client, wire = connected()
    session = client.session()
    other = client.session()
    exchange(client, wire)
    session.end()
    wire.connection.sessions[other.channel].end(AmqpError("amqp:internal-error", "x"))
    exchange(client, wire)
    assert other.ended
    assert other.error == AmqpError("amqp:internal-error", "x")

    client.heartbeat()
    client.close()
    exchange(client, wire)

    assert client.closed
    assert wire.connection.is_closed
    pushed, server = connected()
    server.connection.close(AmqpError("amqp:connection:forced", "bye"))
    exchange(pushed, server)
    assert pushed.error == AmqpError("amqp:connection:forced", "bye")
    assert server.connection.is_closed
