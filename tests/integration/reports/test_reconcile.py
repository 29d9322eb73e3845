"""The certificate on both engines: planted losses and repeats are found exactly, whatever the layout; bad input is told apart."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from pairbus.cli.reports.reconcile import reconcile
from pairbus.errors import UsageError
from pairbus.reports.certificate.value import FATE_COLUMNS, FATES, NAMED_MAX, Certificate
from pairbus.reports.engines import arrow
from pairbus.reports.engines.audit_log import AUDIT, BACKLOG, RECEIVED, SENT
from pairbus.reports.engines.base import ReconciledLedgers
from pairbus.reports.engines.spark import SparkEngine
from pairbus.reports.inputs import find_inputs
from pairbus.reports.views.certificate import certificate_document
from pairbus.reports.views.html import page
from pairbus.reports.views.terminal import print_document
from tests.integration.reports.ledger_kit import NOON_MS, journal_bytes, parked, row, write, write_table
from tests.integration.reports.planted_kit import Planted, bucket, plant
from tests.integration.spark.kit import small_session

pytestmark = pytest.mark.timeout(900)  # the first test of a process starts Java
NASTY = '<script>alert(1)</script>"\x1b[31m\u202e\nLOST'
NASTY_QUEUE = "<img src=x onerror=1>"


@pytest.fixture(scope="module", params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "spark":
        small_session()  # one session serves all Spark tests of a process, whichever comes first
    return str(request.param)


def run(engine: str, *arguments: str) -> tuple[int, dict[str, object]]:
    result = invoke(*arguments, "--engine", engine, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return result_code(result), found


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(reconcile, list(arguments), standalone_mode=False)


def result_code(result: Result) -> int:
    # Outside of its standalone mode click hands back what the command returned.
    return int(result.return_value or 0)


# -- planted among many -------------------------------------------------------------------------------


@pytest.mark.promise("D4")
@pytest.mark.parametrize("count", [120_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_everything_planted_is_found_exactly_and_in_any_layout(
    tmp_path: Path, count: int, engine: str
) -> None:
    planted = plant(count, seed=7)
    out = tmp_path / "out"

    code, one = run(engine, *planted.write(tmp_path / "one", 1, None), "--out", str(out))
    other_code, other = run(engine, *planted.write(tmp_path / "other", 5, random.Random(3)))

    assert code == other_code == 1
    assert one == other
    assert {name: one[name] for name in planted.counts} == planted.counts
    assert_histograms(planted, one)
    assert_sessions(planted, one)
    outages = one["outages"]
    assert isinstance(outages, list)
    assert [outage["messages"] for outage in outages] == planted.outages
    for outage in outages:
        assert sum(outage[fate] for fate in ("arrived", "absorbed", *FATES)) == outage["messages"]
    named = pyarrow.parquet.read_table(out / "messages").to_pylist()
    assert len(named) == len(planted.names)
    assert {(entry["fate"], entry["message_id"]) for entry in named} == planted.names
    assert json.loads((out / "certificate.json").read_text()) == one


def test_the_duplicates_of_an_outage_are_among_its_fates(tmp_path: Path, engine: str) -> None:
    backlog = write(
        tmp_path / "backlog.parquet",
        [parked(kind, "twice", sequence_number=at) for at in (1, 2) for kind in ("sent", "completed")],
    )
    received = write(tmp_path / "received.parquet", [row("sent", "twice")])

    _, found = run(engine, "--sent", backlog, "--received", received, "--backlog", backlog)

    outages = found["outages"]
    assert isinstance(outages, list)
    (outage,) = outages
    assert (outage["messages"], outage["arrived"], outage["absorbed"]) == (2, 1, 1)


def assert_sessions(planted: Planted, found: Mapping[str, Any]) -> None:
    """The sessions with the most overtaken messages are named, and all are counted."""
    expected = sorted(planted.sessions.items(), key=lambda item: (-item[1][0], item[0]))
    assert found["session_order"]["sessions"] == len(expected) > NAMED_MAX
    named = [
        ((one["destination"], one["session"]), (one["messages"], one["latest_ms"]))
        for one in found["session_order"]["named"]
    ]
    assert named == expected[:NAMED_MAX]


def assert_histograms(planted: Planted, found: Mapping[str, object]) -> None:
    for name, expected in (("delays", planted.delays), ("reordered", planted.reordered)):
        bars = found[name]
        assert isinstance(bars, list)
        told = {
            (at, is_detoured): bar["detoured" if is_detoured else "direct"]
            for at, bar in enumerate(bars)
            for is_detoured in (False, True)
        }
        assert {key: number for key, number in told.items() if number} == dict(expected), name


# -- small cases, each with a destination of its own, judged in one run -------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of the messages of each destination, and of all together."""

    fates: Mapping[str, Mapping[str, int]]
    certificate: Certificate
    named: list[dict[str, object]]

    def of(self, destination: str, **expected: int) -> None:
        """Assert the counts of a destination; those that are not given are 0."""
        found = {name: number for name, number in self.fates[destination].items() if number}
        assert found == expected, destination


