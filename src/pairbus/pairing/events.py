"""Events of a paired client: typed, kept in a bounded history, passed to a callback and the log."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Final

HISTORY_MAX: Final = 1_000
"""How many events a client remembers."""

EPOCH: Final = datetime.fromtimestamp(0, UTC)

logger = logging.getLogger("pairbus.pairing")


class Kind(Enum):
    """Every kind of event. The value is its stable name in logs and in the journal; the reference page of events says when each is raised."""

    PAIRED = "pairing.paired"
    QUEUE_CREATED = "pairing.queue_created"
    PROPERTY_DIFFERENCE = "pairing.property_difference"
    EXTRA_QUEUE = "pairing.extra_queue"
    QUEUE_UNUSABLE = "pairing.queue_unusable"
    SUSPECT = "pairing.suspect"
    FAILED_OVER = "pairing.failed_over"
    PING_SENT = "pairing.ping_sent"
    PING_ANSWERED = "pairing.ping_answered"
    PING_FAILED = "pairing.ping_failed"
    REFUSED = "pairing.refused"
    RECOVERED = "pairing.recovered"
    BACKLOG_LOST = "pairing.backlog_lost"
    QUEUE_EVICTED = "pairing.queue_evicted"
    QUEUE_READMITTED = "pairing.queue_readmitted"
    FENCE_STANDS = "pairing.fence_stands"
    FENCE_LIFTED = "pairing.fence_lifted"
    FENCE_TIMED_OUT = "pairing.fence_timed_out"
    FENCE_OVERTAKEN = "pairing.fence_overtaken"
    ORDER_UNKNOWN = "pairing.order_unknown"
    SYPHON_STARTED = "pairing.syphon_started"
    SYPHON_STOPPED = "pairing.syphon_stopped"
    SYPHON_REFUSED = "pairing.syphon_refused"
    DRAINED = "pairing.drained"
    SET_ASIDE = "pairing.set_aside"
    SPOOL_USED = "pairing.spool_used"
    SPOOL_REPLAYED = "pairing.spool_replayed"
    SPOOL_UNDELIVERABLE = "pairing.spool_undeliverable"
    SPOOL_UNUSABLE = "pairing.spool_unusable"
    SPOOL_LEFT_BEHIND = "pairing.spool_left_behind"
    ORDER_GIVEN_UP = "pairing.order_given_up"
    DRAIN_WAITS = "pairing.drain_waits"
    CLOSED = "pairing.closed"
    FAULTED = "pairing.faulted"


_LEVELS: Final = {
    Kind.PROPERTY_DIFFERENCE: logging.WARNING,
    Kind.EXTRA_QUEUE: logging.WARNING,
    Kind.QUEUE_UNUSABLE: logging.WARNING,
    Kind.SUSPECT: logging.WARNING,
    Kind.FAILED_OVER: logging.WARNING,
    Kind.REFUSED: logging.ERROR,
    Kind.BACKLOG_LOST: logging.ERROR,
    Kind.QUEUE_EVICTED: logging.WARNING,
    Kind.SYPHON_REFUSED: logging.ERROR,
    Kind.SET_ASIDE: logging.WARNING,
    Kind.SPOOL_USED: logging.WARNING,
    Kind.SPOOL_UNUSABLE: logging.ERROR,
    Kind.SPOOL_LEFT_BEHIND: logging.WARNING,
    Kind.ORDER_GIVEN_UP: logging.WARNING,
    Kind.FENCE_TIMED_OUT: logging.WARNING,
    Kind.FENCE_OVERTAKEN: logging.WARNING,
    Kind.ORDER_UNKNOWN: logging.WARNING,
    Kind.FAULTED: logging.ERROR,
    Kind.PING_SENT: logging.DEBUG,
    Kind.PING_ANSWERED: logging.DEBUG,
    Kind.PING_FAILED: logging.DEBUG,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a paired client. It goes to the history, the log, ``on_event`` and the journal.

    Args:
        kind: What happened.
        subject: The entity path, backlog queue or namespace it is about.
        text: One sentence for a person.
        at_ms: When, in milliseconds of a steady clock; only differences mean anything.
        data: Further plain values, by name.
        is_loud: Sends will fail, or messages will be lost or stay in the backlog, unless somebody acts.
        at: When, as a time of day in UTC.
    """

    kind: Kind
    subject: str
    text: str
    at_ms: int
    data: Mapping[str, object] = field(default_factory=dict)
    is_loud: bool = False
    at: datetime = EPOCH


Listener = Callable[[Event], None]
"""What ``on_event`` takes. It is called in the thread or task in which the event happened; what it raises is logged, and changes nothing."""


class _Callbacks(threading.local):
    depth = 0
    """How many callbacks of the application are under way in this thread, each inside the other."""


class EventLog:
    """The history of one client. Safe to use from several threads: appends to a deque are atomic."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._history: deque[Event] = deque(maxlen=HISTORY_MAX)
        self._listener = listener
        self._callbacks = _Callbacks()

    def add(self, event: Event) -> None:
        """Remember it, log it, call the listener. A listener that raises is logged and changes nothing."""
        self._history.append(event)
        level = logging.ERROR if event.is_loud else _LEVELS.get(event.kind, logging.INFO)
        if logger.isEnabledFor(level):
            extra = {"event": event.kind.value, "subject": event.subject, **event.data}
            # A change of health has the reason as its text: two changes for one reason would be the same line twice.
            what = f"{event.data['after']}: {event.text}" if "after" in event.data else event.text
            logger.log(level, "%s: %s", event.subject, what, extra=extra)
        if self._listener is not None:
            try:
                with self.calling_back():
                    self._listener(event)
            except Exception:
                logger.exception("the event listener failed", extra={"event": "pairing.listener_failed"})

    @contextmanager
    def calling_back(self) -> Iterator[None]:
        """Inside this block the application is called back."""
        self._callbacks.depth += 1
        try:
            yield
        finally:
            self._callbacks.depth -= 1

    @property
    def is_calling_back(self) -> bool:
        """Whether the application is being called back in this thread."""
        return self._callbacks.depth > 0

    def history(self) -> list[Event]:
        """The newest events, oldest first."""
        return list(self._history)
