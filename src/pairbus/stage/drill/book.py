"""What became of each probe, written down by the threads that send and receive them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pairbus.pairing.rules.health import Health


@dataclass(slots=True)
class Probe:
    """One probe, from the first attempt of its sender to its copies at the destination."""

    entity: str
    message_id: str
    begun_ms: int
    longest_ms: int = 0
    """The longest that its caller waited for one send."""
    accepted_ms: int | None = None
    is_parked: bool = False
    doubts: int = 0
    """Attempts after which nobody knows whether it was stored (P36)."""
    arrived_ms: int | None = None
    copies: set[int] = field(default_factory=set)
    """Sequence numbers under which the destination has it."""
    waits_in: str = ""
    """The backlog queue in which it was seen at the end."""
    is_set_aside: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    entity: str
    at_ms: int
    state: Health
    text: str


class Book:
    """All probes of a drill. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: dict[str, Probe] = {}
        self._refused: list[Refused] = []
        self.receives = 0
        """What receiving cost: a poll that brings messages counts as those, one that brings none as itself."""

    def begin(self, entity: str, message_id: str, now: int) -> None:
        """A sender is about to send this for the first time."""
        with self._lock:
            self._probes[message_id] = Probe(entity, message_id, now)

    def waited(self, message_id: str, milliseconds: int) -> None:
        """One send of it has ended, well or not."""
        with self._lock:
            probe = self._probes[message_id]
            probe.longest_ms = max(probe.longest_ms, milliseconds)

    def accepted(self, message_id: str, now: int, *, is_parked: bool) -> None:
        """Its sender was told that it is safe."""
        with self._lock:
            probe = self._probes[message_id]
            probe.accepted_ms, probe.is_parked = now, is_parked

    def refused(self, refused: Refused) -> None:
        with self._lock:
            self._refused.append(refused)

    def doubt(self, message_id: str) -> None:
        """An attempt ended without an answer."""
        with self._lock:
            self._probes[message_id].doubts += 1

    def doubts(self, message_id: str) -> int:
        """How many attempts of it ended so."""
        with self._lock:
            return self._probes[message_id].doubts

    def got(self, message_id: str, number: int, now: int) -> None:
        """The destination gave it out. Whatever is no probe of this drill is not looked at."""
        with self._lock:
            probe = self._probes.get(message_id)
            if probe is not None:
                probe.copies.add(number)
                probe.arrived_ms = probe.arrived_ms if probe.arrived_ms is not None else now

    def found(self, message_id: str, queue: str, *, is_set_aside: bool) -> None:
        """At the end it is still in the backlog, or set aside there."""
        with self._lock:
            probe = self._probes.get(message_id)
            if probe is not None:
                probe.waits_in, probe.is_set_aside = queue, is_set_aside

    def polled(self, messages: int) -> None:
        with self._lock:
            self.receives += max(1, messages)

    def missing(self, entities: frozenset[str]) -> int:
        """How many accepted probes of these entities have not arrived yet."""
        with self._lock:
            return sum(
                probe.accepted_ms is not None and not probe.copies and probe.entity in entities
                for probe in self._probes.values()
            )

    def counts(self) -> tuple[int, int, int]:
        """Probes begun, accepted, and sends refused."""
        with self._lock:
            accepted = sum(probe.accepted_ms is not None for probe in self._probes.values())
            return len(self._probes), accepted, len(self._refused)

    def probes(self) -> list[Probe]:
        """All of them, as they are now."""
        with self._lock:
            return list(self._probes.values())

    def refusals(self) -> list[Refused]:
        """All sends that raised, oldest first."""
        with self._lock:
            return list(self._refused)
