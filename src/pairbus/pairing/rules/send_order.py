"""The order of one send: where each of its messages may go, asked of the client's ``OrderBook`` (``rules.order``)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from pairbus.pairing.errors import SessionFencedError
from pairbus.pairing.rules.order_values import Key, Oldest, Planned, Route

if TYPE_CHECKING:
    from pairbus.pairing.parking import Follows
    from pairbus.pairing.rules.order import OrderBook
    from pairbus.pairing.rules.rotation import Rotation


class SendOrder:
    """The order of one send: the keys of its messages, and which of them are not accepted yet."""

    def __init__(
        self, book: OrderBook, path: str, entity: str, keys: Sequence[str | None], wall_offset_ms: int
    ) -> None:
        self.left: Sequence[int] = range(len(keys))
        """Places of the messages that no queue has accepted yet."""
        self._book = book
        self._path = path
        self._entity = entity
        self._keys = keys
        self._wall_offset_ms = wall_offset_ms
        self._names = [(entity, key) for key in dict.fromkeys(keys) if key is not None]
        self._is_parked = False

    @property
    def names(self) -> list[str]:
        """The sessions or partition keys of its messages."""
        return [name for _, name in self._names]

    def must_park(self) -> bool:
        """Whether the send must go to the backlog although its entity takes sends."""
        return self._is_parked or any(self._book.route(key) is not Route.DIRECT for key in self._names)

    def held_ms(self, now: int) -> int:
        """How long the send may wait, so that it can go to the primary after all; 0: it should not."""
        if self._is_parked:
            return 0
        fenced = [key for key in self._names if self._book.route(key) is not Route.DIRECT]
        return min((self._book.held_ms(key, now) for key in fenced), default=0)

    def refusal(self, now: int) -> SessionFencedError | None:
        """Why the send may go nowhere: the fence of one of its sessions stands too long, and the policy is to raise."""
        for key in self._names:
            if self._book.route(key) is Route.REFUSE:
                oldest = self._book.oldest(key)
                if oldest is None:
                    return SessionFencedError(self._path, key[1], self._book.home(key))
                age_ms = max(0, now + self._wall_offset_ms - oldest.first_send_ms)
                return SessionFencedError(self._path, key[1], oldest.queue, oldest.message_id, age_ms)
        return None

    def _first_key(self) -> Key | None:
        for index in self.left:
            key = self._keys[index]
            if key is not None:
                return self._entity, key
        return None

    def next_queue(self, rotation: Rotation, tried: Container[str]) -> str | None:
        """The queue for the first message that is left. None: no queue is left for it."""
        key = self._first_key()
        if key is None:
            return rotation.pick(tried) or rotation.last_resort(tried)
        return self._book.plan(key, rotation, tried)[0]

    def trial_queue(self) -> str | None:
        """The queue that the send may try although it is out of the rotation: a session's own, while it is in no other."""
        key = self._first_key()
        return None if key is None or self._book.is_tracked(key) else self._book.home(key)

    def planned(self, queue: str, rotation: Rotation, tried: Container[str]) -> list[Planned]:
        """The messages that go to ``queue`` now, in their order. Those without a key go along."""
        result = []
        for index in self.left:
            name = self._keys[index]
            if name is None:
                result.append(Planned(index, None))
                continue
            key = (self._entity, name)
            if not self._book.is_tracked(key) and queue == self._book.home(key):
                result.append(Planned(index, name, self._book.unseen_elsewhere(key, queue)))
                continue
            target, follows, generation = self._book.plan(key, rotation, tried)
            if target == queue:
                result.append(
                    Planned(index, name, follows, generation, self._book.held_elsewhere(key, queue))
                )
        return result

    def accepted(self, queue: str, planned: Planned, last: Follows, oldest: Oldest, now: int) -> Key | None:
        """A queue has accepted one of the messages. Returns the session that this made fenced; None: it made no fence."""
        self._is_parked = True
        if planned.key is None:
            return None
        key = self._entity, planned.key
        is_fence = self._book.accepted(key, queue, last, planned.generation, oldest, now)
        return key if is_fence else None

    def went_direct(self) -> None:
        """The primary has accepted the send."""
        self._book.went_direct(self._names)
