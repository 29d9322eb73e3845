"""Recorded usage under other settings: a longer failover interval, more backlog queues, slower pings, other outages.

Rule 1: what was recorded is taken as it is; only what a changed setting touches is computed anew.
Rule 2: every changed number says how it came about, and what was assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.reports.bill.model import pings
from pairbus.reports.text import duration_text, many


@dataclass(frozen=True, slots=True, kw_only=True)
class Detour:
    """One recorded outage: a run of minutes in which messages were sent to the backlog."""

    start_ms: int
    end_ms: int
    messages: int
    units: int
    early_messages: int = 0
    """Of them, those in the time by which the failover interval would be longer; or, were it shorter, as many as came in as much
    time after failover."""
    early_units: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A supposed outage: what was recorded as sent to the primary in that time."""

    start_ms: int
    end_ms: int
    entities: int
    refused_messages: int
    """In its first moments, as long as the failover interval."""
    refused_units: int
    messages: int
    """After that: these would have gone through the backlog."""
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMonth:
    """The billed operations of one calendar month (UTC): prices have bands that begin anew each month."""

    month: str
    """As 2026-11."""
    operations: int
    first_ms: int
    """When the first of them was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the usage log says of the pairing."""

    operations: int
    idle_receives: int
    pings: int
    queues: int
    months: tuple[RecordedMonth, ...] = ()
    """The operations by month, in order."""
    detours: tuple[Detour, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that were in force."""

    failover_interval_ms: int = 60_000
    ping_interval_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is supposed; None leaves it as it was."""

    failover_interval_ms: int | None = None
    queues: int | None = None
    ping_interval_ms: int | None = None
    away: tuple[Away, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    messages: int
    """More (or fewer) messages through the backlog."""
    refused: int
    """More (or fewer) sends that fail."""
    operations: int
    why: str


def what_if(recorded: Recorded, settings: Settings, change: Change) -> list[Difference]:
    """The differences, in a fixed order."""
    differences: list[Difference] = []
    if change.failover_interval_ms is not None:
        differences.append(_failover(recorded, settings.failover_interval_ms, change.failover_interval_ms))
    if change.queues is not None:
        differences.append(_queues(recorded, change.queues))
    interval = settings.ping_interval_ms
    if change.ping_interval_ms is not None:
        differences.append(_ping_interval(recorded, settings.ping_interval_ms, change.ping_interval_ms))
        interval = change.ping_interval_ms
    differences += [_away(away, interval) for away in change.away]
    return differences


def _failover(recorded: Recorded, before_ms: int, after_ms: int) -> Difference:
    messages = sum(detour.early_messages for detour in recorded.detours)
    units = sum(detour.early_units for detour in recorded.detours)
    outages = len(recorded.detours)
    gap = duration_text(abs(after_ms - before_ms))
    if after_ms >= before_ms:
        why = f"{many(messages, 'message')} of the first {gap} after failover in {many(outages, 'outage')} would have been refused: 4 operations less for each unit"
        return Difference("failover interval", -messages, messages, -4 * units, why)
    why = (
        f"in the {gap} before failover sends failed and were not recorded; taken to be as many as in the {gap} after it: "
        f"{messages:,} in {many(outages, 'outage')}, 4 operations for each unit instead of none"
    )
    return Difference("failover interval", messages, -messages, 4 * units, why)


def _queues(recorded: Recorded, queues: int) -> Difference:
    if not recorded.queues:
        return Difference(
            "backlog queues", 0, 0, 0, "no backlog queue was in use in this time: nothing to compare with"
        )
    after = recorded.idle_receives * queues // recorded.queues
    why = f"{many(recorded.idle_receives, 'idle receive')} of {many(recorded.queues, 'queue')} × {queues} / {recorded.queues} = {after:,}"
    return Difference("backlog queues", 0, 0, after - recorded.idle_receives, why)


def _ping_interval(recorded: Recorded, before_ms: int, after_ms: int) -> Difference:
    after = recorded.pings * before_ms // after_ms
    why = (
        f"{many(recorded.pings, 'ping')} × {duration_text(before_ms)} / {duration_text(after_ms)} = {after:,}"
    )
    return Difference("ping interval", 0, 0, after - recorded.pings, why)


def _away(away: Away, ping_interval_ms: int) -> Difference:
    pinged = pings(away.entities, away.end_ms - away.start_ms, ping_interval_ms)
    added = 2 * away.units + pinged - 2 * away.refused_units
    why = (
        f"{duration_text(away.end_ms - away.start_ms)} away: {many(away.refused_messages, 'recorded send')} refused before failover "
        f"(2 operations less for each unit), {away.messages:,} through the backlog (2 more for each), {many(pinged, 'ping')} of "
        f"{many(away.entities, 'entity', 'entities')}"
    )
    return Difference("the primary away", away.messages, away.refused_messages, added, why)


def by_month(recorded: Recorded, supposed: int) -> list[tuple[RecordedMonth, int]]:
    """The supposed operations of each month: the difference is spread over the months as the recorded operations are."""
    shares: list[tuple[RecordedMonth, int]] = []
    change, weight = supposed - recorded.operations, sum(month.operations for month in recorded.months)
    counted = given = 0
    for number, month in enumerate(recorded.months, start=1):
        counted += month.operations
        upto = change * counted // weight if weight else change * number // len(recorded.months)
        shares.append((month, max(0, month.operations + upto - given)))
        given = upto
    return shares
