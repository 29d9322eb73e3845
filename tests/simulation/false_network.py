# mypy: disable-error-code="no-untyped-call"
"""A false network beneath the official asynchronous client, on virtual time.

Everything above a connection is the SDK as it ships: its client, its senders, their retries, its protocol client and its
sender links. Only what would be a socket is played: a connection takes time to open, has one lock for reading and writing
as the SDK's has, carries frames to a namespace that may be down, silent or slow, and breaks when the namespace dies.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest
from azure.servicebus._pyamqp.aio._client_async import SendClientAsync
from azure.servicebus._pyamqp.aio._sender_async import SenderLink
from azure.servicebus._pyamqp.constants import SessionState, SessionTransferState
from azure.servicebus._pyamqp.error import AMQPConnectionError, ErrorCondition, TokenAuthFailure
from azure.servicebus._pyamqp.message import BatchMessage
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

from pairbus.pairing.naming import TRANSFER_SEGMENT
from tests.unit.drain.virtual_loop import VirtualLoop

MARK: Final = re.compile(rb"<(\d+)>")
"""How a message of the simulation is known wherever its bytes are."""
_CLOCKED: Final = (
    "azure.servicebus.aio._base_handler_async",
    "azure.servicebus.aio._servicebus_sender_async",
    "azure.servicebus.aio._transport._pyamqp_transport_async",
    "azure.servicebus._common.utils",
    "azure.servicebus._pyamqp.aio._client_async",
    "azure.servicebus._pyamqp.aio._sender_async",
)


class FalseNamespace:
    """What answers at the other end: entities that store, and the ways in which it fails."""

    def __init__(self, host: str, dice: random.Random) -> None:
        self.host = host
        self.dice = dice
        self.latency_s = 0.005
        self.opening_s = 0.0
        self.is_down = False
        self.is_silent = False
        self.is_lost = False
        self.fails_inside_opening = ""
        self.disabled: set[str] = set()
        self.stored: dict[str, Counter[int]] = {}
        self.pings = 0
        self.kept: dict[str, list[Any]] = {}
        self.on_parked: Callable[[str, bytes], None] = lambda path, content: None
        self.connections: set[FalseConnection] = set()
        self.opened = 0
        self.breaks = 0
        self._held: list[Callable[[], None]] = []

    def kill(self) -> None:
        """The process dies: every connection breaks, what is under way is lost."""
        self.is_down = True
        for connection in list(self.connections):
            self.breaks += 1
            connection.break_off()

    def fall_silent(self) -> None:
        """It reads nothing and says nothing."""
        self.is_silent = True
        self.breaks += len(self.connections)

    def get_lost(self) -> None:
        """The network swallows everything: what was connected, or was connecting, stays dead after it is back."""
        self.fall_silent()
        self.is_lost = True
        for connection in self.connections:
            connection.is_lost = True

    def stall(self) -> None:
        """What is connected now takes nothing any more; new connections do."""
        self.breaks += len(self.connections)
        for connection in self.connections:
            connection.is_stalled = True

    def recover(self) -> None:
        """It is back; what lay in its sockets is read now."""
        self.is_down = self.is_silent = self.is_lost = False
        held, self._held = self._held, []
        for action in held:
            action()

    def copies(self) -> Counter[int]:
        """How often each message is stored, wherever."""
        return sum(self.stored.values(), Counter())

    def later(self, action: Callable[[], None]) -> None:
        """A frame is on its way to it."""

        def arrive() -> None:
            if self.is_down:
                return
            if self.is_silent:
                self._held.append(action)
            else:
                action()

        delay = self.latency_s * self.dice.choice((1, 1, 1, 4))
        asyncio.get_running_loop().call_later(delay, arrive)

    def store(self, path: str, payload: bytes, contents: Sequence[bytes]) -> Any:
        """Store a message, or a batch of ``contents``, or say why not."""
        if path in self.disabled:
            return {"rejected": [[b"com.microsoft:entity-disabled", b"disabled", None]]}
        numbers = [int(number) for number in MARK.findall(payload)]
        self.stored.setdefault(path, Counter()).update(numbers)
        self.pings += not numbers
        if TRANSFER_SEGMENT in path:
            for content in contents:
                self.on_parked(path, content)
        return {"accepted": []}


class FalseConnection:
    """As much of the SDK's connection as its client and links use."""

    _remote_max_frame_size = 65_536
    _container_id = "false"

    def __init__(self, namespace: FalseNamespace) -> None:
        self.namespace = namespace
        self.is_open = False
        self.is_lost = namespace.is_lost
        self.is_stalled = False
        """Whether the peer reads nothing any more, and what is written has filled the buffers on the way."""
        self._error: AMQPConnectionError | None = None
        self._lock = asyncio.Lock()
        self._inbox: asyncio.Queue[Callable[[], Any] | None] = asyncio.Queue()
        self._transport = SimpleNamespace(writer=self)
        self.transport = self
        self._queued: list[Callable[[], Any]] = []

    async def open(self) -> None:
        """Connect, as long as that takes."""
        namespace = self.namespace
        namespace.opened += 1
        namespace.connections.add(self)
        try:
            await asyncio.sleep(namespace.latency_s + namespace.opening_s)
            while namespace.is_silent:  # noqa: ASYNC110 - on virtual time it costs nothing
                await asyncio.sleep(0.5)
            if self.is_lost:
                await asyncio.Event().wait()
            if namespace.is_down or namespace.fails_inside_opening == "refused":
                raise AMQPConnectionError(ErrorCondition.SocketError, description="refused")
        except BaseException:
            namespace.connections.discard(self)
            raise
        self.is_open = True

    def break_off(self) -> None:
        """The peer is gone."""
        self._inbox.put_nowait(None)

    def deliver(self, frame: Callable[[], Any]) -> None:
        """A frame comes from the peer."""

        def arrive() -> None:
            if not self.namespace.is_down and not self.is_lost:
                self._inbox.put_nowait(frame)

        asyncio.get_running_loop().call_later(self.namespace.latency_s, arrive)

    async def write(self, action: Callable[[], None]) -> None:
        """Send a frame. One lock for both directions: whoever reads holds up whoever writes."""
        if self._error is not None:
            raise self._error
        async with self._lock:
            await asyncio.sleep(0)
            if self.is_stalled:
                await asyncio.Event().wait()

        def arrive() -> None:
            if self in self.namespace.connections and not self.is_lost:
                action()

        self.namespace.later(arrive)

    async def listen(self, wait: float | bool = False, batch: int = 1, **_options: Any) -> None:
        """Read one frame, for as long as the SDK waits."""
        if self._error is not None:
            raise self._error
        try:
            async with asyncio.timeout(0.2):
                async with self._lock:
                    frame = await self._inbox.get()
        except TimeoutError:
            return
        if frame is None:
            self._error = AMQPConnectionError(ErrorCondition.SocketError, description="gone")
            return
        await frame()

    async def close(self) -> None:
        await asyncio.sleep(self.namespace.latency_s)
        self.abort()

    def abort(self) -> None:
        """Cut the socket: this object stands for its writer and its transport too."""
        self.is_open = False
        self.namespace.connections.discard(self)


