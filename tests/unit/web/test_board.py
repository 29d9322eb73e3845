from __future__ import annotations

import json
from pathlib import Path

from pairbus.web.board import EVENTS_MAX, JournalTail, entities_of, price


def line(kind: str, subject: str = "orders", factory: str = "f1", at_ms: int = 1_000) -> str:
    return (
        json.dumps(
            {
                "at_ms": at_ms,
                "factory": factory,
                "kind": f"pairing.{kind}",
                "subject": subject,
                "text": "because",
            }
        )
        + "\n"
    )


def states(path: Path, now: int = 5_000) -> dict[str, object]:
    tail = JournalTail(path)
    tail.look()
    return {key: row["state"] for key, row in entities_of(list(tail.events), now).items()}


def test_the_newest_word_of_a_program_counts(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text(line("suspect") + line("failed_over"))
    assert states(journal) == {"orders": "failed over"}
    journal.write_text(line("suspect") + line("failed_over") + line("recovered"))
    assert states(journal) == {"orders": "healthy"}


def test_of_several_programs_the_worst_shows_and_closed_ones_are_forgotten(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text(line("failed_over", factory="a") + line("recovered", factory="b"))
    assert states(journal) == {"orders": "failed over"}
    journal.write_text(
        line("failed_over", factory="a") + line("recovered", factory="b") + line("closed", "x", "a")
    )
    assert states(journal) == {"orders": "healthy"}


def test_a_tail_reads_only_what_is_new_and_survives_rotation_and_torn_lines(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    tail = JournalTail(journal)
    tail.look()
    assert not tail.events
    journal.write_text(line("paired") + "{torn\n" + line("suspect")[:20])
    tail.look()
    assert [event["kind"] for event in tail.events] == ["paired"]
    with journal.open("a") as file:
        file.write(line("suspect")[20:])
    tail.look()
    assert [event["kind"] for event in tail.events] == ["paired", "suspect"]
    journal.replace(tmp_path / "journal.1")
    journal.write_text(line("recovered"))
    tail.look()
    assert [event["kind"] for event in tail.events] == ["paired", "suspect", "recovered"]
    assert len({event["id"] for event in tail.events}) == 3


def test_a_tail_remembers_a_bounded_number(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("".join(line("ping_sent", at_ms=number) for number in range(EVENTS_MAX + 50)))
    tail = JournalTail(journal)
    tail.look()
    assert len(tail.events) == EVENTS_MAX


def test_the_price_is_a_published_one() -> None:
    found = price()
    assert found is not None
    assert found["currency"] == "USD"
    assert isinstance(found["per_million"], float)
