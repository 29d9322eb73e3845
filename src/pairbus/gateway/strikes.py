"""What faults of the switchboard do to connections and links. Faults of sends are met in ``incoming`` and ``management``.

The links of an entity are those of its senders, of its receivers (also from its dead-letter queue) and of its management node, on
all connections. A fault of one entity meets these and nothing else: connections stay, with the links of other entities.

    cut         the links are detached, and links that are asked for are refused
    black hole  what comes on the links is read and has no effect. Without a count it also holds what the broker would say by
                itself, until its end: links that are asked for are not answered, and receivers get no messages
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import LinkCut
from pairbus.gateway.addressing import parse
from pairbus.gateway.faults import BLACK_HOLE, CUT, LOSE_LOCKS
from pairbus.gateway.links import LinkContext, ReceiveLink
from pairbus.model.names import canonical

if TYPE_CHECKING:
    from pairbus.amqp.transport.link import Link
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.broker import Broker
    from pairbus.gateway.connection import GatewayConnection


class Strikes:
    """The faults of one broker, as its connections and links meet them."""

    __slots__ = ("_broker", "held", "silent")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.silent: dict[str, int] = {}
        """Entities in a black hole without a count, and until when: what holds for the links now."""
        self.held: dict[Link, GatewayConnection] = {}
        """Links that were asked for meanwhile: they are answered when it has ended. Connections limit their number."""

    def meet_bytes(self, connection: GatewayConnection, data: bytes, now: int) -> bool:
        """Bytes came in, or the rest of those before is due. True: they are read no further."""
        # Before they are read: the settlement of a message may be among them.
        self._lose_locks(now)
        if not data:
            return False
        faults = self._broker.faults
        if faults.strike(CUT, "", now) is not None:
            connection.cut()
            return True
        return faults.strike(BLACK_HOLE, "", now) is not None

    def meet_attach(self, connection: GatewayConnection, link: Link, path: str) -> bool:
        """A link to an entity is asked for, with the right to it. True: it is answered later. Raises LinkCut."""
        faults, now = self._broker.faults, self._broker.now
        if not faults.is_on:
            return False
        if faults.strike(CUT, path, now) is not None:
            raise LinkCut(path)
        if canonical(path) not in faults.silent(now):
            return False
        self.held[link] = connection
        return True

    def strike(self, now: int) -> None:
        """End of a turn, before anything is delivered."""
        self._lose_locks(now)
        self._cut(now)
        silent = self._broker.faults.silent(now)
        if silent != self.silent:
            self.silent = silent
            self._silence()
            self._answer_held()

    def next_deadline(self) -> int | None:
        """When the first black hole ends that holds anything."""
        return min(self.silent.values(), default=None)

    def _lose_locks(self, now: int) -> None:
        namespace, faults = self._broker.namespace, self._broker.faults
        for fault in faults.live(LOSE_LOCKS, now):
            entity = namespace.find(fault.entity) if fault.entity else None
            if fault.entity and entity is None:
                continue
            queues = namespace.all_queues() if entity is None else entity.queues
            # Counted only where locks are held: a turn that holds none must not use the fault up.
            if sum(_lose_locks_of(queue, now) for queue in queues):
                faults.struck(fault)

    def _cut(self, now: int) -> None:
        faults = self._broker.faults
        for fault in faults.live(CUT, now):
            links = self._links_of(fault.entity) if fault.entity else []
            if links:
                faults.struck(fault)
            for context in links:
                context.connection.end_link(context.link, LinkCut(context.path), context.path)

    def _links_of(self, entity: str) -> list[LinkContext]:
        return [
            context
            for connection in self._broker.connections
            for context in connection.links.values()
            if _entity_of(context) == entity
        ]

    def _silence(self) -> None:
        """Receivers of entities in a black hole get nothing from now on, and those of others again."""
        for connection in self._broker.connections:
            for context in list(connection.links.values()):
                if not isinstance(context, ReceiveLink):
                    continue
                is_silent = _entity_of(context) in self.silent
                if is_silent == context.is_silent:
                    continue
                if not context.link.is_attached:
                    # It waits for a session: it asks for one again afterwards.
                    connection.forget_link(context.link)
                    self.held[context.link] = connection
                    continue
                context.is_silent = is_silent
                consumer = context.consumer
                consumer.is_suspended = is_silent or connection.is_paused or connection.is_backed_up
                if not consumer.is_suspended:
                    context.queue.set_credit(consumer, consumer.credit)

    def _answer_held(self) -> None:
        held, self.held = self.held, {}
        for link, connection in held.items():
            connection.now = self._broker.now
            connection.link_attached(link)  # it waits again, if its own entity is still in a black hole
            self._broker.touch(connection)


def _lose_locks_of(queue: Queue, now: int) -> bool:
    """End the locks of messages, with the sessions that hold them. Whether there was any."""
    if queue.sessions is not None:
        sessions = [session for session in queue.sessions.held.values() if session.locks]
        for session in sessions:
            session_ops.lose(queue, session, now)
        is_struck = bool(sessions)
    else:
        is_struck = bool(queue.locks)
        queue.lose_locks()
    if is_struck:
        queue.numbers.accessed_at = now  # it was in use as long as messages were locked
    return is_struck


def _entity_of(context: LinkContext) -> str:
    """The canonical path of the entity that a link belongs to; empty or a name of no entity: to none."""
    return canonical(parse(context.path).path)
