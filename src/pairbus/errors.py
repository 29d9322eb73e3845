"""Every error PairBus raises, except those that are also errors of the official SDK. Imports no other module of ours.

Errors of a paired client that a program of the SDK must catch are in ``pairbus.pairing.errors``; this module hands them
out too. ``pairbus`` exports all that a program needs.

    PairbusError
    ├── UsageError (ValueError)              you called it wrongly; fix the call
    │   └── WrongTypeError (TypeError)       with a value of a wrong type
    ├── ProtocolError                        never raised itself
    │   ├── LocalProtocolError               we broke AMQP
    │   └── RemoteProtocolError              they did; carries the condition to close with
    ├── Refusal                              the broker understood and says no
    │   ├── EntityNotFound · EntityDisabled · EntityAlreadyExists · InvalidEntity · InvalidRule
    │   ├── MessageLockLost · SessionLockLost · MessageNotFound · SessionCannotBeLocked
    │   ├── QuotaExceeded · MessageTooLarge · HeaderTooLarge · Unauthorized · NotAllowed · ArgumentError · FilterFailed
    │   ├── NotSupported · MalformedMessage
    │   ├── UnknownTransaction · TransactionRolledBack · TransactionTimedOut
    │   └── ServerBusy · LinkCut             retryable
    ├── StorageError                         StoreUnavailable · StoreCorrupt · StoreFailed (StoreFenced) · StoreFull
    │                                        SpoolError (SpoolNotStored (SpoolFull))
    ├── BrokerNotReady                       a broker that was started did not come up, or ended
    ├── ManagementFailed                     a management request was refused or not answered
    └── PairingError                         two namespaces as one
        ├── NamespaceNameUnknownError · SameNamespaceError · AlreadyPairedError · NotPairedError
        ├── OtherPrimaryError                two primaries with one name
        ├── InvalidParkedPropertyError       what the drain dead-letters
        ├── DrainStalledError                a drain that should end cannot go on
        └── pairbus.pairing.errors           NoBacklogQueuesError · EntityGoneError · MessageTooLargeForBacklogError
                                             BatchTooLargeError · InvalidMessageError · ScheduledMessageGoneError · CancelInDoubtError
                                             SessionFencedError · NoListenRightError · PartnerClosedError · ClientClosedError · SpoolRefusedError

Names: a refusal is named by what happened (``MessageLockLost``), a new error of any other kind ends in ``Error``.
Every refusal has its AMQP condition, its number on ``$management`` and whether trying again can help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_OF_THE_SDK = frozenset(
    {
        "NoBacklogQueuesError",
        "NoListenRightError",
        "SessionFencedError",
        "EntityGoneError",
        "MessageTooLargeForBacklogError",
        "BatchTooLargeError",
        "CancelInDoubtError",
        "InvalidMessageError",
        "ScheduledMessageGoneError",
        "SendAvailabilityError",
        "PartnerClosedError",
        "ClientClosedError",
        "SpoolRefusedError",
    }
)


if not TYPE_CHECKING:  # a type checker would believe any name; typed code imports these from ``pairbus``

    def __getattr__(name: str) -> type[PairbusError]:
        """Errors that are also errors of the official SDK, loaded when asked for: a broker does not need the SDK."""
        if name not in _OF_THE_SDK:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module("pairbus.pairing.errors"), name)


class PairbusError(Exception):
    """The root of all errors that PairBus raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what the error holds, not what it was made from: constructors take one or several arguments."""
        return _rebuilt, (type(self), self.args, self._state())

    def _state(self) -> dict[str, object]:
        # Not ``__dict__``: an error of a compiled module has one that cannot be asked for.
        held = object.__getstate__(self)
        return dict(held) if isinstance(held, dict) else {}


def _rebuilt(
    kind: type[PairbusError], arguments: tuple[object, ...], state: dict[str, object]
) -> PairbusError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__setstate__(state)
    return error


class UsageError(PairbusError, ValueError):
    """The caller gave something that can never work."""


class WrongTypeError(UsageError, TypeError):
    """The caller gave a value of a type that can never work."""


class ProtocolError(PairbusError):
    """A peer or we broke the wire protocol."""


class LocalProtocolError(ProtocolError):
    """We were about to say something AMQP forbids."""


class RemoteProtocolError(ProtocolError):
    """The peer said something AMQP forbids; the connection closes with ``condition``."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description