def fate_rows() -> tuple[list[dict[str, object]], list[dict[str, object]], list[dict[str, object]]]:
    received = [
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
    backlog = [parked("sent", name) for name in ("home", "twice", "waiting", "aside", "expired", "gone")]
    sent = [row("accepted", "direct"), row("accepted", "dead"), *backlog]
    backlog = backlog + [parked("completed", name) for name in ("home", "twice", "gone")]
    backlog += [
        parked("dead-lettered", "aside", detail="DestinationNotFound"),
        parked("dead-lettered", "expired", detail="TTLExpiredException"),
    ]
    return sent, received, backlog


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Answer:
    work = tmp_path_factory.mktemp("cases")
    sent, received, backlog = fate_rows()
    # Both brokers' own audits, given as they are.
    primary = [row("sent", name, entity="audits") for name in ("direct", "home", "home")]
    secondary = [parked(kind, "home", destination="Audits") for kind in ("sent", "completed")]
    sent += [*primary, *secondary]
    received += primary
    backlog += secondary
    # What its sender only knows as sent, and the backlog knows better.
    sent += [row("accepted", name, entity="unaware") for name in ("parked", "straight")]
    received += [row("sent", name, entity="unaware") for name in ("parked", "straight")]
    backlog += [parked(kind, "parked", destination="unaware") for kind in ("sent", "completed")]
    sent += [row("sent", "", entity="hot")] * 5_000 + [row("sent", "again", entity="hot")] * 3
    received += [row("received", "", entity="hot")] * 4_999 + [row("received", "again", entity="hot")]
    places = ["Events/Subscriptions/one", "events/subscriptions/two"]
    sent += [row("sent", name, entity="events") for name in "ab"]
    received += [row("received", "a", entity=place) for place in places]
    received += [row("received", "b", entity=places[0])] * 2
    sent.append(row("sent", "a", entity="changed"))
    received.append(row("received", "a", entity="changed", sha256="0" * 64))
    # Queues of the backlog that were deleted with what was in them; one was made again, one is of another namespace.
    old = "contoso/x-servicebus-transfer/8"
    kept = [parked("sent", "elsewhere", entity=old, destination="deleted", namespace="other")]
    kept += [parked("sent", "later", entity=old, destination="deleted", time=NOON_MS + 2_000)]
    gone = [parked("sent", name, entity=old, destination="deleted") for name in ("waiting", "aside", "home")]
    sent += kept + gone
    received.append(row("sent", "home", entity="deleted"))
    aside = parked("dead-lettered", "aside", entity=old, destination="deleted", detail="DestinationNotFound")
    deletion = row("entity-deleted", "", entity=old, sha256="", sequence_number=0, time=NOON_MS + 1_000)
    backlog += [deletion, *kept, *gone, aside]
    # Scheduled messages that were parked, and cancelled by their senders.
    cancelled = [parked("sent", name, destination="cancelled") for name in ("one", "two")]
    sent += cancelled
    backlog += [*cancelled, parked("cancelled", "one", destination="cancelled")]
    order = [3, 1, 2, 4]
    sent += [row("sent", str(number), entity="order", time=NOON_MS + number * 2_000) for number in order]
    received += [
        row("sent", str(number), entity="order", time=NOON_MS + 9_000, sequence_number=70_000 * place)
        for place, number in enumerate(order)
    ]
    sent.append(row("sent", NASTY, entity=NASTY_QUEUE))
    inputs = {
        role: find_inputs(None, [write(work / f"{role}.parquet", rows)], AUDIT)
        for role, rows in ((SENT, sent), (RECEIVED, received), (BACKLOG, backlog))
    }
    summed = ("accepted", "found", *FATE_COLUMNS)
    done: ReconciledLedgers
    if engine == "spark":
        on_spark = SparkEngine(small_session()).reconcile(inputs, None, with_body=True, with_order=True)
        messages = on_spark.messages.where("tally IS NULL").select("destination", *summed).toArrow()
        done = on_spark
    else:
        here = arrow.reconcile(inputs)
        messages, done = here.messages, here
    done.write(str(work / "out"))
    sums = messages.group_by("destination").aggregate([(name, "sum") for name in summed])
    fates = {
        entry["destination"]: {name: int(entry[f"{name}_sum"]) for name in summed}
        for entry in sums.to_pylist()
    }
    named = pyarrow.parquet.read_table(work / "out" / "messages").to_pylist()
    return Answer(fates, done.certificate, named)


def test_every_fate_is_told_and_the_counts_add_up(answer: Answer) -> None:
    answer.of(
        "orders", accepted=8, found=6, arrived=4, in_backlog=1, set_aside=1, expired=1, lost=1, repeated=1, unexpected=1
    )  # fmt: skip
    told = answer.certificate
    told.check()
    assert told.at_destination["dead_there"] == 1
    lost = {
        entry["message_id"]
        for entry in answer.named
        if (entry["fate"], entry["destination"]) == ("lost", "orders")
    }
    assert lost == {"gone"}
    (outage,) = told.outages
    assert (outage.messages, outage.fates["arrived"], outage.slowest_ms) == (15, 5, 7_200_000)
    assert told.rows["received"].other == 1
    assert told.rows["backlog"].used == len(fate_rows()[2]) + 13


def test_what_went_with_a_deleted_backlog_queue_is_lost(answer: Answer) -> None:
    """Unless it had arrived. A queue of that name in another namespace, or made again, has nothing to do with it."""
    answer.of("deleted", accepted=5, found=1, arrived=1, in_backlog=2, lost=2)
    assert answer.certificate.rows["backlog"].other == 1


def test_what_its_sender_cancelled_is_not_lost(answer: Answer) -> None:
    answer.of("cancelled", accepted=2, in_backlog=1, cancelled=1)


def test_brokers_own_audits_serve_as_both_ledgers(answer: Answer) -> None:
    """What the syphon sent to the primary is not one more accepted message."""
    answer.of("audits", accepted=2, found=3, arrived=2, repeated=1)


def test_the_backlog_tells_of_detours_that_senders_do_not_know_of(answer: Answer) -> None:
    answer.of("unaware", accepted=2, found=2, arrived=2)
    # Six of the first case, one of the second, one of this, seven of others.
    assert answer.certificate.detoured == 15
    assert sum(bar.detoured for bar in answer.certificate.delays) == 5


def test_messages_without_an_id_are_counted_and_a_hot_key_is_no_trouble(answer: Answer) -> None:
    answer.of("hot", accepted=5_003, found=5_000, arrived=5_000, lost=1, absorbed=2)


def test_deliveries_by_several_subscriptions_are_one_arrival(answer: Answer) -> None:
    answer.of("events", accepted=2, found=3, arrived=2, repeated=1)


def test_a_changed_body_is_a_loss_and_said_to_be_one_of_that_kind(answer: Answer) -> None:
    answer.of("changed", accepted=1, found=1, lost=1, unexpected=1)
    assert answer.certificate.altered == 1


@pytest.mark.promise("P15")
def test_overtaken_messages_are_counted(answer: Answer) -> None:
    answer.of("order", accepted=4, found=4, arrived=4)
    assert answer.certificate.reordered is not None
    assert [bar.direct for bar in answer.certificate.reordered] == [0, 0, 2]
    assert bucket(4_000) == 2


@pytest.mark.promise("M8")
def test_foreign_text_is_inert_on_the_page_and_the_screen(
    answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    document = certificate_document(answer.certificate)
    made = page(document)
    print_document(document)
    screen = capsys.readouterr().out.splitlines()
    for markup in ("<script", "<img", "\x1b", "\u202e"):
        assert markup not in made
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;" in made
    assert "&lt;img src=x onerror=1&gt;" in made
    assert "default-src 'none'" in made
    assert not [line for line in screen if any(sign in line for sign in ("\x1b", "\u202e"))]
    assert [line for line in screen if "onerror" in line]


# -- inputs -------------------------------------------------------------------------------------------


def test_sends_after_the_cut_off_may_be_on_their_way_and_bodies_need_not_be_compared(
    tmp_path: Path, engine: str
) -> None:
    """And what is before the time that is asked about does not count."""
    sent = write(
        tmp_path / "sent.parquet",
        [
            row("sent", "ancient", time=NOON_MS - 1),
            row("sent", "early"),
            row("sent", "late", time=NOON_MS + 60_000),
        ],
    )
    received = write(tmp_path / "received.parquet", [row("received", "early", sha256="0" * 64)])
    code, found = run(engine, "--sent", sent, "--received", received, "--since", "2026-11-15T12:00:00", "--until", "2026-11-15T12:00:30",
        "--no-body-hash", "--no-order",
    )  # fmt: skip
    assert code == 0
    assert found["rows"]["sent"] == {"read": 3, "used": 2, "other": 1, "quarantined": 0}  # type: ignore[index]
    assert (found["arrived"], found["in_flight"], found["lost"], found["reordered"]) == (1, 1, 0, None)


def test_without_an_accepted_message_nothing_is_proven(tmp_path: Path, engine: str) -> None:
    """A wrong path and an audit log that was off look the same as a quiet night."""
    none, received = (
        write(tmp_path / "none.parquet", []),
        write(tmp_path / "received.parquet", [row("sent", "a")]),
    )
    code, found = run(engine, "--sent", none, "--received", received)
    assert code == 2
    assert (found["accepted"], found["lost"], found["verdict"]) == (0, 0, "unproven")
    late = write(tmp_path / "late.parquet", [row("sent", "late")])
    for until, expected in (("2026-11-15T12:00:00", (2, "unproven")), ("2026-11-15T12:00:01", (1, "loss"))):
        code, found = run(engine, "--sent", late, "--received", none, "--until", until)
        assert (code, found["verdict"]) == expected


@pytest.mark.promise("D5")
def test_rows_that_cannot_be_read_leave_it_unproven(tmp_path: Path, engine: str) -> None:
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
        engine, "--sent", str(tmp_path / "sent.jsonl"), "--received", received, "--out", str(tmp_path / "out")
    )
    assert code == 2
    assert found["verdict"] == "unproven"
    assert found["rows"]["sent"] == {"read": 5, "used": 1, "other": 0, "quarantined": 4}  # type: ignore[index]
    kept = pyarrow.parquet.read_table(tmp_path / "out" / "quarantine").to_pylist()
    assert len(kept) == 4
    assert "{not json" in {entry["raw"] for entry in kept}


def test_what_is_no_ledger_is_refused_with_its_name(tmp_path: Path, engine: str) -> None:
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
        result = invoke("--sent", str(tmp_path / name), "--received", received, "--engine", engine)
        assert isinstance(result.exception, UsageError), name
        assert told in str(result.exception)
        assert name in str(result.exception)


@pytest.mark.promise("D8")
def test_a_part_given_twice_counts_once_and_an_open_journal_is_read_and_told(
    tmp_path: Path, engine: str
) -> None:
    part = "hour=2026-11-15T12/part-0000000000000001-life.parquet"
    older = write(tmp_path / "copy" / part, [row("sent", "a")])
    newer = write(tmp_path / "log" / part, [row("sent", "a"), row("sent", "b")])
    block = journal_bytes([row("sent", "c")], "contoso").rstrip(b"\0")
    (tmp_path / "data" / "messages-audit").mkdir(parents=True)
    # The last block was not written to its end.
    journal = tmp_path / "data" / "messages-audit" / "journal-0000000000000002-life.log"
    journal.write_bytes(block + journal_bytes([row("sent", "d")], "contoso", 3)[:30] + bytes(1 << 12))
    received = write(tmp_path / "received.parquet", [row("received", name) for name in "ab"])
    data = str(tmp_path / "data")
    code, found = run(engine, "--sent", older, "--sent", newer, "--sent", newer, "--sent", data, "--received", received, "--received", data
    )  # fmt: skip
    assert code == 0
    assert (found["accepted"], found["arrived"], found["repeated_parts"]) == (3, 3, 1)
    assert found["open_journals"] == 1


# -- one secondary, two primaries ---------------------------------------------------------------------


def two_primaries(tmp_path: Path, **arrivals: object) -> dict[str, str]:
    """Two primaries parked the same id and body for a queue of the same name; that of contoso was destroyed, that of other waits."""
    others: Any = {"entity": "Other/x-servicebus-transfer/0", "namespace": "shared"}
    kept = [
        parked("sent", "event-1", namespace="shared"),
        parked("received-and-deleted", "event-1", namespace="shared"),
        parked("sent", "event-1", **others),
    ]
    return {
        "contoso": write(tmp_path / "contoso.parquet", [row("sent", "direct", **arrivals)]),
        "other": write(tmp_path / "other.parquet", [row("sent", "direct", **{"namespace": "other", **arrivals})]),
        "shared": write(tmp_path / "shared.parquet", kept),
        "listing": write(tmp_path / "listing.parquet", [parked("held", "event-1", **others)]),
    }  # fmt: skip


def test_what_another_primary_parked_does_not_stand_for_what_is_lost(tmp_path: Path, engine: str) -> None:
    logs = two_primaries(tmp_path)
    both = ("--sent", logs["contoso"], "--sent", logs["shared"], "--received", logs["contoso"])
    for backlog in (logs["shared"], logs["listing"]):
        code, found = run(engine, *both, "--backlog", backlog)
        assert (code, found["verdict"], found["accepted"], found["lost"], found["in_backlog"]) == (
            1,
            "loss",
            2,
            1,
            0,
        )
        assert found["left_out"] == 2
    code, found = run(engine, *both, "--backlog", logs["shared"], "--dead-letter", logs["listing"])
    assert (code, found["lost"], found["set_aside"], found["left_out"]) == (1, 1, 0, 3)


def test_the_logs_of_both_primaries_together_prove_nothing_until_one_is_named(
    tmp_path: Path, engine: str
) -> None:
    logs = two_primaries(tmp_path)
    both = [
        text for name in ("contoso", "other") for text in ("--sent", logs[name], "--received", logs[name])
    ]
    everything = (*both, "--sent", logs["shared"], "--backlog", logs["shared"])
    code, found = run(engine, *everything)
    assert (code, found["verdict"]) == (2, "unproven")
    assert "contoso, other" in str(found["doubt"])
    assert "--primary" in str(found["doubt"])
    for primary, expected in (("Contoso", (1, 1, 0)), ("other", (0, 0, 1))):
        code, found = run(engine, *everything, "--primary", primary)
        assert (code, found["lost"], found["in_backlog"]) == expected
        assert (found["accepted"], found["arrived"], found["unexpected"]) == (2, 1, 0)


def test_arrivals_without_a_namespace_prove_nothing_beside_the_backlog_of_two_primaries(
    tmp_path: Path, engine: str
) -> None:
    logs = two_primaries(tmp_path, namespace=None)
    ledgers = ("--sent", logs["contoso"], "--sent", logs["shared"], "--received", logs["contoso"])
    code, found = run(engine, *ledgers, "--backlog", logs["shared"])
    assert (code, found["verdict"]) == (2, "unproven")
    assert "contoso, other" in str(found["doubt"])
    code, found = run(engine, *ledgers, "--backlog", logs["shared"], "--primary", "contoso")
    assert (code, found["lost"]) == (1, 1)
