"""The certificate as a value: what was accepted, where it is, what is missing and what arrived twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pairbus.reports.text import duration_text

FATES: Final = (
    "in_backlog",
    "in_spool",
    "set_aside",
    "dead_lettered",
    "expired",
    "cancelled",
    "in_flight",
    "unproven",
    "sent_again",
    "lost",
)
"""Where an accepted message is that did not arrive."""
FATE_COLUMNS: Final = ("arrived", *FATES, "absorbed", "repeated", "unexpected")
NAMED_FATES: Final = (*FATES, "repeated", "unexpected")
"""Fates whose messages are named."""
THERE: Final = {"completed_there": "delivered", "dead_there": "dead_lettered", "expired_there": "expired"}
"""What happened to messages at their destination since they arrived."""
NAMED_MAX: Final = 20
"""Messages of each fate that a report names; the files name all."""
REASONS_MAX: Final = 50
OUTAGES_MAX: Final = 1_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_MS: Final = 60_000
OUTAGE_GAP_MS: Final = 15 * MINUTE_MS
"""Parked messages further apart belong to different outages."""
BOUNDS_MS: Final = (100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000)
"""Upper bounds of the bars of a histogram."""
HOLDS: Final = "holds"
LOSS: Final = "loss"
UNPROVEN: Final = "unproven"


@dataclass(frozen=True, slots=True)
class RowCounts:
    """What became of the rows of one input (D5)."""

    used: int
    other: int
    """About something else, such as a settlement in a file of sends."""
    quarantined: int

    @property
    def read(self) -> int:
        return self.used + self.other + self.quarantined


@dataclass(frozen=True, slots=True)
class Named:
    """One message by name."""

    destination: str
    message_id: str
    sha256: str
    copies: int
    accepted: datetime | None


@dataclass(frozen=True, slots=True)
class Outage:
    """Messages that were parked in one run of time."""

    first: datetime
    last: datetime
    messages: int
    fates: Mapping[str, int]
    slowest_ms: int | None


@dataclass(frozen=True, slots=True)
class Bar:
    """Messages of one span of a histogram, direct and detoured."""

    span: str
    direct: int
    detoured: int


@dataclass(frozen=True, slots=True)
class OvertakenSession:
    """A session of which messages arrived after one that was accepted later."""

    destination: str
    session: str
    messages: int
    """How many of it were overtaken by another message of it."""
    latest_ms: int
    """By how much later the other one was accepted, at most."""


@dataclass(frozen=True, slots=True)
class SessionOrder:
    """The order inside of sessions: how many were not in order, and the first of them, those with the most overtaken messages first."""

    sessions: int
    named: tuple[OvertakenSession, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a namespace had no message audit."""

    namespace: str
    """Empty where the rows name none."""
    first: datetime | None
    """None: its audit log begins at ``last``."""
    last: datetime | None
    """None: the audit has not resumed."""
    hides_sends: bool
    """Messages that were accepted in this time are missing among the accepted ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What became of every accepted message."""

    accepted: int
    """Sends that were confirmed to their senders."""
    received: int
    """Arrivals at destinations."""
    messages: int
    detoured: int
    fates: Mapping[str, int]
    altered: int
    """Of the lost: those whose id arrived with another body."""
    at_destination: Mapping[str, int]
    named: Mapping[str, tuple[Named, ...]]
    rows: Mapping[str, RowCounts]
    reasons: Mapping[str, int] = field(default_factory=dict)
    """How many rows were quarantined, by input and reason."""
    delays: tuple[Bar, ...] = ()
    reordered: tuple[Bar, ...] | None = ()
    session_order: SessionOrder | None = None
    """None where it is not known: order was not looked at, or no row names a session."""
    outages: tuple[Outage, ...] = ()
    journals: tuple[str, ...] = ()
    repeated_parts: int = 0
    left_out: int = 0
    """Rows about another primary, or about entities of the secondary itself."""
    doubt: str = ""
    """Why nothing is proven, whatever the counts: the inputs do not say which primary rows are about. Else empty."""
    gaps: tuple[Gap, ...] = ()
    """Times without a message audit."""
    unasked: tuple[str, ...] = ()
    """Namespaces that have the backlog and whose sends were not given: messages that they accepted are missing among the accepted ones."""

    @property
    def quarantined(self) -> int:
        return sum(count.quarantined for count in self.rows.values())

    @property
    def overtaken(self) -> int | None:
        """Messages that arrived after one that was accepted later; None where order was not looked at."""
        return None if self.reordered is None else sum(bar.direct + bar.detoured for bar in self.reordered)

    @property
    def verdict(self) -> str:
        """A loss is a loss; without one, rows that could not be read leave it unproven, and so do messages that may have ended, or been
        accepted, while there was no audit, or been sent again by hand, a backlog whose sends were not given, and a question about no message at all. Nothing is proven
        if rows of several primaries may stand for each other.
        """
        if self.doubt:
            return UNPROVEN
        if self.fates["lost"]:
            return LOSS
        is_hidden = self.fates["unproven"] + self.fates["sent_again"] > 0 or any(
            gap.hides_sends for gap in self.gaps
        )
        return UNPROVEN if self.quarantined or is_hidden or self.unasked or not self.asked else HOLDS

    @property
    def asked(self) -> int:
        """Accepted sends that the answer is about: not those that may still be on their way."""
        return self.accepted - self.fates["in_flight"]

    def check(self) -> None:
        """Assert that accepted and arrived messages are fully explained. They rest on the same rows, so a difference is a bug."""
        explained = self.fates["arrived"] + self.fates["absorbed"] + sum(self.fates[fate] for fate in FATES)
        assert explained == self.accepted, (explained, self.accepted)
        arrivals = self.fates["arrived"] + self.fates["repeated"] + self.fates["unexpected"]
        assert arrivals == self.received, (arrivals, self.received)


