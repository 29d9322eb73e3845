"""What a paired client says about the health of its entities: the reports, and ``explain``. It only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pairbus.pairing.naming import entity_key
from pairbus.pairing.rules.health import EntityHealth, EntityReport
from pairbus.pairing.spool_rows import left_behind_text

if TYPE_CHECKING:
    from pairbus.pairing.client.state import PairingState
    from pairbus.spool.file import Content
    from pairbus.spool.reading import Listed


def reports(state: PairingState) -> dict[str, EntityReport]:
    """What is known of each entity, by its path."""
    left = _left_behind(state)
    with state.lock:
        return {health.path: _report(state, health, left) for health in state.healths()}


def explain(state: PairingState, path: str) -> list[str]:
    """Why an entity is in its state: its errors, timers, pings and decisions, oldest first."""
    health = state.known(path)
    left = _left_behind(state)
    with state.lock:
        report = _report(state, health, left)
        lines = [
            f"{report.path} is {report.state.value} since {state.time_of_day(report.since_ms)}"
            + _because(report.why)
        ]
        if not state.is_paired:
            lines.append(
                "the client is not paired, so no send is detoured: use `with client`, or call pair()"
            )
        if report.failover_due_ms is not None:
            lines.append(
                f"fails over at {state.time_of_day(report.failover_due_ms)} unless a send succeeds before"
            )
        if report.next_ping_ms is not None:
            at = state.time_of_day(report.next_ping_ms)
            lines.append(f"next ping at {at}; {report.pings_sent} sent so far")
        if report.parked:
            lines.append(f"{report.parked} messages parked so far, the last in {report.backlog_queue}")
        if report.parked_lost:
            lines.append(
                f"backlog queues that somebody deleted held up to {report.parked_lost} of them, which are gone"
            )
        if report.spooled:
            age_s = (report.oldest_spooled_age_ms or 0) / 1000
            lines.append(
                f"{report.spooled} messages wait in the spool, the oldest for {age_s:g} s; new ones join them"
            )
        if report.left_behind:
            lines.append(report.left_behind_why)
        if report.fenced_sessions:
            lines.append(
                f"{report.fenced_sessions} sessions go on being parked, because messages of them are still in the backlog"
            )
        lines += [f"backlog queue {e.queue} is out of rotation: {e.why}" for e in state.out_of_rotation()]
        return lines + state.decisions(path)


def oldest_age_ms(state: PairingState, health: EntityHealth) -> int | None:
    """How long ago the oldest message of an entity that is known to be in the backlog was sent."""
    seen_ms = state.order.oldest_of(entity_key(health.path))
    ages = [] if seen_ms is None else [state.wall_clock() - seen_ms]
    if health.parked_since_ms is not None:
        # Looks of a client that keeps an order show messages of its sessions only.
        ages.append(state.clock() - health.parked_since_ms)
    return max(0, *ages) if ages else None


def _report(
    state: PairingState, health: EntityHealth, left: Mapping[str, Sequence[tuple[Listed, Content]]]
) -> EntityReport:
    report = replace(
        health.report(state.time_of),
        fenced_sessions=state.order.fenced(entity_key(health.path)),
        oldest_parked_age_ms=oldest_age_ms(state, health),
    )
    if state.spools is None:
        return report
    spooled = state.spools.content(entity_key(health.path))
    now = state.wall_clock()
    passed_by = left.get(entity_key(health.path), ())
    return replace(
        report,
        spooled=spooled.count,
        spool_undeliverable=spooled.undeliverable,
        oldest_spooled_age_ms=spooled.age_ms(now),
        left_behind=sum(content.count for _, content in passed_by),
        oldest_left_behind_age_ms=max(
            (age for _, content in passed_by if (age := content.age_ms(now)) is not None), default=None
        ),
        left_behind_why="; ".join(
            left_behind_text(one, content, state.primary, state.identity, now) for one, content in passed_by
        ),
    )


def _left_behind(state: PairingState) -> dict[str, list[tuple[Listed, Content]]]:
    """What is in spools of our primary's name that this client does not replay, by entity. It may read files."""
    found: dict[str, list[tuple[Listed, Content]]] = {}
    for one in state.left_behind.look():
        if one.about.primary.lower() == state.primary.lower():
            for key, content in one.contents.items():
                if content.count:
                    state.health_of(content.path)
                    found.setdefault(key, []).append((one, content))
    return found


def _because(why: str) -> str:
    return f": {why}" if why else ""
