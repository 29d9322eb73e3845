"""The runtime on threads: changes, time limits, work side by side."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.pairing.runtime import thread_runtime as runtime
from pairbus.pairing.runtime.thread_link import NEVER, ThreadLink

WAIT_SECONDS = 10.0


def link(limits: runtime.Limits, send_messages: Any = None) -> ThreadLink:
    sender = SimpleNamespace(
        send_messages=send_messages, _send=None, _handler=None, _running=True, _close_handler=lambda: None
    )
    return ThreadLink(sender, limits, lambda: True)


def test_a_coroutine_that_would_wait_for_an_event_loop_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        runtime.run(asyncio.sleep(1))


def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    subject = runtime.ThreadRuntime()
    token = subject.change_token()
    subject.notify()

    def wait() -> None:
        runtime.run(subject.wait_for_change(token, 3_600.0))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(WAIT_SECONDS)

    assert not waiting.is_alive()


def test_the_watcher_outlives_senders_that_are_made_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.0)
    limits = runtime.Limits()
    kept: list[ThreadLink] = [link(limits) for _ in range(200)]
    busy = kept[0]
    busy.until = 1e18
    limits.start()
    watcher = limits.watcher
    assert watcher is not None

    def make() -> None:
        kept.extend(link(limits) for _ in range(3_000))

    makers = [threading.Thread(target=make) for _ in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(WAIT_SECONDS)

    assert watcher.is_alive()
    busy.until = NEVER
    watcher.join(WAIT_SECONDS)
    assert not watcher.is_alive(), "and ends when there is nothing to watch"


def test_a_call_that_overruns_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.001)
    cut = threading.Event()
    monkeypatch.setattr("pairbus.sdk.handlers.cut_socket", lambda handler: cut.set())

    async def call() -> None:
        async with runtime.ThreadRuntime().limit(object(), 0.01):
            assert cut.wait(WAIT_SECONDS)

    runtime.run(call())


def test_a_plain_send_that_overruns_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.001)
    cut = threading.Event()
    monkeypatch.setattr("pairbus.sdk.handlers.cut_socket", lambda handler: cut.set())

    def send_messages(message: Any, **options: Any) -> None:
        assert cut.wait(WAIT_SECONDS)
        raise ConnectionError

    subject = link(runtime.Limits(), send_messages)
    with pytest.raises(ConnectionError):
        runtime.run(subject.send("message", 0.01, 0.01))


def test_a_forked_process_has_a_watcher_of_its_own() -> None:
    limits = runtime.Limits()
    slot = link(limits)
    slot.until = 1e18
    limits.start()
    parents = limits.watcher
    runtime._forked()

    assert limits.watcher is None
    limits.start()
    assert limits.watcher is not parents
    slot.until = NEVER


def test_together_waits_no_longer_than_told() -> None:
    release = threading.Event()
    done: list[object] = []

    async def work(item: object) -> None:
        if item == "slow":
            release.wait(WAIT_SECONDS)
        done.append(item)

    runtime.run(runtime.ThreadRuntime().together(work, ["slow", "quick"], 0.2))

    assert done == ["quick"]
    release.set()


def test_the_watcher_ends_with_the_client_not_after_its_idle_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "IDLE_TURNS", 10**9)
    subject = runtime.ThreadRuntime()
    limits = subject.limits

    async def call() -> None:
        async with subject.limit(object(), 3_600.0):
            assert limits.watcher is not None
            limits.end(0.0)
            assert limits.watcher.is_alive(), "a call in progress is watched to its end"

    runtime.run(call())
    watcher = limits.watcher
    limits.end(WAIT_SECONDS)

    assert watcher is None or not watcher.is_alive()
    assert limits.watcher is None
