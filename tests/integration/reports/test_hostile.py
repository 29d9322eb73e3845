"""Files that no broker wrote: columns of other types, bytes that are no text, impossible times. Both engines give the same answer and the same exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from pairbus.cli.root import main
from tests.integration.reports.ledger_kit import NOON_MS, SHA, row, write, write_table
from tests.integration.reports.test_engines import USAGE_ROW
from tests.integration.spark.kit import small_session

pytestmark = pytest.mark.timeout(900)  # the first test of a process starts Java
ENGINES = ("local", "spark")
YEAR_10000_MS = 253_402_300_800_000
YEAR_0_MS = -62_135_596_800_001
NO_TEXT = pyarrow.array([b"a", b"\xff\xfe", b"c"], pyarrow.binary()).view(pyarrow.string())
Answer = tuple[int, str, str]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Answer:
    """The exit code, the output and the errors that both engines give."""
    small_session()
    answers = []
    for engine in ENGINES:
        code = 0
        try:
            main([*map(str, arguments), "--engine", engine])
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capsys.readouterr()
        answers.append((code, told.out, told.err))
    assert answers[0] == answers[1]
    return answers[0]


def changed(path: Path, whole: pyarrow.Table, **columns: Any) -> Path:
    """A file with other columns in place of those of the same name."""
    for name, column in columns.items():
        whole = whole.set_column(whole.column_names.index(name), name, column)
    return Path(write_table(path, whole))


@pytest.fixture
def ledger(tmp_path: Path) -> pyarrow.Table:
    return parquet.read_table(write(tmp_path / "whole.parquet", [row("sent", name) for name in "abc"]))


def times(unit: str, *values: int) -> pyarrow.Array:
    return pyarrow.array(values, pyarrow.int64()).cast(pyarrow.timestamp(unit, tz="UTC"))


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "id-no-text": (
        {"message_id": NO_TEXT},
        "it is damaged (row 2 of column 'message_id' is no text in UTF-8); restore it, or take it away",
    ),
    "detail-no-text": (
        {"detail": NO_TEXT},
        "it is damaged (row 2 of column 'detail' is no text in UTF-8); restore it, or take it away",
    ),
    "number-text": (
        {"sequence_number": ["1", "2", "3"]},
        "column 'sequence_number' is string, expected int64: write it as that, or leave it out",
    ),
    "number-float": ({"sequence_number": [1.0, 2.0, None]}, "column 'sequence_number' is double"),
    "number-unsigned": (
        {"sequence_number": pyarrow.array([1, 2, 2**63], pyarrow.uint64())},
        "column 'sequence_number' is uint64",
    ),
    "kind-number": ({"kind": [1, 2, 3]}, "column 'kind' is int64, expected string"),
    "detail-struct": ({"detail": [{"a": 1}] * 3}, "column 'detail' is struct<a: int64>"),
    "detail-list": ({"detail": [["a"]] * 3}, "column 'detail' is list<element: string>"),
    "hash-bytes": (
        {"sha256": pyarrow.array([bytes(32)] * 3, pyarrow.binary(32))},
        "column 'sha256' is fixed_size_binary[32]",
    ),
    "id-null": ({"message_id": pyarrow.nulls(3)}, "column 'message_id' is null, expected string: write it as that"),
    "time-text": ({"time": ["2026-11-15"] * 3}, "column 'time' is string, expected timestamp"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_ledger_that_cannot_be_read_is_refused(
    tmp_path: Path, ledger: pyarrow.Table, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    columns, says = REFUSED[name]
    columns = {
        at: column if isinstance(column, pyarrow.Array) else pyarrow.array(column)
        for at, column in columns.items()
    }
    file = changed(tmp_path / "hostile.parquet", ledger, **columns)
    code, out, err = run(capsys, "reconcile", "--sent", file, "--received", tmp_path / "whole.parquet")
    assert (code, out) == (2, "")
    assert err.startswith(f"pairbus: {file}")
    assert says in err


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"destination": "Destination"}, "has 'Destination' where one column 'destination' is expected"),
        ({"namespace": "Kind"}, "has 'Kind', 'kind' where one column 'kind' is expected"),
        ({"namespace": "kind"}, "has 'kind', 'kind' where one column 'kind' is expected"),
    ],
)
def test_columns_that_differ_only_in_case_are_refused(
    tmp_path: Path,
    ledger: pyarrow.Table,
    capsys: pytest.CaptureFixture[str],
    names: Mapping[str, str],
    says: str,
) -> None:
    """Spark does not regard case, and the other engine does."""
    named = [names.get(name, name) for name in ledger.column_names]
    file = write_table(tmp_path / "hostile.parquet", ledger.rename_columns(named))
    code, _, err = run(capsys, "reconcile", "--sent", file, "--received", tmp_path / "whole.parquet")
    assert code == 2
    assert says in err


def test_columns_of_every_form_and_impossible_times_are_read_alike(
    tmp_path: Path, ledger: pyarrow.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    sent, optional = tmp_path / "sent", ("kind", "destination", "detail", "namespace", "session_id", "sequence_number")  # fmt: skip
    forms: dict[str, dict[str, Any]] = {f"null-{name}": {name: pyarrow.nulls(3)} for name in optional}
    for unit, least, most in (("ms", 1, 1), ("us", 1_000, 999)):
        before, after = YEAR_0_MS * least, YEAR_10000_MS * least
        forms[f"{unit}-at-the-ends"] = {"time": times(unit, before + least, after - 1, 0)}
        forms[f"{unit}-beyond"] = {"time": times(unit, before - most, after, 2**62)}
    forms["negative"] = {"time": times("ms", -3_000_000_000_000, -1, -(2**62))}
    forms["ns"] = {"time": times("ns", 2**63 - 1, -(2**63) + 1, -1)}
    forms["unsigned"] = {"sequence_number": pyarrow.array([1, 2, 2**32 - 1], pyarrow.uint32())}
    forms["small"] = {"sequence_number": pyarrow.array([1, 2, 3], pyarrow.int8())}
    names = ledger["message_id"]
    forms["large"] = {"message_id": names.cast(pyarrow.large_string())}
    forms["dictionary"] = {"message_id": names.combine_chunks().dictionary_encode()}
    for form, columns in forms.items():
        own = pyarrow.array([f"{form}-{name}" for name in "abc"])
        changed(sent / f"{form}.parquet", changed_id(ledger, own), **(columns | named(columns, own)))
    # Spark itself writes such times unless it is told otherwise.
    fine = ledger.set_column(0, "time", times("us", NOON_MS * 1_000, NOON_MS * 1_000 + 1, -1))
    parquet.write_table(fine, sent / "int96.parquet", use_deprecated_int96_timestamps=True)

    code, out, _ = run(
        capsys, "reconcile", "--sent", sent, "--received", tmp_path / "whole.parquet", "--json"
    )

    found = json.loads(out)
    assert code == 1  # they have not arrived
    assert found["accepted"] == 3 * (len(forms) + 1) - found["rows"]["sent"]["quarantined"]
    assert found["quarantined"] == {"sent: time is missing or no time": 7}
    assert found["arrived"] == 3


def changed_id(table: pyarrow.Table, names: pyarrow.Array) -> pyarrow.Table:
    return table.set_column(table.column_names.index("message_id"), "message_id", names)


def named(columns: Mapping[str, Any], names: pyarrow.Array) -> dict[str, Any]:
    """The ids of a form, in the type that its column has."""
    if "message_id" not in columns:
        return {}
    kind = columns["message_id"].type
    return {
        "message_id": names.dictionary_encode()
        if pyarrow.types.is_dictionary(kind)
        else pyarrow.chunked_array([names]).cast(kind)
    }


LINES: Mapping[str, tuple[str | bytes, bool]] = {
    "object": ('"message_id": {"a": 1}', False),
    "list": ('"message_id": ["a", 1]', False),
    "object-as-time": ('"message_id": "t", "time": {"a": 1}', False),
    "number-as-text": ('"message_id": "n", "sequence_number": "1"', False),
    "number-float": ('"message_id": "f", "sequence_number": 1.0', False),
    "number-without-end": (f'"message_id": "e", "sequence_number": {"9" * 5_000}', False),
    "no-text": (b'"message_id": "\xff\xfe"', False),
    "id-number": ('"message_id": 1.50', True),
    "twice": ('"message_id": "x", "message_id": "y"', True),
    # Half of a surrogate pair is no text. Two halves are two ids, and none is a question mark.
    "half": (r'"message_id": "\ud800"', False),
    "other-half": (r'"message_id": "?", "destination": "\udc00"', False),
    "pair": (r'"message_id": "\ud83d\ude00"', True),
    # The years 1 to 9999, in UTC.
    "first": ('"message_id": "first", "time": "0001-01-01T00:00:00"', True),
    "first-ms": ('"message_id": "first-ms", "time": -62135596800000', True),
    "first-offset": ('"message_id": "o1", "time": "0001-01-01T00:00:00+00:01"', False),
    "year-0": ('"message_id": "o2", "time": "0000-12-31T23:59:59"', False),
    "before-ms": ('"message_id": "o3", "time": -62135596800001', False),
    "last": ('"message_id": "last", "time": "9999-12-31T23:59:59.999999"', True),
    "last-ms": ('"message_id": "last-ms", "time": 253402300799999', True),
    "last-offset": ('"message_id": "o4", "time": "9999-12-31T23:59:59.999999-14:00"', False),
    "after-ms": ('"message_id": "o5", "time": 253402300800000', False),
    "last-hour": ('"message_id": "last-hour", "time": "9999-12-31T23:59:59+01:00"', True),
}


def test_lines_of_json_are_read_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = f', "entity": "orders", "sha256": "{SHA}"'
    lines = []
    for text, _ in LINES.values():
        data = text if isinstance(text, bytes) else text.encode()
        time = b"" if b'"time"' in data else b', "time": 1794744000000'
        lines.append(b"{" + data + time + rest.encode() + b"}")
    good = [row("sent", name) for name in "abcd"]
    # Files with the mark of a Unicode file at their beginnings, joined.
    marked = [b"\xef\xbb\xbf" + json.dumps(one).encode() for one in good]
    # Spark takes one mark away from the beginning of a file. An empty file was the first of those that were joined.
    (tmp_path / "sent.jsonl").write_bytes(
        b"\n".join([b"\xef\xbb\xbf" + marked[0], *marked[1:], *lines, b"\xef\xbb\xbf", b""])
    )
    (tmp_path / "wide.jsonl").write_bytes(json.dumps(good[0]).encode("utf-16"))
    # With each other's halves of a pair, and a sign that stands for what is no text.
    good += [row("sent", name) for name in ("?", "\ufffd", "\U0001f600")]
    received = write(tmp_path / "received.parquet", good)

    code, out, _ = run(
        capsys, "reconcile", "--json", "--received", received,
        "--sent", tmp_path / "sent.jsonl", "--sent", tmp_path / "wide.jsonl",
    )  # fmt: skip

    found = json.loads(out)
    assert code == 1  # those that are read and not among the arrived
    assert found["arrived"] == 5
    assert found["lost"] == sum(is_read for _, is_read in LINES.values()) - 1  # the pair has arrived
    assert found["unexpected"] == 2
    assert sum(found["quarantined"].values()) == 1 + sum(not is_read for _, is_read in LINES.values())


def usage(path: Path, **columns: Any) -> Path:
    names = ("bucket", "namespace", "entity", "operation", "stage", "count", "bytes", "units")
    whole = pyarrow.table({name: [USAGE_ROW[name]] * 3 for name in names})
    whole = whole.append_column("connection_peak", pyarrow.array([0] * 3, pyarrow.int32()))
    return changed(path, whole, **{"bucket": times("ms", *[NOON_MS] * 3), **columns})


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"entity": NO_TEXT}, "it is damaged (row 2 of column 'entity' is no text in UTF-8)"),
        ({"count": pyarrow.array([1, 2, 3], pyarrow.uint64())}, "column 'count' is uint64, expected int64"),
    ],
)
def test_a_usage_log_that_cannot_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: Mapping[str, Any], says: str
) -> None:
    file = usage(tmp_path / "hostile.parquet", **columns)
    for report in ("report", "what-if"):
        code, out, err = run(capsys, "cost", report, file)
        assert (code, out) == (2, "")
        assert err.startswith(f"pairbus: {file}")
        assert says in err


def test_usage_logs_with_impossible_times_are_read_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usage(tmp_path / "in" / "ms.parquet", bucket=times("ms", NOON_MS, YEAR_10000_MS, 2**62))
    usage(tmp_path / "in" / "us.parquet", bucket=times("us", NOON_MS * 1_000, -1, -(2**62)))
    usage(tmp_path / "in" / "ns.parquet", bucket=times("ns", NOON_MS * 1_000_000, 2**63 - 1, -(2**63) + 1))
    usage(tmp_path / "in" / "long.parquet", connection_peak=pyarrow.array([1, 2**31, 3]))

    for bounds in ((), ("--from", "2026-11-01"), ("--to", "2026-12-01")):
        code, out, _ = run(capsys, "cost", "report", tmp_path / "in", "--json", *bounds)

        assert code == 1  # rows are quarantined
        if not bounds:
            assert sum(json.loads(out)["rows"]["quarantined"].values()) == 6


def test_lines_of_a_usage_log_with_impossible_times_and_texts_are_read_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = (
        "9999-12-31T23:59:59.999999-14:00",
        "0001-01-01T00:00:00+01:00",
        "0001-01-01",
        -1,
        253402300799999,
    )
    odd: list[dict[str, object]] = [
        *(dict[str, object](bucket=time) for time in times),
        {"entity": "\ud800"},
        {"namespace": "\udfff"},
    ]
    lines = [json.dumps({**USAGE_ROW, **change}) for change in ({}, *odd)]
    (tmp_path / "usage.jsonl").write_text("\n".join(lines))

    code, out, _ = run(capsys, "cost", "report", tmp_path / "usage.jsonl", "--json")

    assert code == 1  # rows are quarantined
    assert sum(json.loads(out)["rows"]["quarantined"].values()) == len(odd)
