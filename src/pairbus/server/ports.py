"""What the server asks of the broker it serves; ``gateway.broker`` is the real one, tests bring small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pairbus.engine.ports import WallClock
    from pairbus.engine.records import Record
    from pairbus.gateway.http import HttpRequest, HttpResponse
    from pairbus.gateway.telemetry.exposition import Metric
    from pairbus.model.access import AccessRule


class GatewayPort(Protocol):
    """One AMQP peer inside the broker."""

    context: object | None

    @property
    def is_open(self) -> bool:
        """The peer has passed SASL and opened; until then the handshake's time limit runs (M6)."""

    @property
    def is_stranger(self) -> bool:
        """The peer has not proved a right yet."""

    @property
    def is_closed(self) -> bool:
        """No more output will come; close the socket once the output is written."""

    @property
    def is_behind(self) -> bool:
        """Input waits inside for the next ``receive``, for the work allowed was done."""

    def receive(self, data: bytes, now: int, work: int) -> None:
        """Bytes have come, or none and the rest of those before is due. Does about that much work, where a transfer is 1.
        Never raises for a peer's fault.
        """

    def take_output(self) -> list[bytes]:
        """Everything to write since last asked."""

    def lost(self, now: int) -> None:
        """The socket is gone."""

    def close(self, condition: str, description: str) -> None:
        """Say why and close; the output then ends with it."""

    def pause(self) -> None:
        """The peer reads too slowly: deliver nothing to it for now (B63)."""

    def resume(self, now: int) -> None:
        """There is room again."""


class NamespacePort(Protocol):
    """The part of the engine's namespace that the server needs."""

    access_rules: tuple[AccessRule, ...]
    """The access rules of the namespace itself."""

    def restate(self, record: Record, now: int) -> None:
        """Append again what of this old record is still true."""

    def record_uses(self, now: int, *, is_last: bool = False) -> None:
        """Append when entities were last used, now and then; ``is_last``: of all, for this life ends."""

    def held_objects(self) -> int:
        """About how many objects what is stored takes in memory."""


class BrokerPort(Protocol):
    """One namespace, without I/O."""

    @property
    def namespace(self) -> NamespacePort:
        """The engine behind it."""

    server_metrics: Callable[[], list[Metric]]
    """What the server counts, to be shown with the broker's own metrics."""

    steady_ms: Callable[[], int]
    """Real time in milliseconds, by which the limits of connections are measured."""

    def follow_wall_clock(self, wall_clock: WallClock) -> None:
        """Judge the dates of clients by this clock, and give them dates of it: the server's own clock may be ahead."""

    def connect(self, peer: str, secure: bool, loopback: bool, now: int) -> GatewayPort:
        """A peer that writes AMQP has arrived."""

    def pump(self, now: int) -> None:
        """End of a turn: deliver what is ready."""

    def fetched(self, queue_ids: list[int], now: int) -> None:
        """Message bytes that these queues waited for are here."""

    def tick(self, now: int) -> None:
        """Time has passed."""

    def next_deadline(self) -> int | None:
        """When ``tick`` is next needed."""

    def take_dirty(self) -> Sequence[GatewayPort]:
        """Connections that have output since last asked."""

    def http(self, request: HttpRequest, now: int) -> HttpResponse:
        """Answer a request."""