class FalseSession:
    """As much of the SDK's session as its links use."""

    state = SessionState.MAPPED
    name = "false"

    def __init__(self, connection: FalseConnection) -> None:
        self._connection = connection
        self._next_id = 0

    def create_sender_link(self, target_address: Any, **options: Any) -> SenderLink:
        """The SDK's own link."""
        return SenderLink(self, 0, target_address, network_trace=False, network_trace_params={}, **options)

    async def _outgoing_attach(self, frame: Any) -> None:
        link, connection = self.link, self._connection
        fault = connection.namespace.fails_inside_opening

        async def attached() -> None:
            if fault == "not found":
                await link._incoming_detach([0, True, [b"amqp:not-found", b"404 401 503", None]])
            else:
                await link._incoming_attach([None] * 5 + [["s"], ["t"]] + [None] * 3 + [262_144] + [None] * 3)

        if fault == "cut":
            connection.break_off()
        await connection.write(lambda: connection.deliver(attached))

    async def _outgoing_transfer(self, delivery: Any, _trace: Any) -> None:
        delivery.frame["delivery_id"] = number = self._next_id
        self._next_id += 1
        payload = bytes(delivery.frame["payload"])
        is_batch = isinstance(delivery.message, BatchMessage)
        contents = [bytes(one) for one in delivery.message[5]] if is_batch else [payload]
        link, connection = self.link, self._connection

        def arrived() -> None:
            state = connection.namespace.store(path_of(link), payload, contents)

            async def settled() -> None:
                await link._incoming_disposition((None, number, number, True, state))

            connection.deliver(settled)

        await connection.write(arrived)
        delivery.transfer_state = SessionTransferState.OKAY

    async def _outgoing_flow(self, frame: Any) -> None:
        """Credit is not played."""

    async def _outgoing_detach(self, frame: Any) -> None:
        """The peer needs no telling: the connection ends with the link."""

    async def end(self) -> None:
        await asyncio.sleep(0)

    link: SenderLink


