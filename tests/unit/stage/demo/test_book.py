from __future__ import annotations

import json
from pathlib import Path

import pytest

from pairbus.stage.demo.book import Book, Got, Sent

PLACES = {"orders": ("orders",), "events": ("events/Subscriptions/a", "events/Subscriptions/b")}


def sent(entity: str = "orders", message_id: str = "1", digest: str = "x") -> Sent:
    return Sent(entity, message_id, digest, 5)


def got(place: str = "orders", message_id: str = "1", digest: str = "x", number: int = 1) -> Got:
    return Got(place, message_id, digest, number, 6)


@pytest.fixture
def book() -> Book:
    return Book(PLACES)


def accept(book: Book, *messages: Sent) -> None:
    book.handed(list(messages))
    book.accepted(list(messages))


def test_everything_arrived_once(book: Book) -> None:
    accept(book, sent(), sent("events", "2"))
    for place in ("orders", *PLACES["events"]):
        book.got(got(place, "1" if place == "orders" else "2"))
    verdict = book.verdict()

    assert verdict.holds
    assert (verdict.accepted, verdict.arrived, verdict.lost, verdict.duplicated) == (2, 2, 0, 0)
    assert book.counts == (2, 2, 0)


def test_a_topic_message_must_arrive_in_every_subscription(book: Book) -> None:
    accept(book, sent("events"))
    book.got(got("events/Subscriptions/a"))
    verdict = book.verdict()

    assert not verdict.holds
    assert verdict.lost_names == ("events/Subscriptions/b: 1",)
    assert book.counts[2] == 1


def test_what_nobody_promised_may_be_missing(book: Book) -> None:
    accept(book, sent())
    book.handed([sent(message_id="2")])
    book.got(got())
    verdict = book.verdict()

    assert verdict.holds
    assert verdict.unknown == 1


def test_twice_stored_and_twice_delivered_are_told_apart(book: Book) -> None:
    accept(book, sent())
    book.got(got(number=1))
    book.got(got(number=1))
    book.got(got(number=9))
    verdict = book.verdict()

    assert (verdict.duplicated, verdict.redelivered) == (1, 1)
    assert verdict.holds, "at least once is the promise"


def test_changed_and_unexpected_messages_break_the_certificate(book: Book) -> None:
    accept(book, sent())
    book.got(got(digest="y"))
    assert not book.verdict().holds
    other = Book(PLACES)
    accept(other, sent())
    other.got(got())
    other.got(got(message_id="stranger", number=2))
    assert not other.verdict().holds
    assert not Book(PLACES).verdict().holds, "nothing proves nothing"


def test_an_arrival_before_the_acknowledgement_counts(book: Book) -> None:
    book.handed([sent()])
    book.got(got())
    book.accepted([sent()])
    assert book.counts == (1, 1, 0)


def test_both_sides_are_written_for_reconcile(book: Book, tmp_path: Path) -> None:
    accept(book, sent())
    book.got(got())
    rows = [json.loads(file.read_text()) for file in book.write(tmp_path)]
    assert [(row["kind"], row["entity"], row["message_id"], row["sha256"]) for row in rows] == [
        ("sent", "orders", "1", "x"),
        ("completed", "orders", "1", "x"),
    ]
