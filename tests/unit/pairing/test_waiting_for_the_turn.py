"""Callers who share a sender of a slow primary wait for each other, and that is not the primary's fault: one suite for both runtimes.

The links and the SDK's senders are those that ship. The network below is false, and so is the time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.outcome import is_impatient
from pairbus.pairing.runtime.attempts import (
    Attempts,
    Failed,
    NotWanted,
    current_attempts,
    seconds_after_waiting,
)
from pairbus.pairing.runtime.thread_link import ThreadLink
from pairbus.pairing.runtime.thread_runtime import run
from pairbus.pairing.runtime.turns import Turn
from tests.simulation.false_network import false_network
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.test_silent_connections import (
    GUARD_SECONDS,
    TEXTS,
    AsyncioNetwork,
    FalseThreadClient,
    ThreadNetwork,
)
from tests.waiting import wait_until

ATTEMPT_SECONDS = 10.0
ANSWER_SECONDS = 6.0


class Noted(Attempts):
    """Attempts of the message ``body``, which is noted when it is sent."""

    def __init__(self, sent: list[str], body: str) -> None:
        self._sent, self._body = sent, body

    @property
    def is_sent(self) -> bool:
        return self._body in self._sent

    @is_sent.setter
    def is_sent(self, value: bool) -> None:
        if value and self._body not in self._sent:
            self._sent.append(self._body)


class Slow(Protocol):
    """A primary that takes ``ANSWER_SECONDS`` for each answer, and one link to it."""

    sent: list[str]
    """The bodies of the messages that were sent, in their order."""

    def send(self, *patience: float, meanwhile: Callable[[Any], None] | None = None) -> list[Failed | None]:
        """The results of sends that begin in this order, each with so many seconds for its turn and its answer.

        ``meanwhile``: happens to the link while the first one waits for its answer, and the others for their turn.
        """


class SlowThreads(ThreadNetwork):
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, TEXTS[1])
        self.sent: list[str] = []
        self._are_waiting = threading.Event()
        self._meanwhile: Callable[[Any], None] | None = None

    def answer(self, client: FalseThreadClient, seconds: float) -> None:
        self._begun.set()
        assert self._are_waiting.wait(GUARD_SECONDS)
        if self._meanwhile is not None:
            self._meanwhile(self.link)
            self._meanwhile = None
        self._offset += min(seconds, ANSWER_SECONDS)
        if seconds < ANSWER_SECONDS:
            raise TimeoutError

    def send(  # type: ignore[override]
        self, *patience: float, meanwhile: Callable[[Any], None] | None = None
    ) -> list[Failed | None]:
        results: list[Failed | None] = [None] * len(patience)
        self._meanwhile = meanwhile

        def call(place: int) -> None:
            attempts = Noted(self.sent, f"{place}")
            results[place] = self.link.try_to_send(
                ServiceBusMessage(f"{place}"), ATTEMPT_SECONDS, ATTEMPT_SECONDS + 1, attempts, patience[place]
            )

        threads = [threading.Thread(target=call, args=(place,)) for place in range(len(patience))]
        for place, thread in enumerate(threads):
            thread.start()
            if place == 0:
                assert self._begun.wait(GUARD_SECONDS)
            wait_until(lambda: len(self.turn.waiting) == place)  # noqa: B023 - called here only
        self._are_waiting.set()
        for thread in threads:
            thread.join(GUARD_SECONDS)
        return results


class SlowAsyncio(AsyncioNetwork):
    async def begin(self, primary: Any) -> None:
        await super().begin(primary)
        await self.link.open(ATTEMPT_SECONDS)
        primary.dice = SimpleNamespace(choice=min)
        primary.latency_s = ANSWER_SECONDS / 2
        self.sent: list[str] = []

    def send(  # type: ignore[override]
        self, *patience: float, meanwhile: Callable[[Any], None] | None = None
    ) -> list[Failed | None]:
        async def one(place: int) -> Failed | None:
            attempts = Noted(self.sent, f"{place}")
            current_attempts.set(attempts)
            return await self.link.try_to_send(
                ServiceBusMessage(f"{place}"), ATTEMPT_SECONDS, ATTEMPT_SECONDS + 1, attempts, patience[place]
            )

        async def work() -> list[Failed | None]:
            sends = [asyncio.ensure_future(one(place)) for place in range(len(patience))]
            await asyncio.sleep(1)
            if meanwhile is not None:
                meanwhile(self.link)
            return await asyncio.gather(*sends)

        return self._loop.run_until_complete(work())


@pytest.fixture(params=["threads", "asyncio"])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    logging.disable(logging.CRITICAL)
    if request.param == "threads":
        threads = SlowThreads(monkeypatch)
        yield threads
        run(threads.link.close())
    else:
        loop = VirtualLoop()
        with false_network(monkeypatch, loop, 1) as (primary, _):
            network = SlowAsyncio(monkeypatch, TEXTS[1], loop)
            loop.run_until_complete(network.begin(primary))
            yield network
            primary.latency_s = 0.0
            loop.run_until_complete(network.link.close())
        loop.close()
    logging.disable(logging.NOTSET)


# --- the suite ----------------------------------------------------------------------------------------


@pytest.mark.promise("P18")
def test_all_who_share_a_sender_of_a_slow_primary_are_served_in_the_order_in_which_they_came(
    slow: Slow,
) -> None:
    assert slow.send(60, 60, 60, 60, 60) == [None] * 5
    assert slow.sent == ["0", "1", "2", "3", "4"]


@pytest.mark.promise("P5")
def test_who_has_no_time_left_when_its_turn_comes_has_not_sent(slow: Slow) -> None:
    served, late = slow.send(60, 5)

    assert served is None
    assert late is not None
    assert type(late.error) is OperationTimeoutError
    assert is_impatient(late.error), "it says nothing about the primary"
    assert slow.sent == ["0"]


def test_who_has_too_little_time_left_for_an_answer_does_not_blame_the_primary(slow: Slow) -> None:
    served, late = slow.send(60, 9)

    assert served is None
    assert late is not None
    assert type(late.error) is OperationTimeoutError
    assert is_impatient(late.error)
    assert slow.sent == ["0", "1"], "it may be stored"


def test_who_waits_when_the_entity_fails_over_goes_another_way_at_once(slow: Slow) -> None:
    def fail_over(link: Any) -> None:
        link._is_wanted = lambda: False
        look = link.look_after_waiting if isinstance(link, ThreadLink) else link.look_again
        look()

    served, *others = slow.send(60, 60, 60, meanwhile=fail_over)

    assert served is None
    assert [type(one.error) for one in others if one is not None] == [NotWanted] * 2
    assert slow.sent == ["0"]


@pytest.mark.parametrize(
    ("seconds", "had", "left", "expected"),
    [
        (10, 60, 60, 10),
        (10, 60, 30, 10),
        (10, 60, 12, 6),
        (58, 60, 30, 28),
        (58, 60, 2, 1),
        (60, 60, 30, 30),
        (8, 5, 4, 4),
        (8, 5, 1, 1),
    ],
)
def test_an_attempt_after_a_wait_leaves_the_time_that_it_was_to_leave_or_half(
    seconds: float, had: float, left: float, expected: float
) -> None:
    assert seconds_after_waiting(seconds, had, left) == expected


# --- coroutines that give up while they wait ---------------------------------------------------------------

MANY = 70
"""More than may be in flight at a time."""


@pytest.fixture
def coroutines(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowAsyncio]:
    """A link that is open, of which nothing may be left, and whose loop must not be told of any error."""
    loop, strange = VirtualLoop(), []
    loop.set_exception_handler(lambda _, context: strange.append(context))
    logging.disable(logging.CRITICAL)
    with false_network(monkeypatch, loop, 1) as (primary, _):
        network = SlowAsyncio(monkeypatch, TEXTS[1], loop)
        loop.run_until_complete(network.begin(primary))
        yield network
        primary.latency_s = 0.0
        loop.run_until_complete(network.link.close())
    loop.close()
    logging.disable(logging.NOTSET)
    assert not network.link._limits.until
    assert not strange


def begin(network: SlowAsyncio, seconds: float, patience: float = 60.0) -> asyncio.Task[Failed | None]:
    return asyncio.ensure_future(
        network.link.try_to_send(ServiceBusMessage("x"), seconds, seconds + 1, None, patience)
    )


def give_up(sends: list[asyncio.Task[Failed | None]], is_cancelled: bool) -> None:
    """One of many is cancelled, or has no time left by now."""
    if is_cancelled:
        sends[MANY].cancel()


@pytest.mark.promise("P6")
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["has no time left", "is cancelled"])
def test_who_gives_up_while_the_link_opens_leaves_no_time_limit_to_those_behind(
    coroutines: SlowAsyncio, is_cancelled: bool
) -> None:
    primary, loop = coroutines.primary, coroutines._loop

    async def work() -> None:
        coroutines.link.rest()
        primary.opening_s, primary.latency_s = 3.0, 0.1
        sends = [begin(coroutines, 20.0) for _ in range(MANY)]
        sends += [begin(coroutines, 20.0 if is_cancelled else 1.0, 60.0 if is_cancelled else 1.0)]
        sends += [begin(coroutines, 20.0)]
        await asyncio.sleep(2.5)
        give_up(sends, is_cancelled)
        results = await asyncio.gather(*sends)
        errors = [type(failed.error) for failed in results if failed is not None]
        assert errors == [asyncio.CancelledError if is_cancelled else OperationTimeoutError]
        assert not coroutines.link._limits.until
        await asyncio.sleep(60)  # until what was left behind would have been due

        primary.fall_silent()
        begun = loop.time()
        done, endless = await asyncio.wait([begin(coroutines, 8.0, 8.0) for _ in range(4)], timeout=60)
        assert not endless
        assert loop.time() - begun < 10
        assert {type(failed.error) for send in done if (failed := send.result())} == {OperationTimeoutError}

    loop.run_until_complete(work())


@pytest.mark.promise("P5")
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["no answer", "cancelled"])
def test_who_had_the_link_ends_with_its_own_error_whoever_gave_up_behind_it(
    coroutines: SlowAsyncio, is_cancelled: bool
) -> None:
    async def work() -> None:
        coroutines.primary.latency_s = 0.1
        coroutines.primary.fall_silent()
        first = begin(coroutines, ATTEMPT_SECONDS)
        await asyncio.sleep(0.1)
        others = [begin(coroutines, ATTEMPT_SECONDS, patience) for patience in (60.0, 1.0, 60.0)]
        await asyncio.sleep(2)
        if is_cancelled:
            first.cancel()
        failed = await first
        assert failed is not None
        assert type(failed.error) is (asyncio.CancelledError if is_cancelled else OperationTimeoutError)
        coroutines.primary.recover()
        assert [one is None for one in await asyncio.gather(*others)] == [True, False, True]

    coroutines._loop.run_until_complete(work())


@pytest.mark.promise("P18")
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["no answer", "cancelled"])
def test_a_peer_that_stops_reading_while_many_write_costs_one_attempt(
    coroutines: SlowAsyncio, is_cancelled: bool
) -> None:
    async def work() -> None:
        coroutines.primary.latency_s = 0.5
        sends = [begin(coroutines, ATTEMPT_SECONDS, ATTEMPT_SECONDS) for _ in range(3)]
        await asyncio.sleep(0.1)
        coroutines.primary.stall()
        await asyncio.sleep(5)
        if is_cancelled:
            for send in sends:
                send.cancel()
        await asyncio.gather(*sends)

        assert await asyncio.gather(*(begin(coroutines, ATTEMPT_SECONDS) for _ in range(3))) == [None] * 3

    coroutines._loop.run_until_complete(work())


def test_who_gives_up_leaves_the_queue_at_once(coroutines: SlowAsyncio) -> None:
    async def work() -> None:
        first = begin(coroutines, ATTEMPT_SECONDS)
        await asyncio.sleep(0.1)
        others = [begin(coroutines, ATTEMPT_SECONDS, patience) for patience in (60.0, 1.0)]
        await asyncio.sleep(2)
        assert len(coroutines.link._waiting) == 1
        await asyncio.gather(first, *others)

    coroutines._loop.run_until_complete(work())


def test_an_opening_that_is_given_up_before_it_runs_holds_nobody_up(coroutines: SlowAsyncio) -> None:
    async def work() -> None:
        coroutines.primary.latency_s = 0.1
        coroutines.link.rest()
        send = begin(coroutines, ATTEMPT_SECONDS)
        await asyncio.sleep(0)  # the caller has asked for the opening, which has not run yet
        opening = coroutines.link._opening
        assert opening is not None
        opening.cancel()
        assert await send is None

    coroutines._loop.run_until_complete(work())


# --- the turn of threads ------------------------------------------------------------------------------


def wanted() -> bool:
    return True


def test_who_gives_the_turn_back_and_wants_it_again_comes_last() -> None:
    turn = Turn()
    order: list[str] = []
    assert turn.try_to_take()

    def other() -> None:
        assert turn.take(GUARD_SECONDS, wanted)
        order.append("other")
        turn.release()

    thread = threading.Thread(target=other)
    thread.start()
    wait_until(lambda: bool(turn.waiting))
    turn.release()
    assert turn.take(GUARD_SECONDS, wanted)
    order.append("first")
    turn.release()
    thread.join(GUARD_SECONDS)

    assert order == ["other", "first"]


def test_who_waits_no_longer_does_not_get_the_turn() -> None:
    turn = Turn()
    assert turn.try_to_take()
    assert not turn.take(0.0, wanted)
    assert not turn.take(GUARD_SECONDS, lambda: False)
    turn.release()

    assert not turn.waiting
    assert turn.try_to_take()


def test_who_is_interrupted_while_it_waits_leaves_the_turn_to_the_next() -> None:
    turn = Turn()
    assert turn.try_to_take()

    def interrupted() -> bool:
        turn.release()  # and so the turn is its own in the moment in which it is interrupted
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turn.take(GUARD_SECONDS, interrupted)

    assert turn.try_to_take()
