"""Says in one sentence why a namespace does not serve an entity: a wrong key, or no such entity.

The official client retries both for almost a minute and then says "Service Bus has encountered an error". Neither goes
away by trying again.
"""

from __future__ import annotations

from pairbus.errors import PairbusError, UsageError
from pairbus.sdk.failures import Failure, classify


def lasting_refusal(error: BaseException, host: str, entity: str, right: str) -> PairbusError | None:
    """The error to raise for a refusal that trying again does not end; None for any other error.

    Args:
        error: What the official client raised.
        host: The namespace.
        entity: The path of the entity.
        right: What the key must allow, as ``listen``.
    """
    failure = classify(error)
    if failure is Failure.NOT_FOUND:
        return UsageError(
            f"there is no entity {entity!r} in the namespace {host}: create it, or correct the option that names it"
        )
    if failure is Failure.UNAUTHORIZED:
        return PairbusError(
            f"the namespace {host} refused the key for {entity!r}: check SharedAccessKeyName and SharedAccessKey in the "
            f"connection string, and that the key has the right to {right}"
        )
    return None
