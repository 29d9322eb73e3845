"""Appends of many callers share writes, and each ends when its own messages are durable."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pairbus.errors import SpoolNotStored
from pairbus.pairing.runtime.asyncio_runtime import AsyncioRuntime
from pairbus.spool.file import About
from pairbus.spool.store import Append, Spool
from tests.waiting import wait_until


def entered(spool: Spool, text: str) -> Append:
    append = Append("orders", "orders", [text.encode()], 1)
    spool.enter(append)
    return append


async def test_who_enters_while_a_write_ends_waits_for_the_next_one(tmp_path: Path) -> None:
    spool, runtime = Spool(tmp_path, About("p", "p")), AsyncioRuntime()
    begun, may_end = threading.Event(), threading.Event()
    write = spool._write

    def slow(batch: list[Append]) -> None:
        write(batch)
        begun.set()
        assert may_end.wait(30)

    spool._write = slow  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(30):
        first = asyncio.ensure_future(runtime.commit(spool, entered(spool, "first")))
        await asyncio.to_thread(begun.wait, 30)
        later = entered(spool, "later")
        second = asyncio.ensure_future(runtime.commit(spool, later))
        await asyncio.sleep(0)
        done_before = later.is_done
        may_end.set()
        await asyncio.gather(first, second)

    assert (done_before, later.is_done) == (False, True)
    assert spool.contents["orders"].count == 2


async def test_a_write_without_a_thread_fails_for_all_who_wait(tmp_path: Path) -> None:
    spool, runtime = Spool(tmp_path, About("p", "p")), AsyncioRuntime()
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    asyncio.get_running_loop().set_default_executor(executor)

    async with asyncio.timeout(30):
        results = await asyncio.gather(
            *(runtime.commit(spool, entered(spool, str(number))) for number in range(3)),
            return_exceptions=True,
        )

    assert [type(result) for result in results] == [RuntimeError] * 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_write_that_is_broken_off_ends_for_all_who_wait(tmp_path: Path, error: type[BaseException]) -> None:
    spool = Spool(tmp_path, About("p", "p"))
    write = spool._write

    def broken(_batch: list[Append]) -> None:
        spool._write = write  # type: ignore[method-assign]
        raise error

    spool._write = broken  # type: ignore[method-assign, assignment]
    one, other = entered(spool, "one"), entered(spool, "other")

    with pytest.raises(error):
        spool.commit(one)

    with pytest.raises(SpoolNotStored):
        spool.commit(other)
    last = entered(spool, "last")
    thread = threading.Thread(target=spool.commit, args=(last,), daemon=True)
    thread.start()
    thread.join(30)
    assert last.is_done
    assert [message.payload for message in spool.first("orders", 10, 1 << 20)] == [b"last"]
    assert spool.size == last.size


def test_a_turn_to_write_goes_on_to_the_next_when_its_owner_is_interrupted(tmp_path: Path) -> None:
    """Ctrl+C in the moment in which a caller gets the turn: the others do not wait for ever."""
    spool = Spool(tmp_path, About("p", "p"))

    class Interrupted:
        def acquire(self) -> bool:
            spool._pass_on()  # who wrote has ended
            raise KeyboardInterrupt

        def release(self) -> None: ...

    mine, other = entered(spool, "mine"), entered(spool, "other")
    spool._is_writing = True
    mine.gate = gate = Interrupted()  # type: ignore[assignment]
    thread = threading.Thread(target=spool.commit, args=(other,), daemon=True)
    thread.start()
    wait_until(lambda: other.gate is not None, "the other one waits")

    with pytest.raises(KeyboardInterrupt):
        spool._wait(mine, gate)  # type: ignore[arg-type]

    thread.join(30)
    assert other.is_done
    assert mine.is_done


def test_many_threads_share_few_writes(tmp_path: Path) -> None:
    spool = Spool(tmp_path, About("p", "p"))
    writes = 0
    write = spool._write
    start = threading.Barrier(20)

    def counted(batch: list[Append]) -> None:
        nonlocal writes
        writes += 1
        write(batch)

    spool._write = counted  # type: ignore[method-assign, assignment]

    def send(name: int) -> None:
        start.wait(30)
        for number in range(10):
            spool.commit(entered(spool, f"{name}-{number}"))

    threads = [threading.Thread(target=send, args=(name,), daemon=True) for name in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    found = [message.payload.decode() for message in spool.first("orders", 1_000, 1 << 20)]
    for name in range(20):
        assert [text for text in found if text.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(10)]
    assert writes < 200
    assert not spool._is_writing


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
