"""How a delivery ends: one value for a disposition on a link, for ``update-disposition`` and inside a transaction.

A new verb needs a constant here, a branch in ``Settlement.apply`` with its counter, what ``Settlement.check`` must refuse, and a row in
``_STATUSES`` or a branch in ``settlement_of_outcome``. Properties that a receiver changes are kept beside the message and merged at its next
delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pairbus.amqp.decode import decode_value
from pairbus.amqp.encode import encode_map
from pairbus.amqp.states import ACCEPTED_CODE, MODIFIED_CODE, REJECTED_CODE, RELEASED_CODE
from pairbus.amqp.types import ULong
from pairbus.engine.queues.browse import CANCELLED
from pairbus.errors import ArgumentError, QuotaExceeded, UsageError
from pairbus.gateway.telemetry.audit_rows import COMPLETED

if TYPE_CHECKING:
    from pairbus.amqp.states import Outcome
    from pairbus.engine.queues.consumer import Lock
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.broker import Broker
    from pairbus.model.message import Message

COMPLETE: Final = "complete"
ABANDON: Final = "abandon"
DEFER: Final = "defer"
DEAD_LETTER: Final = "dead-letter"
RELEASE: Final = "release"

DEAD_LETTER_CONDITION: Final = "com.microsoft:dead-letter"
REASON: Final = "DeadLetterReason"
DESCRIPTION: Final = "DeadLetterErrorDescription"
CANCELLED_REASON: Final = "Cancelled"
"""The ``deadletter-reason`` of ``update-disposition`` with which a receiver says that it completes a message because its sender cancelled
it. It changes only what the audit log says (decision 0110).
"""
LONG_MAX: Final = (1 << 63) - 1
CHANGES_BYTES_MAX: Final = 65_536
"""All changed properties of a message together have at most 64 KB."""
TEXT_BYTES_IN_RESERVE: Final = 512
"""The reserve of a full disk takes a reason and a description up to this size, together: a message can always be dead-lettered (decision 0201)."""

_STATUSES: Final = {"completed": COMPLETE, "abandoned": ABANDON, "defered": DEFER, "suspended": DEAD_LETTER}
"""The service's names of the verbs in ``update-disposition``."""


@dataclass(slots=True, eq=False)
class Settlement:
    """What a receiver wants done with a message that it holds."""

    verb: str
    changes: dict[str, object] | None = None
    """Application properties to change; None as a value removes one."""
    reason: str | None = None
    description: str | None = None

    def check(self, queue: Queue, lock: Lock, now: int, more_bytes: int = 0) -> bytes:
        """Refuse what ``apply`` could not do, so that several messages are settled whole or not at all.

        Args:
            queue: The message's queue.
            lock: The receiver's lock on it.
            now: The present instant.
            more_bytes: What is stored together with it and was checked before.

        Returns:
            The changed properties that ``apply`` stores.
        """
        queue.check_held(lock, now)
        if self.verb == DEAD_LETTER:
            queue.check_dead_letter(self.reason, self.description)
        changed = _merged_changes(lock.message, self.changes)
        # The reserve of a full disk is for settlements, not for what they carry (B12).
        size = self.carried_bytes(changed)
        if size and not queue.context.log.has_room(more_bytes + size):
            advice = "Settle fewer messages at once, or" if more_bytes else "Settle"
            raise QuotaExceeded(
                f"The disk has no room for changed properties or a long dead-letter text in '{queue.path}'. {advice} without them."
            )
        return changed

    def carried_bytes(self, changed: bytes) -> int:
        """What it stores beyond a plain settlement; ``changed``: as ``check`` returned it."""
        if self.verb != DEAD_LETTER:
            return len(changed)
        texts = _text_bytes(self.reason) + _text_bytes(self.description)
        return len(changed) + (texts if texts > TEXT_BYTES_IN_RESERVE else 0)

    def apply(self, broker: Broker, queue: Queue, lock: Lock, changed: bytes, now: int) -> None:
        """Settle the message and count it. ``changed``: what ``check`` returned just now."""
        verb, counters = self.verb, broker.counters
        if verb == COMPLETE:
            complete(broker, queue, lock, now, CANCELLED if self.reason == CANCELLED_REASON else COMPLETED)
        elif verb == RELEASE:
            queue.release(lock, now)
            counters.released += 1
        elif verb == ABANDON:
            queue.abandon(lock, changed, now)
            counters.abandoned += 1
        elif verb == DEFER:
            queue.defer(lock, changed, now)
            counters.deferred += 1
        elif verb == DEAD_LETTER:
            queue.dead_letter(lock, self.reason, self.description, changed, now)
            counters.rejected += 1
        else:
            raise AssertionError(verb)


