"""Decides which failures of a send count as an outage of the primary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.sdk.failures import Failure, classify

if TYPE_CHECKING:
    from pairbus.pairing.options import Trigger


BUSY_PAUSE_MS: Final = 10_000
"""After "server busy" the same send is not tried again before this."""

# The values of the option `trigger` (docs/reference/options.md). NOT_FOUND counts as documented only after an accepted send.
_OUTAGE: Final = (Failure.TIMEOUT, Failure.CONNECTION, Failure.INTERNAL)

_COUNTS: Final = {
    "documented": (*_OUTAGE, Failure.DISABLED, Failure.NOT_FOUND, Failure.QUOTA),
    "outage": _OUTAGE,
    "shipped": (*_OUTAGE, Failure.BUSY),
}


def counts(error: BaseException, trigger: Trigger, *, has_accepted: bool) -> bool:
    """Whether an error starts or keeps running the failover timer.

    Args:
        error: What the SDK raised, its own retries spent.
        trigger: The table's column, or the application's own rule, which ``PairingState`` keeps from raising.
        has_accepted: Whether the entity has accepted a send of this client before.
    """
    if callable(trigger):
        return bool(trigger(error))
    failure = classify(error)
    if failure not in _COUNTS[trigger]:
        return False
    # A misspelt name must not look like success.
    return failure is not Failure.NOT_FOUND or has_accepted
