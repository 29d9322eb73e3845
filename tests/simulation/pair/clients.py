"""Paired clients in the simulated world: the client that ships, over official clients that reach a model in memory."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus import exceptions as sdk
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

from pairbus.pairing.client.aio import PairedServiceBusClient
from pairbus.pairing.naming import entity_key
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.outcome import outcome_of
from pairbus.pairing.rules.flow import Choice, SendFlow
from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.rules.rotation import Rotation
from pairbus.sdk.messages import message_bytes
from tests.simulation.pair.model import NamespaceModel, number_of, original

if TYPE_CHECKING:
    from tests.simulation.pair.world import World

LIMIT_BYTES = 262_144
CLOSE_S = 0.1
"""How long it takes to close something of the SDK's."""


class SimSender:
    """As much of the official sender as the paired one uses. Every send is checked where the wire would be."""

    _amqp_transport = PyamqpTransportAsync
    _max_batch_size_on_link = LIMIT_BYTES

    def __init__(self, official: SimOfficial, path: str) -> None:
        self._official = official
        self._path = path
        self._config = SimpleNamespace(retry_total=0, retry_backoff_factor=0.1)
        self._handler = None
        self._running = True

    async def _handle_exception(self, exception: Exception) -> Exception:
        return exception

    async def _open(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the SDK's shape
        self._running = True

    _open_with_retry = _open

    async def _close_handler(self) -> None:
        self._running = False

    async def close(self) -> None:
        self._running = False
        await asyncio.sleep(CLOSE_S)

    async def send_messages(self, message: Any, *, timeout: float) -> None:  # noqa: ASYNC109 - the SDK's shape
        await self._send(message, timeout=timeout)

    async def _send(self, message: Any, timeout: float, last_exception: object = None) -> None:  # noqa: ASYNC109
        if not isinstance(message, ServiceBusMessageBatch):
            await self._ping(timeout)
        elif self._official.is_primary:
            await self._to_primary(message_bytes.messages_of(message), timeout)
        else:
            await self._to_backlog(message_bytes.messages_of(message), timeout)

    async def _to_primary(self, payloads: list[bytes], seconds: float) -> None:
        world, client = self._official.world, self._official.client
        checks, health = world.checks, client.state.health_of(self._path)
        begun = world.now
        checks.to_primary(client.name, health, begun)
        try:
            await self._put(payloads, seconds)
        except (Exception, asyncio.CancelledError) as error:
            # A caller that is cut off has waited as long as it could.
            seen = error if isinstance(error, Exception) else sdk.OperationTimeoutError()
            for payload in payloads:
                checks.primary_failed(client.name, health, number_of(payload), seen, begun, world.now)
            raise
        checks.primary_accepted(client.name, health, world.now)

    async def _to_backlog(self, payloads: list[bytes], seconds: float) -> None:
        world, client = self._official.world, self._official.client
        checks, queue = world.checks, self._path
        checks.to_backlog(client.name, queue, world.now, client.state)
        try:
            await self._put(payloads, seconds)
        except (Exception, asyncio.CancelledError) as error:
            seen = error if isinstance(error, Exception) else sdk.OperationTimeoutError()
            if queue not in client.state.usable_queues:
                checks.queue_refused(client.name, queue, world.now)
            for payload in payloads:
                checks.backlog_failed(number_of(payload), seen)
            raise
        checks.backlog_accepted(client.name, queue, world.now, client.state)

    async def _put(self, payloads: list[bytes], seconds: float) -> None:
        official = self._official
        await official.world.ask(
            official.model, partial(official.world.put, official.model, self._path, payloads), seconds * 1000
        )

    async def _ping(self, seconds: float) -> None:
        world, client = self._official.world, self._official.client
        health = client.state.health_of(self._path)
        world.checks.ping_sent(client.name, health, world.now)
        error: Exception | None = None
        try:
            await world.ask(world.primary, partial(world.ping, self._path), seconds * 1000)
        except Exception as caught:
            error = caught
            raise
        finally:
            world.checks.ping_answered(client.name, health, error, world.now)


class SimOfficial:
    """As much of the official client as the paired one uses."""

    def __init__(self, world: World, client: SimClient, model: NamespaceModel) -> None:
        self.world = world
        self.client = client
        self.model = model
        self.is_primary = model is world.primary
        self.fully_qualified_namespace = f"{model.name}.servicebus.windows.net"
        self._config = SimpleNamespace(use_tls=True)
        self._credential = SimpleNamespace()
        self.is_closed = False

    def get_queue_sender(self, path: str, **options: Any) -> SimSender:
        return SimSender(self, path)

    async def close(self) -> None:
        await asyncio.sleep(CLOSE_S)
        self.is_closed = True


class SimClient:
    """One paired client of the world."""

    official: type[SimOfficial] = SimOfficial

    def __init__(
        self, world: World, number: int, options: SendAvailabilityOptions, name: str | None = None
    ) -> None:
        self.world = world
        self.name = name or f"c{number}"
        primary: Any = self.official(world, self, world.primary)
        secondary: Any = self.official(world, self, world.secondary)
        self.client = PairedServiceBusClient(
            primary, secondary, options=options, primary_aliases=[f"{self.name}.alias"], seed=number
        )
        self.state = self.client._state
        self.state.name = self.name
        self.state.clock = lambda: world.now
        self.state.wall_clock = lambda: world.now + world.wall_offset
        self._changed, self.state._on_change = self.state._on_change, self._on_change
        self._evicted, self.state.evicted = self.state.evicted, self._on_evicted  # type: ignore[method-assign]
        self._readmitted, self.state.readmitted = self.state.readmitted, self._on_readmitted  # type: ignore[method-assign]
        self._plant()
        self._pair()

    def _pair(self) -> None:
        self.state.paired_with(self.world.backlog)

    def _on_change(self, health: EntityHealth) -> None:
        self.world.checks.changed(self.name, health, self.world.now)
        self._changed(health)

    def _on_evicted(self, queue: str, why: str) -> None:
        self.world.checks.queue_refused(self.name, queue, self.world.now)
        self._evicted(queue, why)

    def _on_readmitted(self, queue: str, accepting: str) -> None:
        self.world.checks.queue_back(self.name, queue, self.world.now)
        self._readmitted(queue, accepting)

    async def send_all(self, path: str, numbers: list[int], session: str | None) -> None:
        """Send messages one after the other."""
        world = self.world
        sender = self.client.get_queue_sender(path)
        for number in numbers:
            await asyncio.sleep(world.random.randrange(1, 2_000) / 1000)
            payload = original(number, session, has_alias_name=number % 3 == 0, has_life=number % 4 == 0)
            batch = message_bytes.batch_of(message_bytes.new_batch(LIMIT_BYTES, SimSender), [payload])
            world.checks.begun(number, path, payload)
            try:
                await sender.send_messages(batch, timeout=world.timeout_ms / 1000)
            except Exception as error:  # noqa: BLE001 - every error says what became of the message
                world.checks.returned(number, outcome_of(error))
            else:
                world.checks.returned(number, "ok")

    # --- planted bugs -----------------------------------------------------------------------------

    def _plant(self) -> None:
        state, bug = self.state, self.world.bug
        kind = {"timer_restarted": _RestartingHealth, "ping_counts_after_gone": _TrustingHealth}.get(bug)
        if kind is not None:
            health_of = state.health_of

            def planted(path: str) -> EntityHealth:
                health = health_of(path)
                if type(health) is EntityHealth:
                    health = kind(
                        health.path,
                        health.failover_interval_ms,
                        state.ping_interval_ms,
                        health.healthy_pings,
                        self.world.now,
                    )
                    state._healths[entity_key(path)] = health
                return health

            state.health_of = planted  # type: ignore[method-assign]
        if bug == "alias_lost":
            form = state.parked_form
            state.parked_form = lambda *given: form(*given).replace(  # type: ignore[method-assign]
                b"x-ms-sessionid", b"x-ms-sessionlo"
            )
        if bug == "rotation_not_shared":
            rotations: dict[int, Rotation] = {}

            def own(health: EntityHealth, choice: Choice, deadline_ms: int, **_: Any) -> SendFlow:
                fresh = Rotation(state.queues, state.ping_interval_ms, self.world.random)
                rotation = rotations.setdefault(id(choice), fresh)
                return SendFlow(
                    health,
                    rotation,
                    choice,
                    "documented",
                    deadline_ms,
                    holds_while_suspect=False,
                )

            state.flow = own  # type: ignore[method-assign]


class _RestartingHealth(EntityHealth):
    """Planted: each failure starts the timer again."""

    def send_failed(self, now: int, why: str) -> Any:
        if self.state is Health.SUSPECT:
            self.suspect_since_ms = now
        return super().send_failed(now, why)


class _TrustingHealth(EntityHealth):
    """Planted: an answer of any kind counts as health."""

    def ping_failed(self, now: int, why: str, *, entity_is_gone: bool, **more: Any) -> Any:
        if entity_is_gone:
            return self.ping_succeeded(now)
        return super().ping_failed(now, why, entity_is_gone=entity_is_gone, **more)