@dataclass(frozen=True, slots=True)
class ParkedMinute:
    """The parked messages that were accepted in one minute."""

    number: int
    """Minutes since 1970."""
    first_ms: int
    last_ms: int
    accepted: int
    fates: Mapping[str, int]
    slowest_ms: int | None


def outages_of(minutes: Iterable[ParkedMinute]) -> tuple[Outage, ...]:
    """Runs of minutes in which messages were parked, and what became of those messages."""
    runs: list[list[ParkedMinute]] = []
    for minute in sorted(minutes, key=lambda minute: minute.number):
        if not runs or (minute.number - runs[-1][-1].number) * MINUTE_MS > OUTAGE_GAP_MS:
            runs.append([])
        runs[-1].append(minute)
    return tuple(
        Outage(
            EPOCH + timedelta(milliseconds=min(minute.first_ms for minute in run)),
            EPOCH + timedelta(milliseconds=max(minute.last_ms for minute in run)),
            sum(minute.accepted for minute in run),
            {fate: sum(minute.fates[fate] for minute in run) for fate in run[0].fates},
            max((minute.slowest_ms for minute in run if minute.slowest_ms is not None), default=None),
        )
        for run in runs[:OUTAGES_MAX]
    )


def histogram_of(rows: Iterable[Sequence[Any]]) -> tuple[Bar, ...]:
    """Bars of (number of the span, is_detoured, count), from the quickest to the slowest, with the empty ones between."""
    found: dict[tuple[int, bool], int] = {}
    for at, is_detoured, count in rows:
        key = (int(at), bool(is_detoured))
        found[key] = found.get(key, 0) + int(count)
    if not found:
        return ()
    numbers = [0, *(number for number, _ in found)]
    return tuple(
        Bar(_span(at), found.get((at, False), 0), found.get((at, True), 0))
        for at in range(min(numbers), max(number for number, _ in found) + 1)
    )


def _span(at: int) -> str:
    if at < 0:
        return "before it was accepted (clocks differ)"
    if at == len(BOUNDS_MS):
        return f"{duration_text(BOUNDS_MS[-1])} and more"
    upto = duration_text(BOUNDS_MS[at])
    return f"under {upto}" if at == 0 else f"{duration_text(BOUNDS_MS[at - 1])} to {upto}"
