"""The shell that ships, in worlds of many coroutines. ``PAIRBUS_SEEDS=n`` runs more, ``PAIRBUS_SEED=n`` replays one."""

from __future__ import annotations

import pytest

from tests.simulation.link_world import LinkWorld
from tests.simulation.seeds import groups, seeds
from tests.simulation.shell_world import ShellWorld


@pytest.mark.promise("P1")
@pytest.mark.parametrize("group", groups(seeds(60, least=400), 20))
def test_many_coroutines_share_a_sender_through_outages_cancellation_and_close(
    group: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in group:
        ShellWorld(seed).run(monkeypatch)


def test_many_coroutines_share_a_sender_exactly_when_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(1_000, 1_010):
        ShellWorld(seed, is_calm=True).run(monkeypatch)


@pytest.mark.promise("P6")
@pytest.mark.parametrize("group", groups(seeds(200, least=400), 20))
def test_coroutines_that_give_up_at_any_moment_leave_nothing_of_themselves_to_the_others(
    group: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in group:
        LinkWorld(seed).run(monkeypatch)
