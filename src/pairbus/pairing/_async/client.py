"""Two namespaces as one client, in the shape of ``azure.servicebus.aio.ServiceBusClient``."""

from __future__ import annotations

import logging
import os
import random
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn
from weakref import WeakSet

from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient

from pairbus.errors import AlreadyPairedError, NotPairedError, UsageError, WrongTypeError
from pairbus.pairing import clock, naming
from pairbus.pairing._async import runtime
from pairbus.pairing._async.cancel import cancel_parked
from pairbus.pairing._async.sender import PairedSender
from pairbus.pairing._async.setup import Setup
from pairbus.pairing._async.watch import watch
from pairbus.pairing.errors import ClientClosedError, PartnerClosedError
from pairbus.pairing.events import Event, Kind, Listener
from pairbus.pairing.journal import ENVIRONMENT, Journal, StatusReporter
from pairbus.pairing.options import SendAvailabilityOptions, check_ping_interval, milliseconds
from pairbus.pairing.outcome import mark
from pairbus.pairing.registry import pairings
from pairbus.pairing.rules.closing import Partnership, Side
from pairbus.pairing.rules.health import EntityHealth, EntityReport, Health
from pairbus.pairing.state import PairingState, headroom_of
from pairbus.sdk import client_settings, connection_string, message_bytes
from pairbus.sdk.trust import reaching

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from azure.core.async_paging import AsyncItemPaged
    from azure.servicebus import ServiceBusSubQueue
    from azure.servicebus._servicebus_client import NextAvailableSessionType
    from azure.servicebus.aio import AutoLockRenewer, ServiceBusReceiver

    from pairbus.pairing.scheduled import ParkedSchedule
    from pairbus.pairing.statistics import Statistics

logger = logging.getLogger("pairbus.pairing")

CLOSE_SECONDS_DEFAULT: Final = 15.0
HANDLER_CLOSE_SECONDS: Final = 2.0


