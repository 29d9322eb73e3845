"""A management request with its body checked on the way out: every field is asked for by name and type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.amqp.types import Timestamp, Uuid, text_of
from pairbus.engine.queues.browse import NUMBERS_MAX
from pairbus.engine.sessions import operations as session_ops
from pairbus.errors import ArgumentError, PairbusError, SessionLockLost
from pairbus.gateway.links import ReceiveLink

if TYPE_CHECKING:
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.queue import Queue
    from pairbus.engine.sessions.table import Session
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.telemetry.meter import Tally
    from pairbus.model.message import Message


class NoContent(PairbusError):
    """The answer is that there is nothing; not a failure."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description


class Postponed(PairbusError):
    """The bytes that an answer needs are under way: the request is performed again when they are here. Nothing has changed."""


class Request:
    """One operation asked of a management node."""

    __slots__ = ("_body", "_properties", "connection", "entity", "may_postpone", "now", "queue", "txn_id")

    def __init__(
        self,
        connection: GatewayConnection,
        entity: Entity,
        queue: Queue,
        body: dict[object, object],
        properties: dict[str, object],
        txn_id: bytes | None,
        may_postpone: bool,
    ) -> None:
        self.connection = connection
        self.entity = entity
        self.queue = queue
        self.now = connection.now
        self.txn_id = txn_id
        self.may_postpone = may_postpone
        self._body = body
        self._properties = properties

    def need(self, messages: list[Message]) -> None:
        """Ask for the bytes of messages before anything changes. Raises Postponed if some are not on this machine."""
        ahead = self.queue.context.read_ahead
        if ahead is None:
            return
        missing = [message.location for message in messages if not ahead.is_at_hand(message.location)]
        if missing:
            ahead.fetch(missing, self.queue.queue_id)
            if self.may_postpone:
                raise Postponed

    def tally(self, operation: str) -> Tally:
        """Where this request is counted."""
        return self.connection.broker.meter.tally(self.queue.path, operation)

    def value(self, name: str) -> object:
        """A field of any type; None when absent."""
        return self._body.get(name)

    def text(self, name: str) -> str:
        """A string that must be there."""
        value = self._body.get(name)
        text = text_of(value)
        if text is None:
            raise ArgumentError(f"'{name}' is {value!r}: a string is needed.")
        return text

    def optional_text(self, name: str) -> str | None:
        """A string that may be absent or null."""
        value = self._body.get(name)
        text = text_of(value)
        if value is not None and text is None:
            raise ArgumentError(f"'{name}' is {value!r}: a string or null is needed.")
        return text

    def optional_flag(self, name: str) -> bool:
        """A boolean that may be absent or null, which means false."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bool):
            raise ArgumentError(f"'{name}' is {value!r}: a boolean or null is needed.")
        return bool(value)

    def number(self, name: str, low: int, high: int) -> int:
        """A whole number that must be there and in range."""
        value = self._body.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ArgumentError(f"'{name}' is {value!r}: a whole number from {low} to {high} is needed.")
        return value

    def instant(self, name: str) -> int:
        """A timestamp that must be there."""
        value = self._body.get(name)
        if not isinstance(value, Timestamp):
            raise ArgumentError(f"'{name}' is {value!r}: a timestamp is needed.")
        return value.ms

    def numbers(self, name: str) -> list[int]:
        """An array of sequence numbers that must be there."""
        value = self._body.get(name)
        if not isinstance(value, list) or not value or len(value) > NUMBERS_MAX:
            raise ArgumentError(f"'{name}' needs 1 to {NUMBERS_MAX} sequence numbers.")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int):
                raise ArgumentError(f"'{name}' holds {item!r}: sequence numbers are whole numbers.")
        return list(value)

    def tokens(self) -> list[bytes]:
        """The lock tokens, sixteen bytes each."""
        value = self._body.get("lock-tokens")
        if not isinstance(value, list) or not value or len(value) > NUMBERS_MAX:
            raise ArgumentError(f"'lock-tokens' needs 1 to {NUMBERS_MAX} lock tokens.")
        for item in value:
            if not isinstance(item, Uuid):
                raise ArgumentError(f"'lock-tokens' holds {item!r}: lock tokens are uuids.")
        return [item.bytes for item in value]

    def session(self, session_id: str) -> Session:
        """A session that the asker holds: by a link of this connection, and of the name that is given, if one is.
        Raises SessionLockLost: nobody else may touch a session (B53).
        """
        session = session_ops.held_session(self.queue, None, session_id, self.now)
        name = self._properties.get("associated-link-name")
        for link, context in self.connection.links.items():
            if (
                isinstance(context, ReceiveLink)
                and context.consumer is session.holder
                and name in (None, link.name)
            ):
                return session
        raise SessionLockLost
