"""Renews the locks of a backlog queue that are due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pairbus.drain.ports import Inbox
from pairbus.drain.rules.message import LOCK_MS_DEFAULT
from pairbus.drain.rules.plan import DrainPlan
from pairbus.pairing.statistics import Counters

RENEW_MAX: Final = 100
"""How many locks are renewed with one request."""


async def renew_due(
    inbox: Inbox,
    plan: DrainPlan,
    counters: Counters,
    clock: Callable[[], int],
    is_stopped: Callable[[], bool],
) -> None:
    """Renew the locks that are due, many with one request: one by one a full window would lose them meanwhile."""
    messages = plan.renewals(inbox.queue, clock())
    for first in range(0, len(messages), RENEW_MAX):
        if is_stopped():
            return
        some = messages[first : first + RENEW_MAX]
        for message, until in zip(some, await inbox.renew(some), strict=True):
            if until is None:
                plan.lock_lost(message)
                # One in flight is completed in vain later, and counted there.
                message.locked_until_ms = clock() + LOCK_MS_DEFAULT
            else:
                counters.lock_renewals += 1
                message.locked_until_ms = until
