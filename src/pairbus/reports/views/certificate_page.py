"""The certificate as a page: the verdict, where everything is, how long it took, each outage, and the messages by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.reports.text import duration_text, many
from pairbus.reports.views.html import (
    BAD,
    GOOD,
    UNSURE,
    Piece,
    bars,
    folded,
    legend,
    notes,
    page,
    section,
    share_bar,
    table,
    tiles,
    verdict,
)
from pairbus.server.clock import utc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pairbus.reports.certificate.value import Bar, Certificate, Named

KINDS: Final = {"loss": BAD, "holds": GOOD, "unproven": UNSURE}
NAMED: Final = (
    "lost",
    "repeated",
    "unexpected",
    "set_aside",
    "in_backlog",
    "dead_lettered",
    "expired",
    "in_flight",
)
"""In the order in which somebody wants to know of them."""
URGENT: Final = ("lost", "repeated", "unexpected")
DIRECT: Final = 0
DETOURED: Final = 4
_COLOURS: Final = {
    "arrived": 0,
    "in_backlog": 5,
    "set_aside": 7,
    "dead_lettered": 6,
    "expired": 3,
    "in_flight": 2,
    "lost": 8,
    "absorbed": 1,
}


def certificate_page(told: Certificate) -> str:
    parts = [
        verdict(KINDS[told.verdict], told.sentence(), _detail(told)),
        _tiles(told),
        _balance(told),
        _arrivals(told),
        section("How long it took from acceptance to arrival", [_histogram(told.delays, "delay")]),
    ]
    if told.reordered is not None:
        parts.append(_order(told.reordered))
    if told.outages:
        parts.append(_outages(told))
    parts += [_named(told, fate) for fate in NAMED if told.named.get(fate)]
    return page("Certificate of delivery", _subtitle(told), [*parts, _inputs(told)])


def _subtitle(told: Certificate) -> str:
    read = sum(count.read for count in told.rows.values())
    return f"{many(told.accepted, 'accepted send')} against {many(told.received, 'arrival')}; {many(read, 'row')} read"


def _detail(told: Certificate) -> str:
    if told.hint():
        return told.hint()
    if told.altered:
        return f"{told.altered:,} of the lost arrived with another body."
    return "Every accepted send has one fate below; the counts add up."


def _tiles(told: Certificate) -> str:
    fates = told.fates
    waiting = fates["in_backlog"] + fates["set_aside"] + fates["dead_lettered"] + fates["expired"]
    overtaken = None if told.reordered is None else sum(bar.direct + bar.detoured for bar in told.reordered)
    return tiles(
        [
            ("Accepted", f"{told.accepted:,}", "sends that their senders were told of"),
            ("Arrived", f"{fates['arrived']:,}", "at their destination, whole"),
            ("Lost", f"{fates['lost']:,}", "accepted and nowhere to be found"),
            ("Came again", f"{fates['repeated']:,}", "arrivals beyond the accepted ones"),
            ("Through the backlog", f"{told.detoured:,}", "messages parked while the primary was away"),
            ("Elsewhere", f"{waiting:,}", "in the backlog, set aside, dead-lettered, expired"),
            *(
                []
                if overtaken is None
                else [("Overtaken", f"{overtaken:,}", "arrived after one accepted later")]
            ),
        ],
        alarm="Lost" if fates["lost"] else "",
    )


def _balance(told: Certificate) -> str:
    pieces = [
        Piece(told.fates[fate], colour, f"{told.words(fate)}: {told.fates[fate]:,}")
        for fate, colour in _COLOURS.items()
        if told.fates[fate]
    ]
    (_, accepted), *rows = told.balance()
    lines = [(word, f"{count:,}") for word, count in rows]
    alarm = told.words("lost") if told.fates["lost"] else ""
    return section(
        "What was accepted, and where it is",
        [
            share_bar(pieces, "where accepted messages are"),
            table(("", "messages"), lines, (1,), ("accepted", f"{accepted:,}"), alarm=alarm),
        ],
    )


def _arrivals(told: Certificate) -> str:
    rows = [(told.words(fate), f"{told.fates[fate]:,}") for fate in ("arrived", "repeated", "unexpected")]
    there = told.at_destination
    since = [
        f"{there[name]:,} {word}"
        for name, word in (
            ("completed_there", "delivered"),
            ("dead_there", "dead-lettered"),
            ("expired_there", "expired"),
        )
        if there[name]
    ]
    remark = [f"Since then, at the destinations: {', '.join(since)}."] if since else []
    return section(
        "What arrived", [table(("", "messages"), rows, (1,), ("in all", f"{told.received:,}")), notes(remark)]
    )


def _histogram(found: Sequence[Bar], label: str) -> str:
    rows = [
        (
            bar.label,
            [
                Piece(bar.direct, DIRECT, f"direct: {bar.direct:,}"),
                Piece(bar.detoured, DETOURED, f"detoured: {bar.detoured:,}"),
            ],
            f"{bar.direct + bar.detoured:,}",
        )
        for bar in found
    ]
    return bars(rows, label) + (
        legend([(DIRECT, "direct"), (DETOURED, "through the backlog")]) if rows else ""
    )


def _order(found: Sequence[Bar]) -> str:
    title = "Overtaken by a message that was accepted later"
    if not found:
        return section(
            title, [notes(["None: every destination got its messages in the order of their acceptance."])]
        )
    return section(title, [_histogram(found, "order")], "By how much later the other one was accepted.")


def _outages(told: Certificate) -> str:
    head = ("from (UTC)", "to (UTC)", "parked", "arrived", "in backlog", "set aside", "lost", "slowest")
    rows = [
        (
            f"{utc(outage.first_ms):%Y-%m-%d %H:%M:%S}",
            f"{utc(outage.last_ms):%Y-%m-%d %H:%M:%S}",
            f"{outage.messages:,}",
            *[f"{outage.fates[fate]:,}" for fate in ("arrived", "in_backlog", "set_aside", "lost")],
            "" if outage.slowest_ms is None else duration_text(max(0, outage.slowest_ms)),
        )
        for outage in told.outages
    ]
    return section(
        "Outages",
        [table(head, rows, (2, 3, 4, 5, 6, 7), unbroken=(0, 1))],
        "Times in which messages were parked in the backlog.",
    )


def _named(told: Certificate, fate: str) -> str:
    names = told.named[fate]
    word = told.words(fate)
    title = f"{word[0].upper()}{word[1:]}: {told.fates[fate]:,}"
    shown = f"the first {len(names)} by name" if len(names) < told.fates[fate] else "all by name"
    if fate in URGENT:
        return section(title, [_names(names)], f"{shown[0].upper()}{shown[1:]}; --out writes all of them.")
    return section(title, [folded(shown[0].upper() + shown[1:], _names(names))])


def _names(names: Sequence[Named]) -> str:
    rows = [
        (
            name.destination,
            name.message_id or "(no id)",
            name.sha256[:16],
            f"{name.copies:,}",
            "" if name.accepted_ms is None else f"{utc(name.accepted_ms):%Y-%m-%d %H:%M:%S}",
        )
        for name in names
    ]
    return table(
        ("destination", "message id", "body", "copies", "accepted (UTC)"),
        rows,
        (3,),
        codes=(0, 1),
        unbroken=(2, 4),
    )


def _inputs(told: Certificate) -> str:
    rows = [
        (role, f"{count.read:,}", f"{count.used:,}", f"{count.other:,}", f"{count.quarantined:,}")
        for role, count in told.rows.items()
        if count.read
    ]
    remarks = [f"set apart: {many(count, 'row')}: {reason}" for reason, count in told.reasons.items()]
    if told.journals:
        remarks.append(told.journal_text())
    if told.repeated_parts:
        remarks.append(f"{many(told.repeated_parts, 'copy', 'copies')} of parts passed over.")
    head = ("input", "rows", "used", "about something else", "set apart")
    return section("What was read", [table(head, rows, (1, 2, 3, 4)), notes(remarks)])
