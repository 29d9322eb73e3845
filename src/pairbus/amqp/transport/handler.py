"""The owner of a connection as it sees it, and what a connection announces and allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.states import Outcome
from pairbus.amqp.transport.sasl import MECHANISMS
from pairbus.native import mypyc_attr

if TYPE_CHECKING:
    from pairbus.amqp.transport.connection import Connection
    from pairbus.amqp.transport.link import Link
    from pairbus.amqp.transport.session import Session


@mypyc_attr(allow_interpreted_subclasses=True)
class Handler:
    """Who owns the connection. Every call comes from inside ``receive``, ``tick``, ``lost`` or ``close``.

    As it stands here it ignores every event: the handler of a connection whose socket has gone. A class and not a protocol: two of
    its methods are called for each message, and compiled code calls a method of a class much sooner.
    """

    __slots__ = ()

    def sasl_plain(self, user: str, password: str) -> bool:
        """Whether these credentials are good."""
        return False

    def opened(self, connection: Connection) -> None:
        """The peer's open has come; ours follows unless ``connection.close`` is called."""

    def session_began(self, session: Session) -> None:
        """A session is there."""

    def session_ended(self, session: Session) -> None:
        """A session has gone; its links went before."""

    def link_attached(self, link: Link) -> None:
        """A link asks to attach: answer now or later with ``accept`` or ``refuse``."""

    def link_detached(self, link: Link, closed: bool, error: AmqpError | None) -> None:
        """A link has gone, by the peer's doing or with its session; already answered."""

    def transfer(
        self,
        link: Link,
        delivery_id: int,
        message_format: int,
        settled: bool,
        payload: bytes,
        state: Outcome | None,
    ) -> None:
        """A whole delivery from the peer."""

    def transfer_too_large(self, link: Link, delivery_id: int, settled: bool, size: int) -> None:
        """A delivery that exceeded the link's limit; its bytes were not kept."""

    def settled(
        self, link: Link, delivery_id: int, context: object | None, outcome: Outcome, settled: bool
    ) -> None:
        """The peer's verdict on one of our deliveries. Unsettled: it waits for ``session.settle_outgoing``."""

    def settled_many(
        self, link: Link, ids: list[int], contexts: list[object | None], outcome: Outcome, settled: bool
    ) -> None:
        """The peer's one verdict on several of our deliveries on one link, which the session still knows.

        An owner may have less work with all of them at once. One that they had settled is forgotten before ``settled`` is called.
        """
        session = link.session
        for place in range(len(ids)):
            delivery_id, context = ids[place], contexts[place]
            # The answer to an earlier one may have taken it away.
            if session.awaits_settlement(delivery_id, context):
                if settled:
                    session.forget_outgoing(delivery_id)
                self.settled(link, delivery_id, context, outcome, settled)

    def credit(self, link: Link) -> None:
        """A link where we send has new credit, drain or window."""


NO_HANDLER: Final = Handler()


def _lock_lost() -> AmqpError:
    return AmqpError(
        "com.microsoft:message-lock-lost",
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from "
        "the queue.",
    )


@dataclass(slots=True)
class Waiting:
    """Bytes that wait for the windows of sessions, over all connections with the same settings."""

    size: int = 0


@dataclass(slots=True)
class ConnectionSettings:
    """What a connection announces and allows."""

    container_id: str
    max_frame_size: int = 65536
    send_frame_max: int = 1 << 20
    """The largest frame that is sent, also to peers that accept 4 GiB, as rhea announces."""
    channel_max: int = 4999
    handle_max: int = 255
    idle_timeout_ms: int = 240_000
    incoming_window: int = 5000
    link_credit: int = 1000
    pre_auth_bytes_max: int = 16384
    links_max: int = 5000
    """Links of a connection over all its sessions."""
    partial_bytes_max: int = 32 << 20
    """Bytes that a connection holds of deliveries whose last frame has not come, over all its links."""
    waiting_bytes_max: int = 1 << 20
    """Bytes that wait on a connection for the windows of its sessions before it has enough (``has_enough_waiting``)."""
    waiting_bytes_total_max: int = 64 << 20
    """Bytes that wait on all connections before each of those that have something waiting has enough."""
    waiting: Waiting = field(default_factory=Waiting)
    mechanisms: tuple[str, ...] = MECHANISMS
    properties: dict[str, object] = field(default_factory=dict)
    unknown_delivery: AmqpError = field(default_factory=_lock_lost)
    """The error for a client that settles a delivery which is settled, expired or never existed."""
