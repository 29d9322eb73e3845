"""What the synchronous twin's threads share."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.pairing._sync import runtime

WAIT_SECONDS = 10.0


def test_a_fire_between_looking_and_waiting_is_not_missed() -> None:
    pulse = runtime.Pulse()
    ticket = pulse.ticket()
    pulse.fire()

    waiting = threading.Thread(target=pulse.wait, args=(ticket, 3_600.0), daemon=True)
    waiting.start()
    waiting.join(WAIT_SECONDS)

    assert not waiting.is_alive()


def test_the_watcher_outlives_senders_that_are_made_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.0)
    limits = runtime.Limits()
    kept: list[runtime.Slot] = [runtime.Slot(limits) for _ in range(200)]
    busy = kept[0]
    busy.until = 1e18
    limits.start()
    watcher = limits.watcher
    assert watcher is not None

    def make() -> None:
        kept.extend(runtime.Slot(limits) for _ in range(3_000))

    makers = [threading.Thread(target=make) for _ in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(WAIT_SECONDS)

    assert watcher.is_alive()
    busy.until = runtime.NEVER
    watcher.join(WAIT_SECONDS)
    assert not watcher.is_alive(), "and ends when there is nothing to watch"


def test_a_call_that_overruns_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.001)
    cut = threading.Event()
    monkeypatch.setattr("pairbus.sdk.handlers.cut_socket", lambda handler: cut.set())
    limits = runtime.Limits()

    with limits.limit(object(), 0.01):
        assert cut.wait(WAIT_SECONDS)


def test_a_plain_send_that_overruns_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "WATCH_SECONDS", 0.001)
    cut = threading.Event()
    monkeypatch.setattr("pairbus.sdk.handlers.cut_socket", lambda handler: cut.set())

    def send_messages(message: Any, **options: Any) -> None:
        assert cut.wait(WAIT_SECONDS)
        raise ConnectionError

    slot = runtime.Slot(runtime.Limits())
    with pytest.raises(ConnectionError):
        slot.send(SimpleNamespace(send_messages=send_messages), "message", 0.01, 0.01, {})


def test_a_forked_process_has_a_watcher_of_its_own() -> None:
    limits = runtime.Limits()
    slot = runtime.Slot(limits)
    slot.until = 1e18
    limits.start()
    parents = limits.watcher
    runtime._forked()

    assert limits.watcher is None
    limits.start()
    assert limits.watcher is not parents
    slot.until = runtime.NEVER


def test_together_waits_no_longer_than_told() -> None:
    release = threading.Event()
    done: list[object] = []

    def work(item: object) -> None:
        if item == "slow":
            release.wait(WAIT_SECONDS)
        done.append(item)

    runtime.together(work, ["slow", "quick"], 0.2)

    assert done == ["quick"]
    release.set()


def test_the_watcher_ends_with_the_client_not_after_its_idle_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "IDLE_TURNS", 10**9)
    limits = runtime.Limits()
    with limits.limit(object(), 3_600.0):
        watcher = limits.watcher
        assert watcher is not None
        limits.end(0.0)
        assert watcher.is_alive(), "a call in progress is watched to its end"
    limits.end(WAIT_SECONDS)

    assert not watcher.is_alive()
    assert limits.watcher is None
