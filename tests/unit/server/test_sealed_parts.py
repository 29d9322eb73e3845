"""Parts of the audit log and of the usage log that are damaged: none is read as another one (B10, decision 0206)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from pairbus.errors import UsageError
from pairbus.reports.engines.audit_log import AUDIT
from pairbus.reports.engines.usage_log import USAGE
from pairbus.reports.inputs import Inputs, Wanted, find_inputs
from pairbus.server.logs import message_journal, usage
from pairbus.server.logs.parquet import is_damaged, seal_number, write_part

NOW = 1_794_744_000_000
ROWS = 300
AUDIT_COLUMNS: dict[str, list[Any]] = {
    "time": [NOW + row for row in range(ROWS)],
    "kind": ["sent", "completed", "sent"] * (ROWS // 3),
    "sequence_number": list(range(ROWS)),
    "size": [4] * ROWS,
    **{name: [f"{name} {row % 7}" for row in range(ROWS)] for name in ("entity", "message_id", "sha256", "destination", "detail")},
    "session_id": [None] * ROWS,
    "namespace": ["contoso"] * ROWS,
}  # fmt: skip
USAGE_COLUMNS: dict[str, list[Any]] = {
    "bucket": [NOW] * ROWS,
    **{name: [f"{row}" for row in range(ROWS)] for name in ("namespace", "entity", "operation", "stage")},
    **{name: list(range(ROWS)) for name in ("count", "bytes", "units", "connection_peak")},
}
LOGS = {
    "audit": (AUDIT, message_journal.TYPES, AUDIT_COLUMNS),
    "usage": (USAGE, usage.TYPES, USAGE_COLUMNS),
}


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Wanted, Path]:
    """A data directory with one part, and the part."""
    wanted, types, columns = LOGS[request.param]
    directory = tmp_path / wanted.folder / "hour=2026-11-15T12"
    write_part(directory, "part-0000000000000001-life.parquet", types, columns, 7)
    return wanted, directory / "part-0000000000000001-life.parquet"


def found(wanted: Wanted, part: Path) -> Inputs | None:
    """What a report would read; None: it refuses the only file, and names it."""
    try:
        return find_inputs(None, [str(part.parent.parent)], wanted)
    except UsageError as error:
        if str(part) not in str(error):
            raise
        return None


@pytest.mark.promise("B10")
def test_a_flipped_bit_anywhere_in_a_part_is_noticed(log: tuple[Wanted, Path]) -> None:
    wanted, part = log
    whole = part.read_bytes()
    assert not is_damaged(part)
    assert seal_number(part) == 7
    for at in range(len(whole)):
        if at % 5 and at < len(whole) - 300:
            continue
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        part.write_bytes(flipped)
        assert is_damaged(part), at
        if at % 97 == 0:
            assert found(wanted, part) is None


@pytest.mark.promise("B10")
def test_a_part_that_was_cut_or_zeroed_is_refused(log: tuple[Wanted, Path]) -> None:
    wanted, part = log
    whole = part.read_bytes()
    for length in [0, 1, 4, 8, 12, 20, *range(100, len(whole), 211), len(whole) - 1]:
        part.write_bytes(whole[:length])
        assert found(wanted, part) is None, length
        part.write_bytes(whole[:length].ljust(len(whole), b"\0"))
        assert found(wanted, part) is None, length
        zeroed = whole[:length] + bytes(200) + whole[length + 200 :]
        part.write_bytes(zeroed)
        assert found(wanted, part) is None, length


def test_a_part_of_an_older_version_is_read(log: tuple[Wanted, Path]) -> None:
    wanted, part = log
    table = pyarrow.parquet.ParquetFile(part).read()
    pyarrow.parquet.write_table(table.replace_schema_metadata(None), part)
    assert (is_damaged(part), seal_number(part)) == (False, None)
    inputs = found(wanted, part)
    assert inputs is not None
    assert (inputs.parquet, inputs.damaged) == ([str(part)], {})

    # So is what others made of parts.
    joined = part.with_name("joined.parquet")
    pyarrow.parquet.write_table(table, joined)
    assert not is_damaged(joined)


def test_a_copy_of_a_sealed_part_beside_it_counts_once(log: tuple[Wanted, Path], tmp_path: Path) -> None:
    """And that is the undamaged one, if one is damaged, and the damaged one is named."""
    wanted, part = log
    copy = tmp_path / "copy" / wanted.folder / part.parent.name / part.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(part.read_bytes()[:-1] + b"x")
    inputs = find_inputs(None, [str(part.parent.parent), str(copy.parent.parent)], wanted)
    assert inputs.parquet == [str(part)]
    assert list(inputs.damaged) == [str(copy)]
