"""A client of a simulated world: somebody with a connection who comes back when it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.transport.handler import ConnectionSettings
from pairbus.model.access import ROOT_RULE
from tests.simulation.broker.checkers import PromiseBroken, Stamp
from tests.simulation.broker.scene import ROOT_KEY
from tests.simulation.wire import ClientConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.broker.process import Socket
    from tests.simulation.broker.scene import Scene
    from tests.simulation.wire import ClientSession

RETRY_MS: Final = 700
SILENCE_MS_MAX: Final = ConnectionSettings("client").idle_timeout_ms // 2


class Client:
    """Somebody with a connection who comes back when it breaks."""

    def __init__(self, world: Scene, name: str) -> None:
        self.world = world
        self.name = name
        self.connection = ClientConnection(name)
        self.socket: Socket | None = None
        self.stamp = Stamp(0, 0, 0, 0)
        self.is_connecting = False
        self._spoke_at = world.time
        world.clients.append(self)

    @property
    def is_finished(self) -> bool:
        """Nothing more will be done of its own will."""
        return True

    def connect(self) -> None:
        """Try to reach the broker."""
        world = self.world
        if self.socket is not None:
            return
        socket = world.connect(self)
        if socket is None:
            self._connect_later()
            return
        self.socket = socket
        self.connection = ClientConnection(self.name, ROOT_RULE, ROOT_KEY)
        self.attach(self.connection.session())
        self.flush()

    def _connect_later(self) -> None:
        if not self.is_connecting:
            self.is_connecting = True
            self.world.at(self.world.time + 1 + self.world.chance.randrange(RETRY_MS), self._connect_now)

    def _connect_now(self) -> None:
        self.is_connecting = False
        self.connect()

    def lost(self) -> None:
        """The connection broke."""
        self.socket = None
        self.forget()
        self._connect_later()

    def receive(self, data: bytes, stamp: Stamp) -> None:
        """Bytes came from the broker."""
        self.stamp = stamp
        self.connection.receive(data)
        self._check_closed()
        self.react()
        self.flush()

    def flush(self) -> None:
        """Send what is to be said."""
        data = self.connection.take_output()
        if data and self.socket is not None:
            self._spoke_at = self.world.time
            self.socket.send(data)

    def _check_closed(self) -> None:
        """A client that speaks often enough is not closed for its silence, however the machine's clock is set (B64)."""
        error = self.connection.error
        if error is None or self.world.closes_connections or error.condition != "amqp:connection:forced":
            return
        silence = self.world.time - self._spoke_at
        if silence < SILENCE_MS_MAX:
            raise PromiseBroken(f"B64: {self.name} spoke {silence} ms ago and is closed: {error.description}")

    def later(self, ms: int, action: Callable[..., None], *arguments: object) -> None:
        """Do something after a while, if the connection is still the same then."""
        self.world.at(self.world.time + ms, self._act, self.connection, action, arguments)

    def _act(
        self, connection: ClientConnection, action: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        if self.socket is not None and connection is self.connection:
            action(*arguments)
            self.flush()

    # -- what the kinds of clients differ in

    def attach(self, session: ClientSession) -> None:
        """A connection begins: ask for links."""
        raise NotImplementedError

    def react(self) -> None:
        """Something has come."""

    def forget(self) -> None:
        """The connection is gone: what had no answer has none."""

    def calm_down(self) -> None:
        """From now on behave."""
