"""``pairbus spool`` and ``reconcile --spool``: one spool that is damaged hides no other."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from click.testing import CliRunner

from pairbus.cli.pairing import spool as spool_commands
from pairbus.cli.pairing.spool import spool as spool_command
from pairbus.cli.reports.reconcile import reconcile
from pairbus.errors import UsageError
from pairbus.pairing.client.sync import PairedServiceBusClient
from pairbus.pairing.events import Kind
from pairbus.sdk.messages import message_bytes
from pairbus.spool.directory import take_lock
from pairbus.spool.file import About
from pairbus.spool.store import Append, Spool

STRINGS = {
    f"PAIRBUS_{name}": f"Endpoint=sb://{name.lower()}.example;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    for name in ("PRIMARY", "SECONDARY")
}


def filled(root: Path, number: int, *bodies: str, queues: int = 0, order: str | None = None) -> Spool:
    """A spool with messages, closed."""
    directory = root / str(number)
    directory.mkdir(parents=True)
    spool = Spool(directory, About("primary", "primary.example", queues, order))
    payloads = [
        message_bytes.encoded(ServiceBusMessage(body, message_id=f"{number}-{place}"))
        for place, body in enumerate(bodies)
    ]
    append = Append("orders", "orders", payloads, 1_000)
    spool.enter(append)
    spool.commit(append)
    spool.close()
    return spool


def destroy(spool: Spool) -> None:
    content = bytearray(spool.file.read_bytes())
    content[:100] = bytes(range(100))
    spool.file.write_bytes(content)


def run(*given: str) -> Any:
    return CliRunner(env=STRINGS).invoke(spool_command, list(given), standalone_mode=False)


def test_a_damaged_spool_hides_no_other(tmp_path: Path) -> None:
    destroy(filled(tmp_path, 0, "gone"))
    filled(tmp_path, 1, "healthy")

    found = run("list", str(tmp_path), "--json")
    assert [(row["spool"], row["messages"]) for row in json.loads(found.stdout)] == [("1", 1)]
    assert (found.return_value, "0/spool.db cannot be read" in found.stderr) == (3, True)
    found = run("export", str(tmp_path))
    assert json.loads(found.stdout)["body"] == "healthy"
    assert (found.return_value, "0/spool.db cannot be read" in found.stderr) == (3, True)


def test_a_spool_that_was_never_written_is_empty_and_not_damaged(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    (tmp_path / "0" / "spool.db").touch()
    # As it is before its tables are committed.
    database = sqlite3.connect(tmp_path / "1" / "spool.db")
    database.execute("PRAGMA journal_mode = WAL")
    database.close()

    for command in ("list", "replay"):
        found = run(command, str(tmp_path))
        assert (found.return_value, found.stderr) == (1, f"no message waits in {tmp_path}\n"), command
    assert run("export", str(tmp_path)).return_value == 1
    filled(tmp_path, 2, "kept")
    assert len(json.loads(run("list", str(tmp_path), "--json").stdout)) == 1
    found = certificate(tmp_path, tmp_path)
    assert "cannot be read" not in found.stderr


def test_a_file_without_bytes_whose_log_has_some_is_damaged(tmp_path: Path) -> None:
    spool = filled(tmp_path, 0, "gone")
    spool.file.write_bytes(b"")
    log = spool.directory / "spool.db-wal"
    log.write_bytes(b"what was written last")

    found = run("list", str(tmp_path))

    assert (found.return_value, "0/spool.db cannot be read" in found.stderr) == (3, True)
    assert log.read_bytes() == b"what was written last"


def test_spools_on_a_read_only_file_system_are_listed_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 0, "written back")
    spool = filled(tmp_path, 1)
    (spool.directory / "lock").touch()
    spool = Spool(spool.directory, spool.about)
    payload = message_bytes.encoded(ServiceBusMessage("in the log", message_id="1"))
    append = Append("orders", "orders", [payload], 1_000)
    spool.enter(append)
    spool.commit(append)
    read_only(monkeypatch, tmp_path)

    found = run("list", str(tmp_path), "--json")
    assert [(row["spool"], row["messages"], row["in_use"]) for row in json.loads(found.stdout)] == [
        ("0", 1, False),
        ("1", 1, False),
    ]
    assert (found.return_value, found.stderr) == (0, "")
    found = run("export", str(tmp_path))
    assert [json.loads(line)["body"] for line in found.stdout.splitlines()] == ["written back", "in the log"]
    assert found.return_value == 0


def read_only(patch: pytest.MonkeyPatch, root: Path) -> None:
    """Nothing below a directory can be written, as the system and SQLite say it."""
    system_open, connect = os.open, sqlite3.connect

    def refusing(path: Any, flags: int, *given: Any, **named: Any) -> int:
        if str(path).startswith(str(root)) and flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return system_open(path, flags, *given, **named)

    def without_index(file: Any, **named: Any) -> sqlite3.Connection:
        if str(root) in str(file) and "immutable" not in str(file):
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        found: sqlite3.Connection = connect(file, **named)
        return found

    patch.setattr(os, "open", refusing)
    patch.setattr(sqlite3, "connect", without_index)


def test_the_readable_messages_of_a_damaged_file_are_exported(tmp_path: Path) -> None:
    spool = filled(tmp_path, 0, *(f"body {number} {'x' * 900}" for number in range(40)))
    with sqlite3.connect(spool.file) as reader:
        (size,) = reader.execute("PRAGMA page_size").fetchone()
    content = bytearray(spool.file.read_bytes())
    page = content.index(b"body 20 ") // size * size
    content[page : page + 8] = b"\xff" * 8  # the head of one page
    spool.file.write_bytes(content)

    found = run("export", str(tmp_path))
    bodies = [json.loads(line)["body"].split(" x")[0] for line in found.stdout.splitlines()]
    assert found.return_value == 3
    assert {"body 0", "body 39"} <= set(bodies)
    assert "body 20" not in bodies
    assert 30 <= len(bodies) < 40


def test_a_replay_uses_as_many_backlog_queues_as_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def made(*_given: object, options: Any, **_named: object) -> None:
        counts.append(options.backlog_queue_count)
        raise UsageError("enough")

    monkeypatch.setattr(PairedServiceBusClient, "from_connection_strings", made)
    destroy(filled(tmp_path, 0, "gone"))
    spool = filled(tmp_path, 1, "one", queues=2)
    run("replay", str(tmp_path))
    Spool(
        spool.directory, About("primary", "primary.example", 3)
    ).close()  # the program has another count now
    run("replay", str(tmp_path))
    run("replay", str(tmp_path), "--queues", "5")
    assert counts == [2, 3, 5]


@pytest.mark.promise("P15", "P51")
def test_a_replay_keeps_the_order_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []

    def made(*_given: object, options: Any, **_named: object) -> None:
        orders.append(options.order)
        raise UsageError("enough")

    monkeypatch.setattr(PairedServiceBusClient, "from_connection_strings", made)
    filled(tmp_path / "mixed", 0, "one", order="relaxed")
    run("replay", str(tmp_path / "mixed"))
    filled(tmp_path / "mixed", 1, "two", order="session")
    run("replay", str(tmp_path / "mixed"))
    run("replay", str(tmp_path / "mixed"), "--order", "relaxed")
    filled(tmp_path / "older", 0, "one")  # by a version that did not note it
    run("replay", str(tmp_path / "older"))
    assert orders == ["relaxed", "session", "relaxed", "partition"]


def test_a_directory_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    for command in ("list", "export", "replay"):
        found = run(command, str(tmp_path / "none"))
        assert isinstance(found.exception, UsageError)
        assert "there is no spool directory" in str(found.exception)


def test_messages_in_a_spool_that_a_program_has_open_are_left(tmp_path: Path) -> None:
    from pairbus.cli.pairing.spool import _left_by_others
    from pairbus.spool.reading import listed

    lock = take_lock(filled(tmp_path, 0, "one", "two").directory)
    assert lock is not None
    assert _left_by_others(listed(tmp_path)[0]) == 1
    # Nothing of it can be replayed here: no namespace is asked, and no spool is made.
    found = run("replay", str(tmp_path))
    assert (found.exception, found.return_value) == (None, 1)
    assert "2 messages left in" in found.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["0"]
    os.close(lock)


def certificate(tmp_path: Path, spool: Path) -> Any:
    row = {"entity": "orders", "time": "2026-01-01T00:00:00Z", "message_id": "home", "sha256": "a" * 64}
    for name in ("sent", "received"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    return CliRunner().invoke(
        reconcile,
        [
            *("--sent", str(tmp_path / "sent.jsonl"), "--received", str(tmp_path / "received.jsonl")),
            *("--spool", str(spool), "--engine", "local", "--json", "--no-order"),
        ],
        standalone_mode=False,
    )


def test_a_certificate_reads_the_file_of_an_export(tmp_path: Path) -> None:
    filled(tmp_path / "spool", 0, "one", "two")
    run("export", str(tmp_path / "spool"), "--output", str(tmp_path / "messages.jsonl"))

    found = certificate(tmp_path, tmp_path / "messages.jsonl")
    assert (json.loads(found.stdout)["in_spool"], found.return_value) == (2, 0)
    said = " ".join(run("export", "--help").output.split())
    assert "reconcile --spool` reads such a file" in said
    assert "--sent" not in said


def test_a_certificate_counts_no_damaged_message_as_waiting_and_goes_on_after_a_damaged_spool(
    tmp_path: Path,
) -> None:
    spool = filled(tmp_path / "spool", 1, "whole", "damaged")
    with sqlite3.connect(spool.file) as writer:
        writer.execute("UPDATE message SET checksum = checksum + 1 WHERE number = 2")
    writer.close()

    found = certificate(tmp_path, tmp_path / "spool")
    assert (json.loads(found.stdout)["in_spool"], found.return_value) == (1, 1)
    assert "damaged in a spool: 1 message" in found.stderr

    destroy(filled(tmp_path / "spool", 0, "gone"))
    found = certificate(tmp_path, tmp_path / "spool")
    assert json.loads(found.stdout)["in_spool"] == 1
    assert "0/spool.db cannot be read" in found.stderr
    assert found.return_value == 1


def test_a_replay_names_the_messages_that_cannot_be_delivered(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        SimpleNamespace(kind=Kind.SPOOL_UNDELIVERABLE, text=f"message {number} stays") for number in range(12)
    ]
    events.insert(3, SimpleNamespace(kind=Kind.SPOOL_USED, text="used"))
    counts = SimpleNamespace(
        spool_messages=0, replayed_to_primary=3, replayed_to_backlog=0, spool_undeliverable=12
    )
    client: Any = SimpleNamespace(statistics=lambda: counts, events=lambda: events)

    assert spool_commands._wait(client, 1.0) == 1

    said = capsys.readouterr().err.splitlines()
    assert said[:-1] == [f"message {number} stays" for number in range(10)]
    assert said[-1].startswith("12 messages cannot be delivered and stay: `pairbus spool export` shows why")

    counts.spool_undeliverable = 1
    spool_commands._wait(client, 1.0)
    assert "\n1 message cannot be delivered and stays: " in capsys.readouterr().err