class Refusal(PairbusError):
    """The broker understood and says no. Nothing has changed."""

    condition: str = "amqp:internal-error"
    status: int = 500
    retryable: bool = False

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class EntityNotFound(Refusal):
    """No entity has this path."""

    condition = "amqp:not-found"
    status = 404

    def __init__(self, path: str) -> None:
        # The JavaScript client recognises this sentence by a pattern; keep its shape.
        super().__init__(f"The messaging entity '{path}' could not be found.")
        self.path = path


class EntityDisabled(Refusal):
    """The entity's status forbids the operation."""

    condition = "com.microsoft:entity-disabled"
    status = 400

    def __init__(self, path: str, operation: str) -> None:
        super().__init__(f"Messaging entity '{path}' is currently disabled for {operation}.")


class EntityAlreadyExists(Refusal):
    """An entity of this name exists."""

    condition = "com.microsoft:entity-already-exists"
    status = 409

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' already exists.")


class InvalidEntity(Refusal):
    """A name or setting of an entity is outside what is allowed."""

    condition = "com.microsoft:argument-error"
    status = 400
    setting: str = ""
    """The setting that is refused, where one is."""


class InvalidRule(Refusal):
    """A filter or action cannot be understood."""

    condition = "com.microsoft:argument-error"
    status = 400


class FilterFailed(Refusal):
    """A filter or action met a value it cannot work on."""

    condition = "com.microsoft:argument-error"
    status = 400


class MessageLockLost(Refusal):
    """The lock has expired, was settled already, or never was."""

    condition = "com.microsoft:message-lock-lost"
    status = 410

    def __init__(self, lock_token: str) -> None:
        super().__init__(
            "The lock supplied is invalid. Either the lock expired, or the message has already been "
            f"removed from the queue. Lock token: {lock_token}."
        )


class SessionLockLost(Refusal):
    """The session is not held by this receiver."""

    condition = "com.microsoft:session-lock-lost"
    status = 410

    def __init__(self) -> None:
        super().__init__("The session lock has expired on the MessageSession. Accept a new MessageSession.")


class SessionCannotBeLocked(Refusal):
    """Somebody else holds the session."""

    condition = "com.microsoft:session-cannot-be-locked"
    status = 410

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver."
        )


class MessageNotFound(Refusal):
    """No message has this sequence number in the state asked for."""

    condition = "com.microsoft:message-not-found"
    status = 404


class AccessRuleNotFound(Refusal):
    """The namespace has no access rule of this name."""

    condition = "amqp:not-found"
    status = 404


class QuotaExceeded(Refusal):
    """The entity, the namespace or the disk is full."""

    condition = "amqp:resource-limit-exceeded"
    status = 403


class MessageTooLarge(Refusal):
    """The message exceeds the entity's limit."""

    condition = "amqp:link:message-size-exceeded"
    status = 403

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"The received message (size:{size} bytes) exceeds the limit ({limit} bytes) currently allowed on the link."
        )


class HeaderTooLarge(Refusal):
    """A message's properties and annotations exceed what a message may carry beside its body."""

    condition = "amqp:link:message-size-exceeded"
    status = 403


class Unauthorized(Refusal):
    """The token does not grant this."""

    condition = "amqp:unauthorized-access"
    status = 401


class NotAllowed(Refusal):
    """The entity's kind does not offer this."""

    condition = "amqp:not-allowed"
    status = 400


class ArgumentError(Refusal):
    """A value in the request is missing, of the wrong type or out of range."""

    condition = "com.microsoft:argument-error"
    status = 400


class NotSupported(Refusal):
    """The operation's name is unknown."""

    condition = "amqp:not-implemented"
    status = 501


class MalformedMessage(Refusal):
    """The message's bytes cannot be read."""

    condition = "amqp:decode-error"
    status = 400


