"""What reaches the broker a moment after something else shares its commit: a sync is too long to wait for twice."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from pairbus.server.committer import PendingOutput
from pairbus.server.loop import Driver
from pairbus.server.sockets.turns import Turns
from tests.unit.server.fakes import FakeBroker, FakeStore


@pytest.mark.promise("B4")
async def test_what_comes_while_a_turn_is_due_shares_its_commit() -> None:
    store = FakeStore()
    failures: list[Exception] = []
    driver = Driver(
        FakeBroker(store),
        store,
        lambda: 5_000,
        outputs=list,
        set_reading=lambda _: None,
        failed=failures.append,
    )
    driver.start()
    await driver.wait_durable(10)
    before = driver.statistics().commits
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    loop = asyncio.get_running_loop()

    def second() -> None:
        store.stage(ours.recv(16).decode())
        driver.received(1)

    loop.add_reader(ours, second)
    try:
        # The first client's bytes are being handled; the second one's come into its socket just then.
        store.stage("first")
        driver.received(1)
        theirs.send(b"second")
        await driver.wait_durable(10)
        assert store.synced == ["first", "second"]
        assert driver.statistics().commits == before + 1
    finally:
        loop.remove_reader(ours)
        ours.close()
        theirs.close()
        driver.stop()
    assert failures == []


async def test_the_next_commit_in_a_database_does_not_wait_for_the_input_that_waits() -> None:
    store = FakeStore()
    turns = Turns(lambda: 0)  # no slice ends by itself
    has_ended = threading.Event()
    steps = 0
    steps_at_commits: list[int] = []

    def outputs() -> list[PendingOutput]:
        steps_at_commits.append(steps)
        return []

    def hurry() -> None:
        turns.interrupt()
        has_ended.set()

    driver = Driver(
        FakeBroker(store),
        store,
        lambda: 5_000,
        outputs=outputs,
        set_reading=lambda _: None,
        failed=lambda error: None,
        commits_inline=False,
        hurry=hurry,
    )

    class Busy:
        def take_turn(self) -> bool:
            nonlocal steps
            steps += 1
            store.gate.set()
            assert has_ended.wait(50), "the commit never ended"
            return steps < 100

    driver.start()
    await driver.wait_durable(10)
    store.gate.clear()
    store.stage("first")
    driver.received(1)
    for _ in range(10):  # rounds of the loop until the commit has begun
        await asyncio.sleep(0)
    assert not store.staged
    has_ended.clear()
    steps_at_commits.clear()
    store.stage("second")
    driver.received(1)
    turns.wait(Busy())
    assert await driver.wait_durable(10)
    driver.stop()
    assert store.synced == ["first", "second"]
    assert steps_at_commits[0] == 1, "the commit of what was applied began after all the input that waited"
