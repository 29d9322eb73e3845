"""The shell that ships, in worlds of many coroutines. ``PAIRBUS_SEEDS=n`` runs more, ``PAIRBUS_SEED=n`` replays one."""

from __future__ import annotations

import os

import pytest

from tests.simulation.shell_world import ShellWorld

CHUNK = 20
_WORLDS = max(400, int(os.environ["PAIRBUS_SEEDS"])) if os.environ.get("PAIRBUS_SEEDS") else 60
_ONE = os.environ.get("PAIRBUS_SEED")
_CHUNKS = [int(_ONE)] if _ONE else list(range(0, _WORLDS, CHUNK))


@pytest.mark.promise("P1")
@pytest.mark.parametrize("first", _CHUNKS)
def test_many_coroutines_share_a_sender_through_outages_cancellation_and_close(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + (1 if _ONE else CHUNK)):
        ShellWorld(seed).run(monkeypatch)


def test_many_coroutines_share_a_sender_exactly_when_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(1_000, 1_010):
        ShellWorld(seed, is_calm=True).run(monkeypatch)
