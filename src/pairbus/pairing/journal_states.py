"""What a journal says of the state of entities now. No clock, no I/O.

Programs write the state of their entities all the time, and an event when it changes: the newer of the two counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pairbus.pairing.events import Kind
from pairbus.pairing.journal import BEAT_SECONDS, ENTITIES_MAX, STATUS
from pairbus.pairing.naming import entity_key
from pairbus.pairing.rules.health import Health

STATUS_LIFE_MS: Final = int(3.5 * BEAT_SECONDS * 1000)
"""Age at which the last state that a program wrote no longer counts: it ended without closing."""
STATE_AFTER: Final = {
    Kind.SUSPECT.value: Health.SUSPECT.value,
    Kind.FAILED_OVER.value: Health.FAILED_OVER.value,
    Kind.REFUSED.value: Health.REFUSING.value,
    Kind.RECOVERED.value: Health.HEALTHY.value,
}
"""The state of an entity after an event."""
ROW_TYPES: Final[dict[str, type]] = {
    "path": str,
    "state": str,
    "since_age_ms": int,
    "why": str,
    "next_ping_in_ms": int,
    "failover_in_ms": int,
    "parked": int,
    "pings": int,
    "backlog_queue": str,
    "fenced_sessions": int,
    "oldest_parked_age_ms": int,
    "spooled": int,
    "oldest_spooled_age_ms": int,
}
_STATES: Final = {health.value for health in Health}


@dataclass(slots=True, kw_only=True)
class ProgramState:
    """What one program last wrote of one entity. Times are milliseconds since 1970."""

    factory: str
    path: str
    state: str = Health.HEALTHY.value
    since_ms: int = 0
    why: str = ""
    reported_ms: int = 0
    """When the program last wrote something that shows that it runs."""
    closed_ms: int | None = None
    next_ping_ms: int | None = None
    failover_ms: int | None = None
    pings: int = 0
    parked: int = 0
    backlog_queue: str | None = None
    spooled: int = 0
    oldest_spooled_ms: int | None = None
    fenced_sessions: int = 0

    def is_running(self, now_ms: int) -> bool:
        """Whether the program still writes."""
        return self.closed_ms is None and now_ms - self.reported_ms <= STATUS_LIFE_MS


def status_rows(entities: object) -> list[dict[str, object]]:
    """The rows of a status line that have the right shape: a journal is a file that anything may have written."""
    if not isinstance(entities, list):
        return []
    return [
        {name: row.get(name) if isinstance(row.get(name), kind) else None for name, kind in ROW_TYPES.items()}
        for row in entities[:ENTITIES_MAX]
        if isinstance(row, dict)
        and isinstance(row.get("path"), str)
        and row.get("state") in _STATES
        and isinstance(row.get("since_age_ms"), int)
    ]


def states_of(lines: Iterable[Mapping[str, object]], path: str) -> list[ProgramState]:
    """The state of an entity by the events and states of a journal: one for each program that knows it, the oldest report first."""
    key = entity_key(path)
    found: dict[str, ProgramState] = {}
    for line in lines:
        at_ms, factory, kind = line.get("at_ms"), str(line.get("factory", "")), line.get("kind")
        if not isinstance(at_ms, int):
            continue
        if kind == STATUS:
            for row in status_rows(line.get("entities")):
                if entity_key(str(row["path"])) == key:
                    found[factory] = _of_row(factory, row, at_ms)
        elif kind in STATE_AFTER and entity_key(str(line.get("subject", ""))) == key:
            known = found.get(factory) or ProgramState(factory=factory, path=str(line["subject"]))
            # Its timers are of the state before; what it has parked stays.
            found[factory] = replace(
                known,
                state=STATE_AFTER[str(kind)],
                since_ms=at_ms,
                why=str(line.get("text", "")),
                reported_ms=at_ms,
                closed_ms=None,
                next_ping_ms=None,
                failover_ms=None,
            )
        elif factory in found:
            found[factory].reported_ms = at_ms
            if kind == Kind.CLOSED.value:
                found[factory].closed_ms = at_ms
    return sorted(found.values(), key=lambda one: one.reported_ms)


def _of_row(factory: str, row: Mapping[str, object], at_ms: int) -> ProgramState:
    since = _whole(row["since_age_ms"]) or 0
    ping, failover = _whole(row["next_ping_in_ms"]), _whole(row["failover_in_ms"])
    spooled = _whole(row["oldest_spooled_age_ms"])
    return ProgramState(
        factory=factory,
        path=str(row["path"]),
        state=str(row["state"]),
        since_ms=at_ms - since,
        why=str(row["why"] or ""),
        reported_ms=at_ms,
        next_ping_ms=None if ping is None else at_ms + ping,
        failover_ms=None if failover is None else at_ms + failover,
        pings=_whole(row["pings"]) or 0,
        parked=_whole(row["parked"]) or 0,
        backlog_queue=None if row["backlog_queue"] is None else str(row["backlog_queue"]),
        spooled=_whole(row["spooled"]) or 0,
        oldest_spooled_ms=None if spooled is None else at_ms - spooled,
        fenced_sessions=_whole(row["fenced_sessions"]) or 0,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
