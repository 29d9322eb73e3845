"""Finds the backlog queues that appear while a drain runs: a client may pair later, or with a higher count.

Each look costs a request to the secondary, so the queues are listed again only

- after ``IDLE_MS`` while nothing comes: 8,640 times in 30 days, and no receive;
- within ``ACTIVE_MS`` while messages come, because then an outage fills the backlog;
- within ``FOLLOWED_MS`` when a message waits for a queue that this drain does not have: without it nothing goes on;
- and while there is no queue at all after a pause that grows from ``EMPTY_MS_MIN`` to ``ACTIVE_MS``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from pairbus.drain.ports import Inbox
from pairbus.drain.rules.problems import Problems
from pairbus.drain.senders import one_line
from pairbus.pairing.naming import entity_key
from pairbus.sdk.failures import classify

IDLE_MS: Final = 300_000
ACTIVE_MS: Final = 60_000
FOLLOWED_MS: Final = 5_000
EMPTY_MS_MIN: Final = 1_000
FIND_SECONDS: Final = 60.0
SUBJECT: Final = "the list of backlog queues"
NOTHING: Final = (
    "; nothing to drain. If there were such queues, somebody deleted them with all that was in them: `pairbus reconcile` names the "
    "messages that never arrived"
)
"""What a drain that should end adds to ``no_queues``."""

logger = logging.getLogger("pairbus.syphon")

FindQueues = Callable[[Collection[str]], Awaitable[Sequence[Inbox]]]
"""The backlog queues to drain that exist and are not among those, given by their ``entity_key``."""


def no_queues(primary: str, others: Sequence[str]) -> str:
    """What to say when a secondary has no backlog queues of a primary, but maybe of others."""
    text = f"the secondary has no backlog queues of {primary!r}"
    if not others:
        return f"{text}: a paired client creates them when it pairs"
    return f"{text}, but of {', '.join(map(repr, others))}: is --namespace, or the address of the primary, the right one?"


class QueueSearch:
    """Looks for further backlog queues of one drain until stopped.

    Args:
        find: Finds them. None: those that the drain was given are all.
        add: Called with each.
        clock: A steady clock in milliseconds.
        problems: Where a look that fails is reported.
    """

    def __init__(
        self,
        find: FindQueues | None,
        add: Callable[[Inbox], None],
        clock: Callable[[], int],
        problems: Problems,
    ) -> None:
        self._find = find
        self._add = add
        self._clock = clock
        self._problems = problems
        self._known: set[str] = set()
        self._looked_ms = clock()
        self._pause_ms = IDLE_MS
        self._empty_pause_ms = EMPTY_MS_MIN
        self._wanted = asyncio.Event()
        self._running: asyncio.Future[None] | None = None

    def has(self, queue: str) -> None:
        """The drain has a queue."""
        self._known.add(entity_key(queue))

    def received(self) -> None:
        """Messages came."""
        self._want(ACTIVE_MS)

    def misses(self, queue: str) -> bool:
        """Whether the drain does not have a queue that a message waits for. Then it is looked for soon."""
        if self._find is None or entity_key(queue) in self._known:
            return False
        self._want(FOLLOWED_MS)
        return True

    def _want(self, pause_ms: int) -> None:
        if pause_ms < self._pause_ms:
            self._pause_ms = pause_ms
            self._wanted.set()

    def start(self) -> asyncio.Future[None]:
        """Look again and again; the future ends when stopped."""
        self._running = asyncio.ensure_future(self._run())
        return self._running

    def stop(self) -> None:
        """Look no more."""
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        while self._find is not None:
            while (left_ms := self._looked_ms + self._pause() - self._clock()) > 0:
                self._wanted.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_ms / 1000):
                        await self._wanted.wait()
            self._pause_ms = IDLE_MS
            await self._look(self._find)
            self._looked_ms = self._clock()

    def _pause(self) -> int:
        return self._pause_ms if self._known else self._empty_pause_ms

    async def _look(self, find: FindQueues) -> None:
        self._empty_pause_ms = min(self._empty_pause_ms * 2, ACTIVE_MS)
        try:
            async with asyncio.timeout(FIND_SECONDS):
                found = await find(frozenset(self._known))
        except Exception as error:  # noqa: BLE001 - the queues that are known are drained all the same
            logger.warning("further backlog queues cannot be looked for: %s", one_line(error))
            self._problems.failed("secondary", SUBJECT, classify(error), one_line(error))
            return
        self._problems.works("secondary", SUBJECT)
        for inbox in found:
            if entity_key(inbox.queue) not in self._known:
                self._add(inbox)
