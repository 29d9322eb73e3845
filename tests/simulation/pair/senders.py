"""Paired clients in the simulated world: the production factory, health and flow, with the twins' shells as generators."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.pairing.client.state import PairingState
from pairbus.pairing.naming import entity_key
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.rules.flow import Choice, Fail, SendFlow, TryBacklog, TryPrimary, Wait
from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.rules.rotation import Rotation
from pairbus.sdk.failures import Failure, classify
from tests.simulation.pair.model import original
from tests.simulation.pair.work import Ask, Sleep, Work

if TYPE_CHECKING:
    from tests.simulation.pair.world import World


class _RestartingHealth(EntityHealth):
    """Planted: each failure starts the timer again."""

    def send_failed(self, now: int, why: str) -> Any:
        if self.state is Health.SUSPECT:
            self.suspect_since_ms = now
        return super().send_failed(now, why)


class _TrustingHealth(EntityHealth):
    """Planted: an answer of any kind counts as health."""

    def ping_failed(
        self, now: int, why: str, *, entity_is_gone: bool, error: BaseException | None = None
    ) -> Any:
        if entity_is_gone:
            return self.ping_succeeded(now)
        return super().ping_failed(now, why, entity_is_gone=entity_is_gone, error=error)


class SimFactory:
    """One paired client: the production factory and its senders' shells."""

    def __init__(
        self, world: World, number: int, options: SendAvailabilityOptions, queues: list[str]
    ) -> None:
        self.world = world
        self.name = f"f{number}"
        self.watched: set[str] = set()
        self.state = PairingState(
            name=self.name,
            primary="p",
            secondary="s",
            options=options,
            chooser=random.Random(world.random.random()),
            clock=lambda: world.now,
            wall_clock=lambda: world.now + world.wall_offset,
            on_change=self.changed,
        )
        self.state.paired_with(queues)

    def health_of(self, path: str) -> EntityHealth:
        """The entity's record, with a planted bug if the world has one."""
        record = self.state.health_of(path)
        kind = {"timer_restarted": _RestartingHealth, "ping_counts_after_gone": _TrustingHealth}.get(
            self.world.bug
        )
        if kind is not None and type(record) is EntityHealth:
            record = kind(
                record.path,
                record.failover_interval_ms,
                self.state.ping_interval_ms,
                record.healthy_pings,
                self.world.now,
            )
            self.state._healths[entity_key(path)] = record
        return record

    def changed(self, record: EntityHealth) -> None:
        """Start the watch of an entity that is not healthy."""
        self.world.checks.changed(self.name, record, self.world.now)
        if record.state is not Health.HEALTHY and record.path not in self.watched:
            self.watched.add(record.path)
            self.world.spawn(self.watch(record), self)

    def watch(self, record: EntityHealth) -> Work:
        """The watch of both twins, as a generator."""
        world = self.world
        while True:
            self.state.apply(record, record.tick(world.now))
            if record.is_healthy:
                self.watched.discard(record.path)
                return
            if record.ping_is_due(world.now):
                record.pings.sending(world.now)
                world.checks.ping_sent(self.name, record, world.now)
                try:
                    yield Ask(world.primary, partial(world.ping, record.path), record.pings.timeout_ms)
                except Exception as error:  # noqa: BLE001 - every error is the answer
                    world.checks.ping_answered(self.name, record, error, world.now)
                    gone = classify(error) is Failure.NOT_FOUND
                    self.state.apply(record, record.ping_failed(world.now, str(error), entity_is_gone=gone))
                else:
                    world.checks.ping_answered(self.name, record, None, world.now)
                    self.state.apply(record, record.ping_succeeded(world.now))
            else:
                deadline = record.next_deadline()
                yield Sleep(max(1, min(200, (deadline or world.now + 200) - world.now)))

    def sender(self, path: str, numbers: list[int], session: str | None) -> Work:
        """Sends messages one after the other."""
        world = self.world
        choice = Choice()
        for number in numbers:
            yield Sleep(world.random.randrange(1, 2_000))
            payload = original(number, session, has_alias_name=number % 3 == 0, has_life=number % 4 == 0)
            yield from self.send(path, number, payload, choice)

    def send(self, path: str, number: int, payload: bytes, choice: Choice) -> Work:
        """One send: ask, do, report, as both twins do."""
        world = self.world
        record = self.health_of(path)
        flow = self.state.flow(record, choice, world.now + world.timeout_ms)
        if world.bug == "rotation_not_shared":
            own = world.own_rotations.setdefault(id(choice), self._fresh_rotation())
            flow = SendFlow(
                record, own, choice, "documented", world.now + world.timeout_ms, holds_while_suspect=False
            )
        parked: bytes | None = None
        world.checks.begun(number, path, payload)
        while True:
            step = flow.next_step(world.now)
            if isinstance(step, TryPrimary):
                world.checks.to_primary(self.name, record, world.now)
                try:
                    yield Ask(
                        world.primary, partial(world.put, world.primary, path, [payload]), step.timeout_ms
                    )
                except Exception as error:  # noqa: BLE001 - every error is an answer
                    world.checks.primary_failed(self.name, record, number, error, world.now)
                    self.state.apply(record, flow.primary_failed(world.now, error))
                else:
                    world.checks.primary_accepted(self.name, record, world.now)
                    self.state.apply(record, flow.primary_accepted(world.now))
                    world.checks.told(number, "ok")
                    return
            elif isinstance(step, TryBacklog):
                parked = parked or self._parked(payload, path)
                queue, letter = step.queue, parked
                world.checks.to_backlog(self.name, queue, world.now, self.state)
                try:
                    yield Ask(
                        world.secondary, partial(world.put, world.secondary, queue, [letter]), step.timeout_ms
                    )
                except Exception as error:  # noqa: BLE001 - every error is an answer
                    is_out = flow.backlog_failed(queue, world.now, error)
                    is_out = is_out or queue not in self.state.usable_queues
                    world.checks.backlog_failed(self.name, queue, number, error, world.now, is_out=is_out)
                else:
                    world.checks.backlog_accepted(self.name, queue)
                    flow.backlog_accepted(queue, 1)
                    world.checks.told(number, "ok")
                    return
            elif isinstance(step, Wait):
                yield Sleep(max(1, min(step.timeout_ms, 100)))
            else:
                assert isinstance(step, Fail)
                world.checks.told(number, "unknown" if step.is_in_doubt else "fail")
                return

    def _parked(self, payload: bytes, path: str) -> bytes:
        parked = self.state.park([payload], path, "timeout")[0]
        if self.world.bug == "alias_lost":
            return parked.replace(b"x-ms-sessionid", b"x-ms-sessionlost"[:14])
        return parked

    def _fresh_rotation(self) -> Rotation:
        return Rotation(self.state.queues, self.state.ping_interval_ms, self.world.random)
