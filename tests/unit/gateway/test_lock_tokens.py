"""Lock tokens as clients see them: not to be guessed, and void in the next life of the broker (B27)."""

from __future__ import annotations

import pytest

from pairbus.amqp.types import Array, Uuid
from tests.simulation.wire import Delivery
from tests.unit.gateway.wire_bench import Peer, WireBench, message

LOST = (410, "com.microsoft:message-lock-lost")


def received(bench: WireBench, peer: Peer, count: int) -> list[Delivery]:
    receiver = peer.session.receiver("q", credit=count)
    bench.settle()
    assert len(receiver.deliveries) == count
    return receiver.deliveries


def token_of(delivery: Delivery) -> bytes:
    found = delivery.message.delivery_annotations["x-opt-lock-token"]
    assert isinstance(found, Uuid)
    return found.bytes


def send(bench: WireBench, peer: Peer, count: int) -> None:
    sender = peer.session.sender("q")
    bench.settle()
    for number in range(count):
        sender.send(message(f"m{number}"))
    bench.settle()


def completed(token: bytes) -> dict[str, object]:
    return {"disposition-status": "completed", "lock-tokens": Array([Uuid(token)])}


@pytest.mark.promise("B27")
def test_nobody_settles_with_a_token_calculated_from_his_own(bench: WireBench) -> None:
    bench.queue("q")
    mine, theirs = bench.peer(), bench.peer()
    send(bench, mine, 6)
    own = [token_of(delivery) for delivery in received(bench, mine, 3)]
    (other,) = received(bench, theirs, 1)
    guesses = [
        int.from_bytes(token, "big") + step for token in own for step in (-3, -2, -1, 1, 2, 3, 1 << 64)
    ]

    for guess in guesses:
        assert mine.refusal("q", "update-disposition", completed(guess.to_bytes(16, "big"))) == LOST
    theirs.answer("q", "update-disposition", completed(token_of(other)))


def test_the_delivery_tag_is_the_token_in_the_order_of_a_guid(bench: WireBench) -> None:
    bench.queue("q")
    peer = bench.peer()
    send(bench, peer, 2)
    for delivery in received(bench, peer, 2):
        token, tag = token_of(delivery), delivery.tag
        assert tag == token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]


@pytest.mark.promise("B27")
@pytest.mark.parametrize("operation", ["update-disposition", "renew-lock"])
def test_a_token_of_an_earlier_life_is_void(operation: str, bench: WireBench) -> None:
    bench.queue("q")
    peer = bench.peer()
    send(bench, peer, 3)
    old = [token_of(delivery) for delivery in received(bench, peer, 3)]

    again = WireBench(bench.store.disk, secret=bytes(range(16, 32)))
    other = again.peer()
    new = [token_of(delivery) for delivery in received(again, other, 3)]
    assert not set(old) & set(new)
    entity = again.namespace.find("q")
    assert entity is not None
    for token in old:
        assert other.refusal("q", operation, completed(token)) == LOST
    # Nor does the first half of the old life open what the second half of the new one would.
    for token in new:
        assert other.refusal("q", operation, completed(old[0][:8] + token[8:])) == LOST
    assert entity.counts().active == 3
    for token in new:
        other.answer("q", operation, completed(token))
