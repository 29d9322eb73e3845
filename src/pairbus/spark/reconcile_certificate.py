"""The certificate: what was promised, where it is, what is missing and what came twice; with counts that add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.cost.durations import duration_text
from pairbus.server.clock import utc
from pairbus.spark.report_page import bars, heading, inert, page, paragraph, table

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
        """All of them."""
        return self.used + self.other + self.quarantined


@dataclass(frozen=True, slots=True)
class Named:
    """One message by name."""

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
    """The answer."""

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
        """The verdict for people."""
        lost, quarantined = self.fates["lost"], sum(count.quarantined for count in self.rows.values())
        if self.verdict == LOSS:
            return f"{lost:,} of {self.accepted:,} accepted messages are LOST."
        if self.verdict == UNPROVEN:
            return f"No loss among what could be read, but {quarantined:,} rows could not: nothing is proven."
        return f"Nothing is lost: each of {self.accepted:,} accepted messages is accounted for."

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
        """For a terminal."""
        told = [self.sentence()]
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
        told += [f"set apart: {count:,} rows: {reason}" for reason, count in self.reasons.items()]
        if self.journals:
            told.append(
                f"{len(self.journals)} journals are still open: what their brokers wrote last was taken as durable"
            )
        return told

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
        """One page."""
        kind = {LOSS: "bad", HOLDS: "good", UNPROVEN: "unsure"}[self.verdict]
        parts = [
            paragraph(self.sentence(), f"verdict {kind}"),
            heading("What was accepted, and where it is"),
            table(("", "messages"), [(word, f"{count:,}") for word, count in self.balance()], (1,)),
            heading("What arrived"),
            table(
                ("", "messages"),
                [(WORDS[fate], f"{self.fates[fate]:,}") for fate in ("arrived", "repeated", "unexpected")],
                (1,),
                ("in all", f"{self.received:,}"),
            ),
            heading("How long it took"),
            _histogram(self.delays, "delay"),
        ]
        if self.reordered is not None:
            parts += [
                heading("Overtaken, by a message accepted so much later"),
                _histogram(self.reordered, "order"),
            ]
        if self.outages:
            parts += [heading("Outages"), self._outage_table()]
        for fate, names in self.named.items():
            if names:
                parts += [heading(f"{WORDS[fate]}: {len(names)} of {self.fates[fate]:,}"), _name_table(names)]
        parts += [
            heading("What was read"),
            table(
                ("input", "rows", "used", "about something else", "set apart"),
                [
                    (role, f"{count.read:,}", f"{count.used:,}", f"{count.other:,}", f"{count.quarantined:,}")
                    for role, count in self.rows.items()
                ],
                (1, 2, 3, 4),
            ),
            *[
                paragraph(f"set apart: {count:,} rows: {reason}", "note")
                for reason, count in self.reasons.items()
            ],
        ]
        return page("Certificate of delivery", parts)

    def _outage_table(self) -> str:
        return table(
            ("from", "to", "parked", "arrived", "in backlog", "set aside", "lost", "slowest"),
            [
                (
                    f"{utc(outage.first_ms):%Y-%m-%d %H:%M:%S}",
                    f"{utc(outage.last_ms):%Y-%m-%d %H:%M:%S}",
                    f"{outage.messages:,}",
                    *[f"{outage.fates[fate]:,}" for fate in ("arrived", "in_backlog", "set_aside", "lost")],
                    "" if outage.slowest_ms is None else duration_text(max(0, outage.slowest_ms)),
                )
                for outage in self.outages
            ],
            (2, 3, 4, 5, 6, 7),
        )


def histogram_of(rows: Iterable[Any]) -> tuple[Bar, ...]:
    """Bars of (bucket, is_detoured, count), from the quickest to the slowest; empty ones between them included."""
    found: dict[tuple[int, bool], int] = {}
    for row in rows:
        key = (int(row["bucket"]), bool(row["is_detoured"]))
        found[key] = found.get(key, 0) + int(row["count"])
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
    return (
        f"under {duration_text(BOUNDS_MS[at])}"
        if at < len(BOUNDS_MS)
        else f"{duration_text(BOUNDS_MS[-1])} and more"
    )


def _bar_json(bar: Bar) -> dict[str, object]:
    return {"span": bar.label, "direct": bar.direct, "detoured": bar.detoured}


def _histogram(found: tuple[Bar, ...], label: str) -> str:
    rows = [
        (bar.label, bar.direct + bar.detoured, f"{bar.direct + bar.detoured:,} ({bar.detoured:,} detoured)")
        for bar in found
    ]
    return bars(rows, label)


def _name_table(names: tuple[Named, ...]) -> str:
    return table(
        ("destination", "message id", "body", "copies", "accepted"),
        [
            (
                name.destination,
                name.message_id or "(no id)",
                name.sha256[:16],
                f"{name.copies:,}",
                "" if name.accepted_ms is None else utc(name.accepted_ms).isoformat(),
            )
            for name in names
        ],
        (3,),
    )
