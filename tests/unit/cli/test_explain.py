from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pairbus.cli.pairing.explain import explain, folded_pings, state_lines
from pairbus.errors import UsageError
from pairbus.pairing.journal_states import STATUS_LIFE_MS, states_of

ROW: dict[str, object] = {
    "path": "orders", "state": "failed over", "since_age_ms": 30_000, "why": "no answer", "next_ping_in_ms": 2_000,
    "failover_in_ms": None, "parked": 3, "pings": 45, "backlog_queue": "p/x-servicebus-transfer/1", "fenced_sessions": 0,
    "oldest_parked_age_ms": 30_000, "spooled": 0, "oldest_spooled_age_ms": None,
}  # fmt: skip


def event(
    kind: str, at_ms: int, text: str = "", factory: str = "f", subject: str = "orders"
) -> dict[str, Any]:
    return {"at_ms": at_ms, "factory": factory, "kind": f"pairing.{kind}", "subject": subject, "text": text}


def status(at_ms: int, factory: str = "f", **changes: object) -> dict[str, Any]:
    return {"at_ms": at_ms, "factory": factory, "kind": "status", "entities": [{**ROW, **changes}]}


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    result = CliRunner().invoke(explain, ["orders", "--journal", str(tmp_path)])

    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{tmp_path} is a directory: name the journal's file in it"


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{bad", b'[{"kind": "x"}]', b'{"name": "package"}\n'])
def test_a_file_that_is_no_journal_is_named_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    result = CliRunner().invoke(explain, ["orders", "--journal", str(path)])

    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(f"{path} is no journal")


@pytest.mark.parametrize(
    "content", [b"", b'{"at_ms": 1, "kind": "status"}\n', b'torn\n{"at_ms": 1, "kind": "closed"}\n']
)
def test_a_journal_without_the_entity_says_nothing_of_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)

    result = CliRunner().invoke(explain, ["orders", "--journal", str(path)])

    assert "the journal says nothing of 'orders'" in result.stderr


def test_the_answer_begins_with_the_state_now_and_what_happens_next() -> None:
    lines = [event("failed_over", 70_000, "no answer"), status(100_000)]

    assert state_lines(states_of(lines, "/Orders"), 101_000) == [
        "orders is failed over since 1970-01-01T00:01:10.000+00:00: no answer",
        "  next ping at 1970-01-01T00:01:42.000+00:00; 45 sent so far",
        "  3 messages parked so far, the last in p/x-servicebus-transfer/1",
        "  by the program f",
        "",
    ]


def test_a_suspect_entity_says_when_it_fails_over() -> None:
    lines = [status(100_000, state="suspect", next_ping_in_ms=None, failover_in_ms=4_000, parked=0)]

    assert state_lines(states_of(lines, "orders"), 101_000)[1] == (
        "  fails over at 1970-01-01T00:01:44.000+00:00 unless a send succeeds before"
    )


def test_an_event_after_the_last_state_counts_and_what_was_parked_stays() -> None:
    [one] = states_of([status(100_000), event("recovered", 100_500, "a ping was answered")], "orders")

    assert (one.state, one.since_ms, one.why, one.parked, one.next_ping_ms) == (
        "healthy", 100_500, "a ping was answered", 3, None,
    )  # fmt: skip


def test_programs_that_have_ended_are_told_from_those_that_run() -> None:
    closed = [status(100_000, "old"), event("closed", 100_400, factory="old", subject="primary")]
    silent = [status(101_000, "killed")]
    running = [status(101_000 + STATUS_LIFE_MS, "new", state="healthy", parked=0, why="")]

    both = state_lines(states_of([*closed, *silent, *running], "orders"), 101_001 + STATUS_LIFE_MS)
    assert both[0].startswith("orders is healthy since")
    assert both[-2] == "2 programs that wrote to the journal before have ended"
    none = state_lines(states_of(silent, "orders"), 101_001 + STATUS_LIFE_MS)
    assert none[0].startswith("orders was failed over since")
    assert "has written nothing since 1970-01-01T00:01:41.000+00:00" in none[1]
    assert "next ping" not in "".join(none)
    ended = state_lines(states_of(closed, "orders"), 100_401)
    assert "has closed its client at 1970-01-01T00:01:40.400+00:00" in ended[1]


def test_pings_with_the_same_answer_are_one_line() -> None:
    pings = [
        one
        for at_ms in range(1_000, 46_000, 1_000)
        for one in (event("ping_sent", at_ms, "asking"), event("ping_failed", at_ms + 10, "refused"))
    ]
    events = [event("failed_over", 1), *pings, event("ping_sent", 46_000), event("ping_answered", 46_010)]
    events += [event("recovered", 46_011), event("ping_sent", 50_000)]

    lines = folded_pings(events)

    assert [
        (str(line["kind"]).removeprefix("pairing."), line["times"], line["last_at_ms"]) for line in lines
    ] == [
        ("failed_over", 1, 1),
        ("ping_failed", 45, 45_010),
        ("ping_answered", 1, 46_010),
        ("recovered", 1, 46_011),
        ("ping_sent", 1, 50_000),
    ]


def test_the_command_shows_states_and_events(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = [event("failed_over", 70_000, "no answer"), status(100_000)]
    lines += [event(kind, 101_000 + n, "refused") for n in range(3) for kind in ("ping_sent", "ping_failed")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    shown = CliRunner().invoke(explain, ["orders", "--journal", str(path)])
    told = json.loads(CliRunner().invoke(explain, ["orders", "--journal", str(path), "--json"]).stdout)

    assert shown.stdout.startswith("orders was failed over since 1970-01-01T00:01:10.000+00:00: no answer\n")
    assert shown.stdout.endswith("refused (3 times, the last at 1970-01-01T00:01:41.002+00:00)\n")
    [state] = told["states"]
    assert (state["state"], state["parked"], state["pings"], state["is_running"]) == (
        "failed over",
        3,
        45,
        False,
    )
    assert (state["since_ms"], state["next_ping_ms"]) == (70_000, 102_000)
    assert len(told["events"]) == 7


def test_a_program_whose_sends_all_succeed_is_explained_too(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text(json.dumps(status(1_000, state="healthy", why="", parked=0)) + "\n")

    result = CliRunner().invoke(explain, ["orders", "--journal", str(path)], standalone_mode=False)

    assert result.return_value == 0
    assert result.stdout.startswith("orders was healthy since")
