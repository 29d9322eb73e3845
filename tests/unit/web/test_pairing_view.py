from __future__ import annotations

import json
from pathlib import Path

from pairbus.pairing.journal_states import STATUS_LIFE_MS
from pairbus.web.pairing_view import (
    EVENTS_MAX,
    JournalTail,
    entities_of,
    live_statuses,
    merged,
    price,
)


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


def status(*rows: tuple[str, str, int], factory: str = "f1", at_ms: int = 1_000) -> str:
    entities = [
        {
            "path": path, "state": state, "since_age_ms": 100, "why": "", "next_ping_in_ms": 5_000,
            "failover_in_ms": None, "parked": parked, "pings": 1, "backlog_queue": None,
            "fenced_sessions": 2, "oldest_parked_age_ms": 900 if parked else None, "spooled": 3, "oldest_spooled_age_ms": 200 if parked else None,
        }
        for path, state, parked in rows
    ]  # fmt: skip
    return json.dumps({"at_ms": at_ms, "factory": factory, "kind": "status", "entities": entities}) + "\n"


def live(path: Path, now: int = 5_000) -> dict[str, dict[str, object]]:
    tail = JournalTail(path)
    tail.look()
    return merged(live_statuses(tail.statuses, now))


def test_a_program_whose_sends_all_succeed_is_seen(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text(status(("orders", "healthy", 0)))
    row = live(journal)["orders"]
    assert (row["state"], row["since_age_ms"], row["next_ping_in_ms"]) == ("healthy", 4_100, 1_000)


def test_programs_are_added_up_and_the_worst_state_shows(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text(
        status(("orders", "healthy", 2), factory="a") + status(("Orders/", "failed over", 40), factory="b")
    )
    row = live(journal)["orders"]
    assert (row["state"], row["parked"], row["pings"]) == ("failed over", 42, 2)
    assert (row["spooled"], row["oldest_spooled_age_ms"]) == (6, 4_200)
    assert (row["fenced_sessions"], row["oldest_parked_age_ms"]) == (4, 4_900)


def test_a_program_that_closed_or_fell_silent_is_forgotten(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text(status(("orders", "healthy", 0)))
    assert live(journal, 1_000 + STATUS_LIFE_MS)
    assert not live(journal, 1_001 + STATUS_LIFE_MS)
    journal.write_text(status(("orders", "healthy", 0)) + line("closed", "x"))
    assert not live(journal)


def test_a_status_of_a_strange_shape_is_passed_over(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    strange = [
        7,
        {},
        {"path": 1},
        {"path": "a", "state": "sunny", "since_age_ms": 1},
        {"path": "b", "state": "healthy"},
    ]
    text = json.dumps({"at_ms": 1_000, "factory": "f", "kind": "status", "entities": strange}) + "\n"
    journal.write_text(text + text.replace(json.dumps(strange), "null"))
    assert not live(journal)


def test_a_queue_that_trickles_does_not_push_the_outage_out(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    drained = "".join(line("drained", f"backlog/{number % 3}") for number in range(3 * EVENTS_MAX))
    journal.write_text(line("failed_over") + drained)
    tail = JournalTail(journal)
    tail.look()
    assert [event["kind"] for event in tail.events] == ["failed_over", "drained", "drained", "drained"]
