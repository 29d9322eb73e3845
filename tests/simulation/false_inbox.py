"""A backlog queue of the false network as a syphon sees it, with locks that lapse; and its destinations over the false network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.drain.azure_ports import AzureOutlet
from pairbus.drain.ports import CannotAsk, Delivery
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen
from tests.payloads import seen_of
from tests.simulation.false_network import MARK, FalseNamespace

LOCK_MS: Final = 5_000
POLL_S: Final = 0.1


@dataclass(slots=True, eq=False)
class Kept:
    """One message in a backlog queue."""

    number: int
    payload: bytes
    enqueued_ms: int
    locked_until_ms: int = 0


class FalseInbox:
    """One backlog queue. It answers as its namespace does: late, never, or with a connection that is gone."""

    def __init__(self, namespace: FalseNamespace, queue: str) -> None:
        self.namespace = namespace
        self.queue = queue
        self._interrupted = asyncio.Event()

    def _now(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    async def _reach(self) -> list[Kept]:
        await asyncio.sleep(self.namespace.latency_s)
        async with asyncio.timeout(10):
            while self.namespace.is_silent:  # noqa: ASYNC110 - on virtual time it costs nothing
                await asyncio.sleep(POLL_S)
        if self.namespace.is_down:
            raise ServiceBusConnectionError
        return self.namespace.kept.setdefault(self.queue, [])

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        """Lock what is free."""
        self._interrupted.clear()
        until = self._now() + seconds * 1000
        while True:
            now = self._now()
            free = [one for one in await self._reach() if one.locked_until_ms <= now][:count]
            if free or self._now() >= until or self._interrupted.is_set():
                break
            await asyncio.sleep(POLL_S)
        for one in free:
            one.locked_until_ms = self._now() + LOCK_MS
        return [Delivery(one.number, one.payload, one.locked_until_ms, one.enqueued_ms, one) for one in free]

    def interrupt(self) -> None:
        """End a poll."""
        self._interrupted.set()

    async def cancel(self, message: BacklogMessage) -> bool:
        """Remove a message whose sender cancelled it."""
        return bool(await self.complete([message]))

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        """Remove those whose locks hold."""
        kept = await self._reach()
        done = [
            message for message in messages if message.token in kept and message.locked_until_ms > self._now()
        ]
        for message in done:
            kept.remove(message.token)  # type: ignore[arg-type]
        return done

    async def dead_letter(self, token: object, reason: str, description: str) -> None:
        """Nothing in these worlds is worth setting aside."""
        raise AssertionError(f"set aside as {reason}: {description}")

    async def release(self, tokens: Sequence[object]) -> None:
        """Unlock."""
        for token in tokens:
            assert isinstance(token, Kept)
            token.locked_until_ms = 0

    async def renew(self, messages: Sequence[BacklogMessage]) -> Sequence[int | None]:
        """Lock for longer."""
        kept = await self._reach()
        return [self._renewed(kept, message.token) for message in messages]

    def _renewed(self, kept: list[Kept], token: object) -> int | None:
        if not isinstance(token, Kept) or token not in kept or token.locked_until_ms <= self._now():
            return None
        token.locked_until_ms = self._now() + LOCK_MS
        return token.locked_until_ms

    async def browse(self, number: int, count: int, queue: str | None = None) -> Sequence[Seen]:
        """Show what is there, locked or not."""
        kept = await self._reach() if queue is None else self.namespace.kept.get(queue, [])
        there = [one for one in kept if one.number >= number][:count]
        return [seen_of(one.number, one.payload, one.enqueued_ms) for one in there]

    async def receive_deferred(self, numbers: Sequence[int]) -> Sequence[Delivery]:
        """Nobody defers here."""
        return []

    async def close(self) -> None:
        """There is no link to let go of."""


class FalseOutlet(AzureOutlet):
    """The real outlet of the drain; only browsing, which needs a receiver, is played."""

    namespace: FalseNamespace

    async def already_delivered(
        self, path: str, messages: Sequence[BacklogMessage], ids: frozenset[str]
    ) -> Sequence[BacklogMessage]:
        """Look at what is stored."""
        await asyncio.sleep(self.namespace.latency_s)
        if self.namespace.is_down or self.namespace.is_silent:
            raise CannotAsk
        stored: Mapping[int, int] = self.namespace.stored.get(path, {})
        return [message for message in messages if int(MARK.findall(message.payload)[0]) in stored]
