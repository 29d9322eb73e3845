"""What can be wrong with a report's inputs and outputs: one clear line each, with the way out and the promised exit code (M15)."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from pairbus.cli.root import main
from pairbus.server.logs.message_journal import convert
from tests.integration.reports.ledger_kit import SCHEMA, journal_bytes, row, write, write_table
from tests.integration.spark.kit import small_session

pytestmark = pytest.mark.timeout(900)  # the first test of a process starts Java
WRONG = 2


def mistake(capsys: pytest.CaptureFixture[str], code: int, says: str, *arguments: str | Path) -> None:
    """Run a command that must fail in the promised way."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    told = capsys.readouterr()
    assert ended.value.code == code, told.err
    assert told.out == ""
    [line] = told.err.splitlines()
    assert line.startswith("pairbus: ")
    assert says in line


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "sheet.csv").write_text("bucket,count\n1,2\n")
    (tmp_path / "sheets").mkdir()
    (tmp_path / "sheets" / "a.csv").write_text("bucket,count\n1,2\n")
    (tmp_path / "nil.parquet").write_bytes(b"")
    write_table(tmp_path / "other.parquet", pyarrow.table({"x": [1]}))
    whole = Path(write(tmp_path / "ledger.parquet", [row("sent", str(at)) for at in range(20_000)]))
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-20])
    return tmp_path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", "no such file or directory"),
        ("nothing", "name the data directory of a broker"),
        ("sheet.csv", "it must be *.parquet or *.jsonl, with the columns bucket, namespace"),
        ("sheets", "holds no usage log"),
        ("other.parquet", "it has no column 'bucket' (it has x)"),
        ("nil.parquet", "cannot be read"),
        ("cut.parquet", "and there is no other usage log"),
        ("ledger.parquet", "is no usage log: it has no column 'bucket'"),
    ],
)
def test_a_bill_of_what_is_no_usage_log(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    mistake(capsys, WRONG, says, "cost", "report", place / name)
    mistake(capsys, WRONG, says, "cost", "what-if", place / name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", "no such file or directory"),
        ("nothing", "holds no audit log of messages"),
        ("sheet.csv", "it must be *.parquet or *.jsonl, with the columns message_id, entity, time"),
        ("other.parquet", "it has no column 'message_id'"),
        ("nil.parquet", "cannot be read"),
        ("cut.parquet", "cannot be read"),
    ],
)
def test_a_certificate_of_what_is_no_ledger(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    good = place / "ledger.parquet"
    mistake(capsys, WRONG, says, "reconcile", "--sent", place / name, "--received", good)
    mistake(capsys, WRONG, says, "reconcile", "--sent", good, "--received", place / name)


@pytest.mark.parametrize("second", ["T10:15/2026-11-15T10:25", "T10:12/2026-11-15T10:13", "T10:20/2026-11-15T10:25", "T10:10/2026-11-15T10:20"])  # fmt: skip
def test_two_assumed_outages_at_the_same_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], second: str
) -> None:
    """What is sent in both would count twice."""
    spans = ["2026-11-15T10:10/2026-11-15T10:20", f"2026-11-15{second}"]
    for first, last in (spans, spans[::-1]):
        given = ("--away", first, "--away", "2026-11-15T11:00/2026-11-15T12:00", "--away", last)
        mistake(capsys, WRONG, "are one outage: give one FROM/TO", "cost", "what-if", *given, tmp_path)


def test_what_cannot_be_written_is_told_before_anything_is_read(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = place / "absent"
    mistake(
        capsys, WRONG, "there is no directory", "cost", "report", absent, "--html", place / "no" / "x.html"
    )
    mistake(capsys, WRONG, "it is a directory", "cost", "report", absent, "--html", place / "nothing")
    mistake(capsys, WRONG, "it is a file", "cost", "report", absent, "--csv", place / "sheet.csv")
    ledgers = ("--sent", absent, "--received", absent)
    mistake(capsys, WRONG, "it is a file", "reconcile", *ledgers, "--out", place / "sheet.csv")


def test_prices_that_are_not_there_are_told_before_anything_is_read(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, says in (
        (("--tier", "premium"), "no price table of premium"),
        (("--prices", "absent.json"), "the price file absent.json cannot be read: No such file or directory"),
        (("--from", "2026-11-16", "--to", "2026-11-15"), "is not before"),
    ):
        mistake(capsys, WRONG, says, "cost", "report", place / "absent", *arguments)


def test_a_file_that_turns_out_damaged_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its footer is whole, so only reading it shows: no stack of Java, and no answer from the rest."""
    small_session()
    whole = (place / "ledger.parquet").read_bytes()
    ids = (
        pyarrow.parquet.read_metadata(place / "ledger.parquet")
        .row_group(0)
        .column(SCHEMA.names.index("message_id"))
    )
    first, last = ids.data_page_offset + 100, ids.data_page_offset + 200
    hurt = place / "hurt.parquet"
    hurt.write_bytes(whole[:first] + bytes(byte ^ 0x5A for byte in whole[first:last]) + whole[last:])
    said = f"{hurt} cannot be read: it is damaged"
    for engine in ("local", "spark"):
        ledgers = ("--sent", hurt, "--received", place / "ledger.parquet")
        mistake(capsys, WRONG, said, "reconcile", *ledgers, "--engine", engine)


@pytest.mark.promise("B10")
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_damaged_audit_log_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    """A journal and a part, before Java starts."""
    small_session()
    rows = [row("sent", f"{number}") for number in range(100)]
    folder = tmp_path / "data" / "messages-audit"
    folder.mkdir(parents=True)
    journal = folder / f"journal-{2:016}-life.log"
    whole = journal_bytes(rows, "contoso")
    written = len(whole.rstrip(b"\0"))
    data = tmp_path / "data"
    arguments = ("reconcile", "--sent", data, "--received", data, "--engine", engine)
    hurts = (
        (whole[: written // 2], "is damaged at byte"),
        (whole[:300] + bytes(200) + whole[500:], "is damaged at byte 0"),
        (whole[:300] + b"\0" + whole[301:], "is damaged at byte 0"),
        (whole[500:], "is damaged at byte 0"),
        (b"", "is damaged at byte 0"),
    )
    for hurt, says in hurts:
        journal.write_bytes(hurt)
        mistake(capsys, WRONG, f"{journal} cannot be read (it {says}", *arguments)

    journal.write_bytes(whole)
    convert(journal, folder, "contoso")
    (part,) = folder.rglob("*.parquet")
    made = part.read_bytes()
    for at in range(4, len(made), 500):
        part.write_bytes(made[:at] + bytes([made[at] ^ 4]) + made[at + 1 :])
        mistake(capsys, WRONG, f"{part} cannot be read (it is damaged", *arguments)


@pytest.mark.promise("B10")
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_a_page_that_does_not_fit_its_checksum_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    """Of a file that is not a broker's own, and so has no checksum of the whole; Spark finds it where it alone can read."""
    small_session()
    ledger = tmp_path / "ledger.parquet"
    write(ledger, [row("sent", f"{number:05}") for number in range(5_000)])
    table = pyarrow.parquet.read_table(ledger)
    pyarrow.parquet.write_table(table, ledger, compression="none", use_dictionary=False, write_page_checksum=True)  # fmt: skip
    whole = ledger.read_bytes()
    good = tmp_path / "good.parquet"
    good.write_bytes(whole)
    ledger.write_bytes(whole.replace(b"02345", b"92345", 1))
    says = f"{ledger} cannot be read: it is damaged"
    mistake(capsys, WRONG, says, "reconcile", "--sent", ledger, "--received", good, "--engine", engine)
