"""Appends of many coroutines share writes, and each ends when its own messages are durable."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pairbus.pairing.runtime.asyncio_runtime import AsyncioRuntime
from pairbus.spool.store import About, Append, Spool


def entered(spool: Spool, text: str) -> Append:
    append = Append("orders", "orders", [text.encode()], 1)
    spool.enter(append)
    return append


async def test_a_write_that_ended_a_moment_ago_is_not_waited_for_again(tmp_path: Path) -> None:
    spool, runtime = Spool(tmp_path, About("p", "p")), AsyncioRuntime()
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    runtime._commits[spool] = ended  # its callback has not run yet
    append = entered(spool, "later")

    async with asyncio.timeout(30):
        await runtime.commit(spool, append)

    assert append.is_done
    assert spool.contents["orders"].count == 1


async def test_many_coroutines_share_few_writes(tmp_path: Path) -> None:
    spool, runtime = Spool(tmp_path, About("p", "p")), AsyncioRuntime()
    writes = 0
    write = spool._write

    def counted(batch: list[Append]) -> None:
        nonlocal writes
        writes += 1
        write(batch)

    spool._write = counted  # type: ignore[method-assign, assignment]

    async def send(name: int) -> None:
        for number in range(5):
            await runtime.commit(spool, entered(spool, f"{name}-{number}"))

    async with asyncio.timeout(120):
        await asyncio.gather(*(send(name) for name in range(50)))

    found = [message.payload.decode() for message in spool.first("orders", 1_000, 1 << 20)]
    assert len(set(found)) == 250
    for name in range(50):
        assert [text for text in found if text.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(5)]
    assert writes <= 50


async def test_a_caller_that_gives_up_leaves_its_message_to_the_others(tmp_path: Path) -> None:
    spool, runtime = Spool(tmp_path, About("p", "p")), AsyncioRuntime()
    given_up = asyncio.ensure_future(runtime.commit(spool, entered(spool, "given up")))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)

    await runtime.commit(spool, entered(spool, "next"))

    assert [message.payload for message in spool.first("orders", 10, 1 << 20)] == [b"given up", b"next"]
