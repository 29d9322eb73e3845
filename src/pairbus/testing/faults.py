"""The fault switchboard: failures on demand, for one entity or the whole namespace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pairbus.gateway.faults import COUNT_MAX, DELAY_MAX_MS, DURATION_MAX_MS
from pairbus.testing.checks import check_seconds, check_text, check_whole

if TYPE_CHECKING:
    from pairbus.local.management import ManagementClient

FAULTS_PATH: Final = "/$faults"
_WITHOUT_END: Final = "; leave it out for a fault without end"


class FaultSwitchboard:
    """Switches faults of a running broker on and off: ``namespace.faults.throttle("orders", count=1)``.

    Each fault strikes ``entity``, which must exist (None: the whole namespace), until ``seconds`` have passed or it has
    struck ``count`` times; with neither, until ``clear``, and for a day at most. A value that can never work raises ``UsageError``, an
    entity that does not exist ``ManagementFailed``.

    ``cut`` and ``black_hole`` of one entity meet its links, on all connections: those of its senders, of its receivers, also from
    its dead-letter queue, and of its management node, which peeks, renews, schedules and keeps session states. Links of other
    entities on the same connections go on; a subscription is an entity of its own. Other faults meet sends, which go to a queue or
    a topic, and ``lose_locks`` meets locks, which a queue or a subscription has.
    """

    def __init__(self, client: ManagementClient) -> None:
        self._client = client

    def refuse(
        self, entity: str | None = None, *, seconds: float | None = None, count: int | None = None
    ) -> None:
        """Reject sends and requests to schedule with an internal error. Links open as always."""
        self._switch_on("refuse", entity, seconds, count)

    def delay(
        self,
        delay_ms: int,
        entity: str | None = None,
        *,
        seconds: float | None = None,
        count: int | None = None,
    ) -> None:
        """Answer sends ``delay_ms`` milliseconds later: ``delay(500)`` everywhere, ``delay(500, "orders")`` for one entity.

        The delay comes first, because it is needed and the entity is not; every other fault begins with its entity.
        """
        check_whole(
            "delay_ms", delay_ms, 1, DELAY_MAX_MS, "; the entity comes after it: delay(500, 'orders')"
        )
        self._switch_on("delay", entity, seconds, count, delay_ms)

    def drop_acknowledgements(
        self, entity: str | None = None, *, seconds: float | None = None, count: int | None = None
    ) -> None:
        """Store what is sent, and never answer: the sender is left in doubt."""
        self._switch_on("drop_acknowledgements", entity, seconds, count)

    def throttle(
        self, entity: str | None = None, *, seconds: float | None = None, count: int | None = None
    ) -> None:
        """Answer sends and requests to schedule with ``server-busy``, as a throttled namespace does."""
        self._switch_on("throttle", entity, seconds, count)

    def fill(
        self, entity: str | None = None, *, seconds: float | None = None, count: int | None = None
    ) -> None:
        """Refuse sends and requests to schedule as if the entity's size quota were used up. What empties the entity goes on."""
        self._switch_on("fill", entity, seconds, count)

    def lose_locks(
        self, entity: str | None = None, *, seconds: float | None = None, count: int | None = None
    ) -> None:
        """End the locks of messages as soon as they are delivered, before any settlement: all of the entity at once, which counts as one.

        The receiver of a session loses the session with them.
        """
        self._switch_on("lose_locks", entity, seconds, count)

    def cut(
        self, entity: str | None = None, *, seconds: float | None = None, count: int | None = None
    ) -> None:
        """Cut connections that send anything, new ones too.

        With an entity: detach its links at once with ``amqp:link:detach-forced``, all together, which counts as one, and refuse links
        that are asked for with the same error, each of which counts.
        """
        self._switch_on("cut", entity, seconds, count)

    def black_hole(
        self, entity: str | None = None, *, seconds: float | None = None, count: int | None = None
    ) -> None:
        """Read everything on AMQP connections and answer nothing.

        With an entity: messages sent to it, settlements and requests about it have no effect and no answer. Without ``count`` its
        links are not answered and its receivers get no messages either; both wait until the fault ends. With ``count``, links
        open and messages are delivered as always, so that there is something to count.
        """
        self._switch_on("black_hole", entity, seconds, count)

    def clear(self) -> None:
        """Switch every fault of the namespace off."""
        self._client.request("DELETE", FAULTS_PATH)

    def _switch_on(
        self,
        kind: str,
        entity: str | None,
        seconds: float | None,
        count: int | None,
        delay_ms: int | None = None,
    ) -> None:
        if entity is not None:
            check_text(
                "entity", entity, "give the name of an entity, or leave it out for the whole namespace"
            )
        if seconds is not None:
            check_seconds("seconds", seconds, DURATION_MAX_MS / 1000, _WITHOUT_END)
        if count is not None:
            check_whole("count", count, 1, COUNT_MAX, _WITHOUT_END)
        duration_ms = None if seconds is None else max(1, round(seconds * 1000))
        wanted = {
            "kind": kind,
            "entity": entity,
            "duration_ms": duration_ms,
            "count": count,
            "delay_ms": delay_ms,
        }
        self._client.request("POST", FAULTS_PATH, json.dumps(wanted).encode())
