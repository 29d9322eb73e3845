"""Errors of a paired client that are also errors of the official SDK.

A program that was written for ``azure-servicebus`` catches the SDK's classes. What it must catch from a paired client is
therefore of those classes too, beside ``PairbusError``.
"""

from __future__ import annotations

from typing import Final

from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)

from pairbus.errors import PairingError

SHOWN_IDS_MAX: Final = 10


class SendAvailabilityError(PairingError, ServiceBusError):
    """The root of the errors that a paired client raises where the official client raises its own: ``except ServiceBusError`` catches them."""

    def __init__(self, text: str) -> None:
        ServiceBusError.__init__(self, text)
        self._forget_context()

    def _forget_context(self) -> None:
        # azure-core keeps the exception that is being handled, and with it every frame that it passed through.
        self.exc_type = self.exc_value = self.exc_traceback = None


class NoBacklogQueuesError(SendAvailabilityError):
    """Not one backlog queue in the secondary can be used."""


class EntityGoneError(SendAvailabilityError, MessagingEntityNotFoundError):
    """A ping found that the entity does not exist: nothing is parked for it until it is back.

    Attributes:
        path: The entity.
    """

    def __init__(self, path: str) -> None:
        MessagingEntityNotFoundError.__init__(
            self,
            message=f"entity {path!r} does not exist in the primary: create it again, or send to another; "
            "sends go on by themselves once a ping finds it",
        )
        self._forget_context()
        self.path = path


class SessionFencedError(SendAvailabilityError):
    """Messages of a session are still in the backlog, or in another client's spool, after ``fence_timeout``, and ``fence_policy`` is ``"raise"``.

    Attributes:
        path: The entity.
        session: The session, or the partition key.
        queue: The backlog queue; empty when none is known yet.
        message_id: The oldest message of the session there; None when the queue could not be looked through.
        age_ms: How long ago that message was sent.
        spool: The spool directory in which another client has messages of the session; empty when they are in the backlog.
    """

    def __init__(
        self,
        path: str,
        session: str,
        queue: str,
        message_id: str | None = None,
        age_ms: int | None = None,
        *,
        spool: str = "",
    ) -> None:
        if spool:
            found = f"messages of it may be in a spool of {spool} that another client has open"
            way_out = f"End the program that has it open, if it hangs (`pairbus spool list {spool}`), and this client takes the spool"
        elif message_id is not None:
            found = f"message {message_id!r} of it, {(age_ms or 0) / 1000:g} s old, is still in backlog queue {queue!r}"
            way_out = "Run the drain (`pairbus syphon`) until the message has left"
        elif queue:
            way_out = "It is sent again once the queue can be looked through"
            found = f"it is not known whether backlog queue {queue!r} still holds messages of it"
        else:
            way_out = "It is sent again once the secondary answers"
            found = (
                "the secondary has not answered since this client was started, and may hold messages of it"
            )
        super().__init__(
            f"session {session!r} of {path!r} is not sent: {found}, and a later message would overtake it. {way_out}; "
            'fence_policy="overtake" sends out of order instead, and fence_policy="wait" goes on parking'
        )
        self.path = path
        self.session = session
        self.queue = queue
        self.message_id = message_id
        self.age_ms = age_ms
        self.spool = spool


class NoListenRightError(SendAvailabilityError):
    """A client that keeps an order must look into the backlog queues, and its key does not allow that."""

    def __init__(self, secondary: str, order: str) -> None:
        super().__init__(
            f"order is {order!r}, which needs the right to listen to the backlog queues in {secondary}: give a key that may "
            'listen and send there, or use order="relaxed"'
        )


class MessageTooLargeForBacklogError(SendAvailabilityError, MessageSizeExceededError):
    """A message with its parked properties exceeds what a backlog queue takes.

    Attributes:
        size: The bytes that it has.
        overhead: How many of them parking adds.
        limit: The bytes that it may have.
    """

    def __init__(self, size: int, overhead: int, limit: int, part: str = "parked message has") -> None:
        taker = "a backlog queue" if overhead else "an entity"
        of_parking = f", {overhead} of them for parking" if overhead else ""
        MessageSizeExceededError.__init__(
            self,
            message=f"the {part} {size} bytes{of_parking}; {taker} takes {limit}: "
            f"make the message at least {size - limit} bytes smaller",
        )
        self._forget_context()
        self.size = size
        self.overhead = overhead
        self.limit = limit


class BatchTooLargeError(SendAvailabilityError, MessageSizeExceededError):
    """A list of messages is larger than the one batch that it would be sent as.

    Attributes:
        size: The bytes of that batch.
        limit: The bytes that it may have.
    """

    def __init__(self, count: int, size: int, limit: int) -> None:
        MessageSizeExceededError.__init__(
            self,
            message=f"the list ({count} in number) takes {size} bytes as one batch; the entity takes {limit}: send it in "
            "several parts",
        )
        self._forget_context()
        self.size = size
        self.limit = limit


class InvalidMessageError(SendAvailabilityError, ValueError, TypeError):
    """A message that the service would refuse: it cannot be encoded, or a field has a value that is not allowed."""


class ScheduledMessageGoneError(SendAvailabilityError, MessageNotFoundError):
    """A scheduled message that was parked has left the backlog, or a drain is about to deliver it."""

    def __init__(self, text: str) -> None:
        MessageNotFoundError.__init__(self, message=text)
        self._forget_context()


class CancelInDoubtError(SendAvailabilityError):
    """A scheduled message was cancelled in the backlog or in the spool, but there may be another copy: an attempt before had no answer.

    Attributes:
        path: The entity.
        message_ids: The messages, to look for among the scheduled ones of the primary.
    """

    def __init__(self, path: str, message_ids: list[str], place: str = "the backlog") -> None:
        shown = ", ".join(repr(message_id) for message_id in message_ids[:SHOWN_IDS_MAX])
        if len(message_ids) > SHOWN_IDS_MAX:
            shown += f" and {len(message_ids) - SHOWN_IDS_MAX} more"
        super().__init__(
            f"cancelled in {place}: {shown}. But an attempt to schedule before had no answer, so there may be another copy: at "
            f"the primary, or on its way there. Once the primary answers and the backlog is drained, look for this message id "
            f"among the scheduled messages of {path!r} (peek_messages), and cancel it by the sequence number that it has there"
        )
        self.path = path
        self.message_ids = message_ids


class SpoolRefusedError(SendAvailabilityError):
    """The spool must take the messages and refuses: it is at one of its bounds, or its disk fails.

    It must because primary and backlog refuse, or because it holds earlier messages. Its cause is the error of the namespaces; when none
    was asked, that of the spool.

    Attributes:
        is_not_stored: Whether it is certain that the spool does not have the messages; otherwise it may have them.
    """

    def __init__(self, text: str, is_not_stored: bool = False) -> None:
        super().__init__(text)
        self.is_not_stored = is_not_stored


class PartnerClosedError(SendAvailabilityError):
    """The other side of the pair closed or failed, and this one was not closed within the grace period.

    Attributes:
        closed: The namespace that was closed or failed.
        faulted: The namespace that was closed for that reason.
    """

    def __init__(self, closed: str, faulted: str) -> None:
        super().__init__(
            f"namespace {closed!r} was closed or failed, and its partner {faulted!r} was not closed in time: "
            "close both sides together, then make a new client"
        )
        self.closed = closed
        self.faulted = faulted


class ClientClosedError(SendAvailabilityError, ValueError):
    """The client or sender is closed. Never detoured. A client is entered again, or paired; a sender is made again. A ValueError, as the official sender raises."""
