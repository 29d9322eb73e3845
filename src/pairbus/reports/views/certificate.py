"""The certificate as a document: the verdict, where everything is, how long it took, each outage, and messages by name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pairbus.reports.certificate.value import (
    FATES,
    HOLDS,
    LOSS,
    THERE,
    UNPROVEN,
    Bar,
    Certificate,
    Gap,
    Named,
    SessionOrder,
)
from pairbus.reports.text import duration_text, many
from pairbus.reports.views.document import (
    BAD,
    GOOD,
    UNSURE,
    Bars,
    Document,
    Notes,
    Piece,
    Section,
    ShareBar,
    Table,
)

KINDS: Final = {LOSS: BAD, HOLDS: GOOD, UNPROVEN: UNSURE}
FATE_TEXTS: Final = {
    "arrived": "arrived",
    "in_backlog": "still in the backlog",
    "in_spool": "still in a spool",
    "set_aside": "dead-lettered in the backlog",
    "dead_lettered": "dead-lettered",
    "expired": "expired",
    "cancelled": "cancelled by their senders in the backlog",
    "in_flight": "accepted after the cut-off, not yet there",
    "unproven": "not proven: there was no audit at some time since",
    "sent_again": "not proven: without an id, taken out of a dead-letter queue, and perhaps sent again",
    "lost": "LOST",
    "absorbed": "accepted again under the same id and body, there once",
    "repeated": "arrived again",
    "unexpected": "arrived and were never accepted",
}
OUTAGE_FATES: Final = {
    "arrived": "arrived",
    "absorbed": "duplicate",
    "in_backlog": "in backlog",
    "in_spool": "in a spool",
    "set_aside": "dead-lettered there",
    "dead_lettered": "dead-lettered",
    "expired": "expired",
    "cancelled": "cancelled",
    "in_flight": "on their way",
    "unproven": "not proven",
    "sent_again": "perhaps sent again",
    "lost": "lost",
}
"""The columns of an outage. Together they are the messages that were parked in it."""
OUTAGE_FATES_ALWAYS: Final = ("arrived", "in_backlog", "set_aside", "lost")
"""Shown in every certificate; the others where some outage has such messages."""
NAMED: Final = (
    "lost", "unproven", "sent_again", "repeated", "unexpected", "set_aside", "in_backlog", "in_spool", "dead_lettered", "expired", "cancelled", "in_flight"
)  # fmt: skip
"""The most urgent first."""
URGENT: Final = ("lost", "unproven", "sent_again", "repeated", "unexpected")
DIRECT: Final = 0
DETOURED: Final = 4
_COLOURS: Final = {
    "arrived": 0, "in_backlog": 5, "in_spool": 4, "set_aside": 7, "dead_lettered": 6, "expired": 3, "cancelled": 2, "in_flight": 2, "unproven": 7, "sent_again": 7, "lost": 8, "absorbed": 1
}  # fmt: skip
GAPS_MAX: Final = 3
"""Times without an audit that the detail names; JSON has all."""
_TIME: Final = "%Y-%m-%d %H:%M:%S"


def certificate_document(found: Certificate) -> Document:
    sections = [
        _balance(found),
        _arrivals(found),
        Section(
            "How long it took from acceptance to arrival",
            [_histogram(found.delays, "delay")],
            "Messages with the same id and body count once: from the first acceptance to the first arrival.",
        ),
    ]
    if found.reordered is not None:
        sections.append(_order(found.reordered))
    if found.session_order is not None:
        sections.append(_session_order(found.session_order))
    if found.outages:
        sections.append(_outages(found))
    sections += [_named(found, fate) for fate in NAMED if found.named.get(fate)]
    read = sum(count.read for count in found.rows.values())
    return Document(
        title="Certificate of delivery",
        subtitle=f"{many(found.accepted, 'accepted send')} against {many(found.received, 'arrival')}; "
        f"{many(read, 'row')} read",
        kind=KINDS[found.verdict],
        sentence=sentence(found),
        detail=_detail(found),
        tiles=_tiles(found),
        alarm="Lost" if found.fates["lost"] else "",
        sections=[*sections, _inputs(found)],
    )


def sentence(found: Certificate) -> str:
    """The verdict in one sentence."""
    lost = found.fates["lost"]
    if found.verdict == LOSS:
        said = f"{lost:,} of {many(found.accepted, 'accepted message')} {'is' if lost == 1 else 'are'} LOST"
        if not found.quarantined:
            return f"{said}."
        return f"{said}, as far as could be read: {many(found.quarantined, 'row')} could not, and may tell of an arrival."
    if found.doubt:
        return "The rows may be about several primaries: nothing is proven."
    if found.quarantined:
        return f"No loss among what could be read, but {many(found.quarantined, 'row')} could not: nothing is proven."
    if unproven := found.fates["unproven"]:
        return (
            f"{unproven:,} of {many(found.accepted, 'accepted message')} may be lost or not: there was no audit at some time since. "
            "Nothing is proven."
        )
    if again := found.fates["sent_again"]:
        return (
            f"{again:,} of {many(found.accepted, 'accepted message')} may be lost or not: without an id, taken out of a dead-letter queue, and perhaps "
            "sent again. Nothing is proven."
        )
    if any(gap.hides_sends for gap in found.gaps):
        return "No loss among what is recorded, but for some time there was no audit: nothing is proven."
    if found.unasked:
        return f"No loss among the sends that were given, but those of {', '.join(found.unasked)} were not: nothing is proven."
    if found.accepted == 0:
        return "No accepted message is recorded: nothing is proven."
    if found.verdict == UNPROVEN:
        return (
            f"No message was accepted before the cut-off, and {found.accepted:,} after it {'has' if found.accepted == 1 else 'have'} "
            "not arrived yet: nothing is proven."
        )
    if found.accepted == 1:
        return "Nothing is lost: the one accepted message is accounted for."
    return f"Nothing is lost: each of {found.accepted:,} accepted messages is accounted for."


def hint(found: Certificate) -> str:
    """What may be wrong with the question, where one side is empty or nothing of it is on the other; else empty."""
    if found.doubt:
        return found.doubt
    if found.unasked:
        names = ", ".join(found.unasked)
        return f"--backlog has rows of {names}, and --sent has none: give the audit log of {names} as --sent too."
    if found.gaps and found.verdict != HOLDS:
        return _gaps(found.gaps)
    if not found.accepted:
        return (
            "Does --sent name the namespaces that accepted messages, and have they an audit log of that time?"
        )
    if not found.fates["lost"] or found.fates["arrived"]:
        return ""
    if not found.received:
        return "No arrival is recorded: does --received name the namespace that was sent to, and has it an audit log?"
    if found.altered:
        return "Ids arrived, each with another body: --no-body-hash compares without."
    return "None of them arrived, and nothing that arrived was accepted: are --sent and --received of the same pair?"


def _gaps(gaps: Sequence[Gap]) -> str:
    """When there was no audit, and what to do."""
    texts = [_gap(gap) for gap in gaps[:GAPS_MAX]]
    if len(gaps) > GAPS_MAX:
        texts.append(f"and {len(gaps) - GAPS_MAX} more times")
    last = max((gap.last for gap in gaps if gap.last is not None), default=None)
    if any(gap.last is None for gap in gaps):
        remedy = "Start the broker with --audit; then --since certifies what is accepted from that time on."
    else:
        remedy = f"--since {_exact(last)} certifies what was accepted after that."
    return f"No audit: {'; '.join(texts)}. {remedy}"


def _gap(gap: Gap) -> str:
    name = gap.namespace or "a namespace"
    if gap.first is None:
        return f"{name} before {_exact(gap.last)}, when its audit log begins"
    return f"{name} from {_exact(gap.first)} {'on' if gap.last is None else f'to {_exact(gap.last)}'}"


def _exact(time: datetime | None) -> str:
    """As --since takes it."""
    return "" if time is None else f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"


def _detail(found: Certificate) -> str:
    text = hint(found)
    if not text and found.altered:
        text = f"{found.altered:,} of the lost arrived with another body."
    text = text or "Every accepted send has one fate below; the counts add up."
    # The verdict is about losses only, so who reads no further must not take it for one about the order.
    if found.session_order is not None and (sessions := found.session_order.sessions):
        text += f" Not in order: in {many(sessions, 'session')} messages arrived after one that was accepted later."
    return text


def _tiles(found: Certificate) -> list[tuple[str, str, str]]:
    fates = found.fates
    waiting = sum(
        fates[fate]
        for fate in ("in_backlog", "in_spool", "set_aside", "dead_lettered", "expired", "cancelled")
    )
    tiles = [
        ("Accepted", f"{found.accepted:,}", "sends that were confirmed to their senders"),
        ("Arrived", f"{fates['arrived']:,}", "at their destination, whole"),
        ("Lost", f"{fates['lost']:,}", "accepted and nowhere to be found"),
        ("Arrived again", f"{fates['repeated']:,}", "arrivals beyond the accepted ones"),
        ("Through the backlog", f"{found.detoured:,}", "messages that were parked first"),
        ("Elsewhere", f"{waiting:,}", "in the backlog, in a spool, dead-lettered, expired, cancelled"),
    ]
    if found.overtaken is not None:
        tiles.append(("Overtaken", f"{found.overtaken:,}", "arrived after one accepted later"))
    return tiles


def _balance(found: Certificate) -> Section:
    pieces = [
        Piece(found.fates[fate], colour, f"{FATE_TEXTS[fate]}: {found.fates[fate]:,}")
        for fate, colour in _COLOURS.items()
        if found.fates[fate]
    ]
    rows = [
        (FATE_TEXTS[fate], f"{found.fates[fate]:,}")
        for fate in ("arrived", *FATES, "absorbed")
        if found.fates[fate] or fate in ("arrived", "lost")
    ]
    alarm = FATE_TEXTS["lost"] if found.fates["lost"] else ""
    table = Table(("", "messages"), rows, (1,), ("accepted", f"{found.accepted:,}"), alarm=alarm)
    return Section(
        "What was accepted, and where it is", [ShareBar(pieces, "where accepted messages are"), table]
    )


def _arrivals(found: Certificate) -> Section:
    rows = [(FATE_TEXTS[fate], f"{found.fates[fate]:,}") for fate in ("arrived", "repeated", "unexpected")]
    since = [
        f"{found.at_destination[name]:,} {word.replace('_', '-')}"
        for name, word in THERE.items()
        if found.at_destination[name]
    ]
    remark = [f"Since then, at the destinations: {', '.join(since)}."] if since else []
    table = Table(("", "messages"), rows, (1,), ("in all", f"{found.received:,}"))
    return Section("What arrived", [table, Notes(remark)])


def _histogram(found: Sequence[Bar], label: str) -> Bars:
    rows = [
        (
            bar.span,
            [
                Piece(bar.direct, DIRECT, f"direct: {bar.direct:,}"),
                Piece(bar.detoured, DETOURED, f"detoured: {bar.detoured:,}"),
            ],
            f"{bar.direct + bar.detoured:,}",
        )
        for bar in found
    ]
    return Bars(rows, label, [(DIRECT, "direct"), (DETOURED, "through the backlog")])


def _order(found: Sequence[Bar]) -> Section:
    title = "Overtaken by a message that was accepted later"
    if not found:
        return Section(
            title, [Notes(["None: every destination got its messages in the order of their acceptance."])]
        )
    return Section(title, [_histogram(found, "order")], "By how much later the other one was accepted.")


def _session_order(found: SessionOrder) -> Section:
    if not found.sessions:
        return Section(
            "Overtaken inside of a session",
            [Notes(["None: the messages of every session arrived in the order of their acceptance."])],
        )
    rows = [
        (one.destination, one.session, f"{one.messages:,}", duration_text(one.latest_ms))
        for one in found.named
    ]
    table = Table(("destination", "session", "overtaken", "by up to"), rows, (2, 3), codes=(0, 1))
    how_many = "All of them" if len(rows) == found.sessions else f"The {len(rows)} with the most"
    return Section(
        f"Overtaken inside of a session: {many(found.sessions, 'session')}",
        [table],
        f"{how_many}. Sends that overlap have no order, and a client keeps it only on request.",
    )


def _outages(found: Certificate) -> Section:
    fates = [
        fate
        for fate in OUTAGE_FATES
        if fate in OUTAGE_FATES_ALWAYS or any(outage.fates[fate] for outage in found.outages)
    ]
    head = ("from (UTC)", "to (UTC)", "parked", *[OUTAGE_FATES[fate] for fate in fates], "slowest")
    rows = [
        (
            f"{outage.first:{_TIME}}",
            f"{outage.last:{_TIME}}",
            f"{outage.messages:,}",
            *[f"{outage.fates[fate]:,}" for fate in fates],
            "" if outage.slowest_ms is None else duration_text(max(0, outage.slowest_ms)),
        )
        for outage in found.outages
    ]
    table = Table(head, rows, tuple(range(2, len(head))), unbroken=(0, 1))
    return Section("Outages", [table], "Times in which messages were parked in the backlog.")


def _named(found: Certificate, fate: str) -> Section:
    names, text = found.named[fate], FATE_TEXTS[fate]
    title = f"{text[0].upper()}{text[1:]}: {found.fates[fate]:,}"
    how_many = f"The first {len(names)} by name" if len(names) < found.fates[fate] else "All by name"
    if fate in URGENT:
        return Section(title, [_names(names)], f"{how_many}; --out writes all of them.")
    return Section(title, [_names(names, summary=how_many)])


def _names(names: Sequence[Named], summary: str = "") -> Table:
    rows = [
        (
            name.destination,
            name.message_id or "(no id)",
            name.sha256[:16],
            f"{name.copies:,}",
            "" if name.accepted is None else f"{name.accepted:{_TIME}}",
        )
        for name in names
    ]
    head = ("destination", "message id", "body", "copies", "accepted (UTC)")
    return Table(head, rows, (3,), codes=(0, 1), unbroken=(2, 4), summary=summary)


def _inputs(found: Certificate) -> Section:
    rows = [
        (role, f"{count.read:,}", f"{count.used:,}", f"{count.other:,}", f"{count.quarantined:,}")
        for role, count in found.rows.items()
        if count.read
    ]
    remarks = [f"quarantined: {many(count, 'row')}: {reason}" for reason, count in found.reasons.items()]
    if found.quarantined:
        remarks.append(
            "--out DIR writes the quarantined rows, each with its file and reason, to DIR/quarantine"
        )
    if found.journals:
        remarks.append(
            f"{many(len(found.journals), 'journal')} still open: the last rows written there were taken as durable"
        )
    if found.left_out:
        remarks.append(
            f"{many(found.left_out, 'row')} about other primaries, or about the secondary's own entities, left out"
        )
    if found.repeated_parts:
        remarks.append(f"{many(found.repeated_parts, 'copy', 'copies')} of parts skipped.")
    head = ("input", "rows", "used", "about something else", "quarantined")
    return Section("What was read", [Table(head, rows, (1, 2, 3, 4)), Notes(remarks)])
