"""Sessions keep their order through drains with failures. ``PAIRBUS_SEEDS=n`` runs more worlds, ``PAIRBUS_SEED=n`` replays one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pytest

from pairbus.drain.lookups.older import OlderMessages
from pairbus.drain.lookups.queue_view import QueueView
from pairbus.drain.ports import Inbox
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen, SessionOrder, TooManyElsewhere
from pairbus.drain.rules.plan import DrainPlan
from tests.simulation.deferred_world import DeferredWorld
from tests.simulation.drain_world import MESSAGES, Outlet
from tests.simulation.order_world import MovedWorld, OrderWorld
from tests.simulation.seeds import groups, seeds
from tests.simulation.spark_world import SparkWorld

_GROUPS = groups(seeds(24, least=200), 6)


@pytest.mark.promise("P14")
@pytest.mark.parametrize("group", _GROUPS)
def test_sessions_arrive_in_order_from_drains_that_are_killed_and_run_beside_each_other(
    group: list[int], tmp_path: Path
) -> None:
    for seed in group:
        OrderWorld(seed, tmp_path / str(seed)).run()


@pytest.mark.promise("P14")
@pytest.mark.parametrize("group", groups(seeds(6, least=100), 6))
def test_sessions_that_moved_often_are_drained_without_waiting_for_a_lock_to_end(
    group: list[int], tmp_path: Path
) -> None:
    for seed in group:
        MovedWorld(seed, tmp_path / str(seed)).run()


@pytest.mark.promise("P14", "P41")
@pytest.mark.parametrize("group", groups(seeds(24, least=200), 6))
def test_sessions_arrive_in_order_while_an_operator_defers_some_messages_and_gives_others_back(
    group: list[int], tmp_path: Path
) -> None:
    worlds = [DeferredWorld(seed, tmp_path / str(seed)) for seed in group]
    for world in worlds:
        world.run()
    assert len(worlds) < 6 or sum(world.deferred for world in worlds) > 10, "the operator does too little"


@pytest.mark.promise("P14", "P41")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(30330, id="messages_of_two_queues_wait_for_deferred_messages_of_each_other"),
        pytest.param(30485, id="a_message_that_the_primary_has_was_deferred_and_could_not_be_locked_once"),
        pytest.param(40498, id="deferred_messages_lose_their_locks_before_they_are_completed"),
        pytest.param(50141, id="a_held_deferred_message_loses_its_lock_after_the_queue_was_looked_through"),
        pytest.param(80244, id="messages_that_lost_their_locks_are_deferred_before_they_come_again"),
        pytest.param(50130, id="the_connection_fails_while_a_queue_is_looked_through"),
    ],
)
def test_worlds_that_failed_once(seed: int, tmp_path: Path) -> None:
    DeferredWorld(seed, tmp_path).run()


class SparkOrderWorld(OrderWorld, SparkWorld):
    """The same on Spark: tasks share queues, are killed, lost and tried again; there is no ledger."""

    def _fill(self) -> None:
        self.poison, self.at_start = 0, MESSAGES
        for number in range(MESSAGES):
            self._park(number)


@pytest.mark.promise("P14")
@pytest.mark.parametrize("group", groups(seeds(6, least=100), 6))
def test_sessions_arrive_in_order_from_tasks_on_spark_that_share_queues(
    group: list[int], tmp_path: Path
) -> None:
    for seed in group:
        SparkOrderWorld(seed, tmp_path / str(seed)).run()


def _locked_predecessors_ignored(patch: pytest.MonkeyPatch) -> None:
    """What browsing shows of older messages is not noted."""

    def observed(
        self: SessionOrder, queue: str, seen: Iterable[Seen], mine: Collection[int], known_to: int
    ) -> None:
        self._of(queue).known_to = max(self._of(queue).known_to, known_to)

    patch.setattr(SessionOrder, "observed", observed)


def _lost_locks_ignored(patch: pytest.MonkeyPatch) -> None:
    """A message whose lock was lost, or that was skipped, is not waited for."""
    patch.setattr(SessionOrder, "left", lambda *_: None)


def _redelivered_to_the_end(patch: pytest.MonkeyPatch) -> None:
    """A message that comes a second time goes behind the younger ones of its session."""
    patch.setattr(DrainPlan, "_insert", lambda self, waiting, message: waiting.append(message))


def _follows_ignored(patch: pytest.MonkeyPatch) -> None:
    """A message does not wait for the one of another queue that it follows."""

    async def done(
        self: OlderMessages, inbox: Inbox, messages: Sequence[BacklogMessage], *, again: bool
    ) -> None:
        for message in messages:
            message.follows = ()

    patch.setattr(OlderMessages, "_follow", done)


def _what_no_look_came_to_has_arrived(patch: pytest.MonkeyPatch) -> None:
    """A drain that gets to know a part of another backlog queue waits for nothing else there."""
    patch.setattr(QueueView, "needs_ms", lambda *_: None)


def _what_no_look_came_to_is_accounted_for(patch: pytest.MonkeyPatch) -> None:
    """A look that does not come to the end of a gap counts as one that does."""
    original = OlderMessages._browse

    async def browse(self: OlderMessages, inbox: Inbox, gaps: Sequence[tuple[int, int]]) -> list[Seen]:
        try:
            return await original(self, inbox, gaps)
        except TooManyElsewhere:
            return []

    patch.setattr(OlderMessages, "_browse", browse)


def _two_of_a_session_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """The messages of a batch are sent beside each other instead of as one."""
    original = Outlet.send

    async def send(self: Outlet, path: str, messages: Sequence[BacklogMessage]) -> None:
        await asyncio.gather(*(original(self, path, [message]) for message in messages))

    patch.setattr(Outlet, "send", send)


@pytest.mark.parametrize(
    "plant",
    [
        _locked_predecessors_ignored,
        _lost_locks_ignored,
        _redelivered_to_the_end,
        _follows_ignored,
        _what_no_look_came_to_has_arrived,
        _what_no_look_came_to_is_accounted_for,
        _two_of_a_session_at_a_time,
    ],
    ids=lambda value: value.__name__.strip("_"),
)
def test_a_planted_bug_in_the_order_is_caught(
    plant: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(plant)
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="order: session"):
        for seed in range(60):
            OrderWorld(seed, tmp_path / str(seed)).run()
