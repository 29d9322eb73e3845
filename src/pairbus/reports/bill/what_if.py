"""Recorded usage under other settings: a longer failover interval, more backlog queues, slower pings, other outages.

Rule 1: recorded numbers are taken as they are; only those that a changed setting touches are computed again.
Rule 2: every changed number says how it was calculated, and what was assumed.
Rule 3: the log counts by minute. Where a setting cuts through a minute, its messages are taken as evenly spread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from pairbus.errors import UsageError
from pairbus.pairing.options import FAILOVER_INTERVAL_DEFAULT, PING_INTERVAL_DEFAULT, milliseconds
from pairbus.reports.bill.model import MINUTE_MS, failed_over_ms, pings
from pairbus.reports.text import duration_text, many

MINUTES_MAX: Final = 1_000_000
"""Minutes with sends to the backlog that a what-if looks at."""
OUTAGE_GAP_MS: Final = 15 * MINUTE_MS
"""Sends to the backlog further apart belong to different outages."""


@dataclass(frozen=True, slots=True)
class Minute:
    """Sends of one minute."""

    ms: int
    count: int
    units: int


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
    early_messages: int
    """In its first moments, as long as the failover interval: these would have waited, or failed."""
    early_units: int
    messages: int
    """After that: these would have gone through the backlog."""
    units: int
    failover_interval_ms: int = 0

    @property
    def failed_over_ms(self) -> int:
        """How long the entities are failed over; 0 if it is no longer than the failover interval."""
        return failed_over_ms(self.end_ms - self.start_ms, self.failover_interval_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMonth:
    """The billed operations of one calendar month (UTC): prices have bands that begin again each month."""

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
    failover_interval_ms: int = milliseconds(FAILOVER_INTERVAL_DEFAULT)
    ping_interval_ms: int = milliseconds(PING_INTERVAL_DEFAULT)
    while_suspect: Literal["wait", "raise"] = "wait"
    """What a send does until the failover."""


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


def detours_of(minutes: Iterable[Minute], early_ms: int) -> tuple[Detour, ...]:
    """The outages among minutes with sends to the backlog; ``early_ms``: how far into each outage to count separately.

    Raises:
        UsageError: More minutes than ``MINUTES_MAX``.
    """
    runs: list[list[Minute]] = []
    for number, minute in enumerate(sorted(minutes, key=lambda minute: minute.ms)):
        if number == MINUTES_MAX:
            raise UsageError(
                f"more than {MINUTES_MAX:,} minutes with outages: narrow the time with --from and --to"
            )
        if not runs or minute.ms - runs[-1][-1].ms > OUTAGE_GAP_MS:
            runs.append([])
        runs[-1].append(minute)
    return tuple(_detour(run, early_ms) for run in runs)


def _detour(run: list[Minute], early_ms: int) -> Detour:
    start = run[0].ms
    early_messages, early_units = _inside(run, start, start + early_ms)
    return Detour(
        start_ms=start,
        end_ms=run[-1].ms + MINUTE_MS,
        messages=sum(minute.count for minute in run),
        units=sum(minute.units for minute in run),
        early_messages=early_messages,
        early_units=early_units,
    )


def away_of(
    sends: list[Minute], entities: int, start_ms: int, end_ms: int, failover_interval_ms: int
) -> Away:
    """A supposed outage, from the recorded sends to the primary in that time."""
    failover = min(end_ms, start_ms + failover_interval_ms)
    early_messages, early_units = _inside(sends, start_ms, failover)
    messages, units = _inside(sends, failover, end_ms)
    return Away(
        start_ms=start_ms,
        end_ms=end_ms,
        entities=entities,
        early_messages=early_messages,
        early_units=early_units,
        messages=messages,
        units=units,
        failover_interval_ms=failover_interval_ms,
    )


def _inside(minutes: Iterable[Minute], start_ms: int, end_ms: int) -> tuple[int, int]:
    """Messages and units between two instants."""
    messages = units = 0
    for minute in minutes:
        overlap = max(0, min(minute.ms + MINUTE_MS, end_ms) - max(minute.ms, start_ms))
        messages += minute.count * overlap
        units += minute.units * overlap
    return messages // MINUTE_MS, units // MINUTE_MS


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded usage under other settings."""

    recorded: Recorded
    differences: tuple[Difference, ...]

    @property
    def operations(self) -> int:
        """How many there would have been."""
        return self.recorded.operations + sum(difference.operations for difference in self.differences)


def replay(recorded: Recorded, settings: Settings, change: Change) -> Replay:
    """What each change does, in a fixed order."""
    differences: list[Difference] = []
    if change.failover_interval_ms is not None:
        waits = settings.while_suspect == "wait"
        differences.append(
            _failover(recorded, settings.failover_interval_ms, change.failover_interval_ms, waits=waits)
        )
    if change.queues is not None:
        differences.append(_queues(recorded, change.queues))
    interval = settings.ping_interval_ms
    if change.ping_interval_ms is not None:
        differences.append(_ping_interval(recorded, settings.ping_interval_ms, change.ping_interval_ms))
        interval = change.ping_interval_ms
    differences += [_away(away, interval, settings.while_suspect) for away in change.away]
    return Replay(recorded, tuple(differences))


def _failover(recorded: Recorded, before_ms: int, after_ms: int, *, waits: bool) -> Difference:
    messages = sum(detour.early_messages for detour in recorded.detours)
    units = sum(detour.early_units for detour in recorded.detours)
    outages = len(recorded.detours)
    gap = duration_text(abs(after_ms - before_ms))
    if waits:
        how = f"{gap} {'longer' if after_ms >= before_ms else 'less'}"
        why = (
            f"until the failover a send waits: at the beginning of {many(outages, 'outage')} sends would have waited up to {how}, and gone "
            "through the backlog all the same"
        )
        return Difference("failover interval", 0, 0, 0, why)
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


def _away(away: Away, ping_interval_ms: int, while_suspect: Literal["wait", "raise"]) -> Difference:
    pinged = pings(away.entities, away.failed_over_ms, ping_interval_ms)
    name, lasting = "the primary away", f"{duration_text(away.end_ms - away.start_ms)} away"
    pinging = f"{many(pinged, 'ping')} of {many(away.entities, 'entity', 'entities')}"
    if while_suspect == "raise":
        added = 2 * away.units + pinged - 2 * away.early_units
        why = (
            f"{lasting}: {many(away.early_messages, 'recorded send')} refused before failover (2 operations less for each unit), "
            f"{away.messages:,} through the backlog (2 more for each), {pinging}"
        )
        return Difference(name, away.messages, away.early_messages, added, why)
    waiting = many(away.early_messages, "recorded send")
    if not away.failed_over_ms:
        why = f"{lasting}, no longer than the failover interval: {waiting} would have waited for the primary, {pinging}"
        return Difference(name, 0, 0, pinged, why)
    messages = away.early_messages + away.messages
    why = (
        f"{lasting}: {waiting} would have waited for the failover, and gone through the backlog as {away.messages:,} after it would "
        f"(2 operations more for each unit), {pinging}"
    )
    return Difference(name, messages, 0, 2 * (away.early_units + away.units) + pinged, why)


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
