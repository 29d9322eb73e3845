"""Drains that share a backlog queue are never much slower than one of them alone, whatever the number of sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from pairbus.drain.rules.sharing import PAUSE_MS_MAX
from tests.simulation.pair.model import LOCK_MS
from tests.simulation.shared_world import Shared, seconds_to_drain

SLOWER_MOST: Final = 1 / 0.7
BEYOND_LOCK_SECONDS: Final = 12
"""How long after the locks of a dead drain have ended the rest may take."""
MESSAGES: Final = 1_200


@pytest.mark.promise("P14", "P41")
@pytest.mark.parametrize("sessions", [1, 4, 30, 300])
def test_two_drains_on_one_queue_take_no_longer_than_one(sessions: int, tmp_path: Path) -> None:
    alone = seconds_to_drain(Shared(MESSAGES, sessions, drains=1), tmp_path)
    both = seconds_to_drain(Shared(MESSAGES, sessions, drains=2), tmp_path)
    assert both <= alone * SLOWER_MOST


@pytest.mark.promise("P14", "P41")
@pytest.mark.parametrize(
    "shared",
    [
        pytest.param(Shared(MESSAGES, 40, queues=10), id="ten queues"),
        pytest.param(Shared(MESSAGES, 4, drains=4), id="four drains"),
        pytest.param(Shared(MESSAGES, 4, plain_share=0.3), id="messages without a session between them"),
    ],
)
def test_drains_that_share_queues_take_no_longer_than_one(shared: Shared, tmp_path: Path) -> None:
    alone = seconds_to_drain(
        Shared(shared.messages, shared.sessions, shared.queues, 1, shared.plain_share), tmp_path
    )
    assert seconds_to_drain(shared, tmp_path) <= alone * SLOWER_MOST


@pytest.mark.promise("P14", "P41")
@pytest.mark.parametrize("harm", ["killed", "stopped"])
@pytest.mark.parametrize("sessions", [2, 300])
def test_after_one_of_two_drains_is_gone_the_other_goes_on_when_its_locks_end(
    sessions: int, harm: str, tmp_path: Path
) -> None:
    shared = Shared(MESSAGES, sessions, harm=harm, harm_ms=200)
    assert seconds_to_drain(shared, tmp_path) <= LOCK_MS / 1000 + BEYOND_LOCK_SECONDS


@pytest.mark.promise("P14", "P41")
def test_a_drain_with_a_full_window_goes_on_when_the_locks_of_a_dead_one_end(tmp_path: Path) -> None:
    """It must not have locked everything behind, so that it cannot receive what it waits for."""
    shared = Shared(3 * MESSAGES, 2, harm="killed", harm_ms=200)
    assert seconds_to_drain(shared, tmp_path) <= LOCK_MS / 1000 + PAUSE_MS_MAX / 1000 + 1.5
