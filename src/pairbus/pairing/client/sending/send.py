"""One send: its messages with their ids fixed, their encoded and parked forms, and what is known about its attempts."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from pairbus.errors import PairbusError
from pairbus.pairing import parking
from pairbus.pairing.client.sending import checks
from pairbus.pairing.errors import BatchTooLargeError, ClientClosedError
from pairbus.pairing.runtime.attempts import SEND_SECONDS, Attempts
from pairbus.pairing.scheduled import ParkedSchedule
from pairbus.sdk.messages import message_bytes

if TYPE_CHECKING:
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from pairbus.pairing.parking import Follows
    from pairbus.pairing.rules.flow import SendFlow

TIMEOUT_MS_DEFAULT: Final = int(SEND_SECONDS * 1000)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the passports of one send have in common: the client, the number of the first message, when and why."""

    client: str
    first: int
    at_ms: int
    reason: str


class Send(Attempts):
    """One send on its way.

    Args:
        message: A message, a list of messages or a batch; every message has its id.
        count: How many messages that is.
        begun_ms: When the send began, on the steady clock.
        timeout: Seconds that the caller gives it; None: the default.
    """

    is_scheduled = False
    """Whether the caller schedules the messages, and wants handles."""
    due: datetime.datetime | None = None
    """When the messages are to be enqueued; None: at once. The SDK takes None as a time, too."""
    flow: SendFlow | None = None
    """The decisions of this send. None while its entity is healthy and has not failed it."""
    left: list[int] | None = None
    """Places of the messages that no backlog queue has accepted yet. None before the messages are parked."""
    handles: list[int] | None = None
    """Sequence numbers of scheduled messages that the primary accepted."""
    parked: Sequence[tuple[str, bytes]] = ()
    """Parked forms that are in the backlog, and in which queue of it."""
    spooled: Sequence[ParkedSchedule] = ()
    """Handles of the messages that are in the spool."""
    _bytes: list[bytes] | None = None
    _originals: list[bytes] | None = None

    def __init__(
        self,
        message: Any,
        count: int,
        begun_ms: int,
        timeout: float | None,
    ) -> None:
        self.message = message
        self.count = count
        self.timeout_ms = TIMEOUT_MS_DEFAULT if timeout is None else max(1, int(timeout * 1000))
        self.deadline_ms = begun_ms + self.timeout_ms
        self.attempt_ms = begun_ms
        """When the last attempt at the primary began, its wait for the turn included."""

    def attempt_begins(self, now: int) -> float:
        """An attempt at the primary begins. Returns the seconds that the send has left."""
        self.attempt_ms = now
        return (self.deadline_ms - now) / 1000

    def elsewhere(self, is_in_doubt: bool) -> str:
        """What is known about a send that the spool has refused: a sentence, or nothing when no namespace has any of it.

        ``is_in_doubt``: what its flow knows of that.
        """
        if self.left is not None and len(self.left) < self.count:
            return f". {self.count - len(self.left)} of the {self.count} messages of this send are in the backlog"
        if is_in_doubt or self.is_in_doubt:
            return ". An attempt to send it before had no answer, so a namespace may have the message"
        return ""

    def has_had(self, attempts: Attempts, seconds: float) -> None:
        """It has had an attempt already, which took ``seconds`` and began with it."""
        self.is_sent, self.is_in_doubt = attempts.is_sent, attempts.is_in_doubt
        self.deadline_ms -= int(seconds * 1000)
        self.attempt_ms -= int(seconds * 1000)

    def originals(self, batch_limit: int) -> list[bytes]:
        """The bytes that the SDK would send, message by message. Raises what the SDK would raise.

        ``batch_limit``: the size up to which the SDK would send a list of messages.
        """
        if self._originals is None:
            encoded = self.encoded()
            if not self.is_scheduled and isinstance(self.message, list):
                size = message_bytes.batch_size(encoded)
                if size > batch_limit:
                    raise BatchTooLargeError(len(self.message), size, batch_limit)
            self._originals = encoded
        return self._originals

    def encoded(self) -> list[bytes]:
        """The bytes of each message. Raises InvalidMessageError, MessageTooLargeForBacklogError: the service would refuse it."""
        if self._bytes is None:
            self._bytes = self._encoded()
        return self._bytes

    def _encoded(self) -> list[bytes]:
        if isinstance(self.message, ServiceBusMessageBatch):
            payloads = message_bytes.messages_of(self.message)
            checks.check_batch(payloads)
            return payloads
        several = self.message if isinstance(self.message, list) else [self.message]
        return [checks.encoded(item) for item in several]

    def park(self, stamp: Stamp, forms: list[bytes]) -> None:
        """The messages have their parked forms."""
        self.stamp = stamp
        self.forms = forms
        self.follows: dict[int, tuple[Follows, ...]] = {}
        """What the passports of parked forms say that they follow, by place; nothing for the others."""
        self.left = list(range(len(forms)))
        self.created_again: set[str] = set()
        """Backlog queues that were missing and were created for this send."""

    def accepted(self, queue: str, places: Sequence[int]) -> None:
        """A backlog queue has taken these messages."""
        assert self.left is not None
        self.parked = [*self.parked, *((queue, self.forms[place]) for place in places)]
        taken = set(places)
        self.left = [place for place in self.left if place not in taken]

    def may_be_stored(self, error: BaseException) -> bool:
        """Whether a send that ends in ``error`` may have stored its messages (P5)."""
        flow = self.flow
        if flow is not None and flow.is_in_doubt:
            return True
        if not isinstance(error, Exception) or isinstance(error, ClientClosedError):
            return self.is_sent or self.is_in_doubt
        # An error that is neither an answer nor ours may have come from anywhere.
        return not isinstance(error, PairbusError) and not (flow is not None and flow.knows(error))


def handle_of(
    queue: str,
    payload: bytes,
    message: ServiceBusMessage | AmqpAnnotatedMessage,
    *,
    has_other_copy: bool = False,
) -> ParkedSchedule:
    """The handle of a scheduled message that was parked."""
    passport = parking.passport_of(payload)
    assert passport is not None
    return ParkedSchedule.make(
        queue,
        message_bytes.message_id(message),
        passport.factory,
        passport.detour,
        has_other_copy=has_other_copy,
    )


def prepared_for_sending(message: Any, *, is_scheduled: bool = False) -> tuple[Any, int]:
    """What to send at every attempt, its message ids fixed (P3), and how many messages that is. Raises TypeError."""
    if isinstance(message, ServiceBusMessageBatch) and not is_scheduled:
        return message, len(message)
    is_single = isinstance(message, str | bytes | Mapping) or not isinstance(message, Iterable)
    if is_single:
        # The SDK sends nothing for whatever is empty.
        is_nothing = isinstance(message, Mapping) and not message and not is_scheduled
        return (message, 0) if is_nothing else (message_bytes.with_message_id(message), 1)
    messages = [message_bytes.with_message_id(item) for item in message]
    return messages, len(messages)


def scheduled_for(
    message: ServiceBusMessage | AmqpAnnotatedMessage, when: datetime.datetime
) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """A copy of a message that is due at a time of day; the caller's object is never changed."""
    changed = message_bytes.copy_of(message)
    if isinstance(changed, ServiceBusMessage):
        changed.scheduled_enqueue_time_utc = when
        return changed
    wrapped = message_bytes.as_service_bus_message(changed)
    wrapped.scheduled_enqueue_time_utc = when
    return wrapped