class PairedServiceBusClient(ServiceBusClient):
    """A Service Bus client that goes on sending when its primary namespace does not answer.

    It is a ``ServiceBusClient`` to type checkers and to ``isinstance``, and offers all that one does. It holds two
    official clients and is none of them itself: the official constructor is not run.

    Args:
        primary: The official client of the namespace that the application uses.
        secondary: The official client of the namespace that holds the backlog meanwhile.
        options: How to behave; the defaults unless given.
        primary_namespace: The primary's own name, by which its backlog queues are called. Told from a cloud host
            name or from the ``Namespace=`` of a connection string unless given.
        primary_aliases: Further addresses of the primary, each a host or host:port: other names of its host, another
            port, or where it ran before it moved. Backlog queues and messages marked with one of them are its own.
        on_event: Called with each event.
        seed: Makes the random choice of backlog queues repeatable.
        management: Options of the official administration client that sets up the secondary.
        ledger: With ``enable_syphon``: the directory in which the syphon notes the messages whose delivery it must
            confirm after a crash. The user's data directory unless given.
        not_found: With ``enable_syphon``: what happens to messages whose destination does not exist: ``"dead-letter"``,
            or ``"wait"`` until it does.
    """

    def __init__(
        self,
        primary: ServiceBusClient,
        secondary: ServiceBusClient,
        *,
        options: SendAvailabilityOptions | None = None,
        primary_namespace: str | None = None,
        primary_aliases: Sequence[str] = (),
        on_event: Listener | None = None,
        seed: int | None = None,
        management: dict[str, Any] | None = None,
        ledger: Path | str | None = None,
        not_found: Literal["dead-letter", "wait"] = "dead-letter",
    ) -> None:
        for side, client in (("primary", primary), ("secondary", secondary)):
            if isinstance(client, PairedServiceBusClient):
                raise WrongTypeError(
                    f"{side} is {client!r}: give an official client, which is not paired itself"
                )
        if not_found not in ("dead-letter", "wait"):
            raise UsageError(f"not_found is {not_found!r}: give 'dead-letter' or 'wait'")
        self.ledger = Path(ledger) if ledger is not None else None
        self.not_found = not_found
        self.fully_qualified_namespace = primary.fully_qualified_namespace
        self.primary = primary
        self.secondary = secondary
        self.options = options if options is not None else SendAvailabilityOptions()
        name = connection_string.namespace_name(primary.fully_qualified_namespace, given=primary_namespace)
        self._hosts = (
            connection_string.normal_host(
                client_settings.address_of(primary), is_emulator=not client_settings.uses_tls(primary)
            ),
            connection_string.normal_host(
                client_settings.address_of(secondary), is_emulator=not client_settings.uses_tls(secondary)
            ),
        )
        naming.check_different(*self._hosts)
        self._identity = naming.PrimaryIdentity.make(client_settings.address_of(primary), primary_aliases)
        self._is_registered = False
        self._pulse = runtime.Pulse()
        self._tasks = runtime.Tasks()
        self._limits = runtime.Limits()
        self._watched: set[str] = set()
        self._state = PairingState(
            name=uuid.uuid4().hex[:12],
            primary=name,
            identity=self._identity.address,
            secondary=secondary.fully_qualified_namespace,
            options=self.options,
            chooser=random.Random(seed),  # noqa: S311 - it spreads load, it keeps no secret
            clock=clock.steady_ms,
            wall_clock=clock.wall_ms,
            on_change=self._changed,
            listener=on_event,
        )
        journal = os.environ.get(ENVIRONMENT)
        self._reporter: StatusReporter | None = None
        if journal:
            written = Journal(Path(journal), self._state.name)
            self._state.journal = written.append
            self._reporter = StatusReporter(self._state, written)
        self._setup = Setup(self, management or {})
        self._partnership = Partnership(is_hosting_syphon=self.options.enable_syphon)
        # Weakly, as the official client does: a program that makes a sender per message must not keep them all.
        self._senders: WeakSet[PairedSender] = WeakSet()
        self._is_closed = False
        self._is_ended = False
        """Closed, faulted, or without its primary side: no sends, no pings. One question on the way of every send."""
        self._fault: tuple[str, str] | None = None
        client_settings.observe_close(primary, self, Side.PRIMARY)
        client_settings.observe_close(secondary, self, Side.SECONDARY)

    @classmethod
    def from_connection_strings(
        cls,
        primary: str,
        secondary: str,
        *,
        options: SendAvailabilityOptions | None = None,
        primary_namespace: str | None = None,
        primary_aliases: Sequence[str] = (),
        on_event: Listener | None = None,
        seed: int | None = None,
        management: dict[str, Any] | None = None,
        ledger: Path | str | None = None,
        not_found: Literal["dead-letter", "wait"] = "dead-letter",
        **client_options: Any,
    ) -> Self:
        """Make the client from two connection strings. ``client_options`` go to both official clients."""
        first = connection_string.parse_connection_string(primary, "primary")
        second = connection_string.parse_connection_string(secondary, "secondary")
        name = connection_string.namespace_name(first.host, first.namespace, primary_namespace)
        return cls(
            ServiceBusClient.from_connection_string(first.text, **{**reaching(first.text), **client_options}),
            ServiceBusClient.from_connection_string(
                second.text, **{**reaching(second.text), **client_options}
            ),
            options=options,
            primary_namespace=name,
            primary_aliases=primary_aliases,
            on_event=on_event,
            seed=seed,
            management=management,
            ledger=ledger,
            not_found=not_found,
        )

    @classmethod
    def from_connection_string(cls, conn_str: str, **options: Any) -> NoReturn:  # noqa: ARG003 - the SDK's shape
        """Not offered: a paired client needs two connection strings. Raises UsageError."""
        raise UsageError(
            "a paired client needs two connection strings: call from_connection_strings(primary, secondary)"
        )

    # --- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_live()
        if not self.is_paired:
            await self.pair()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def pair(self) -> None:
        """Find or create the backlog queues in the secondary. The primary may be down meanwhile.

        Raises:
            AlreadyPairedError: This client, its options or the secondary are in a pairing already.
            NoBacklogQueuesError: Not one backlog queue can be used; the client can be paired again later.
        """
        self._check_live()
        if self.is_paired:
            raise AlreadyPairedError(f"this client is paired with {self._state.secondary} already")
        pairings.enter(*self._hosts)
        self._is_registered = True
        try:
            queues = await self._usable_queues()
            # It may have been closed meanwhile, and nobody would ever stop the pumps then.
            self._check_live()
            self._state.paired_with(queues)
            if self.options.enable_syphon:
                await self._start_syphon()
        except BaseException:
            # Complete or not at all (P30): a client without the pumps it was asked for is not paired.
            self._state.is_paired = False
            self._leave_registry()
            raise

    async def close(self, timeout: float = CLOSE_SECONDS_DEFAULT) -> None:
        """Stop pings and pumps and close both sides. Idempotent; returns within ``timeout`` seconds."""
        if self._is_closed:
            return
        self._is_closed = self._is_ended = True
        now = self._state.clock()
        until_ms = now + int(timeout * 1000)
        self._partnership.ended(Side.PRIMARY, now)
        self._partnership.ended(Side.SECONDARY, now)
        self._pulse.fire()
        try:
            await self._stop_syphon(timeout / 3)
            await self._tasks.stop(timeout / 3)
            with self._state.lock:
                senders = list(self._senders)
            # What is left of the time is shared: half for the senders' links, the rest for both sides at once.
            await runtime.together(PairedSender.close, senders, (until_ms - self._state.clock()) / 2000)
            left = max(0.1, (until_ms - self._state.clock()) / 1000)
            await runtime.together(self._close_side, (self.primary, self.secondary), left)
            await self._limits.end((until_ms - self._state.clock()) / 1000)
        finally:
            self._leave_registry()
            if self._reporter is not None:
                self._reporter.stop()
            self._state.tell(Kind.CLOSED, self._state.primary, "closed")

    def _leave_registry(self) -> None:
        if self._is_registered:
            self._is_registered = False
            pairings.leave(*self._hosts)

    async def _close_side(self, side: Any) -> None:
        try:
            await side.close()
        except Exception:
            logger.warning(
                "%s could not be closed in order",
                side.fully_qualified_namespace,
                exc_info=True,
                extra={"event": "pairing.close_failed"},
            )

    async def _usable_queues(self) -> list[str]:
        return await self._setup.usable_queues()

    async def _start_syphon(self) -> None:
        """Hosting pumps needs ``pairbus.drain``; the public client overrides this."""
        raise UsageError("enable_syphon needs pairbus.PairedServiceBusClient, which can host the pumps")

    async def _stop_syphon(self, seconds: float) -> None:
        """Stop the pumps, if there are any."""

    # --- the SDK's shape --------------------------------------------------------------------------

    def get_queue_sender(
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedSender:
        """A sender for a queue that goes on when the primary does not."""
        options = {"client_identifier": client_identifier, "socket_timeout": socket_timeout, **kwargs}
        return self._sender(queue_name, options, is_topic=False)

    def get_topic_sender(
        self,
        topic_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> PairedSender:
        """A sender for a topic that goes on when the primary does not."""
        options = {"client_identifier": client_identifier, "socket_timeout": socket_timeout, **kwargs}
        return self._sender(topic_name, options, is_topic=True)

    def get_queue_receiver(
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        session_id: str | NextAvailableSessionType | None = None,
        sub_queue: ServiceBusSubQueue | str | None = None,
        receive_mode: ServiceBusReceiveMode | str = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: float | None = None,
        auto_lock_renewer: AutoLockRenewer | None = None,
        prefetch_count: int = 0,
        **kwargs: Any,
    ) -> ServiceBusReceiver:
        """The official receiver. It reads from the primary only."""
        self._check_live()
        return self.primary.get_queue_receiver(
            queue_name,
            client_identifier=client_identifier,
            socket_timeout=socket_timeout,
            session_id=session_id,
            sub_queue=sub_queue,
            receive_mode=receive_mode,
            max_wait_time=max_wait_time,
            auto_lock_renewer=auto_lock_renewer,
            prefetch_count=prefetch_count,
            **kwargs,
        )

    def get_subscription_receiver(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        session_id: str | NextAvailableSessionType | None = None,
        sub_queue: ServiceBusSubQueue | str | None = None,
        receive_mode: ServiceBusReceiveMode | str = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: float | None = None,
        auto_lock_renewer: AutoLockRenewer | None = None,
        prefetch_count: int = 0,
        **kwargs: Any,
    ) -> ServiceBusReceiver:
        """The official receiver. It reads from the primary only."""
        self._check_live()
        return self.primary.get_subscription_receiver(
            topic_name,
            subscription_name,
            client_identifier=client_identifier,
            socket_timeout=socket_timeout,
            session_id=session_id,
            sub_queue=sub_queue,
            receive_mode=receive_mode,
            max_wait_time=max_wait_time,
            auto_lock_renewer=auto_lock_renewer,
            prefetch_count=prefetch_count,
            **kwargs,
        )

    def list_queue_sessions(
        self,
        queue_name: str,
        *,
        state_updated_after: datetime | None = None,
        timeout: float | None = None,
    ) -> AsyncItemPaged[str]:
        """The sessions of a queue of the primary."""
        self._check_live()
        return self.primary.list_queue_sessions(
            queue_name, state_updated_after=state_updated_after, timeout=timeout
        )

    def list_subscription_sessions(
        self,
        topic_name: str,
        subscription_name: str,
        *,
        state_updated_after: datetime | None = None,
        timeout: float | None = None,
    ) -> AsyncItemPaged[str]:
        """The sessions of a subscription of the primary."""
        self._check_live()
        return self.primary.list_subscription_sessions(
            topic_name, subscription_name, state_updated_after=state_updated_after, timeout=timeout
        )

    def __repr__(self) -> str:
        if self._is_ended:
            state = "closed"
        elif self.is_paired:
            state = f"paired, {self.backlog_queue_count} backlog queues"
        else:
            state = "not paired"
        return f"<{type(self).__name__} {self._state.primary} with {self._state.secondary}: {state}>"

    def __getattr__(self, name: str) -> Any:
        # Names that this version of the SDK's client class lacks, and the primary has: attributes of the application.
        if name.startswith("_") or "primary" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.primary, name)

    def _sender(self, path: str, options: dict[str, Any], *, is_topic: bool) -> PairedSender:
        self._check_live()
        client_settings.check_entity(self.primary, path)
        sender = PairedSender(self, path, options, is_topic=is_topic)
        with self._state.lock:
            self._senders.add(sender)
        return sender

    # --- what people can see and do ---------------------------------------------------------------

    @property
    def is_paired(self) -> bool:
        """Whether pairing has ended well."""
        return self._state.is_paired

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed, its primary side is, or its partner's end has faulted it."""
        return self._is_ended

    @property
    def factory_name(self) -> str:
        """The unique name of this client, as passports and the journal have it."""
        return self._state.name

    @property
    def backlog_queue_count(self) -> int:
        """How many backlog queues can be used."""
        return len(self._state.usable_queues)

    @property
    def ping_primary_interval(self) -> timedelta:
        """How often a failed-over entity is asked. May be set at any time; the next ping uses it."""
        return timedelta(milliseconds=self._state.ping_interval_ms)

    @ping_primary_interval.setter
    def ping_primary_interval(self, value: timedelta) -> None:
        check_ping_interval(value)
        self._state.change_ping_interval(milliseconds(value))
        self._pulse.fire()

    def health(self) -> dict[str, EntityReport]:
        """Every entity's state, since when, why, next ping, parked count and backlog queue. Times are aware datetimes."""
        return self._state.reports()

    def explain(self, path: str) -> list[str]:
        """Why an entity is in its state, line by line. UsageError for an entity that this client does not know."""
        return self._state.explain(path)

    def events(self) -> list[Event]:
        """The newest events, oldest first."""
        return self._state.events.history()

    def statistics(self) -> Statistics:
        """A frozen picture of the counters."""
        return self._state.statistics()

    def fail_over(self, path: str) -> None:
        """Switch one entity to the backlog by hand, also one that has no sender yet. NotPairedError before pairing."""
        self._check_live()
        if not self.is_paired:
            raise NotPairedError(f"{path!r} cannot fail over before the client is paired: call pair() first")
        self._state.fail_over(path)

    def mark_healthy(self, path: str) -> None:
        """Switch one entity to the primary by hand. UsageError for an entity that this client does not know."""
        self._check_live()
        self._state.mark_healthy(path)

    def headroom(self, message: Any, path: str = "x" * 50) -> int:
        """How many bytes the body may still grow before the parked form is too large; negative when it is already.

        Two limits count: 256 KB for the message, and 64 KB for all its properties together, those for parking included.
        A message whose properties exceed theirs has a negative headroom, however small its body is.
        """
        return headroom_of(self._state.park([message_bytes.encoded(message)], path, "timeout")[0])

    async def _create_again(self, queue: str, since_ms: int, seconds: float) -> bool:
        """Create a backlog queue that was deleted. True when it is there again."""
        return await self._setup.create_again(queue, since_ms, seconds)

    # --- machinery --------------------------------------------------------------------------------

    def _changed(self, record: EntityHealth) -> None:
        """An entity changed its state: called under the factory's lock."""
        self._pulse.fire()
        key = naming.entity_key(record.path)
        if record.state is not Health.HEALTHY and key not in self._watched and not self._is_ended:
            self._tasks.spawn(watch, self, record)
            self._watched.add(key)

    def _watch_ended(self, record: EntityHealth) -> None:
        with self._state.lock:
            self._watched.discard(naming.entity_key(record.path))

    def _forget(self, sender: PairedSender) -> None:
        with self._state.lock:
            self._senders.discard(sender)

    def _check_live(self) -> None:
        if not self._is_ended:
            return
        if self._fault is not None:
            # A new one each time: an error that is raised again and again keeps the frames of all who met it.
            raise mark(PartnerClosedError(*self._fault), is_in_doubt=False)
        text = (
            "the paired client is closed: make a new one"
            if self._is_closed
            else "the client of the primary was closed: close the paired client and make a new one"
        )
        # The caller who was sending meanwhile marks it anew.
        raise mark(ClientClosedError(text), is_in_doubt=False)

    def _side_ended(self, side: Side) -> None:
        """Somebody closed one of the two official clients."""
        if self._is_closed:
            return
        self._partnership.ended(side, self._state.clock())
        if side is Side.PRIMARY:
            # Closing the primary side stops pings and pumps (P43, P44).
            self._is_ended = True
            self._pulse.fire()
        self._tasks.spawn(self._wait_for_partner, side)

    async def _wait_for_partner(self, ended: Side) -> None:
        if ended is Side.PRIMARY:
            await self._stop_syphon(HANDLER_CLOSE_SECONDS)
        while not self._is_closed:
            with self._state.lock:
                ticket = self._pulse.ticket()
                faulted = self._partnership.tick(self._state.clock())
                deadline = self._partnership.next_deadline()
            if faulted is not None:
                await self._fault_side(faulted)
                return
            if deadline is None:
                return
            await self._pulse.wait(ticket, max(0.001, (deadline - self._state.clock()) / 1000))

    async def _fault_side(self, side: Side) -> None:
        names = {Side.PRIMARY: self._state.primary, Side.SECONDARY: self._state.secondary}
        self._fault = (names[side.other], names[side])
        self._is_ended = True
        self._state.tell(Kind.FAULTED, names[side], str(PartnerClosedError(*self._fault)))
        self._pulse.fire()
        await self._stop_syphon(HANDLER_CLOSE_SECONDS)
        official: Any = self.primary if side is Side.PRIMARY else self.secondary
        await runtime.together(self._close_side, (official,), CLOSE_SECONDS_DEFAULT)

    async def _close_handler(self, handler: Any) -> None:
        if handler is None:
            return
        try:
            async with self._limits.limit(handler, HANDLER_CLOSE_SECONDS):
                await handler.close()
        except Exception:  # noqa: BLE001 - it is given up either way, and its peer may be gone
            return

    async def _cancel_parked(self, handles: Sequence[ParkedSchedule], timeout: float | None) -> None:
        await cancel_parked(self.secondary, self._limits, handles, timeout)