class UnknownTransaction(Refusal):
    """The id names no open transaction of this connection."""

    condition = "amqp:transaction:unknown-id"
    status = 400


class TransactionRolledBack(Refusal):
    """The transaction could not be committed; nothing of it happened."""

    condition = "amqp:transaction:rollback"
    status = 400


class TransactionTimedOut(Refusal):
    """The transaction was not discharged in time; nothing of it happened."""

    condition = "amqp:transaction:timeout"
    status = 408


class ServerBusy(Refusal):
    """Throttled: wait, then try again."""

    condition = "com.microsoft:server-busy"
    status = 503
    retryable = True


class LinkCut(Refusal):
    """A link was ended by the fault switchboard, as the service ends links that it moves to another machine."""

    condition = "amqp:link:detach-forced"
    status = 410
    retryable = True

    def __init__(self, path: str) -> None:
        super().__init__(f"The link to '{path}' is force detached (a fault was switched on).")
        self.path = path


class StorageError(PairbusError):
    """The store cannot do its work."""


class StoreUnavailable(StorageError):
    """The store cannot be opened: in use, unreadable, of another namespace or a newer version."""


class StoreCorrupt(StorageError):
    """Acknowledged data is damaged. Never skipped in silence.

    Args:
        text: What is damaged, and the way out.
        file: The file of the store that is damaged or missing; None: no single one is known.
        offset: Where the damage begins in that file; 0 if all of it is missing.
    """

    def __init__(self, text: str, *, file: str | None = None, offset: int | None = None) -> None:
        super().__init__(text)
        self.file = file
        self.offset = offset


class StoreFailed(StorageError):
    """A write or sync failed: nothing is acknowledged any more until the store is opened again."""


class StoreFenced(StoreFailed):
    """Another node owns the shard now: this one may say and write nothing any more."""


class StoreFull(StorageError):
    """No space for what was asked; nothing was written."""


class SpoolError(StorageError):
    """A spool, which keeps messages on this machine while no namespace takes them, cannot be opened, read or written."""


class SpoolNotStored(SpoolError):
    """A spool did not take messages, and it is certain that it has none of them."""


class SpoolFull(SpoolNotStored):
    """A bound of a spool is reached, in bytes or in age: it takes nothing more, and keeps what it has."""


class BrokerNotReady(PairbusError):
    """A broker that was started does not serve: it ended, or took too long to say that it is ready."""


class ManagementFailed(PairbusError):
    """A management request was refused or not answered; the text gives the request and the answer."""


class PairingError(PairbusError):
    """Something about two namespaces as one: pairing, failover or draining the backlog."""


class NamespaceNameUnknownError(PairingError):
    """The primary's own name, by which its backlog queues are called, is not known."""


class SameNamespaceError(PairingError):
    """Primary and secondary are the same broker: a backlog beside the outage would go down with it."""


class AlreadyPairedError(PairingError):
    """The client is paired already, or its primary or secondary has the other role in another pairing of this process."""


class OtherPrimaryError(PairingError):
    """The backlog queues in the secondary belong to another primary that has the same name.

    Attributes:
        queue: The first such backlog queue.
        owner: The address of the primary that it belongs to.
        primary: The address of this client's primary.
    """

    def __init__(self, queue: str, owner: str, primary: str) -> None:
        super().__init__(
            f"backlog queue {queue!r} belongs to the primary at {owner}, and this client's primary is at {primary}: "
            "two primaries with one name must not share a secondary, give one of them another name; if it is the same "
            f"broker at another address, give primary_aliases=[{owner!r}] (on the command line --primary-alias {owner})"
        )
        self.queue = queue
        self.owner = owner
        self.primary = primary


class NotPairedError(PairingError):
    """The operation needs a pairing, and there is none yet."""


class InvalidParkedPropertyError(PairingError):
    """A backlog message cannot be restored: a parked property is missing or of a wrong type.

    Attributes:
        reason: The reason in the dead-letter queue.
    """

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(description)
        self.reason = reason


class DrainStalledError(PairingError):
    """A drain that should end gave up: nothing moved for a while. The text says why and what to do."""
