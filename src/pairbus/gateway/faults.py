"""The fault switchboard: failures on request, for tests, drills and the demo. Off unless the broker was started so.

A fault hits an entity or the whole namespace, for a time or a number of times, and ends by itself. ``strikes`` has what a
fault does to connections and links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pairbus.errors import ArgumentError, QuotaExceeded, Refusal, ServerBusy
from pairbus.model.entity import SUBSCRIPTION, TOPIC
from pairbus.model.names import canonical

if TYPE_CHECKING:
    from pairbus.engine.namespace import Namespace

REFUSE: Final = "refuse"
DELAY: Final = "delay"
DROP_ACKNOWLEDGEMENTS: Final = "drop_acknowledgements"
THROTTLE: Final = "throttle"
FILL: Final = "fill"
LOSE_LOCKS: Final = "lose_locks"
CUT: Final = "cut"
BLACK_HOLE: Final = "black_hole"
KINDS: Final = (REFUSE, DELAY, DROP_ACKNOWLEDGEMENTS, THROTTLE, FILL, LOSE_LOCKS, CUT, BLACK_HOLE)
OF_SENDS: Final = (REFUSE, DELAY, DROP_ACKNOWLEDGEMENTS, THROTTLE, FILL)
"""The faults that only sends meet."""
FAULTS_MAX: Final = 1_000
DURATION_MAX_MS: Final = 86_400_000
DELAY_MAX_MS: Final = 600_000
COUNT_MAX: Final = 1_000_000_000
NAMES_SHOWN_MAX: Final = 10


@dataclass(slots=True, eq=False)
class Fault:
    """One fault that is on."""

    kind: str
    entity: str
    """Canonical path; empty: the whole namespace."""
    until: int
    count: int
    """How many more times it strikes; -1: without limit."""
    delay_ms: int


class Faults:
    """All faults that are on. ``is_on`` is the one question the hot path asks."""

    __slots__ = ("_faults", "is_on")

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.is_on = False

    def add(self, request: dict[str, object], now: int, namespace: Namespace | None = None) -> Fault:
        """Switch one on from its JSON form. The entity that it names must be there, if the namespace is given."""
        kind = request.get("kind")
        if kind not in KINDS:
            raise ArgumentError(f"kind is {kind!r}: it must be one of {', '.join(KINDS)}.")
        unknown = [
            key for key in request if key not in ("kind", "entity", "duration_ms", "count", "delay_ms")
        ]
        if unknown:
            raise ArgumentError(
                f"Unknown keys {unknown}: a fault has kind, entity, duration_ms, count and delay_ms."
            )
        entity = request.get("entity") or ""
        if not isinstance(entity, str):
            raise ArgumentError(f"entity is {entity!r}: it must be a path or null.")
        if namespace is not None:
            check_struck(str(kind), entity, namespace)
        if len(self._faults) >= FAULTS_MAX:
            raise ArgumentError(f"{FAULTS_MAX} faults are on already: clear them first.")
        duration_ms = _number(request, "duration_ms", DURATION_MAX_MS, DURATION_MAX_MS)
        fault = Fault(
            str(kind),
            canonical(entity),
            now + duration_ms,
            _number(request, "count", -1, COUNT_MAX),
            _number(request, "delay_ms", 0, DELAY_MAX_MS),
        )
        self._faults.append(fault)
        self.is_on = True
        return fault

    def clear(self) -> None:
        self._faults.clear()
        self.is_on = False

    def strike(self, kind: str, path: str, now: int) -> Fault | None:
        """The fault of this kind that hits a path now, counted; None if there is none."""
        path = canonical(path)
        for fault in self._faults:
            if (
                fault.kind == kind
                and (not fault.entity or fault.entity == path)
                and self._is_live(fault, now)
            ):
                if fault.count > 0:
                    fault.count -= 1
                return fault
        self._forget(now)
        return None

    def live(self, kind: str, now: int) -> list[Fault]:
        """The faults of this kind that are on, uncounted; ``struck`` counts one that has found something to hit."""
        found = [fault for fault in self._faults if fault.kind == kind and self._is_live(fault, now)]
        if not found:
            self._forget(now)
        return found

    def struck(self, fault: Fault) -> None:
        """A fault has hit something."""
        if fault.count > 0:
            fault.count -= 1

    def check_send(self, path: str, now: int) -> None:
        """Raise the refusal that a send to this path meets now, or a request to schedule messages there."""
        if self.strike(REFUSE, path, now) is not None:
            raise Refusal(f"'{path}' refuses because a fault was switched on.")
        if self.strike(THROTTLE, path, now) is not None:
            raise ServerBusy(
                "The request was terminated because the namespace is being throttled. Wait 10 seconds and try again."
            )
        if self.strike(FILL, path, now) is not None:
            raise QuotaExceeded(
                f"The maximum entity size has been reached or exceeded for '{path}' (a fault was switched on)."
            )

    def silent(self, now: int) -> dict[str, int]:
        """The entities that are in a black hole without a count, and until when."""
        found: dict[str, int] = {}
        for fault in self.live(BLACK_HOLE, now):
            if fault.entity and fault.count < 0:
                found[fault.entity] = max(fault.until, found.get(fault.entity, 0))
        return found

    def _is_live(self, fault: Fault, now: int) -> bool:
        return fault.until > now and fault.count != 0

    def _forget(self, now: int) -> None:
        self._faults = [fault for fault in self._faults if self._is_live(fault, now)]
        self.is_on = bool(self._faults)

    def snapshot(self, now: int) -> list[dict[str, object]]:
        """What is on, for people."""
        self._forget(now)
        return [
            {
                "kind": fault.kind,
                "entity": fault.entity or None,
                "remaining_ms": fault.until - now,
                "count": None if fault.count < 0 else fault.count,
                "delay_ms": fault.delay_ms,
            }
            for fault in self._faults
        ]


def check_struck(kind: str, path: str, namespace: Namespace) -> None:
    """Refuse a fault of one entity that could never strike, so that no test passes because of a misspelt name."""
    if not path:
        return
    entity = namespace.find(path)
    if entity is None:
        raise ArgumentError(
            f"entity is '{path}': no queue, topic or subscription has this name. {_names_in(namespace)}"
        )
    if kind == LOSE_LOCKS and entity.kind == TOPIC:
        raise ArgumentError(
            f"entity is '{path}': no message of a topic is locked. Name one of its subscriptions."
        )
    if kind in OF_SENDS and entity.kind == SUBSCRIPTION:
        raise ArgumentError(f"entity is '{path}': nothing is sent to a subscription. Name its topic.")


def _names_in(namespace: Namespace) -> str:
    names = sorted(namespace.paths())
    if not names:
        return "There is none yet: create it first."
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"There are: {', '.join(names[:NAMES_SHOWN_MAX])}{more}."


def _number(request: dict[str, object], key: str, default: int, limit: int) -> int:
    value = request.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise ArgumentError(f"{key} is {value!r}: it must be a whole number from 0 to {limit}.")
    return value
