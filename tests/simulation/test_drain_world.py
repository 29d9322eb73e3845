"""The drain with failures, in one process and on Spark (P34-P41). ``PAIRBUS_SEEDS=n`` runs more worlds, ``PAIRBUS_SEED=n`` replays one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.shell import Drain
from tests.simulation.drain_world import DrainWorld, Inbox, Outlet
from tests.simulation.seeds import groups, seeds
from tests.simulation.spark_world import SparkWorld

_GROUPS = groups(seeds(24, least=200), 6)


@pytest.mark.parametrize("group", _GROUPS)
def test_a_drain_survives_kills_lost_locks_and_lost_answers(group: list[int], tmp_path: Path) -> None:
    for seed in group:
        DrainWorld(seed, tmp_path / str(seed)).run()


@pytest.mark.promise("P34", "P35", "P36", "P38", "P41", "D3")
@pytest.mark.parametrize("group", _GROUPS)
def test_a_drain_on_spark_survives_killed_and_lost_tasks(group: list[int], tmp_path: Path) -> None:
    for seed in group:
        SparkWorld(seed, tmp_path / str(seed)).run()


def test_the_worlds_on_spark_are_cruel_enough(tmp_path: Path) -> None:
    worlds = [SparkWorld(seed, tmp_path / str(seed)) for seed in range(12)]
    for world in worlds:
        world.run()

    assert sum(len(world._lost) for world in worlds) > 3
    assert sum(world.killed_with.total() for world in worlds) > 30
    assert {row.outcome for world in worlds for row in world.rows} == {
        "moved",
        "lock_lost",
        "set_aside",
        "waiting",
    }


def _complete_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The messages are handed over for completion when the send begins."""
    from pairbus.drain.senders import Senders

    original = Senders._send_batch

    async def send(self: Senders, key: str, batch: Sequence[BacklogMessage]) -> None:
        for message in batch:
            self.acknowledged(message)
        await original(self, key, batch)

    patch.setattr(Senders, "_send_batch", send)


def _ledger_not_told_of_a_lost_lock(patch: pytest.MonkeyPatch) -> None:
    """The ledger takes a message for completed though its lock was lost after the send."""
    original = Drain._complete

    async def complete(self: Drain, inbox: Inbox, messages: Sequence[BacklogMessage]) -> None:
        self._doubts.end([(message.queue, message.sequence_number) for message in messages])
        await original(self, inbox, messages)

    patch.setattr(Drain, "_complete", complete)


def _legacy_messages_not_known_again(patch: pytest.MonkeyPatch) -> None:
    """Messages without a passport have no identity, and no entry in the ledger that is asked about."""
    original, fresh = DoubtfulSends.doubt, itertools.count()

    def identity(self: BacklogMessage) -> tuple[str, int, int, str]:
        return (*self.detour, self.message_id) if self.detour else ("", next(fresh), 0, "")

    patch.setattr(BacklogMessage, "identity", property(identity))
    patch.setattr(
        DoubtfulSends,
        "doubt",
        lambda self, key, message_id, at: None if key else original(self, key, message_id, at),
    )


def _ledger_not_asked(patch: pytest.MonkeyPatch) -> None:
    """What an earlier run left in doubt is sent again without a question."""
    patch.setattr(DoubtfulSends, "doubt", lambda *_: None)


def _failed_sends_count_as_delivered(patch: pytest.MonkeyPatch) -> None:
    """A send that the primary refused or lost counts as delivered."""
    original = Outlet.send

    async def send(self: Outlet, path: str, messages: Sequence[BacklogMessage]) -> None:
        try:
            await original(self, path, messages)
        except Exception:  # noqa: BLE001 - the planted bug
            pass

    patch.setattr(Outlet, "send", send)


def _rows_written_when_the_primary_answers(patch: pytest.MonkeyPatch) -> None:
    """A message is reported as moved before it is completed in the backlog."""
    original = Drain._acknowledged

    def acknowledged(self: Drain, message: BacklogMessage) -> None:
        self._observer.completed(message, is_lock_lost=False)
        original(self, message)

    patch.setattr(Drain, "_acknowledged", acknowledged)


def _held_messages_completed_when_time_is_up(patch: pytest.MonkeyPatch) -> None:
    """What a drain still holds when it ends is completed instead of released."""

    async def release_all(self: Drain, inbox: Inbox) -> None:
        await inbox.complete(self._plan.drop_queue(inbox.queue))

    patch.setattr(Drain, "_release_all", release_all)


@pytest.mark.parametrize(
    ("world", "plant", "promise"),
    [
        (DrainWorld, _complete_before_the_answer, "P34|P35"),
        (DrainWorld, _ledger_not_told_of_a_lost_lock, "P36"),
        (DrainWorld, _legacy_messages_not_known_again, "P36"),
        (DrainWorld, _ledger_not_asked, "P36"),
        (DrainWorld, _failed_sends_count_as_delivered, "P34|P35"),
        (SparkWorld, _complete_before_the_answer, "P34|P35"),
        (SparkWorld, _failed_sends_count_as_delivered, "P34|P35"),
        (SparkWorld, _rows_written_when_the_primary_answers, "P45"),
        (SparkWorld, _held_messages_completed_when_time_is_up, "P34|P35"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else None,
)
def test_a_planted_bug_in_the_drain_is_caught(
    world: type[DrainWorld],
    plant: Callable[[pytest.MonkeyPatch], None],
    promise: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=promise):
        for seed in range(60):
            world(seed, tmp_path / str(seed)).run()
