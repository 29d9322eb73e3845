"""What reaches the broker a moment after something else shares its commit: a sync is too long to wait for twice."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pairbus.server.loop import Driver
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
