"""The bill on both engines: for a scripted outage it equals the hand calculation, and every row is accounted for."""

from __future__ import annotations

import csv
import json
import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from pairbus.cli.reports.cost import cost
from pairbus.errors import UsageError
from pairbus.gateway.telemetry.meter import UsageRow
from pairbus.reports.engines.audit_log import AUDIT
from pairbus.reports.inputs import Wanted, find_inputs
from pairbus.server.logs.usage import UsageWriter
from tests.integration.spark.kit import small_session

pytestmark = pytest.mark.timeout(900)  # the first test of a process starts Java

PRICES = {
    "format": 1,
    "tables": [
        {
            "tier": "standard", "region": "here", "currency": "EUR", "source": "made for a test", "source_date": "2026-11-01",
            "base": {"per_hour": "0.01"},
            "operations": {"bands": [{"up_to": 1000, "per_million": "0"}, {"up_to": None, "per_million": "700"}]},
            "connections": {"bands": [{"up_to": None, "per_connection_month": "0.03"}]},
            "data_out": {"per_gb": "0.08"},
        }
    ],
}  # fmt: skip
NASTY = "<script>alert(1)</script>"
QUEUE = "contoso/x-servicebus-transfer/{}"


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "spark":
        small_session()  # one session serves all Spark tests of a process, whichever comes first
    return str(request.param)


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prices") / "prices.json"
    path.write_text(json.dumps(PRICES))
    return str(path)


