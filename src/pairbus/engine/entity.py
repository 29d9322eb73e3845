"""One entity: a queue, a topic or a subscription, with the places it keeps messages in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairbus.engine.context import Context, Numbers, Space
from pairbus.engine.queues.queue import Queue
from pairbus.engine.records import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, queue_id_of
from pairbus.model.entity import SUBSCRIPTION, TOPIC, Settings

if TYPE_CHECKING:
    from pairbus.engine.rules.index import TopicIndex


@dataclass(slots=True, eq=False)
class Counts:
    """How many messages an entity holds, by state (B66)."""

    active: int
    dead_letter: int
    scheduled: int
    transfer: int
    transfer_dead_letter: int
    deferred: int

    @property
    def total(self) -> int:
        left = self.dead_letter + self.transfer_dead_letter
        return self.active + self.scheduled + self.deferred + self.transfer + left


class Entity:
    """A named thing in a namespace. A topic's main queue holds only what is scheduled."""

    __slots__ = (
        "dead_letter",
        "entity_id",
        "idle_since",
        "index",
        "is_deleted",
        "kind",
        "main",
        "numbers",
        "path",
        "settings",
        "space",
        "subscriptions",
        "subscriptions_by_id",
        "topic",
        "transfer_dead_letter",
    )

    def __init__(
        self, context: Context, entity_id: int, kind: int, path: str, settings: Settings, topic: Entity | None
    ) -> None:
        self.entity_id = entity_id
        self.kind = kind
        self.path = path
        self.settings = settings
        self.topic = topic
        self.is_deleted = False
        self.idle_since = 0
        """It was not idle until then: it was in use when last looked at, or this life of the broker began, which knows of no use before."""
        self.numbers = Numbers()
        # A topic's quota covers what lies in its subscriptions.
        self.space: Space = topic.space if topic is not None else Space()
        self.subscriptions: dict[str, Entity] = {}
        self.subscriptions_by_id: dict[int, Entity] = {}
        self.index: TopicIndex[int] | None = None
        self.main = self._queue(context, MAIN, path)
        self.dead_letter = self._queue(context, DEAD_LETTER, f"{path}/$DeadLetterQueue")
        self.transfer_dead_letter = self._queue(
            context, TRANSFER_DEAD_LETTER, f"{path}/$Transfer/$DeadLetterQueue"
        )
        self.main.dead_letter_queue = self.dead_letter if kind != TOPIC else None

    def _queue(self, context: Context, sub: int, path: str) -> Queue:
        queue_id = queue_id_of(self.entity_id, sub)
        return Queue(context, queue_id, path, self.settings, self.numbers, self.space, sub != MAIN)

    @property
    def name(self) -> str:
        """The last part of a subscription's path; the whole path of a queue or topic."""
        return self.path.rsplit("/", 1)[1] if self.kind == SUBSCRIPTION else self.path

    @property
    def queues(self) -> tuple[Queue, Queue, Queue]:
        """The places messages lie in."""
        return (self.main, self.dead_letter, self.transfer_dead_letter)

    @property
    def size_bytes(self) -> int:
        """Bytes held against the size quota."""
        return self.space.stored_bytes

    @property
    def accessed_at(self) -> int:
        """When a client last used it; 0: never."""
        return self.numbers.accessed_at

    def accessed_by_senders(self) -> None:
        """After a replay: the client that sent the newest message here has used the entity. A subscription is not sent to."""
        if self.kind == SUBSCRIPTION:
            return
        newest = self.main.messages.newest()
        if newest is not None:
            self.numbers.accessed_at = max(self.numbers.accessed_at, newest.enqueued_at)

    @property
    def holds_messages(self) -> bool:
        return bool(self.main.messages or self.dead_letter.messages or self.transfer_dead_letter.messages)

    def counts(self) -> Counts:
        """The numbers that every interface reports."""
        return Counts(
            active=self.main.active_count,
            dead_letter=self.dead_letter.active_count + self.dead_letter.deferred_count,
            scheduled=self.main.scheduled_count,
            transfer=0,
            transfer_dead_letter=self.transfer_dead_letter.active_count
            + self.transfer_dead_letter.deferred_count,
            deferred=self.main.deferred_count,
        )

    def use(self, settings: Settings) -> None:
        """Work by other settings from now on."""
        self.settings = settings
        for queue in self.queues:
            queue.settings = settings
