"""Two namespaces as one client: everything that does not depend on how it waits.

``pairing.client.aio`` and ``pairing.client.sync`` give it the shapes of the two official clients.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NoReturn, TypeVar
from weakref import WeakSet

from pairbus.errors import AlreadyPairedError, UsageError, WrongTypeError
from pairbus.pairing import clock, naming
from pairbus.pairing.client.backlog.fences import LOOK_SECONDS, Fences
from pairbus.pairing.client.backlog.later import pair_later
from pairbus.pairing.client.backlog.queue_checks import QueueChecks
from pairbus.pairing.client.backlog.setup import UNREACHABLE, Setup
from pairbus.pairing.client.closing import close
from pairbus.pairing.client.controls import Controls
from pairbus.pairing.client.lives import end_if_former, live_again, pairing_call, wait_for_pairing
from pairbus.pairing.client.registry import pairings
from pairbus.pairing.client.sending.cancel import Withdraw, cancel_parked
from pairbus.pairing.client.spool.spooling import Spooling, not_in_this_spool
from pairbus.pairing.client.state import PairingState
from pairbus.pairing.client.watch import watch
from pairbus.pairing.errors import (
    ClientClosedError,
    NoBacklogQueuesError,
    PartnerClosedError,
    ScheduledMessageGoneError,
)
from pairbus.pairing.events import Kind, Listener
from pairbus.pairing.journal import ENVIRONMENT, EventJournal, StatusReporter
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.pairing.outcome import mark
from pairbus.pairing.rules.closing import Partnership, Side
from pairbus.pairing.rules.health import EntityHealth, Health
from pairbus.pairing.scheduled import SPOOL_PREFIX
from pairbus.sdk import client_settings
from pairbus.sdk.addresses import connect
from pairbus.sdk.connection_string import (
    merge_connection_strings,
    namespace_name,
    normal_host,
    parse_connection_string,
)
from pairbus.sdk.failures import classify
from pairbus.sdk.links.opening import bound_closing, bound_opening

if TYPE_CHECKING:
    from typing import Self

    from pairbus.pairing.client.drain_host import DrainHost
    from pairbus.pairing.client.sending.sender import SenderCore
    from pairbus.pairing.runtime.ports import Link, Runtime
    from pairbus.pairing.scheduled import ParkedSchedule

logger = logging.getLogger("pairbus.pairing")

CLOSE_SECONDS_DEFAULT: Final = 15.0
HANDLER_CLOSE_SECONDS: Final = 2.0
CLOSE_TRIES: Final = 3
Official = TypeVar("Official")
Sender = TypeVar("Sender")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def on_primary(official: _Method, text: str) -> _Method:
    """A method of the official client that is called on the primary, with the same arguments and types."""

    @functools.wraps(official)
    def call(self: PairedClient[Any, Any], *given: Any, **options: Any) -> Any:
        self._check_live()
        made = getattr(self.primary, official.__name__)(*given, **options)
        bound_opening(made)
        bound_closing(made)
        return made

    call.__doc__ = text
    return call  # type: ignore[return-value]  # the signature is that of the official one


class PairedClient(Controls, Generic[Official, Sender]):
    """A Service Bus client that goes on sending when its primary namespace does not answer.

    Use it as ``with client:`` (``async with client:`` in ``pairbus.aio``), which pairs the two namespaces and closes the client at the end.
    It can be entered again after that, and is then as a new one with the same arguments.
    It is a ``ServiceBusClient`` to type checkers and to ``isinstance``, and offers all that one does. It holds two
    official clients and is none of them itself: the official constructor is not run. Most programs call
    ``from_connection_strings`` instead of the constructor.

    Args:
        primary: The official client of the namespace that the application uses.
        secondary: The official client of the namespace that holds the backlog meanwhile.
        options: How to behave; the defaults of ``SendAvailabilityOptions`` unless given.
        primary_namespace: The primary's own name, by which its backlog queues are called. Unless given it
            is taken from a cloud host name or, by ``from_connection_strings``, from ``;Namespace=``, which an official
            client does not keep.
        primary_aliases: Further addresses of the primary, each a host or host:port: other names of its host, another
            port, or where it ran before it moved. Backlog queues and messages marked with one of them are its own.
        on_event: Called with each ``Event``, in the thread in which it happened. It must not wait for this client.
        seed: Makes the random choice of backlog queues repeatable.
        management: Options of the official administration client that sets up the secondary, such as
            ``{"connection_verify": ca_file}``.
        ledger: With ``enable_syphon``: the directory in which the drain notes the messages whose delivery it must
            confirm after a crash. The user's data directory unless given.
        not_found: With ``enable_syphon``: what happens to messages whose destination does not exist: ``"dead-letter"``,
            or ``"wait"`` until it does.

    Raises:
        WrongTypeError: ``primary`` or ``secondary`` is a paired client itself.
        SameNamespaceError: Both sides are the same broker.
        NamespaceNameUnknownError: Nothing says how the primary is called: give ``primary_namespace``.
        UsageError: Another argument has a value that can never work.
    """

    _official: ClassVar[Any]
    _sender_class: ClassVar[Any]
    _runtime_class: ClassVar[Callable[[], Runtime]]

    def __init__(
        self,
        primary: Official,
        secondary: Official,
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
            if isinstance(client, PairedClient):
                raise WrongTypeError(
                    f"{side} is {client!r}: give an official client, which is not paired itself"
                )
        if not_found not in ("dead-letter", "wait"):
            raise UsageError(f"not_found is {not_found!r}: give 'dead-letter' or 'wait'")
        self.primary = primary
        self.secondary = secondary
        self.ledger = Path(ledger) if ledger is not None else None
        self.not_found = not_found
        self.fully_qualified_namespace = client_settings.host_of(primary)
        self.options = options if options is not None else SendAvailabilityOptions()
        name = namespace_name(self.fully_qualified_namespace, given=primary_namespace)
        self._hosts = (_hosts_of(primary)[0], _hosts_of(secondary)[0])
        naming.check_different(_hosts_of(primary), _hosts_of(secondary))
        self._identity = naming.PrimaryIdentity.make(client_settings.addresses_of(primary), primary_aliases)
        self._name = name
        self._listener = on_event
        self._seed = seed
        self._management = management or {}
        self._cancelling: set[str] = set()
        self._registration: weakref.finalize[Any, Any] | None = None
        # Of a signal handler's thread too, which may close the client in the middle of anything.
        self._life_lock = threading.RLock()
        self._begin_life()
        client_settings.observe_close(primary, self, Side.PRIMARY)
        client_settings.observe_close(secondary, self, Side.SECONDARY)

    def _begin_life(self) -> None:
        """Make all that closing ends: once for a new client, and each time it is entered again (``lives``)."""
        self._runtime = type(self)._runtime_class()
        self._pairing: object | None = None
        """The task or the thread that pairs the client now (``lives``)."""
        self._watched: set[str] = set()
        self._state = PairingState(
            name=uuid.uuid4().hex[:12],
            primary=self._name,
            identity=self._identity.address,
            secondary=client_settings.host_of(self.secondary),
            options=self.options,
            chooser=random.Random(self._seed),  # noqa: S311 - it spreads load, it keeps no secret
            clock=clock.steady_ms,
            wall_clock=clock.wall_ms,
            on_change=self._changed,
            listener=self._listener,
        )
        journal = os.environ.get(ENVIRONMENT)
        self._reporter: StatusReporter | None = None
        if journal:
            written = EventJournal(Path(journal), self._state.name)
            self._state.journal = written.append
            self._reporter = StatusReporter(self._state, written)
        self._setup = Setup(self, self._management)
        self._checks = QueueChecks(self)
        self._fences = Fences(self)
        self._drain: DrainHost | None = None
        self._spooling = Spooling(self) if self.options.spool is not None else None
        self._partnership = Partnership(is_hosting_syphon=self.options.enable_syphon)
        # Weakly, as the official client does: a program that makes a sender per message must not keep them all.
        self._senders: WeakSet[SenderCore] = WeakSet()
        self._links: WeakSet[Link] = WeakSet()
        self._fault: tuple[str, str] | None = None
        self._has_closed = False
        """Whether nothing is left to close."""
        self._is_closed = False
        self._is_ended = False
        """Closed, faulted, or without its primary side: no sends, no pings. Every send asks it."""

    @classmethod
    def from_connection_strings(
        cls,
        primary: str | Sequence[str],
        secondary: str | Sequence[str],
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
        """Make the client from two connection strings. Nothing is connected yet.

        A namespace that several nodes serve may have several addresses: a connection string that lists them
        (``Endpoint=sb://node-1:5671,node-2:5671/;…``), or a list of connection strings. When one address does not serve,
        links go on to the next, before the namespace counts as not available.

        Args:
            primary: The connection string of the namespace that the application uses, or several for its addresses.
            secondary: Likewise, of the namespace that holds the backlog meanwhile.
            options: As for the constructor; the same for the following ones.
            primary_namespace: The primary's own name.
            primary_aliases: Further addresses of the primary.
            on_event: Called with each ``Event``.
            seed: Makes the random choice of backlog queues repeatable.
            management: Options of the official administration client that sets up the secondary.
            ledger: The directory in which the drain notes messages in doubt.
            not_found: What the drain does with messages whose destination does not exist.
            client_options: Passed to both official clients: ``retry_total``, ``transport_type``, ``connection_verify`` and so on.

        Raises:
            UsageError: A connection string cannot be understood, or an argument can never work.
            SameNamespaceError: Both connection strings are for the same broker.
            NamespaceNameUnknownError: Nothing says how the primary is called: give ``primary_namespace``.
        """
        first = parse_connection_string(merge_connection_strings(primary, "primary"), "primary")
        second = parse_connection_string(merge_connection_strings(secondary, "secondary"), "secondary")
        name = namespace_name(first.host, first.namespace, primary_namespace)
        return cls(
            connect(cls._official, first.text, **client_options),
            connect(cls._official, second.text, **client_options),
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
        """Not offered, because a paired client needs two connection strings: call ``from_connection_strings``.

        Args:
            conn_str: Not used.
            options: Not used.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a paired client needs two connection strings: call from_connection_strings(primary, secondary)"
        )

    # --- senders ----------------------------------------------------------------------------------

    def get_queue_sender(
        self,
        queue_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> Sender:
        """Return a sender for a queue of the primary. Nothing is connected until its first send.

        Args:
            queue_name: The queue. It need not exist yet.
            client_identifier: A name for the sender that the primary sees; one is made unless given.
            socket_timeout: Seconds that the official client waits for its socket.
            kwargs: Passed to the official senders.

        Raises:
            ClientClosedError: The client is closed.
            PartnerClosedError: The other side of the pair was closed alone.
            UsageError: The connection string of the primary is for another entity.
        """
        options = {"client_identifier": client_identifier, "socket_timeout": socket_timeout, **kwargs}
        return self._sender(queue_name, options, is_topic=False)

    def get_topic_sender(
        self,
        topic_name: str,
        *,
        client_identifier: str | None = None,
        socket_timeout: float | None = None,
        **kwargs: Any,
    ) -> Sender:
        """Return a sender for a topic of the primary. Nothing is connected until its first send.

        Args:
            topic_name: The topic. It need not exist yet.
            client_identifier: A name for the sender that the primary sees; one is made unless given.
            socket_timeout: Seconds that the official client waits for its socket.
            kwargs: Passed to the official senders.

        Raises:
            ClientClosedError: The client is closed.
            PartnerClosedError: The other side of the pair was closed alone.
            UsageError: The connection string of the primary is for another entity.
        """
        options = {"client_identifier": client_identifier, "socket_timeout": socket_timeout, **kwargs}
        return self._sender(topic_name, options, is_topic=True)

    def _sender(self, path: str, options: dict[str, Any], *, is_topic: bool) -> Sender:
        self._check_live()
        client_settings.check_entity(self.primary, path)
        sender: Sender = self._sender_class(self, path, options, is_topic=is_topic)
        with self._state.lock:
            self._senders.add(sender)  # type: ignore[arg-type]  # every sender class is one
        end_if_former(self, sender)  # type: ignore[arg-type]
        return sender

    def __repr__(self) -> str:
        if self._is_ended:
            state = "closed"
        elif self.is_paired:
            state = f"paired, {self.backlog_queue_count} backlog queues"
        else:
            state = "not paired"
        return f"<{type(self).__name__} {self._state.primary} with {self._state.secondary}: {state}>"

    if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

        def __getattr__(self, name: str) -> Any:
            # Names that this version of the SDK's client class lacks, and the primary has: attributes of the application.
            if name.startswith("_") or "primary" not in self.__dict__:
                raise AttributeError(name)
            return getattr(self.primary, name)

    # --- pairing and closing ----------------------------------------------------------------------

    async def _do_enter(self) -> None:
        await live_again(self)
        async with pairing_call(self) as is_paired:
            if not is_paired:
                await self._pair()

    async def _do_pair(self) -> None:
        await live_again(self)
        async with pairing_call(self) as is_paired:
            if is_paired:
                raise AlreadyPairedError(f"this client is paired with {self._state.secondary} already")
            await self._pair()

    async def _pair(self) -> None:
        self._enter_registry()
        try:
            if self._spooling is not None:
                await self._runtime.blocking(self._spooling.open)
            queues = await self._queues_of_the_secondary()
            # A client that was closed meanwhile would never stop its drain.
            self._check_live()
            self._state.paired_with(queues)
            if self._state.keeps_order and queues:
                await self._fences.look_at_all(LOOK_SECONDS)
                self._check_live()
            if self.options.enable_syphon and queues:
                await self._start_drain()
                # The closing of the client may have been over before the drain had begun.
                self._check_live()
        except BaseException:
            # Complete or not at all (P30): a client without the drain it was asked for is not paired.
            self._state.is_paired = False
            await self._stop_drain(HANDLER_CLOSE_SECONDS)
            if self._spooling is not None:
                self._spooling.close()
            self._leave_registry()
            raise
        if self._spooling is not None:
            self._spooling.start()
        if not queues:
            self._runtime.spawn(pair_later, self)

    async def _wait_for_pairing(self, until_ms: int) -> None:
        await wait_for_pairing(self, until_ms)

    async def _queues_of_the_secondary(self) -> list[str]:
        """The backlog queues that may be used. None of them, when the secondary does not answer and there is a spool."""
        try:
            return await self._setup.usable_queues(is_quick=self._spooling is not None)
        except NoBacklogQueuesError as error:
            cause = error.__cause__
            if self._spooling is None or cause is None or classify(cause) not in UNREACHABLE:
                raise
            text = f"{error}; until it answers, the spool takes what the primary does not"
            self._state.emit(Kind.QUEUE_UNUSABLE, self._state.secondary, text, is_loud=True)
            return []

    async def _do_close(self, timeout: float) -> None:
        await close(self, timeout)

    def _enter_registry(self) -> None:
        pairings.enter(*self._hosts)
        # A client that is dropped without being closed does not keep its namespaces from being paired for ever.
        self._registration = weakref.finalize(self, pairings.leave, *self._hosts)
        self._registration.atexit = False

    def _leave_registry(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            registration()  # once, however many ask

    async def _close_side(self, side: Any) -> None:
        try:
            for _ in range(CLOSE_TRIES - 1):
                # The SDK goes through its handlers while a call that has not ended yet may make another one.
                with suppress(RuntimeError):
                    await self._runtime.call(side.close)
                    return
            await self._runtime.call(side.close)
        except Exception:
            logger.warning(
                "%s could not be closed in order",
                side.fully_qualified_namespace,
                exc_info=True,
                extra={"event": "pairing.close_failed"},
            )

    async def _close_quietly(self, handler: Any) -> None:
        """Close a sender or receiver of the SDK; None is nothing to close."""
        if handler is None:
            return
        try:
            async with self._runtime.limit(handler, HANDLER_CLOSE_SECONDS):
                await self._runtime.call(handler.close)
        except Exception:  # noqa: BLE001 - it is given up either way, and its peer may be gone
            return

    def _check_live(self) -> None:
        if not self._is_ended:
            return
        if self._fault is not None:
            # A new one each time: an error that is raised again and again keeps the frames of all who met it.
            raise mark(PartnerClosedError(*self._fault), is_in_doubt=False)
        text = (
            "the paired client is closed: enter it again (`with client`), or call pair()"
            if self._is_closed
            else "the client of the primary was closed: close the paired client and enter it again"
        )
        # A send in progress marks the error again, by what is known of its attempts.
        raise mark(ClientClosedError(text), is_in_doubt=False)

    # --- one side alone ---------------------------------------------------------------------------

    def _side_ended(self, side: Side) -> None:
        """Somebody closed one of the two official clients."""
        if self._is_closed:
            return
        self._partnership.ended(side, self._state.clock())
        if side is Side.PRIMARY:
            # Without its primary side the client neither pings nor drains.
            self._is_ended = True
            self._runtime.notify()
        self._runtime.spawn(self._wait_for_partner, side)

    async def _wait_for_partner(self, ended: Side) -> None:
        if ended is Side.PRIMARY:
            await self._stop_drain(HANDLER_CLOSE_SECONDS)
        while not self._is_closed:
            with self._state.lock:
                token = self._runtime.change_token()
                faulted = self._partnership.tick(self._state.clock())
                deadline = self._partnership.next_deadline()
            if faulted is not None:
                await self._fault_side(faulted)
                return
            if deadline is None:
                return
            await self._runtime.wait_for_change(token, max(0.001, (deadline - self._state.clock()) / 1000))

    async def _fault_side(self, side: Side) -> None:
        names = {Side.PRIMARY: self._state.primary, Side.SECONDARY: self._state.secondary}
        self._fault = (names[side.other], names[side])
        self._is_ended = True
        self._state.emit(Kind.FAULTED, names[side], str(PartnerClosedError(*self._fault)))
        self._runtime.notify()
        await self._stop_drain(HANDLER_CLOSE_SECONDS)
        official = self.primary if side is Side.PRIMARY else self.secondary
        await self._runtime.together(self._close_side, (official,), CLOSE_SECONDS_DEFAULT)

    # --- watch and drain --------------------------------------------------------------------------

    def _changed(self, health: EntityHealth) -> None:
        """An entity changed its state: called under the lock of the state."""
        self._runtime.notify()
        key = naming.entity_key(health.path)
        if health.state is not Health.HEALTHY and key not in self._watched and not self._is_ended:
            self._runtime.spawn(watch, self, health)
            self._watched.add(key)
        if health.is_healthy and self._state.keeps_order:
            self._fences.watch()
        if health.is_healthy and self._drain is not None:
            self._drain.wake()

    def _watch_ended(self, health: EntityHealth) -> None:
        with self._state.lock:
            self._watched.discard(naming.entity_key(health.path))

    async def _start_drain(self) -> None:
        drain = self._runtime.drain_host()
        await drain.start(self)
        self._drain = drain

    async def _stop_drain(self, seconds: float) -> None:
        if self._drain is not None:
            await self._drain.stop(seconds)

    async def _cancel_parked(self, handle: ParkedSchedule, path: str, until: float) -> None:
        """Remove a parked message from the backlog. ``until``: an instant of ``time.monotonic``; all steps share it."""
        if handle.queue.startswith(SPOOL_PREFIX):
            if self._spooling is None:
                raise not_in_this_spool(handle)
            await self._spooling.cancel(handle, path, until)
            return

        async def withdraw() -> bool:
            drain = self._drain
            left = until - time.monotonic()
            return drain is not None and left > 0 and bool(await drain.withdraw(handle, left))

        if await withdraw():
            return
        try:
            await self._cancel_in_turn(handle, until, withdraw)
        except ScheduledMessageGoneError:
            # Our own drain may have been about to receive it when it was asked first.
            if not await withdraw():
                raise

    async def _cancel_in_turn(self, handle: ParkedSchedule, until: float, withdraw: Withdraw) -> None:
        """Callers of one client would lock each other's messages: one at a time looks into a backlog queue."""
        while True:
            token = self._runtime.change_token()
            with self._state.lock:
                if is_my_turn := handle.queue not in self._cancelling:
                    self._cancelling.add(handle.queue)
            left = until - time.monotonic()
            if is_my_turn or left <= 0:
                break
            await self._runtime.wait_for_change(token, left)
        try:
            await cancel_parked(self._runtime, self.secondary, handle, max(0.0, left), withdraw)
        finally:
            if is_my_turn:
                with self._state.lock:
                    self._cancelling.discard(handle.queue)
                self._runtime.notify()


def _hosts_of(client: Any) -> list[str]:
    is_emulator = not client_settings.uses_tls(client)
    return [normal_host(host, is_emulator=is_emulator) for host in client_settings.addresses_of(client)]