def at(hour: int, minute: int, day: int = 15) -> int:
    return int(datetime(2026, 11, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


def scripted_outage(data: Path) -> None:
    """10:00 to 12:00: 1,000 messages of 70,000 bytes to the primary; it goes; 500 are parked; it is back; they are brought home.

    Two brokers' logs, as brokers write them; the primary has two lives.
    """
    primary = UsageWriter(data / "primary" / "usage", "contoso", "life1")
    secondary = UsageWriter(data / "secondary" / "usage", "fabrikam", "life1")
    again = UsageWriter(data / "primary" / "usage", "contoso", "life2")
    for writer in (primary, secondary, again):
        writer.start()
    primary.submit(
        [UsageRow(at(10, minute), "orders", "send", "primary", 100, 7_000_000, 200) for minute in range(10)]
    )
    primary.submit(
        [
            UsageRow(at(10, minute), "orders", "receive", "primary", 100, 7_000_000, 200)
            for minute in range(10)
        ]
    )
    primary.submit(
        [UsageRow(at(10, minute), "orders", "settle", "primary", 100, 0, 100) for minute in range(10)]
    )
    primary.submit([UsageRow(at(10, 0), "", "connections", "primary", 0, 0, 0, 73)])
    secondary.submit(
        [
            UsageRow(at(10, 20 + minute), QUEUE.format(minute % 2), "send", "backlog", 50, 3_500_000, 100)
            for minute in range(10)
        ]
    )
    secondary.submit(
        [UsageRow(at(11, 0), QUEUE.format(queue), "empty_receive", "backlog", 4, 0, 4) for queue in range(10)]
    )
    secondary.submit(
        [
            UsageRow(at(11, 5), QUEUE.format(queue), "receive", "backlog", 250, 17_500_000, 500)
            for queue in (0, 1)
        ]
    )
    secondary.submit(
        [UsageRow(at(11, 5), QUEUE.format(queue), "settle", "backlog", 250, 0, 250) for queue in (0, 1)]
    )
    again.submit([UsageRow(at(11, 4), "orders", "ping", "primary", 1, 0, 1)])
    again.submit([UsageRow(at(11, 5), "orders", "send", "primary", 500, 35_000_000, 1_000)])
    again.submit([UsageRow(at(11, 6), "orders", "receive", "primary", 500, 35_000_000, 1_000)])
    again.submit([UsageRow(at(11, 5), "", "connections", "primary", 0, 0, 0, 73)])
    for writer in (primary, secondary, again):
        writer.stop()


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(cost, [*arguments, "--json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.promise("D6")
def test_the_bill_of_a_scripted_outage_equals_the_hand_calculation(
    tmp_path: Path, prices: str, engine: str
) -> None:
    # Characters that mean something to Spark mean nothing in the name of a directory.
    data = tmp_path / "all [of] {it} *"
    scripted_outage(data)
    page, table, sheet = tmp_path / "bill.html", tmp_path / "parquet", tmp_path / "csv"

    found = run("report", "--engine", engine, str(data / "primary"), str(data / "secondary"), "--prices", prices,
        "--html", str(page), "--parquet", str(table), "--csv", str(sheet),
    )  # fmt: skip

    # 1,000 direct messages × 2 × 2 units, 500 detoured × 4 × 2 units, 1 ping, 40 idle receives.
    operations = 4_000 + 4_000 + 1 + 40
    assert found["operations"] == operations
    # 1,000 are included, the rest at 700 a million; 2 hours; 2 × 73 peaks / 730; what the syphon took out of the region.
    charge = Decimal(operations - 1_000) * 700 / 1_000_000
    hours, connections, out = Decimal("0.02"), Decimal("0.006"), Decimal("0.0028")
    assert Decimal(str(found["total"])) == charge + hours + connections + out
    assert found["unknown"] == []
    purposes = found["purposes"]
    assert isinstance(purposes, dict)
    counted = {
        name: (entry["count"], entry["operations"]) for name, entry in purposes.items() if entry["operations"]
    }
    assert counted == {
        "sent to the primary": (1_500, 3_000),
        "received from the primary": (1_500, 3_000),
        "sent to the backlog": (500, 1_000),
        "received from the backlog": (500, 1_000),
        "idle receives of the backlog": (40, 40),
        "pings": (1, 1),
    }
    assert sum(Decimal(entry["amount"]) for entry in purposes.values()) == charge
    pairing = found["pairing"]
    assert isinstance(pairing, dict)
    assert pairing["operations"] == 2_041
    assert (pairing["messages_saved"], pairing["bytes_saved"], pairing["minutes_with_detours"]) == (
        500,
        35_000_000,
        10,
    )
    rows = pyarrow.parquet.read_table(table / "bill").to_pylist()
    assert sum(row["amount"] for row in rows) == charge
    assert sum(row["billed"] for row in rows) == operations
    (file,) = (sheet / "bill").glob("*.csv")
    with file.open(newline="") as stream:
        assert sum(Decimal(line["amount"]) for line in csv.DictReader(stream)) == charge
    assert page.read_text().count("<figure") == 3
    assert "http" not in page.read_text().split("<body>")[1].split("Prices</h2>")[0]


@pytest.mark.promise("D5", "D8")
def test_copies_count_once_and_what_cannot_be_true_is_set_apart(
    tmp_path: Path, prices: str, engine: str
) -> None:
    scripted_outage(tmp_path)
    log = tmp_path / "primary" / "usage"
    part = log / "hour=2026-11-15T10" / "part-life1.parquet"
    # An older copy of a part with fewer minutes, one that was cut short, and the same log once more.
    older = tmp_path / "backup" / "hour=2026-11-15T10" / part.name
    older.parent.mkdir(parents=True)
    # Without the broker's metadata, as parts of earlier versions are: a part that lost its seal is damaged.
    table = pyarrow.parquet.read_table(part, partitioning=None).replace_schema_metadata()
    pyarrow.parquet.write_table(table.slice(0, 3), older)
    shutil.copytree(log, tmp_path / "copy")
    broken = tmp_path / "cut" / "hour=2026-11-15T10" / "part-life9.parquet"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(part.read_bytes()[:100])
    good = {
        "bucket": "2026-11-15T10:00:00Z", "namespace": "contoso", "entity": "=cmd()", "operation": "send", "stage": "primary",
        "count": 1, "bytes": 5, "units": 1, "connection_peak": 0, "part": "other",
    }  # fmt: skip
    lines = [
        good,
        good,
        {**good, "entity": NASTY},
        {**good, "count": -1},
        {**good, "operation": "sing"},
        {**good, "units": 0},
        {**good, "bucket": "?"},
    ]
    (tmp_path / "more.jsonl").write_text("\n".join([*map(json.dumps, lines), "{broken"]))

    found = run("report", "--engine", engine, str(tmp_path / "primary"), str(tmp_path / "backup"), str(tmp_path / "copy"), str(tmp_path / "cut"),
        str(tmp_path / "more.jsonl"), "--prices", prices, "--count-settlements",
        "--csv", str(tmp_path / "csv"), "--parquet", str(tmp_path / "parquet"), "--html", str(tmp_path / "bill.html"),
    )  # fmt: skip

    # The primary's own: 4,000 + 1,000 settled + 2,000 + 1 ping, and two rows of the lines.
    assert found["operations"] == 7_003
    rows = found["rows"]
    assert isinstance(rows, dict)
    assert (rows["counted"], rows["repeated"], rows["repeated_parts"]) == (37, 1, 3)
    assert sum(rows["quarantined"].values()) == 5
    assert rows["read"] == 43
    assert list(rows["damaged_files"]) == [str(broken)]
    kept = pyarrow.parquet.read_table(tmp_path / "parquet" / "quarantine").to_pylist()
    assert len(kept) == 5
    assert "{broken" in {entry["raw"] for entry in kept}
    (file,) = (tmp_path / "csv" / "bill").glob("*.csv")
    assert ",'=cmd()," in file.read_text()
    page = (tmp_path / "bill.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_bill_and_what_if_agree_over_the_end_of_a_month_and_leave_out_impossible_times(
    tmp_path: Path, prices: str, engine: str
) -> None:
    """Bands of prices begin anew each month; and one row of the year 2126 is not billed with every month until then."""
    row = {
        "namespace": "contoso", "entity": "orders", "operation": "send", "stage": "primary",
        "count": 3_000, "bytes": 5, "units": 3_000, "connection_peak": 0, "part": "one",
    }  # fmt: skip
    moments = ["2026-10-31T23:59:00Z", "2026-11-01T00:00:00Z", "2126-01-01T00:00:00Z", "1970-01-01T00:01:00Z"]
    moments += ["2011-03-01T00:00:00Z", "9999-12-31T23:59:00Z"]
    log = tmp_path / "usage.jsonl"
    log.write_text("\n".join(json.dumps({**row, "bucket": moment}) for moment in moments))

    bill = run("report", "--engine", engine, str(log), "--prices", prices)
    supposed = run("what-if", "--engine", engine, str(log), "--prices", prices)

    rows = bill["rows"]
    assert isinstance(rows, dict)
    assert rows["quarantined"] == {"bucket lies before 2024": 2, "bucket lies in the future": 2}
    bills = bill["months"]
    assert isinstance(bills, list)
    assert [one["month"] for one in bills] == ["2026-10", "2026-11"]
    amounts = [
        Decimal(line["amount"]) for one in bills for line in one["lines"] if line["meter"] == "operations"
    ]
    # Each month has its free 1,000, and 2,000 beyond them.
    assert amounts == [Decimal(0), Decimal("1.4")] * 2
    assert Decimal(str(supposed["recorded_amount"])) == Decimal(str(supposed["amount"])) == sum(amounts)


def test_what_if_replays_recorded_usage_against_other_settings(
    tmp_path: Path, prices: str, engine: str
) -> None:
    scripted_outage(tmp_path)
    found = run("what-if", "--engine", engine, str(tmp_path / "primary"), str(tmp_path / "secondary"), "--prices", prices,
        "--failover-interval", "3m", "--recorded-failover-interval", "1m", "--queues", "20", "--ping-interval", "30s",
        "--away", "2026-11-15T10:00/2026-11-15T10:05", "--while-suspect", "raise",
    )  # fmt: skip
    assert found["recorded_operations"] == 8_041
    differences = found["differences"]
    assert isinstance(differences, list)
    by_name = {entry["name"]: entry for entry in differences}
    # Two more minutes of 50 messages and 100 units each would have been refused.
    assert (by_name["failover interval"]["refused"], by_name["failover interval"]["operations"]) == (
        100,
        -800,
    )
    assert by_name["backlog queues"]["operations"] == 40
    assert by_name["ping interval"]["operations"] == 1
    # 5 minutes away: 3 of them refused, 2 detoured, 1 + 4 pings in the 2 minutes after failover.
    away = by_name["the primary away"]
    assert (away["refused"], away["messages"], away["operations"]) == (300, 200, 800 - 1_200 + 5)
    assert found["operations"] == 8_041 - 800 + 40 + 1 - 395


def test_what_cannot_be_read_or_priced_is_refused_with_its_name(
    tmp_path: Path, prices: str, engine: str
) -> None:
    scripted_outage(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "new" / "usage").mkdir(parents=True)
    for arguments, told in (
        ([str(tmp_path / "absent")], "no such file"),
        ([str(tmp_path / "empty")], "holds no usage log"),
        ([str(tmp_path / "new")], "nothing that can be read.* its broker has written none yet"),
        ([str(tmp_path / "primary"), "--tier", "premium"], "no price table of premium"),
        ([str(tmp_path / "primary"), "--from", "2026-11-16", "--to", "2026-11-15"], "is not before"),
    ):
        with pytest.raises(UsageError, match=told):
            run("report", "--engine", engine, *arguments)


def test_an_estimate_needs_no_spark_and_explains_every_figure() -> None:
    found = run("estimate", "--queues", "10", "--days", "30", "--outage", "1d", "--failover-interval", "0")
    figures = found["figures"]
    assert isinstance(figures, list)
    values = {figure["name"]: figure["value"] for figure in figures}
    assert (values["idle receives an hour"], values["idle receives a day"], values["idle receives"]) == (
        40,
        960,
        28_800,
    )
    assert values["pings"] == 1_441
    assert all(figure["why"] for figure in figures)


def test_logs_of_several_brokers_below_one_directory_are_found_and_nothing_else_is_read(
    tmp_path: Path,
) -> None:
    for place in ("primary", "secondary"):
        data = tmp_path / place / "data"
        (data / "store").mkdir(parents=True)
        (data / "audit").mkdir()
        (data / "audit" / "audit-000001.jsonl").write_text('{"action": "create"}\n')
        usage = data / "usage" / "hour=2026-11-15T10"
        usage.mkdir(parents=True)
        table = pyarrow.table({"bucket": pyarrow.array([0], pyarrow.timestamp("ms", "UTC")), "count": [1]})
        pyarrow.parquet.write_table(table, usage / f"part-{place}.parquet")
    wanted = Wanted(what="usage log", folder="usage", columns={"bucket": ("timestamp",), "count": ("int",)})

    found = find_inputs(None, [str(tmp_path)], wanted)

    assert (len(found.parquet), found.lines) == (2, [])


def test_a_broker_without_the_log_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()

    with pytest.raises(UsageError, match="run the broker with --audit"):
        find_inputs(None, [str(tmp_path)], AUDIT)
