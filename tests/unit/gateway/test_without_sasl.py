"""AMQP without a SASL layer: the peer is anonymous and shows its rights by a token on ``$cbs``."""

from __future__ import annotations

import pytest

from pairbus.amqp.states import ACCEPTED_CODE
from tests.unit.gateway.wire_bench import WireBench, message, token


def test_a_token_opens_what_it_covers(bench: WireBench) -> None:
    bench.queue("q")
    peer = bench.peer(user=None, skips_sasl=True)

    assert peer.put_token(token("root", "root-1", "q"), "q") == 202
    sender = peer.session.sender("q")
    bench.settle()
    sent = sender.send(message("x"))
    bench.settle()

    assert sender.outcomes[sent].code == ACCEPTED_CODE


@pytest.mark.promise("M6")
def test_without_a_token_nothing_opens(bench: WireBench) -> None:
    bench.queue("q")
    peer = bench.peer(user=None, skips_sasl=True)

    sender = peer.session.sender("q")
    bench.settle()

    assert sender.detached
    assert sender.error is not None
    assert sender.error.condition == "amqp:unauthorized-access"
