"""When a closed client may live again, and what of the life before may still touch the next one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pairbus import ClientClosedError, Health
from pairbus.pairing.client.lives import live_again
from pairbus.pairing.events import Kind
from pairbus.pairing.runtime.thread_runtime import ThreadRuntime, run
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import Bench, accept, silence, text

WAIT_SECONDS = 10.0


@pytest.mark.promise("P44")
async def test_a_life_knows_nothing_of_the_one_before_but_what_was_set(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    interval = client.ping_primary_interval * 2
    client.ping_primary_interval = interval
    former = client.get_queue_sender("orders")
    client.fail_over("orders")
    await former.send_messages(text(1))
    await client.close()
    first = client._state
    assert client.statistics().to_backlog == 1

    await live_again(client)

    assert (client.is_closed, client.is_paired) == (False, False)
    assert client.factory_name != first.name
    assert client.statistics().to_backlog == 0
    assert client.health() == {}
    assert client.ping_primary_interval == interval
    sender = bench.paired().get_queue_sender("orders")
    await sender.send_messages(text(2))
    assert client.health()["orders"].state is Health.HEALTHY
    with pytest.raises(ClientClosedError, match="get a new one"):
        await former.send_messages(text(3))
    await client.close()


@pytest.mark.promise("P44")
async def test_a_live_client_goes_on_and_a_close_in_progress_is_waited_for(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    state = client._state
    await live_again(client)
    assert client._state is state

    bench.primary.closing_s = 3.0
    await client.get_queue_sender("orders").send_messages(text(1))
    closings = [asyncio.ensure_future(client.close()) for _ in range(3)]
    await asyncio.sleep(0.5)
    await asyncio.gather(*[live_again(client) for _ in range(3)], *closings)

    assert not client.is_closed, "none of the callers has closed the next life"
    assert client._state is not state
    assert [event.kind for event in client.events()].count(Kind.CLOSED) == 0
    await client.close()


@pytest.mark.promise("P44")
async def test_a_send_of_the_life_before_is_not_detoured_in_the_next_one(loop: VirtualLoop) -> None:
    bench = Bench()
    client = bench.paired()
    bench.primary.answer = silence
    sending = asyncio.ensure_future(client.get_queue_sender("orders").send_messages(text(1)))
    await asyncio.sleep(0.1)
    await client.close()
    await live_again(client)
    bench.paired()
    bench.primary.answer = accept

    with pytest.raises(ClientClosedError):
        await sending
    assert bench.parked() == 0
    await client.close()


@pytest.mark.promise("P30")
async def test_no_life_begins_while_somebody_still_pairs_the_one_before(loop: VirtualLoop) -> None:
    asked = asyncio.Event()

    async def usable_queues(**_: object) -> list[str]:
        await asked.wait()
        return []

    client = Bench().client
    client._setup.usable_queues = usable_queues  # type: ignore[method-assign]
    pairing = asyncio.ensure_future(client.pair())
    await asyncio.sleep(1)
    await client.close()
    with pytest.raises(ClientClosedError, match="has not ended"):
        await live_again(client)
    asked.set()
    with pytest.raises(ClientClosedError):
        await pairing

    await live_again(client)
    assert not client.is_paired
    await client.close()


@pytest.mark.promise("P44")
async def test_a_life_that_a_callback_is_part_of_is_not_followed_by_another(loop: VirtualLoop) -> None:
    client = Bench().paired()
    await client.close()
    with client._state.events.calling_back(), pytest.raises(ClientClosedError, match="has not ended"):
        await live_again(client)
    await live_again(client)
    await client.close()


@pytest.mark.promise("P44")
async def test_a_sender_that_is_made_while_the_client_is_closed_belongs_to_no_life(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    client = bench.paired()
    made = type(client)._sender_class

    def closed_meanwhile(*given: Any, **options: Any) -> Any:
        sender = made(*given, **options)
        client._is_closed = client._is_ended = client._has_closed = True
        return sender

    monkeypatch.setattr(type(client), "_sender_class", staticmethod(closed_meanwhile))
    sender = client.get_queue_sender("orders")
    await live_again(client)

    with pytest.raises(ClientClosedError, match="get a new one"):
        await sender.send_messages(text(1))
    await client.close()


def test_threads_that_were_given_up_are_waited_for_and_never_by_themselves() -> None:
    subject = ThreadRuntime()
    gate = threading.Event()
    from_within: list[bool] = []

    async def late(_item: object) -> None:
        from_within.append(await subject.quiet(0))
        gate.wait(WAIT_SECONDS)

    assert run(subject.quiet(0))
    run(subject.together(late, [1], 0))
    subject.spawn(late, 2)
    assert not run(subject.quiet(0.01))
    gate.set()
    assert run(subject.quiet(WAIT_SECONDS))
    assert from_within == [False, False]
