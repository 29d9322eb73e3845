"""Pages of bill and certificate: foreign text stays text, plots add up, words agree with their numbers."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from rich.console import Console

from pairbus.reports.bill.catalogue import builtin_tables
from pairbus.reports.bill.days import Billing
from pairbus.reports.bill.month import MonthUsage, month_bill
from pairbus.reports.bill.prices import choose
from pairbus.reports.bill.report import CostReport, DayRow, EntityRow, PurposeRow, Rows
from pairbus.reports.certificate.value import (
    FATES,
    HOLDS,
    UNPROVEN,
    Certificate,
    Named,
    Outage,
    OvertakenSession,
    RowCounts,
    SessionOrder,
    histogram_of,
)
from pairbus.reports.text import many
from pairbus.reports.views.bill import bill_document, pairing_text
from pairbus.reports.views.certificate import FATE_TEXTS, certificate_document, hint, sentence
from pairbus.reports.views.document import Bars, Columns, Piece, ShareBar, Table, shown_text
from pairbus.reports.views.html import page, part
from pairbus.reports.views.terminal import _print_table, print_document

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "</title></style></svg><svg onload=alert(1)>",
    "' onmouseover='alert(1)",
    "\x1b[31mred\u202eder\u0000\r\nLOST",
    "{{7*7}}${7*7}",
)
ALLOWED = {
    "b", "body", "dd", "details", "div", "dl", "dt", "figcaption", "figure", "h1", "h2", "head", "header", "html", "i", "li", "main",
    "meta", "p", "rect", "section", "small", "span", "strong", "style", "summary", "svg", "table", "tbody", "td", "tfoot", "th",
    "thead", "title", "tr", "ul",
}  # fmt: skip
ATTRIBUTES = {
    "aria-hidden", "aria-label", "charset", "class", "content", "height", "http-equiv", "lang", "name", "preserveAspectRatio", "role",
    "style", "title", "viewBox", "width", "x", "y",
}  # fmt: skip


def assert_inert(page: str) -> None:
    """Nothing but our own tags and attributes, closed in order, and no character that acts."""
    opened: list[str] = []
    for end, name, attributes in re.findall(
        r"<(/?)([a-zA-Z0-9]+)((?:\s+[a-zA-Z-]+=\"[^\"<>]*\")*)\s*>", page
    ):
        assert name in ALLOWED, name
        assert set(re.findall(r"([a-zA-Z-]+)=\"", attributes)) <= ATTRIBUTES, attributes
        if end:
            assert opened.pop() == name
        elif name != "meta":
            opened.append(name)
    assert opened == []
    tags = len(re.findall(r"<(?!!doctype)", page))
    assert tags == len(re.findall(r"<(/?)([a-zA-Z0-9]+)((?:\s+[a-zA-Z-]+=\"[^\"<>]*\")*)\s*>", page))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page)


def certificate(names: tuple[str, ...] = ("a",), lost: int = 1, accepted: int = 10) -> Certificate:
    fates = {
        **dict.fromkeys((*FATES, "absorbed", "repeated", "unexpected"), 0),
        "lost": lost,
        "arrived": accepted - lost,
    }
    named = tuple(Named(name, name, "f" * 64, 1, NOON) for name in names)
    return Certificate(
        accepted=accepted, received=accepted - lost, messages=accepted, detoured=3, fates=fates, altered=0,
        at_destination={"completed_there": 1, "dead_there": 0, "expired_there": 0},
        named={"lost": named, "in_backlog": named} if lost else {}, rows={"sent": RowCounts(accepted, 0, 0)},
        reasons={names[0]: 1}, delays=histogram_of([(0, False, 5), (2, True, 3)]), reordered=(),
        outages=(Outage(NOON, NOON + timedelta(minutes=1), 3, fates, 4_000),), journals=("j",), repeated_parts=1,
    )  # fmt: skip


def bill(names: tuple[str, ...] = ("orders",), days: int = 1, operations: int = 20_000_000) -> CostReport:
    prices = choose(builtin_tables(), date(2026, 11, 15), "standard", None, "USD")
    usage = MonthUsage(month="2026-11", hours=1, operations=operations)
    told = month_bill(usage, prices)
    amount = told.of("operations")
    assert amount is not None
    first = date(2026, 11, 1)
    share = amount / days
    return CostReport(
        billing=Billing((usage,), (told,), names),
        days=tuple(
            DayRow(first + timedelta(days=at), "sent to the backlog", 1, operations // days, share) for at in range(days)
        ),
        purposes=(PurposeRow("backlog", "send", "sent to the backlog", operations, 1, operations, amount),),
        entities=tuple(EntityRow(name, name, "backlog", 1, 1, Decimal("0.1")) for name in names), entity_count=len(names),
        detour_minutes=1, rows=Rows(1, 0, 1, dict.fromkeys(names, 1), dict.fromkeys(names, "<b>")),
    )  # fmt: skip


def bill_page(report: CostReport) -> str:
    return page(bill_document(report))


def certificate_page(found: Certificate) -> str:
    return page(certificate_document(found))


def test_an_outage_shows_every_fate_that_its_messages_have() -> None:
    fates = {**certificate(lost=0).fates, "arrived": 3, "absorbed": 2, "cancelled": 1}
    outage = Outage(NOON, NOON + timedelta(minutes=1), 6, fates, 4_000)
    found = replace(certificate(lost=0), outages=(outage,))

    sections = certificate_document(found).sections
    (table,) = next(section for section in sections if section.title == "Outages").parts
    assert isinstance(table, Table)
    shown = dict(zip(table.head, table.rows[0], strict=True))

    assert [shown[name] for name in ("parked", "arrived", "duplicate", "cancelled", "lost")] == [
        "6",
        "3",
        "2",
        "1",
        "0",
    ]
    assert "expired" not in shown


@pytest.mark.promise("M8")
def test_hostile_names_are_text_on_both_pages() -> None:
    for made in (certificate_page(certificate(HOSTILE)), bill_page(bill(HOSTILE))):
        assert_inert(made)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in made
        assert "&#x27; onmouseover=&#x27;alert(1)" in made
        assert "Content-Security-Policy" in made
        assert "http://" not in made.split("<main>")[1]


def test_the_check_for_hostile_text_would_find_it() -> None:
    for text in ("<script>", '<p onclick="1">x</p>', "<p>", "\u202e"):
        with pytest.raises(AssertionError):
            assert_inert(f"<p>{text}</p>")


def test_pages_of_nothing_are_pages() -> None:
    nothing = CostReport(
        billing=Billing((), (), ()), days=(), purposes=(), entities=(), entity_count=0,
        detour_minutes=0, rows=Rows(0, 0, 0),
    )  # fmt: skip
    assert_inert(bill_page(nothing))
    assert "No usage in these logs" in bill_page(nothing)
    assert_inert(certificate_page(certificate(lost=0, accepted=0)))


def test_many_days_are_plotted_by_month() -> None:
    made = bill_page(bill(days=800))
    assert_inert(made)
    assert 24 <= made.count("<rect") <= 28


def test_the_pieces_of_a_bar_are_as_long_as_they_should_be() -> None:
    made = part(
        Bars([("one", [Piece(1, 0, ""), Piece(2, 1, "")], "3"), ("two", [Piece(6, 0, "")], "6")], "x")
    )
    assert re.findall(r"width:([0-9.]+)%", made) == ["16.667", "33.333", "100.000"]
    assert re.findall(r"width:([0-9.]+)%", part(ShareBar([Piece(1, 0, "a"), Piece(3, 1, "b")], "x"))) == [
        "25.000",
        "75.000",
    ]
    assert part(ShareBar([Piece(0, 0, "a")], "x")) == ""


def test_columns_stand_on_each_other() -> None:
    made = part(Columns(["1", "2"], [("a", 0, [1, 0]), ("b", 1, [1, Decimal("0.5")])], "x", "USD"))
    heights = [Decimal(text) for text in re.findall(r' height="([0-9.]+)"', made)]
    tops = [Decimal(text) for text in re.findall(r' y="([0-9.]+)"', made)]
    assert heights == [50, 50, 25]
    assert tops == [50, 0, 75]


def test_a_table_is_not_wider_than_its_head_says() -> None:
    made = part(Table(("a", "b"), [("x", 1)], (1,), codes=(0,), alarm="x"))
    assert '<tr class="alarm"><td class="c">x</td><td class="n">1</td></tr>' in made


def test_long_text_is_cut_and_control_characters_are_shown_as_escapes() -> None:
    assert len(shown_text("x" * 1_000)) == 300
    assert shown_text("a\nb\u202ec") == r"a\nb\u202ec"


def test_words_agree_with_their_numbers() -> None:
    assert (many(1, "hour"), many(2, "hour"), many(0, "row")) == ("1 hour", "2 hours", "0 rows")
    assert (many(1, "entity", "entities"), many(1_000, "entity", "entities")) == (
        "1 entity",
        "1,000 entities",
    )
    assert sentence(certificate(lost=1)) == "1 of 10 accepted messages is LOST."
    assert sentence(certificate(lost=2, accepted=2)) == "2 of 2 accepted messages are LOST."
    told = bill(operations=1)
    assert "in 1 minute with sends to the backlog" in pairing_text(told)
    assert "1 hour × " in told.bills[0].lines[0].text
    assert "1 operation in the band" in told.bills[0].lines[1].text
    assert set(FATE_TEXTS) >= set(FATES)


def test_a_question_that_fits_nothing_is_answered_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """The ledgers of another namespace make everything look lost."""
    found = certificate(lost=10, accepted=10)
    assert "does --received name the namespace" in hint(found)
    print_document(certificate_document(found))
    assert hint(found) in capsys.readouterr().out.splitlines()
    strange = replace(found, received=4, fates={**found.fates, "unexpected": 4})
    strange.check()
    assert "of the same pair?" in hint(strange)
    assert "of the same pair?" in certificate_page(strange)
    assert "--no-body-hash" in hint(replace(strange, altered=4))
    assert hint(certificate(lost=1)) == ""


def test_without_a_message_to_ask_about_the_answer_is_that_nothing_is_proven() -> None:
    nothing = certificate(lost=0, accepted=0)
    assert nothing.verdict == UNPROVEN
    assert sentence(nothing) == "No accepted message is recorded: nothing is proven."
    assert "Does --sent name" in certificate_page(nothing)
    found = certificate(lost=0, accepted=2)
    late = replace(found, received=0, fates={**found.fates, "arrived": 0, "in_flight": 2})
    late.check()
    assert late.verdict == UNPROVEN
    assert "No message was accepted before the cut-off, and 2 after it have not arrived" in sentence(late)


@pytest.mark.promise("P15")
@pytest.mark.parametrize(("sessions", "said"), [(1, "in 1 session messages"), (3, "in 3 sessions messages")])
def test_sessions_that_are_not_in_order_are_named_before_the_tables(sessions: int, said: str) -> None:
    found = replace(
        certificate(lost=0),
        session_order=SessionOrder(sessions, (OvertakenSession("orders", "a", 10, 1_909),)),
    )
    assert found.verdict == HOLDS, "the verdict is about losses"
    assert (
        f"Not in order: {said} arrived after one that was accepted later."
        in certificate_document(found).detail
    )
    assert (
        "Not in order" not in certificate_document(replace(found, session_order=SessionOrder(0, ()))).detail
    )
    assert "Not in order" not in certificate_document(replace(found, session_order=None)).detail


def test_the_table_of_delays_says_what_it_counts() -> None:
    """Fewer than arrived where several copies of a message did."""
    assert "count once: from the first acceptance to the first arrival" in certificate_page(certificate())


@pytest.mark.promise("M8")
def test_the_screen_shows_what_the_page_shows_and_foreign_text_cannot_act(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for document in (certificate_document(certificate(HOSTILE)), bill_document(bill(HOSTILE))):
        print_document(document)
        shown = capsys.readouterr().out
        assert shown.startswith(document.sentence)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e]", shown)
        assert "<script>alert(1)</script>" in shown


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_no_number_is_cut_on_a_narrow_terminal(columns: int) -> None:
    head = ("namespace", "from", "to", "parked", "arrived", "lost", "slowest")
    row = ("contoso", "2026-11-16 02:23:42", "2026-11-16 02:24:53", "1,143", "1,144", "9", "12,345 ms")
    written = io.StringIO()

    _print_table(Console(file=written, width=columns), Table(head, [row], (3, 4, 5, 6), unbroken=(1, 2)))

    assert all(value in written.getvalue() for value in row[1:])
