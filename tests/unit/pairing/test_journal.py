"""A paired client writes the state of its entities for others to read, also while nothing goes wrong."""

from __future__ import annotations

import gc
import json
import random
import threading
from pathlib import Path

import pytest

from pairbus.pairing import journal as journals
from pairbus.pairing.client.state import PairingState
from pairbus.pairing.journal import EventJournal, StatusReporter, read
from pairbus.pairing.options import SendAvailabilityOptions
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(journals, "BEAT_SECONDS", 3_600.0)


def make_state() -> PairingState:
    return PairingState(
        name="f1",
        primary="contoso",
        secondary="contoso-dr",
        options=SendAvailabilityOptions(),
        chooser=random.Random(1),
        clock=lambda: 5_000,
        wall_clock=lambda: 1_000_000,
        on_change=lambda record: None,
    )


def statuses(path: Path) -> list[dict[str, object]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["kind"] == "status"]


def test_a_healthy_entity_is_written_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path, state = tmp_path / "journal", make_state()
    reporter = StatusReporter(state, EventJournal(path, state.name))
    try:
        state.health_of("orders")
        wait_until(lambda: len(statuses(path)) == 1)
        state.fail_over("orders")
        wait_until(lambda: len(statuses(path)) == 2)
    finally:
        reporter.stop()
    first, second = statuses(path)
    assert [row["state"] for row in first["entities"]] == ["healthy"]  # type: ignore[attr-defined]
    assert [row["state"] for row in second["entities"]] == ["failed over"]  # type: ignore[attr-defined]
    assert [line["kind"] for line in read(path)].count("status") == 2, "explain reads states and events"


def test_nothing_is_left_after_stop_or_when_the_client_is_gone(tmp_path: Path) -> None:
    state: PairingState | None = make_state()
    assert state is not None
    stopped = StatusReporter(state, EventJournal(tmp_path / "a", "a"))
    left = StatusReporter(state, EventJournal(tmp_path / "b", "b"))
    stopped.stop()
    assert not stopped._thread.is_alive()
    assert left._thread.is_alive()
    state = None
    gc.collect()
    wait_until(lambda: not left._thread.is_alive())


def test_a_journal_that_cannot_be_written_does_not_end_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = tmp_path / "journal", make_state()
    written, fails = EventJournal(path, "f1"), threading.Event()
    append = written.append_status

    def full(entities: list[dict[str, object]], at_ms: int) -> None:
        if not fails.is_set():
            fails.set()
            raise OSError(28, "No space left on device")
        append(entities, at_ms)

    monkeypatch.setattr(written, "append_status", full)
    state.health_of("orders")
    reporter = StatusReporter(state, written)
    try:
        wait_until(lambda: statuses(path))
    finally:
        reporter.stop()
