"""One disposition over many deliveries: each is settled, or refused, as it would be alone."""

from __future__ import annotations

import pytest

from pairbus.amqp.states import ACCEPTED_CODE, REJECTED_CODE, STATE_ACCEPTED
from pairbus.amqp.transport.performatives import Disposition
from pairbus.gateway.outgoing import SESSION_FILTER
from pairbus.model.entity import Settings
from tests.simulation.wire import ClientReceiver
from tests.unit.gateway.wire_bench import WireBench, with_messages

MESSAGES = 6


def receiving(settings: Settings | None = None) -> tuple[WireBench, ClientReceiver]:
    bench, peer = with_messages(MESSAGES, settings)
    wants_session = settings is not None and settings.requires_session
    receiver = peer.session.receiver(
        "q", credit=MESSAGES, filter={SESSION_FILTER: "s"} if wants_session else None
    )
    bench.settle()
    assert [delivery.delivery_id for delivery in receiver.deliveries] == list(range(MESSAGES))
    return bench, receiver


def complete(bench: WireBench, receiver: ClientReceiver, first: int, last: int, *, settled: bool) -> None:
    frame = Disposition(True, first, last, settled)
    frame.state_bytes = STATE_ACCEPTED
    receiver.session.write(frame.encode())
    bench.settle()


def codes(receiver: ClientReceiver) -> list[int | None]:
    """The broker's answer to each delivery."""
    outcomes = [receiver.outcomes.get(number) for number in range(MESSAGES)]
    return [None if outcome is None else outcome.code for outcome in outcomes]


def left(bench: WireBench) -> list[int]:
    entity = bench.namespace.find("q")
    assert entity is not None
    return list(entity.main.messages)


@pytest.mark.promise("B5")
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("sessions", [False, True])
def test_a_range_completes_its_messages_and_no_other(settled: bool, sessions: bool) -> None:
    bench, receiver = receiving(Settings(requires_session=sessions))
    before = bench.broker.counters.completed

    complete(bench, receiver, 1, 3, settled=settled)

    assert left(bench) == [1, 5, 6]
    assert bench.broker.counters.completed - before == 3
    assert bench.broker.meter.tally("q", "settle").count == 3
    answers = [None] * MESSAGES if settled else [None, *[ACCEPTED_CODE] * 3, None, None]
    assert codes(receiver) == answers
    again = WireBench(bench.store.disk)
    assert left(again) == [1, 5, 6]


@pytest.mark.promise("B27")
def test_in_a_range_only_the_delivery_whose_lock_is_lost_is_refused() -> None:
    bench, receiver = receiving()
    entity = bench.namespace.find("q")
    assert entity is not None
    queue = entity.main
    lost = list(queue.locks.values())[2]
    queue.release(lost, bench.now)

    complete(bench, receiver, 0, 4, settled=False)

    assert left(bench) == [3, 6]
    assert codes(receiver) == [
        ACCEPTED_CODE,
        ACCEPTED_CODE,
        REJECTED_CODE,
        ACCEPTED_CODE,
        ACCEPTED_CODE,
        None,
    ]


@pytest.mark.promise("M3")
def test_a_range_settles_nothing_once_the_right_to_receive_has_ended() -> None:
    bench, receiver = receiving()
    bench.namespace.set_access_rules((), bench.now)
    for context in bench.peers[0].gateway.links.values():
        context.allowed_until = bench.now  # it is time to ask the rules again

    complete(bench, receiver, 0, 4, settled=False)

    assert left(bench) == list(range(1, MESSAGES + 1))
    assert not receiver.is_attached
