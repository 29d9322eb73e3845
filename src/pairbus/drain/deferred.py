"""Messages of a backlog queue that no drain receives, because somebody deferred them.

A deferred message stays in its queue, and is delivered only to a receiver that asks for it by its sequence number. A drain that
should end must not wait for it: it ends when nothing else is left, and says what is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pairbus.drain.ports import Inbox
from pairbus.errors import DrainStalledError

PAGE: Final = 250
PAGES_MAX: Final = 40
NUMBERS_SHOWN_MAX: Final = 5


class DeferredMessages:
    """What is left in queues that have nothing else for a drain that should end."""

    def __init__(self) -> None:
        self._left: dict[str, list[int]] = {}

    async def is_all(self, inbox: Inbox, before_ms: int) -> bool:
        """Whether no message that was stored before an instant is left in a queue, other than deferred ones."""
        if await inbox.is_empty(before_ms):
            return True
        self._left[inbox.queue] = await _all_deferred(inbox, before_ms)
        return bool(self._left[inbox.queue])

    def check(self) -> None:
        """Say what is left, at the end.

        Raises:
            DrainStalledError: Deferred messages are left.
        """
        left = {queue: numbers for queue, numbers in self._left.items() if numbers}
        if left:
            raise DrainStalledError(_sentence(left))


async def _all_deferred(inbox: Inbox, before_ms: int) -> list[int]:
    """The numbers of the messages that are left, when all that were stored before an instant are deferred or scheduled.

    Empty: there are others, which a receive brings sooner or later.
    """
    numbers: list[int] = []
    position = 1
    for _ in range(PAGES_MAX):
        page = await inbox.browse(position, PAGE)
        for one in page:
            is_new = one.enqueued_ms is not None and one.enqueued_ms > before_ms
            if one.is_active and not is_new:
                return []
            if not one.is_active:
                numbers.append(one.sequence_number)
        if not page or page[-1].is_active:
            break
        position = page[-1].sequence_number + 1
    return numbers


def _sentence(left: Mapping[str, Sequence[int]]) -> str:
    """What is left, and the way out."""
    parts = []
    for queue, numbers in sorted(left.items()):
        shown = ", ".join(str(number) for number in numbers[:NUMBERS_SHOWN_MAX])
        more = ", …" if len(numbers) > NUMBERS_SHOWN_MAX else ""
        parts.append(f"{queue}: {len(numbers)} ({shown}{more})")
    return (
        f"everything else is delivered, and deferred messages are left in the backlog: {'; '.join(parts)}. A drain does not receive "
        "a message that another receiver has deferred. Receive it by its number (receive_deferred_messages of the SDK) and "
        "dead-letter it, then use pairbus backlog redrive and run the command again"
    )
