"""Rows of the message audit: what a line has, and that lines of an older version are read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet

from pairbus.amqp.message.scan import scan
from pairbus.amqp.message.whole import encode_message
from pairbus.drain.redriving import redriven
from pairbus.gateway.telemetry.audit_rows import AuditRow
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.server.logs.audit_reserve import AuditReserve
from pairbus.server.logs.journal_blocks import block
from pairbus.server.logs.message_journal import (
    FIELDS,
    TYPES,
    AuditJournal,
    convert,
    encode_row,
    namespace_of,
)

NOW = 1_699_999_200_000


def line(payload: bytes, path: str = "orders") -> dict[str, object]:
    row = AuditRow("sent", path, 7, NOW, scan(payload, False).blob, "")
    return dict(zip(FIELDS[:-1], json.loads(encode_row(row)), strict=True))


def test_a_row_has_the_session_of_its_message_and_of_the_original_of_a_parked_one() -> None:
    with_session = encode_message(message_id="m", group_id="a", body=b"x", body_kind="data")
    without = encode_message(message_id="m", body=b"x", body_kind="data")
    parked = parking.park(with_session, "orders", Passport("f", 1, 1, "r"))
    parked_without = parking.park(without, "orders", Passport("f", 1, 1, "r"))

    assert line(with_session)["session_id"] == "a"
    assert line(without)["session_id"] is None
    found = line(parked, "contoso/x-servicebus-transfer/0")
    assert (found["session_id"], found["destination"]) == ("a", "orders")
    assert line(parked_without, "contoso/x-servicebus-transfer/0")["session_id"] is None


def test_a_journal_of_an_older_version_is_converted(tmp_path: Path) -> None:
    old = [NOW, "sent", "orders", 1, "m", 1, "0" * 64, "", ""]
    data = json.dumps(old).encode() + b"\n"
    journal = tmp_path / "journal-0000000000000001-boot.log"
    journal.write_bytes(block(1, data))

    convert(journal, tmp_path, "contoso")

    (part,) = tmp_path.glob("hour=*/part-*.parquet")
    (row,) = pyarrow.parquet.ParquetFile(part).read().to_pylist()
    assert (row["message_id"], row["namespace"], row["session_id"]) == ("m", "contoso", None)


def test_a_journal_names_its_namespace_from_its_first_row_on(tmp_path: Path) -> None:
    assert set(FIELDS) == set(TYPES)
    reserve = AuditReserve(tmp_path, 0)
    journal = AuditJournal(tmp_path, "contoso", 1, "boot", reserve)
    assert namespace_of(journal.path) is None
    rows = [AuditRow("sent", "orders", number, NOW, b"", "") for number in range(3)]
    journal.write(1, rows[:2])
    assert namespace_of(journal.path) == "contoso"
    journal.write(2, rows[2:])
    journal.close()
    reserve.close()

    convert(journal.path, tmp_path, "another name")

    (part,) = tmp_path.glob("hour=*/part-*.parquet")
    found = pyarrow.parquet.ParquetFile(part).read().to_pylist()
    assert [(row["sequence_number"], row["namespace"]) for row in found] == [
        (number, "contoso") for number in range(3)
    ]


def test_a_send_that_put_a_dead_letter_of_the_backlog_back_is_told_from_others() -> None:
    plain = parking.park(
        encode_message(message_id="m", body=b"x", body_kind="data"), "orders", Passport("f", 1, 1, "r")
    )

    assert line(plain)["detail"] == ""
    assert line(redriven(plain))["detail"] == "redriven"
    completed = AuditRow("completed", "orders", 7, NOW, scan(redriven(plain), False).blob, "")
    assert json.loads(encode_row(completed))[FIELDS.index("detail")] == ""
