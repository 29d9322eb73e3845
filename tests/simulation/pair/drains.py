"""Drains in the simulated world: the shell that ships, on ports that ask the world's namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.servicebus import exceptions as sdk

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.ports import CannotAsk, Delivery, LockLost, Observer
from pairbus.drain.rules.delivered import Delivered, Identity
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.shell import Drain
from pairbus.pairing.statistics import Counters
from pairbus.sdk.failures import IN_DOUBT, classify
from tests.payloads import message_id_of, seen_of
from tests.simulation.pair.model import NamespaceModel, Stored

if TYPE_CHECKING:
    from tests.simulation.pair.world import World

ANSWER_MS = 5_000
SEND_MS = 10_000


class SimDrain:
    """One drain, as a process of its own runs it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.in_hand: dict[tuple[str, int], BacklogMessage] = {}
        """Messages that the primary may have and that are not known to be completed."""
        self.drain = Drain(
            [SimInbox(self, queue) for queue in world.backlog],
            SimOutlet(self),
            plan=DrainPlan(window=50, ready_max=20),
            doubts=DoubtfulSends(),
            counters=Counters(),
            clock=lambda: world.now,
            wall_clock=lambda: world.now + world.wall_offset,
            observer=_Judge(world),
        )
        if world.bug == "copies_not_known":
            self.drain._plan.copy_to_leave = lambda message: None  # type: ignore[method-assign]
            self.drain._delivered = _Forgetful()
        self._running = world.loop.create_task(self.drain.run())

    def kill(self) -> list[BacklogMessage]:
        """End as a killed process does; returns what the primary may have."""
        self._running.cancel()
        return list(self.in_hand.values())

    async def ask(self, namespace: NamespaceModel, action: Any, timeout_ms: int) -> Any:
        return await self.world.ask(namespace, action, timeout_ms)


class _Forgetful(Delivered):
    """Planted: a memory of delivered messages that never recognises one."""

    def __contains__(self, identity: Identity) -> bool:
        return False


class _Judge(Observer):
    def __init__(self, world: World) -> None:
        self._world = world

    def dead_lettered(self, message: BacklogMessage, reason: str, description: str) -> None:
        self._world.checks.dead_letter(message, reason)


class SimInbox:
    """One backlog queue as one drain sees it."""

    def __init__(self, owner: SimDrain, queue: str) -> None:
        self.queue = queue
        self._owner = owner
        self._world = owner.world
        self._model = owner.world.secondary.queue(queue)
        self._interrupted = asyncio.Event()

    async def _ask(self, action: Any) -> Any:
        return await self._owner.ask(self._world.secondary, action, ANSWER_MS)

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        self._interrupted.clear()
        world = self._world
        until = world.now + int(seconds * 1000)
        while not (taken := await self._ask(partial(self._receive, min(count, 10)))) and world.now < until:
            try:
                async with asyncio.timeout(world.random.randrange(50, 400) / 1000):
                    await self._interrupted.wait()
                break
            except TimeoutError:
                continue
        return [
            Delivery(
                stored.number, stored.payload, stored.locked_until_ms, stored.enqueued_ms, (stored, lock)
            )
            for stored, lock in taken
        ]

    def _receive(self, count: int) -> list[tuple[Stored, int]]:
        return self._model.receive(count, self._world.now)

    def interrupt(self) -> None:
        self._interrupted.set()

    async def cancel(self, message: BacklogMessage) -> bool:
        """Remove a message whose sender cancelled it."""
        return bool(await self.complete([message]))

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        checks = self._world.checks
        for message in messages:
            checks.completing(message)
        try:
            done = await self._ask(partial(self._settle_all, messages))
        except Exception:
            for message in messages:
                checks.in_doubt_resend(message.message_id)
            raise
        for message in messages:
            if message in done:
                self._owner.in_hand.pop(message.key, None)
            else:
                checks.in_doubt_resend(message.message_id)
        return list(done)

    def _settle_all(self, messages: Sequence[BacklogMessage]) -> list[BacklogMessage]:
        done = []
        for message in messages:
            try:
                self._settle(message.token, None)
                done.append(message)
            except sdk.MessageLockLostError:
                continue
        return done

    def _settle(self, token: Any, reason: str | None) -> None:
        stored, lock = token
        self._model.settle(stored.number, lock, self._world.now, aside=reason)

    async def dead_letter(self, token: object, reason: str, description: str) -> None:
        try:
            await self._ask(partial(self._settle, token, reason))
        except sdk.MessageLockLostError as error:
            raise LockLost from error

    async def release(self, tokens: Sequence[Any]) -> None:
        def unlock() -> None:
            for stored, lock in tokens:
                if stored.lock == lock:
                    stored.locked_until_ms = 0

        await self._ask(unlock)

    async def renew(self, messages: Sequence[BacklogMessage]) -> Sequence[int | None]:
        return list(await self._ask(lambda: [self._renewed(message) for message in messages]))

    def _renewed(self, message: BacklogMessage) -> int | None:
        token: Any = message.token
        stored, lock = token
        try:
            return self._model.renew(stored.number, lock, self._world.now)
        except sdk.MessageLockLostError:
            if message.is_in_flight:
                self._world.checks.in_doubt_resend(message.message_id)
            return None

    async def browse(self, number: int, count: int, queue: str | None = None) -> Sequence[Seen]:
        model = self._model if queue is None else self._world.secondary.queue(queue)

        def look() -> list[Seen]:
            there = [stored for stored in model.messages.values() if stored.number >= number][:count]
            return [seen_of(stored.number, stored.payload, stored.enqueued_ms) for stored in there]

        return list(await self._ask(look))

    async def receive_deferred(self, numbers: Sequence[int]) -> Sequence[Delivery]:
        return []

    async def close(self) -> None:
        return


class SimOutlet:
    """The primary as one drain sees it."""

    def __init__(self, owner: SimDrain) -> None:
        self._owner = owner
        self._world = owner.world

    async def send(self, path: str, messages: Sequence[BacklogMessage]) -> None:
        world = self._world
        payloads = [message.payload for message in messages]
        for message in messages:
            self._owner.in_hand[message.key] = message
            if world.bug == "complete_before_send":
                self._owner.drain._acknowledged(message)
        try:
            await self._owner.ask(world.primary, partial(world.put, world.primary, path, payloads), SEND_MS)
        except Exception as error:
            for message in messages:
                if classify(error) in IN_DOUBT:
                    world.checks.in_doubt_resend(message.message_id)
                else:
                    self._owner.in_hand.pop(message.key, None)
            raise
        for message in messages:
            world.checks.acknowledged(message)

    async def already_delivered(
        self, path: str, messages: Sequence[BacklogMessage], ids: frozenset[str]
    ) -> Sequence[BacklogMessage]:
        world = self._world
        if not world.shows_messages:
            raise CannotAsk

        def browse() -> set[str]:
            stored = world.primary.queue(path).messages.values()
            return {message_id_of(one.payload) for one in stored}

        there = await self._owner.ask(world.primary, browse, ANSWER_MS)
        found = [message for message in messages if message.message_id in there]
        for message in found:
            world.checks.acknowledged(message)
        return found

    async def close(self) -> None:
        return