def complete(broker: Broker, queue: Queue, lock: Lock, now: int, kind: str = COMPLETED) -> None:
    """The receiver is done with a message. ``kind``: what the audit log says about it."""
    audit_rows = broker.audit_rows
    if audit_rows is None:
        queue.complete(lock, now)
    else:
        queue.check_held(lock, now)
        message = lock.message
        blob = broker.log.read(message.location, message.size)  # while it is there
        queue.complete(lock, now)
        audit_rows.ended(kind, queue, message, blob, now)
    broker.counters.completed += 1


def settlement_of_outcome(outcome: Outcome) -> Settlement:
    """The settlement that an AMQP outcome asks for. Raises ArgumentError for one that settles nothing."""
    code = outcome.code
    if code == ACCEPTED_CODE:
        return Settlement(COMPLETE)
    if code == RELEASED_CODE:
        return Settlement(RELEASE)
    if code == MODIFIED_CODE:
        return Settlement(DEFER if outcome.undeliverable_here else ABANDON, outcome.message_annotations)
    if code != REJECTED_CODE:
        raise ArgumentError(f"An outcome with the code {code:#x} settles nothing.")
    error = outcome.error
    if error is None:
        return Settlement(DEAD_LETTER)
    if error.condition != DEAD_LETTER_CONDITION:  # a generic client's rejection
        return Settlement(DEAD_LETTER, None, error.condition, error.description or None)
    info = {str(key): value for key, value in (error.info or {}).items()}
    reason = info.pop(REASON, None)
    description = info.pop(DESCRIPTION, None) or error.description
    return Settlement(
        DEAD_LETTER,
        info,
        str(reason) if reason else None,
        str(description) if description else None,
    )


def settlement_of_status(
    status: str, changes: object, reason: str | None, description: str | None
) -> Settlement:
    """The settlement that ``update-disposition`` asks for. Raises ArgumentError."""
    if status not in _STATUSES:
        raise ArgumentError(
            f"'disposition-status' is '{status}': completed, abandoned, defered and suspended are known."
        )
    if changes is not None and not isinstance(changes, dict):
        raise ArgumentError("'properties-to-modify' is not a map.")
    return Settlement(_STATUSES[status], changes, reason, description)


def _merged_changes(message: Message, changes: dict[str, object] | None) -> bytes:
    """Earlier and new changes as one encoded map; empty when there is nothing new. Null removes a property."""
    if not changes:
        return b""
    merged: dict[object, object] = {}
    if message.extra is not None and message.extra.changed_properties:
        earlier, _ = decode_value(message.extra.changed_properties)
        if isinstance(earlier, dict):
            merged.update(earlier)
    merged.update({str(key): value for key, value in changes.items()})
    try:
        encoded = encode_map({key: _unsigned(value) for key, value in merged.items()})
    except UsageError as error:
        raise ArgumentError(f"A changed property cannot be kept: {error}") from error
    if len(encoded) > CHANGES_BYTES_MAX:
        raise ArgumentError(
            f"The changed properties have {len(encoded)} bytes: at most {CHANGES_BYTES_MAX} are allowed."
        )
    return encoded


def _text_bytes(text: str | None) -> int:
    return 0 if text is None else len(text.encode())


def _unsigned(value: object) -> object:
    """What no signed long can hold came as an unsigned one."""
    return ULong(value) if isinstance(value, int) and value > LONG_MAX else value
