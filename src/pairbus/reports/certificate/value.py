"""The certificate: what was promised, where it is, what is missing and what came twice; with counts that add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.reports.text import duration_text, many
from pairbus.reports.views.certificate_page import certificate_page
from pairbus.reports.views.html import inert
from pairbus.server.clock import utc

FATES: Final = ("in_backlog", "set_aside", "dead_lettered", "expired", "in_flight", "lost")
"""Where an accepted message is that did not arrive."""
WORDS: Final = {
    "arrived": "arrived",
    "in_backlog": "still in the backlog",
    "set_aside": "set aside in the backlog",
    "dead_lettered": "dead-lettered",
    "expired": "expired",
    "in_flight": "accepted after the cut-off, not yet there",
    "lost": "LOST",
    "absorbed": "accepted again under the same id and body, there once",
    "repeated": "came again",
    "unexpected": "came and were never accepted",
}
BOUNDS_MS: Final = (100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000)
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
    destination: str
    message_id: str
    sha256: str
    copies: int
    accepted_ms: int | None


@dataclass(frozen=True, slots=True)
class Outage:
    """Messages that were parked in one run of time."""

    first_ms: int
    last_ms: int
    messages: int
    fates: Mapping[str, int]
    slowest_ms: int | None


@dataclass(frozen=True, slots=True)
class Bar:
    """Messages up to a bound, direct and detoured."""

    label: str
    direct: int
    detoured: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    accepted: int
    """Sends that their senders were told to be accepted."""
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
    delays: tuple[Bar, ...] = ()
    reordered: tuple[Bar, ...] | None = ()
    outages: tuple[Outage, ...] = ()
    journals: tuple[str, ...] = ()
    repeated_parts: int = 0
    is_cut_off: bool = False

    @property
    def verdict(self) -> str:
        """A loss is a loss; without one, rows that could not be read leave it unproven."""
        if self.fates["lost"]:
            return LOSS
        return UNPROVEN if any(count.quarantined for count in self.rows.values()) else HOLDS

    def sentence(self) -> str:
        lost, quarantined = self.fates["lost"], sum(count.quarantined for count in self.rows.values())
        if self.verdict == LOSS:
            accepted = many(self.accepted, "accepted message")
            return f"{lost:,} of {accepted} {'is' if lost == 1 else 'are'} LOST."
        if self.verdict == UNPROVEN:
            return f"No loss among what could be read, but {many(quarantined, 'row')} could not: nothing is proven."
        if self.accepted == 0:
            return "Nothing was accepted, so nothing could be lost."
        if self.accepted == 1:
            return "Nothing is lost: the one accepted message is accounted for."
        return f"Nothing is lost: each of {self.accepted:,} accepted messages is accounted for."

    def hint(self) -> str:
        """What may be wrong with the question, where nothing of one side is on the other; else empty."""
        if not self.fates["lost"] or self.fates["arrived"]:
            return ""
        if not self.received:
            return "Not one arrival is recorded: does --received name the namespace that was sent to, and has it an audit log?"
        if self.altered:
            return "Ids arrived, each with another body: --no-body-hash compares without."
        return "Not one of them arrived, and nothing that arrived was accepted: are --sent and --received of the same pair?"

    def check(self) -> None:
        """Accepted and arrived are fully explained. Computed from the same rows, so a difference is our fault."""
        explained = self.fates["arrived"] + self.fates["absorbed"] + sum(self.fates[fate] for fate in FATES)
        assert explained == self.accepted, (explained, self.accepted)
        arrivals = self.fates["arrived"] + self.fates["repeated"] + self.fates["unexpected"]
        assert arrivals == self.received, (arrivals, self.received)

    def as_json(self) -> dict[str, object]:
        """For programs. The same rows give the same text, whatever files they lie in (D4)."""
        return {
            "verdict": self.verdict,
            "accepted": self.accepted,
            "received": self.received,
            "messages": self.messages,
            "detoured": self.detoured,
            **{fate: self.fates[fate] for fate in WORDS},
            "altered": self.altered,
            "at_destination": {
                "delivered": self.at_destination["completed_there"],
                "dead_lettered": self.at_destination["dead_there"],
                "expired": self.at_destination["expired_there"],
            },
            "delays": [_bar_json(bar) for bar in self.delays],
            "reordered": None if self.reordered is None else [_bar_json(bar) for bar in self.reordered],
            "outages": [
                {
                    "first": utc(outage.first_ms).isoformat(),
                    "last": utc(outage.last_ms).isoformat(),
                    "messages": outage.messages,
                    **outage.fates,
                    "slowest_ms": outage.slowest_ms,
                }
                for outage in self.outages
            ],
            "named": {
                fate: [
                    {
                        "destination": name.destination,
                        "message_id": name.message_id,
                        "sha256": name.sha256,
                        "copies": name.copies,
                        "accepted": None if name.accepted_ms is None else utc(name.accepted_ms).isoformat(),
                    }
                    for name in names
                ]
                for fate, names in self.named.items()
                if names
            },
            "rows": {
                role: {
                    "read": count.read,
                    "used": count.used,
                    "other": count.other,
                    "quarantined": count.quarantined,
                }
                for role, count in self.rows.items()
            },
            "quarantined": dict(self.reasons),
            "repeated_parts": self.repeated_parts,
            "open_journals": len(self.journals),
        }

    def balance(self) -> list[tuple[str, int]]:
        """What was accepted and where it is; the numbers add up to the first."""
        kept = [(WORDS[fate], self.fates[fate]) for fate in ("arrived", *FATES, "absorbed")]
        return [
            ("accepted", self.accepted),
            *[(word, count) for word, count in kept if count or word in ("arrived", "LOST")],
        ]

    def lines(self) -> list[str]:
        told = [self.sentence(), *([self.hint()] if self.hint() else [])]
        told += [f"{count:>14,}  {word}" for word, count in self.balance()]
        told.append(f"{self.received:>14,}  arrivals, of which")
        told += [f"{self.fates[fate]:>14,}  {WORDS[fate]}" for fate in ("repeated", "unexpected")]
        if self.altered:
            told.append(f"{self.altered:>14,}  of the lost arrived with another body")
        if self.reordered is not None:
            told.append(
                f"{sum(bar.direct + bar.detoured for bar in self.reordered):>14,}  arrived after one that was accepted later"
            )
        told += [f"  {line}" for line in self._outage_lines()]
        for fate in ("lost", "repeated", "unexpected", "set_aside", "in_backlog", "dead_lettered", "expired"):
            names = self.named.get(fate, ())
            if names:
                told.append(f"{WORDS[fate]}: {len(names)} of {self.fates[fate]:,}, by name")
                told += [
                    f"  {inert(name.destination)}  {inert(name.message_id) or '(no id)'}  {name.sha256[:16]}"
                    for name in names
                ]
        told += [f"set apart: {many(count, 'row')}: {reason}" for reason, count in self.reasons.items()]
        if self.journals:
            told.append(self.journal_text())
        return told

    def words(self, fate: str) -> str:
        return WORDS[fate]

    def journal_text(self) -> str:
        """What is to be known of journals of an hour that is not over."""
        open_ones = "1 journal is" if len(self.journals) == 1 else f"{len(self.journals):,} journals are"
        return f"{open_ones} still open: what was written there last was taken as durable"

    def _outage_lines(self) -> list[str]:
        return [
            f"outage {utc(outage.first_ms):%Y-%m-%d %H:%M:%S} to {utc(outage.last_ms):%Y-%m-%d %H:%M:%S}: {outage.messages:,} parked, "
            f"{outage.fates['arrived']:,} arrived"
            + (
                ""
                if outage.slowest_ms is None
                else f", the slowest after {duration_text(max(0, outage.slowest_ms))}"
            )
            for outage in self.outages[:10]
        ]

    def as_html(self) -> str:
        return certificate_page(self)


def histogram_of(rows: Iterable[Sequence[Any]]) -> tuple[Bar, ...]:
    """Bars of (bucket, is_detoured, count), from the quickest to the slowest; empty ones between them included."""
    found: dict[tuple[int, bool], int] = {}
    for at, is_detoured, count in rows:
        key = (int(at), bool(is_detoured))
        found[key] = found.get(key, 0) + int(count)
    if not found:
        return ()
    last = max(number for number, _ in found)
    first = min([0, *(number for number, _ in found)])
    return tuple(
        Bar(_label(at), found.get((at, False), 0), found.get((at, True), 0)) for at in range(first, last + 1)
    )


def _label(at: int) -> str:
    if at < 0:
        return "before it was accepted (clocks differ)"
    if at == len(BOUNDS_MS):
        return f"{duration_text(BOUNDS_MS[-1])} and more"
    upto = duration_text(BOUNDS_MS[at])
    return f"under {upto}" if at == 0 else f"{duration_text(BOUNDS_MS[at - 1])} to {upto}"


def _bar_json(bar: Bar) -> dict[str, object]:
    return {"span": bar.label, "direct": bar.direct, "detoured": bar.detoured}
