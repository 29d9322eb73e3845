"""The certificate on Spark: planted losses and repeats are found exactly, whatever the layout; bad input is told apart."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from pairbus.cli.reconcile import reconcile
from pairbus.errors import UsageError
from pairbus.server.message_journal import BLOCK, MAGIC
from tests.integration.ledger_kit import BACKLOG_QUEUE, NOON_MS, SHA, ledger, parked, row, write, write_table
from tests.integration.spark_kit import small_session

SENDS = 200_000
pytestmark = pytest.mark.timeout(240)  # the first test of a process starts Java


@pytest.fixture(scope="module", autouse=True)
def _spark() -> None:
    small_session()  # one session serves all Spark tests of a process, whichever comes first


def run(*arguments: str) -> tuple[int, dict[str, object]]:
    result = invoke(*arguments, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return result_code(result), found


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(reconcile, list(arguments), standalone_mode=False)


def result_code(result: Result) -> int:
    # Outside of its standalone mode click hands back what the command returned.
    return int(result.return_value or 0)


@pytest.mark.timeout(180)
def test_D4_planted_losses_and_repeats_are_found_exactly_in_any_layout(tmp_path: Path) -> None:
    chance = random.Random(7)
    numbers = list(range(SENDS))
    lost = set(chance.sample(numbers, 5))
    repeated = set(chance.sample(sorted(set(numbers) - lost), 40))
    arrivals = [number for number in numbers if number not in lost] + sorted(repeated)
    sent = ledger(pyarrow.array(numbers), "sent")
    write_table(tmp_path / "a" / "sent.parquet", sent)
    write_table(tmp_path / "a" / "received.parquet", ledger(pyarrow.array(arrivals), "completed", 500))
    chance.shuffle(arrivals)
    for part in range(7):
        write_table(
            tmp_path / "b" / "sent" / f"{part}.parquet", sent.take(pyarrow.array(numbers[part::7][::-1]))
        )
        shuffled = ledger(pyarrow.array(arrivals[part::7]), "completed", 500)
        write_table(tmp_path / "b" / "received" / f"{part}.parquet", shuffled, row_group_size=5_000)

    out = tmp_path / "out"
    code, one = run(
        "--sent", str(tmp_path / "a" / "sent.parquet"), "--received", str(tmp_path / "a" / "received.parquet"),
        "--out", str(out),
    )  # fmt: skip
    other_code, other = run(
        "--sent", str(tmp_path / "b" / "sent"), "--received", str(tmp_path / "b" / "received")
    )

    assert code == other_code == 1
    assert one == other
    assert (one["accepted"], one["lost"], one["repeated"], one["unexpected"]) == (SENDS, 5, 40, 0)
    assert one["arrived"] == SENDS - 5
    assert one["delays"] == [
        {"span": "under 100ms", "direct": 0, "detoured": 0},
        {"span": "under 1s", "direct": SENDS - 5, "detoured": 0},
    ]
    named = pyarrow.parquet.read_table(out / "messages").to_pylist()
    found = {(entry["fate"], entry["message_id"]) for entry in named}
    planted = {("lost", f"message-{number}") for number in lost} | {
        ("repeated", f"message-{number}") for number in repeated
    }
    assert (found, len(named)) == (planted, 45)
    assert json.loads((out / "certificate.json").read_text()) == one


def test_every_fate_is_told_and_the_counts_add_up(tmp_path: Path) -> None:
    primary = [
        row("sent", "direct", sequence_number=1),
        row("completed", "direct", sequence_number=1),
        row("sent", "home", sequence_number=2, time=NOON_MS + 7_200_000),
        row("sent", "twice", sequence_number=3, time=NOON_MS + 7_200_000),
        row("sent", "twice", sequence_number=4, time=NOON_MS + 7_300_000),
        row("sent", "stranger", sequence_number=5),
        row("sent", "dead", sequence_number=6),
        row("dead-lettered", "dead", sequence_number=6, detail="MaxDeliveryCountExceeded"),
        row("entity-deleted", "", entity="old", sha256="", sequence_number=0),
    ]
    secondary = [parked("sent", name) for name in ("home", "twice", "waiting", "aside", "expired", "gone")]
    secondary += [parked("completed", name) for name in ("home", "twice", "gone")]
    secondary += [
        parked("dead-lettered", "aside", detail="DestinationNotFound"),
        parked("dead-lettered", "expired", detail="TTLExpiredException"),
    ]
    told = [
        row("accepted", "direct"),
        row("accepted", "dead"),
        *[entry for entry in secondary if entry["kind"] == "sent"],
    ]
    sent = write(tmp_path / "told.parquet", told)
    received = write(tmp_path / "primary.parquet", primary)
    backlog = write(tmp_path / "secondary.parquet", secondary)

    code, found = run(
        "--sent", sent, "--received", received, "--backlog", backlog, "--html", str(tmp_path / "c.html")
    )

    assert code == 1
    expected = {
        "accepted": 8, "arrived": 4, "in_backlog": 1, "set_aside": 1, "dead_lettered": 0, "expired": 1, "lost": 1,
        "absorbed": 0, "repeated": 1, "unexpected": 1, "detoured": 6, "received": 6,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert found["at_destination"] == {"delivered": 1, "dead_lettered": 1, "expired": 0}
    named = found["named"]
    assert isinstance(named, dict)
    assert [entry["message_id"] for entry in named["lost"]] == ["gone"]
    outages = found["outages"]
    assert isinstance(outages, list)
    assert (outages[0]["messages"], outages[0]["arrived"], outages[0]["slowest_ms"]) == (6, 2, 7_200_000)
    assert found["rows"]["received"] == {"read": 9, "used": 8, "other": 1, "quarantined": 0}  # type: ignore[index]


def test_brokers_own_audits_serve_as_both_ledgers(tmp_path: Path) -> None:
    """What the syphon sent to the primary is not one more accepted message."""
    primary = [row("sent", "direct"), row("sent", "home"), row("sent", "home")]
    secondary = [parked("sent", "home"), parked("completed", "home")]
    one = write(tmp_path / "primary.parquet", primary)
    other = write(tmp_path / "secondary.parquet", secondary)
    code, found = run("--sent", one, "--sent", other, "--received", one, "--backlog", other)
    assert code == 0
    assert (found["accepted"], found["arrived"], found["repeated"], found["lost"]) == (2, 2, 1, 0)


def test_messages_without_an_id_are_counted_and_a_hot_key_is_no_trouble(tmp_path: Path) -> None:
    sent = write(tmp_path / "sent.parquet", [row("sent", "")] * 5_000 + [row("sent", "again")] * 3)
    received = write(
        tmp_path / "received.parquet", [row("received", "")] * 4_999 + [row("received", "again")]
    )
    code, found = run("--sent", sent, "--received", received)
    assert code == 1
    assert (found["accepted"], found["lost"], found["absorbed"]) == (5_003, 1, 2)


def test_deliveries_by_several_subscriptions_are_one_arrival(tmp_path: Path) -> None:
    places = ["Events/Subscriptions/one", "events/subscriptions/two"]
    sent = write(
        tmp_path / "sent.parquet", [row("sent", "a", entity="events"), row("sent", "b", entity="events")]
    )
    rows = [row("received", "a", entity=place) for place in places] + [
        row("received", "b", entity=places[0])
    ] * 2
    received = write(tmp_path / "received.parquet", rows)
    code, found = run("--sent", sent, "--received", received)
    assert code == 0
    assert (found["arrived"], found["repeated"], found["lost"]) == (2, 1, 0)


def test_a_changed_body_is_a_loss_and_said_to_be_one_of_that_kind(tmp_path: Path) -> None:
    sent = write(tmp_path / "sent.parquet", [row("sent", "a")])
    received = write(tmp_path / "received.parquet", [row("received", "a", sha256="0" * 64)])
    code, found = run("--sent", sent, "--received", received)
    assert code == 1
    assert (found["lost"], found["unexpected"], found["altered"]) == (1, 1, 1)
    code, found = run("--sent", sent, "--received", received, "--no-body-hash")
    assert code == 0
    assert (found["arrived"], found["lost"]) == (1, 0)


def test_overtaken_messages_are_counted(tmp_path: Path) -> None:
    order = [3, 1, 2, 4]
    sent = write(
        tmp_path / "sent.parquet",
        [row("sent", str(number), time=NOON_MS + number * 2_000) for number in order],
    )
    arrived = [row("sent", str(number), sequence_number=70_000 * place) for place, number in enumerate(order)]
    received = write(tmp_path / "received.parquet", arrived)
    _, found = run("--sent", sent, "--received", received)
    bars = found["reordered"]
    assert isinstance(bars, list)
    assert [bar["direct"] for bar in bars] == [0, 0, 2]


def test_sends_after_the_cut_off_may_be_on_their_way(tmp_path: Path) -> None:
    sent = write(
        tmp_path / "sent.parquet", [row("sent", "early"), row("sent", "late", time=NOON_MS + 60_000)]
    )
    received = write(tmp_path / "received.parquet", [row("received", "early")])
    code, found = run("--sent", sent, "--received", received, "--until", "2026-11-15T12:00:30")
    assert code == 0
    assert (found["in_flight"], found["lost"]) == (1, 0)


def test_empty_ledgers_prove_that_nothing_was_to_be_lost(tmp_path: Path) -> None:
    sent, received = write(tmp_path / "sent.parquet", []), write(tmp_path / "received.parquet", [])
    code, found = run("--sent", sent, "--received", received)
    assert code == 0
    assert (found["accepted"], found["lost"], found["verdict"]) == (0, 0, "holds")


def test_D5_rows_that_cannot_be_read_leave_it_unproven(tmp_path: Path) -> None:
    good = json.dumps({**row("sent", "a"), "time": "2026-11-15T12:00:00Z"})
    bad = [
        "{not json",
        json.dumps({**row("sent", "b"), "time": "yesterday"}),
        json.dumps({**row("sung", "c")}),
        json.dumps({**row("sent", "d"), "sha256": "12"}),
    ]
    (tmp_path / "sent.jsonl").write_text("\n".join([good, *bad]) + "\n")
    received = write(tmp_path / "received.parquet", [row("received", "a")])
    code, found = run(
        "--sent", str(tmp_path / "sent.jsonl"), "--received", received, "--out", str(tmp_path / "out")
    )
    assert code == 2
    assert found["verdict"] == "unproven"
    assert found["rows"]["sent"] == {"read": 5, "used": 1, "other": 0, "quarantined": 4}  # type: ignore[index]
    kept = pyarrow.parquet.read_table(tmp_path / "out" / "quarantine").to_pylist()
    assert len(kept) == 4
    assert "{not json" in {entry["raw"] for entry in kept}


def test_what_is_no_ledger_is_refused_with_its_name(tmp_path: Path) -> None:
    received = write(tmp_path / "received.parquet", [])
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    write_table(tmp_path / "other.parquet", pyarrow.table({"x": [1]}))
    (tmp_path / "nothing").mkdir()
    for name, told in (
        ("broken.parquet", "cannot be read"),
        ("other.parquet", "no column 'message_id'"),
        ("nothing", "holds no audit log"),
        ("absent", "no such file"),
    ):
        result = invoke("--sent", str(tmp_path / name), "--received", received)
        assert isinstance(result.exception, UsageError), name
        assert told in str(result.exception)
        assert name in str(result.exception)


def test_D8_a_part_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    part = "hour=2026-11-15T12/part-0000000000000001-life.parquet"
    older = write(tmp_path / "copy" / part, [row("sent", "a")])
    newer = write(tmp_path / "log" / part, [row("sent", "a"), row("sent", "b")])
    received = write(tmp_path / "received.parquet", [row("received", "a"), row("received", "b")])
    code, found = run("--sent", older, "--sent", newer, "--sent", newer, "--received", received)
    assert code == 0
    assert (found["accepted"], found["repeated_parts"]) == (2, 1)


def test_the_journal_of_the_hour_under_way_is_read_and_told(tmp_path: Path) -> None:
    fields = [NOON_MS, "sent", "orders", 1, "a", 4, SHA, "", ""]
    lines = json.dumps(fields).encode() + b"\n"
    block = BLOCK.pack(MAGIC, 1, len(lines), zlib.crc32(lines)) + lines
    (tmp_path / "messages-audit").mkdir()
    # The last block was not written to its end.
    (tmp_path / "messages-audit" / "journal-0000000000000001-life.log").write_bytes(block + block[:30])
    code, found = run("--sent", str(tmp_path), "--received", str(tmp_path))
    assert code == 0
    assert (found["accepted"], found["arrived"], found["open_journals"]) == (1, 1, 1)


def test_M8_foreign_text_is_inert_on_the_page_and_the_screen(tmp_path: Path) -> None:
    nasty = '<script>alert(1)</script>"\x1b[31m\u202e\nLOST'
    sent = write(tmp_path / "sent.parquet", [row("sent", nasty, entity="<img src=x onerror=1>")])
    received = write(tmp_path / "received.parquet", [])
    page = tmp_path / "c.html"
    result = invoke("--sent", sent, "--received", received, "--html", str(page))
    assert result_code(result) == 1
    text = page.read_text()
    for markup in ("<script", "<img", "\x1b", "\u202e"):
        assert markup not in text
        assert markup == "<script" or markup == "<img" or markup not in result.stdout
    assert "&lt;script&gt;" in text
    assert "default-src 'none'" in text
    assert len(result.stdout.splitlines()) == len(result.stdout.replace("\\n", "").splitlines())
    assert BACKLOG_QUEUE not in text
