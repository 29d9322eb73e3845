"""Time on a connection: heartbeats for peers that ask for them, tokens that end."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote

import pytest

from pairbus.gateway.broker import Broker
from pairbus.gateway.connection import NO_LINK_MS
from pairbus.model.access import RIGHTS, ROOT_RULE, AccessRule
from pairbus.model.entity import QUEUE, Settings
from pairbus.storage.memory import MemoryStore
from tests.simulation.wire import ClientConnection

START = 1_700_000_000_000
KEY = "a-key-for-this-test"


class Bench:
    """A broker and one client over a wire without delay."""

    def __init__(self, idle_timeout_ms: int = 0, user: str | None = ROOT_RULE) -> None:
        store = MemoryStore()
        list(store.replay())
        self.broker = Broker("contoso", store, bytes(range(16)))
        rule = AccessRule(name=ROOT_RULE, rights=RIGHTS, primary_key=KEY, secondary_key="another")
        self.broker.namespace.set_access_rules((rule,), START)
        self.broker.namespace.create(QUEUE, "orders", Settings(), START)
        self.server = self.broker.connect("127.0.0.1:1", secure=False, loopback=True, now=START)
        self.client = ClientConnection(user=user, password=KEY, idle_timeout_ms=idle_timeout_ms)

    def exchange(self, now: int) -> int:
        """Pass bytes both ways until nobody has more to say; how many the server said."""
        said = 0
        for _ in range(20):
            heard = self.client.take_output()
            if heard:
                self.server.receive(heard, now)
            self.broker.pump(now)
            answer = b"".join(self.server.take_output())
            said += len(answer)
            if not heard and not answer:
                return said
            self.client.receive(answer)
        raise AssertionError("the two never fell silent")

    def pass_time(self, now: int) -> int:
        """Tick as the server's loop would; how many bytes were said."""
        deadline = self.broker.next_deadline()
        while deadline is not None and deadline <= now:
            self.broker.tick(deadline)
            deadline = self.broker.next_deadline()
        return self.exchange(now)


def token(path: str, seconds: int) -> str:
    resource = quote(f"sb://contoso/{path}", safe="")
    signed = f"{resource}\n{seconds}".encode()
    signature = base64.b64encode(hmac.new(KEY.encode(), signed, hashlib.sha256).digest())
    return f"SharedAccessSignature sr={resource}&sig={quote(signature)}&se={seconds}&skn={ROOT_RULE}"


@pytest.mark.promise("B64")
def test_peer_that_asked_for_an_idle_timeout_hears_something_in_time() -> None:
    bench = Bench(idle_timeout_ms=60_000)
    bench.client.session().sender("orders")
    bench.exchange(START)

    said = bench.pass_time(START + 30_000)

    assert said > 0


@pytest.mark.promise("B64")
def test_silent_peer_is_closed_and_a_talking_one_is_not() -> None:
    silent, talking = Bench(), Bench()
    for bench in (silent, talking):
        bench.client.session().sender("orders")
        bench.exchange(START)

    for minute in range(1, 6):
        talking.client.heartbeat()
        talking.exchange(START + minute * 60_000)
        talking.pass_time(START + minute * 60_000)
        silent.pass_time(START + minute * 60_000)

    assert silent.client.closed
    assert not talking.client.closed


def test_connection_without_links_is_closed() -> None:
    bench = Bench(idle_timeout_ms=0)
    bench.client.session()
    bench.exchange(START)

    bench.client.heartbeat()
    bench.exchange(START + NO_LINK_MS - 1)
    closed_before = bench.client.closed
    bench.pass_time(START + NO_LINK_MS)

    assert (closed_before, bench.client.closed) == (False, True)
    assert bench.client.error is not None
    assert bench.client.error.condition == "amqp:connection:forced"


@pytest.mark.promise("M3")
def test_receiver_that_says_nothing_loses_its_link_when_its_token_ends() -> None:
    bench = Bench(user=None)
    session = bench.client.session()
    tokens = session.request_link("$cbs")
    bench.exchange(START)
    tokens.request(
        {"operation": "put-token", "type": "jwt", "name": "sb://contoso/orders"},
        token("orders", START // 1000 + 60),
    )
    bench.exchange(START)
    receiver = session.receiver("orders")
    receiver.grant(10)
    bench.exchange(START)
    bench.pass_time(START + 59_999)
    attached_before = receiver.is_attached
    bench.pass_time(START + 60_000)

    assert (attached_before, receiver.is_attached) == (True, False)
    assert receiver.error is not None
    assert receiver.error.condition == "amqp:unauthorized-access"
