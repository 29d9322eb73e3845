"""Lives that several callers begin and end at once: one of them pairs, and nothing is left after the last close."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import AlreadyPairedError, ClientClosedError, NoBacklogQueuesError, SendAvailabilityOptions, aio
from pairbus.pairing.client.backlog.setup import Setup
from pairbus.pairing.client.client import PairedClient
from pairbus.pairing.client.registry import pairings
from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.runtime.asyncio_runtime import AsyncioRuntime
from pairbus.pairing.runtime.thread_runtime import ThreadRuntime, run
from pairbus.spool.directory import Spools, is_held, spool_directories
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import QUEUES, Bench, FakeClient
from tests.waiting import until

WAIT_SECONDS = 60.0
CALLERS = 4
CALLS = 25
OUTCOMES = (AlreadyPairedError, ClientClosedError, NoBacklogQueuesError)


class Drain:
    """A drain of which only the beginning and the end are of interest."""

    running: ClassVar[list[Drain]] = []
    most: ClassVar[list[int]] = []

    async def start(self, client: PairedClient[Any, Any]) -> None:
        await _moment(client)
        self.running.append(self)
        self.most.append(len(self.running))

    async def stop(self, seconds: float) -> None:
        if self in self.running:
            self.running.remove(self)

    async def quiet(self, seconds: float) -> bool:
        return self not in self.running

    def wake(self) -> None:
        pass

    def progress(self) -> tuple[int | None, float]:
        return None, 0.0


async def _moment(client: PairedClient[Any, Any]) -> None:
    runtime = client._runtime
    await runtime.wait_for_change(runtime.change_token(), random.random() / 200)


@pytest.fixture(autouse=True)
def false_namespaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def usable_queues(setup: Setup, *, is_quick: bool = False) -> list[str]:
        await _moment(setup._client)
        if random.random() < 0.2:
            raise NoBacklogQueuesError("this time not one can be used")
        return QUEUES

    random.seed(1)
    monkeypatch.setattr(Setup, "usable_queues", usable_queues)
    for runtime in (AsyncioRuntime, ThreadRuntime):
        monkeypatch.setattr(runtime, "drain_host", lambda _runtime: Drain())
    Drain.running, Drain.most = [], []
    yield
    Drain.running, Drain.most = [], []


def options(root: Path) -> SendAvailabilityOptions:
    return SendAvailabilityOptions(enable_syphon=True, spool=root / "spool")


def check_nothing_is_left(client: PairedClient[Any, Any], root: Path) -> None:
    assert max(Drain.most) == 1, "never two drains"
    assert Drain.running == []
    assert not client.is_paired or client.is_closed
    assert not any(is_held(directory) for directory in spool_directories(root / "spool"))
    for host, count in ((client._hosts[0], pairings._primaries), (client._hosts[1], pairings._secondaries)):
        assert count[host] == 0, "the pairing has left"


class FalseSide(FakeClient):
    """An official client on threads of which nothing is asked but to close."""

    def close(self) -> None:  # type: ignore[override]
        self.closed += 1


def threads_client(root: Path) -> PairedServiceBusClient:
    primary: Any = FalseSide("p.servicebus.windows.net")
    secondary: Any = FalseSide("s.servicebus.windows.net")
    return PairedServiceBusClient(primary, secondary, options=options(root))


def gathered(*works: Any) -> list[BaseException | None]:
    """What became of functions that threads call at once."""
    gate = threading.Barrier(len(works))
    found: list[BaseException | None] = [None] * len(works)

    def call(place: int) -> None:
        gate.wait(WAIT_SECONDS)
        try:
            works[place]()
        except BaseException as error:  # noqa: BLE001 - it is what the test is about
            found[place] = error

    threads = [threading.Thread(target=call, args=(place,), daemon=True) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "a caller hangs"
    return found


# --- two callers ----------------------------------------------------------------------------------


def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each pairing succeed."""

    async def usable_queues(setup: Setup, *, is_quick: bool = False) -> list[str]:
        await _moment(setup._client)
        return QUEUES

    monkeypatch.setattr(Setup, "usable_queues", usable_queues)


@pytest.mark.promise("P30")
def test_of_two_threads_that_pair_at_once_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certain(monkeypatch)
    client = threads_client(tmp_path)
    for _ in range(2):
        found = gathered(client.pair, client.pair, client.pair)
        assert sorted(type(error).__name__ for error in found) == [
            "AlreadyPairedError",
            "AlreadyPairedError",
            "NoneType",
        ]
        assert client.is_paired
        client.close()
        check_nothing_is_left(client, tmp_path)


@pytest.mark.promise("P30")
async def test_of_two_tasks_that_pair_at_once_one_wins_and_entering_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certain(monkeypatch)
    client = Bench(enable_syphon=True, spool=tmp_path / "spool").client
    found = await asyncio.gather(client.pair(), client.pair(), client.__aenter__(), return_exceptions=True)
    assert [type(error) for error in found] == [type(None), AlreadyPairedError, aio.PairedServiceBusClient]
    assert client.is_paired
    await client.close()
    check_nothing_is_left(client, tmp_path)


