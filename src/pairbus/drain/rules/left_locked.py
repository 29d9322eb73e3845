"""Messages that a drain leaves locked in their backlog queues, so that it reaches those behind them. No clock, no I/O.

Their locks end by themselves, and then they come again. Some need not wait for that: the drain gives them back, or it completes
them, because the primary has accepted another copy of the same message. The words for messages that are in their queue and not held,
each with the functions of the plan that decide it::

    skip (should_skip, youngest_to_leave)        locked   their destination is stalled; they come again when the lock lapses
    leave waiting (should_skip,                  locked   they wait for an older one of their session; they come again when
        youngest_to_leave)                                the lock lapses, or when take_to_receive_again names them
    leave a copy (copy_to_leave)                 locked   another copy is held; completed with it, or the lock lapses
    release (take_to_release)                    free     their destination is away; received again when it is back
    drop (drop_queue, drop_waiting, lock_lost)   free     the link, the lock or the turn is gone; any drain receives them

The counter ``passed_over`` counts what is left locked, for whatever reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.skip_list import SKIPPED_MAX


class LeftLocked:
    """At most ``SKIPPED_MAX`` messages of each queue are remembered."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[int, BacklogMessage]] = {}
        self._copies: dict[tuple[str, int, int, str], list[BacklogMessage]] = {}

    def add(self, message: BacklogMessage) -> None:
        """A message is left locked."""
        left = self._queues.setdefault(message.queue, {})
        self.take(message.queue, [message.sequence_number])
        left[message.sequence_number] = message
        self._copies.setdefault(message.identity, []).append(message)
        if len(left) > SKIPPED_MAX:
            self.take(message.queue, [next(iter(left))])

    def take(self, queue: str, numbers: Iterable[int] | None = None) -> list[BacklogMessage]:
        """Forget messages of a queue, all of them without ``numbers``. Returns those that were left there."""
        left = self._queues.get(queue, {})
        taken = [
            left.pop(number) for number in (list(left) if numbers is None else numbers) if number in left
        ]
        for message in taken:
            copies = [one for one in self._copies.pop(message.identity, ()) if one is not message]
            if copies:
                self._copies[message.identity] = copies
        return taken

    def take_copies(self, message: BacklogMessage) -> list[BacklogMessage]:
        """Forget the copies of a message. Returns them."""
        copies = list(self._copies.get(message.identity, ()))
        for copy in copies:
            self.take(copy.queue, [copy.sequence_number])
        return copies