class FalseSendClient(SendClientAsync):
    """The SDK's protocol client with a false connection below."""

    namespace: FalseNamespace

    async def open_async(self, connection: Any = None) -> None:
        if self._session:
            return
        if not self._connection:
            self._connection = FalseConnection(self.namespace)
            await self._connection.open()
        if not self._session:
            self._session = FalseSession(self._connection)
            await asyncio.sleep(self.namespace.latency_s)
        if self.namespace.fails_inside_opening == "token":
            raise TokenAuthFailure(401, b"404 not found at port 14404")
        if self.namespace.fails_inside_opening == "client":
            raise AttributeError("'NoneType' object has no attribute 'begin'")
        self._shutdown = False

    async def auth_complete_async(self) -> bool:
        return True

    async def _client_ready_async(self) -> bool:
        if not self._link:
            session: Any = self._session
            link = self._link = session.create_sender_link(
                target_address=self.target,
                link_credit=self._link_credit,
                send_settle_mode=self._send_settle_mode,
                rcv_settle_mode=self._receive_settle_mode,
            )
            session.link = link
            await link.attach()
            return False
        return bool(self._link.get_state().value == 3)

    async def close_async(self) -> None:
        self._shutdown = True
        if not self._session:
            return
        await self._close_link_async()
        await self._session.end()
        self._session = None
        connection: Any = self._connection
        await connection.close()
        self._connection = None


def path_of(link: SenderLink) -> str:
    """The entity that a link goes to."""
    address = link.target.address
    text = address.decode() if isinstance(address, bytes) else str(address)
    return text.split("/", 3)[3]


@contextmanager
def false_network(
    monkeypatch: pytest.MonkeyPatch, loop: VirtualLoop, seed: int
) -> Iterator[list[FalseNamespace]]:
    """Two namespaces, and the SDK's clients reach them. The SDK's clock is the loop's."""
    dice = random.Random(f"network-{seed}")
    namespaces = {
        host: FalseNamespace(host, dice) for host in ("p.servicebus.windows.net", "s.servicebus.windows.net")
    }

    def create(config: Any, **options: Any) -> FalseSendClient:
        target = options.pop("target")
        client = FalseSendClient(config.hostname, target, **options)
        client.namespace = namespaces[config.hostname]
        return client

    with monkeypatch.context() as patch:
        clock = SimpleNamespace(
            monotonic=loop.time, time=loop.time, monotonic_ns=lambda: int(loop.time() * 1e9)
        )
        for module in _CLOCKED:
            patch.setattr(f"{module}.time", clock)
        patch.setattr(PyamqpTransportAsync, "create_send_client_async", staticmethod(create))
        patch.setattr("pairbus.pairing.clock.steady_ms", loop.now_ms)
        yield list(namespaces.values())
