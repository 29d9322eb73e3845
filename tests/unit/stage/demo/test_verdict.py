from __future__ import annotations

import json
from pathlib import Path

import pytest

from pairbus.stage.book import Book, Delivery
from pairbus.stage.demo.verdict import judge, write_ledgers

PLACES = {"orders": ("orders",), "events": ("events/Subscriptions/a", "events/Subscriptions/b")}


def sent(entity: str = "orders", message_id: str = "1", digest: str = "x") -> tuple[str, str, int, str]:
    return entity, message_id, 5, digest


def got(place: str = "orders", message_id: str = "1", digest: str = "x", number: int = 1) -> Delivery:
    return Delivery(place, message_id, digest, number, 6)


@pytest.fixture
def book() -> Book:
    return Book(PLACES)


def accept(book: Book, *messages: tuple[str, str, int, str]) -> None:
    for message in messages:
        book.begin(*message)
        book.accepted(message[1], 6)


def test_everything_arrived_once(book: Book) -> None:
    accept(book, sent(), sent("events", "2"))
    for place in ("orders", *PLACES["events"]):
        book.received(got(place, "1" if place == "orders" else "2"))
    verdict = judge(book)

    assert verdict.holds
    assert (verdict.accepted, verdict.arrived, verdict.lost, verdict.duplicated) == (2, 2, 0, 0)
    assert (book.sent_count, book.accepted_count, book.missing_count) == (2, 2, 0)


def test_a_topic_message_must_arrive_in_every_subscription(book: Book) -> None:
    accept(book, sent("events"))
    book.received(got("events/Subscriptions/a"))
    verdict = judge(book)

    assert not verdict.holds
    assert verdict.lost_names == ("events/Subscriptions/b: 1",)
    assert book.missing_count == 1


def test_what_nobody_promised_may_be_missing(book: Book) -> None:
    accept(book, sent())
    book.begin(*sent(message_id="2"))
    book.received(got())
    verdict = judge(book)

    assert verdict.holds
    assert verdict.unknown == 1


def test_twice_stored_and_twice_delivered_are_told_apart(book: Book) -> None:
    accept(book, sent())
    book.received(got(number=1))
    book.received(got(number=1))
    book.received(got(number=9))
    verdict = judge(book)

    assert (verdict.duplicated, verdict.redelivered) == (1, 1)
    assert verdict.holds, "at least once is the promise"


def test_changed_and_unexpected_messages_break_the_certificate(book: Book) -> None:
    accept(book, sent())
    book.received(got(digest="y"))
    assert not judge(book).holds
    other = Book(PLACES)
    accept(other, sent())
    other.received(got())
    other.received(got(message_id="stranger", number=2))
    assert not judge(other).holds
    assert not judge(Book(PLACES)).holds, "nothing proves nothing"


def test_an_arrival_before_the_acknowledgement_counts(book: Book) -> None:
    book.begin(*sent())
    book.received(got())
    book.accepted("1", 6)
    assert (book.sent_count, book.accepted_count, book.missing_count) == (1, 1, 0)


def test_both_sides_are_written_for_reconcile(book: Book, tmp_path: Path) -> None:
    accept(book, sent())
    book.received(got())
    rows = [json.loads(file.read_text()) for file in write_ledgers(book, tmp_path, 0)]
    assert [(row["kind"], row["entity"], row["message_id"], row["sha256"]) for row in rows] == [
        ("sent", "orders", "1", "x"),
        ("completed", "orders", "1", "x"),
    ]
