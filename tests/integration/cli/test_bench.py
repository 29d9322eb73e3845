"""The benchmarks against a real broker."""

from __future__ import annotations

import pytest

from bench.link import PipelinedLink
from pairbus.amqp.message.whole import encode_message
from pairbus.testing import Namespace

BODY = encode_message(body=b"x")


@pytest.mark.parametrize("in_flight", [1, 3, 50])
def test_a_pipelined_link_has_so_many_in_flight_and_no_more(in_flight: int) -> None:
    with (
        Namespace("contoso", queues=["q"]) as namespace,
        PipelinedLink(namespace.amqp_address, namespace.connection_string, "q") as link,
    ):
        send, unanswered = link._sender.send, []

        def counted(payload: bytes) -> int:
            unanswered.append(link._sender.session.next_delivery_id + 1 - len(link._sender.outcomes))
            return send(payload)

        link._sender.send = counted  # type: ignore[method-assign, assignment]
        seconds = link.send(BODY, 50, in_flight)
        with namespace.administration_client() as admin:
            assert admin.get_queue_runtime_properties("q").active_message_count == 50

    assert max(unanswered) == in_flight
    assert seconds > 0
