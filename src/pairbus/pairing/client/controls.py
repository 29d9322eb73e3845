"""What a program asks a paired client about, and the switches that it has: nothing here waits.

The same in both shapes of the client, so that ``pairing.client.client`` can be about pairing and closing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pairbus.errors import NotPairedError
from pairbus.pairing.client.sending.limits import headroom_of
from pairbus.pairing.options import check_ping_interval, milliseconds
from pairbus.sdk.messages import message_bytes

if TYPE_CHECKING:
    from pairbus.pairing.client.drain_host import DrainHost
    from pairbus.pairing.client.state import PairingState
    from pairbus.pairing.events import Event
    from pairbus.pairing.rules.health import EntityReport
    from pairbus.pairing.runtime.ports import Runtime
    from pairbus.pairing.statistics import Statistics


class Controls:
    """The part of a paired client that reads its state and switches entities by hand."""

    if TYPE_CHECKING:
        _state: PairingState
        _runtime: Runtime
        _drain: DrainHost | None
        _is_ended: bool

        def _check_live(self) -> None: ...

    @property
    def is_paired(self) -> bool:
        """Whether the two namespaces are paired. Before that, sends go to the primary only, and nothing is detoured."""
        return self._state.is_paired

    @property
    def is_closed(self) -> bool:
        """Whether the client can send no more: it was closed, its primary side was, or the end of its partner has ended it."""
        return self._is_ended

    @property
    def factory_name(self) -> str:
        """The unique name of this client, as passports of parked messages and the journal have it."""
        return self._state.name

    @property
    def backlog_queue_count(self) -> int:
        """How many backlog queues can be used. Fewer than the option asked for, when some of them cannot."""
        return len(self._state.usable_queues)

    @property
    def ping_primary_interval(self) -> timedelta:
        """How often a failed-over entity gets a ping, 1 second to 30 minutes. May be set at any time; the next ping uses it."""
        return timedelta(milliseconds=self._state.ping_interval_ms)

    @ping_primary_interval.setter
    def ping_primary_interval(self, value: timedelta) -> None:
        check_ping_interval(value)
        self._state.change_ping_interval(milliseconds(value))
        self._runtime.notify()

    def health(self) -> dict[str, EntityReport]:
        """Return the report of every entity that this client knows, by its path: it has a sender, failed over by hand, or has messages in a spool.

        Asks no namespace: a report says what the client believes now.
        """
        return self._state.reports()

    def explain(self, path: str) -> list[str]:
        """Return the reasons for the state of an entity, line by line: errors, timers, pings and decisions, with their times.

        Args:
            path: The entity. ``Orders``, ``orders`` and ``/orders`` are the same.

        Raises:
            UsageError: This client does not know the entity.
        """
        return self._state.explain(path)

    def events(self) -> list[Event]:
        """Return the newest 1,000 events, oldest first."""
        return self._state.events.history()

    def statistics(self) -> Statistics:
        """Return a snapshot of the counters: sends by outcome, pings, failovers, what the drain did."""
        return self._state.statistics(*(self._drain.progress() if self._drain is not None else ()))

    def fail_over(self, path: str) -> None:
        """Send the messages of one entity to the backlog from now on, for instance before planned work at the primary.

        After one ping interval a good ping makes the entity healthy again; so does ``mark_healthy``. A send that is under way and
        succeeds does not.

        Args:
            path: The entity. It needs no sender yet.

        Raises:
            NotPairedError: The client is not paired.
            ClientClosedError: The client is closed.
        """
        self._check_live()
        if not self.is_paired:
            raise NotPairedError(f"{path!r} cannot fail over before the client is paired: call pair() first")
        self._state.fail_over(path)

    def mark_healthy(self, path: str) -> None:
        """Send the messages of one entity to the primary from now on, without waiting for a ping.

        Args:
            path: The entity.

        Raises:
            UsageError: This client does not know the entity.
            ClientClosedError: The client is closed.
        """
        self._check_live()
        self._state.mark_healthy(path)

    def headroom(self, message: Any, path: str = "x" * 50) -> int:
        """Return how many bytes the body may still grow before the parked form is too large; negative when it is already.

        Two limits count: 256 KB for the message, and 64 KB for all its properties together, those for parking included.
        A message whose properties exceed theirs has a negative headroom, however small its body is.

        Args:
            message: A message as for ``send_messages``; never changed.
            path: The entity that it is for, whose name takes room too. A name of 50 characters unless given.

        Raises:
            InvalidMessageError: The message cannot be encoded.
        """
        return headroom_of(self._state.park([message_bytes.encoded(message)], path, "timeout")[0])