@pytest.mark.promise("P30")
async def test_who_waits_for_a_pairing_that_fails_pairs_the_client(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([NoBacklogQueuesError("not now"), None])

    async def usable_queues(setup: Setup, *, is_quick: bool = False) -> list[str]:
        await asyncio.sleep(1)
        if error := next(answers):
            raise error
        return QUEUES

    monkeypatch.setattr(Setup, "usable_queues", usable_queues)
    client = Bench().client
    found = await asyncio.gather(client.pair(), client.pair(), return_exceptions=True)
    assert [type(error) for error in found] == [NoBacklogQueuesError, type(None)]
    await client.close()


@pytest.mark.promise("P30")
async def test_a_call_that_waits_for_a_hanging_pairing_ends(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def usable_queues(setup: Setup, *, is_quick: bool = False) -> list[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(Setup, "usable_queues", usable_queues)
    client = Bench().client
    hanging = asyncio.ensure_future(client.pair())
    await asyncio.sleep(1)
    with pytest.raises(AlreadyPairedError, match="another call is pairing"):
        await client.pair()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    await client.close()


@pytest.mark.promise("P44")
async def test_a_spool_that_is_opened_for_a_caller_who_has_given_up_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate, made = threading.Event(), threading.Event(), []
    init = Spools.__init__

    def slow(spools: Spools, *given: Any, **named: Any) -> None:
        init(spools, *given, **named)
        made.append(spools)
        begun.set()
        gate.wait(WAIT_SECONDS)

    monkeypatch.setattr(Spools, "__init__", slow)
    client = Bench(spool=tmp_path / "spool").client
    pairing = asyncio.ensure_future(client.pair())
    await asyncio.to_thread(begun.wait, WAIT_SECONDS)
    pairing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pairing
    gate.set()
    await until(lambda: [spools._locks for spools in made] == [{}], "the spool is closed")
    await client.close()


@pytest.mark.promise("P44")
def test_closing_beside_the_start_of_work_joins_no_thread_that_has_not_started() -> None:
    """Thread.join raises RuntimeError for such a thread."""
    for _ in range(50):
        subject = ThreadRuntime()
        works = [subject.spawn, subject.stop_tasks, subject.limits.start, subject.limits.end]
        given: list[tuple[Any, ...]] = [(_nothing,), (0.01,), (), (0.0,)]

        def often(work: Any, values: tuple[Any, ...]) -> None:
            for _ in range(20):
                if (made := work(*values)) is not None:
                    run(made)

        found = gathered(*(partial(often, work, values) for work, values in zip(works, given, strict=True)))
        assert found == [None] * 4


async def _nothing() -> None:
    pass


# --- many callers ---------------------------------------------------------------------------------


@pytest.mark.promise("P30")
@pytest.mark.promise("P44")
@pytest.mark.parametrize("seed", range(3))
def test_threads_that_begin_and_end_lives_at_random_leave_nothing(seed: int, tmp_path: Path) -> None:
    client = threads_client(tmp_path)
    before = set(threading.enumerate())

    def caller(number: int) -> None:
        choice = random.Random(seed * 100 + number)
        for _ in range(CALLS):
            work = choice.choice([client.pair, client.pair, client.close, client.__enter__, sender])
            try:
                work()
            except OUTCOMES:
                time.sleep(choice.random() / 500)

    def sender() -> None:
        client.get_queue_sender("orders").close()

    found = gathered(*(lambda number=number: caller(number) for number in range(CALLERS)))
    assert found == [None] * CALLERS
    client.close()
    check_nothing_is_left(client, tmp_path)
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(WAIT_SECONDS)
    assert not any(thread.is_alive() for thread in left)


@pytest.mark.promise("P30")
@pytest.mark.promise("P44")
@pytest.mark.parametrize("seed", range(3))
async def test_tasks_that_begin_and_end_lives_at_random_leave_nothing(seed: int, tmp_path: Path) -> None:
    client = Bench(enable_syphon=True, spool=tmp_path / "spool").client
    before = asyncio.all_tasks()

    async def caller(number: int) -> None:
        choice = random.Random(seed * 100 + number)
        for _ in range(CALLS):
            work = choice.choice([client.pair, client.pair, client.close, client.__aenter__, send])
            call = asyncio.ensure_future(work())
            if choice.random() < 0.2:
                await asyncio.sleep(choice.random() / 500)
                call.cancel()
            try:
                await call
            except (*OUTCOMES, asyncio.CancelledError):
                await asyncio.sleep(choice.random() / 500)

    async def send() -> None:
        await client.get_queue_sender("orders").send_messages(ServiceBusMessage("m"))

    await asyncio.wait_for(asyncio.gather(*(caller(number) for number in range(CALLERS))), WAIT_SECONDS)
    await client.close()
    check_nothing_is_left(client, tmp_path)
    left = asyncio.all_tasks() - before
    if left:
        await asyncio.wait(left, timeout=WAIT_SECONDS)
    assert all(task.done() for task in left)
