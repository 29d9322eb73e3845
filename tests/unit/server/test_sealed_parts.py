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


def part_of(log: tuple[Wanted, Path], name: str, hours_later: int = 0) -> Path:
    """Another part beside the one of the log."""
    wanted, part = log
    _, types, columns = LOGS["audit" if wanted is AUDIT else "usage"]
    at = "time" if wanted is AUDIT else "bucket"
    moved = {**columns, at: [ms + hours_later * 3_600_000 for ms in columns[at]]}
    directory = part.parent.parent / f"hour=2026-11-15T{12 + hours_later}"
    write_part(directory, name, types, moved, 9)
    return directory / name


@pytest.mark.promise("B10")
@pytest.mark.parametrize("other", ["of another name", "of another hour"])
def test_a_part_in_the_place_of_another_one_is_refused(log: tuple[Wanted, Path], other: str) -> None:
    wanted, part = log
    second = (
        part_of(log, "part-0000000000000008-life.parquet")
        if other == "of another name"
        else part_of(log, part.name, hours_later=1)
    )
    assert found(wanted, part) is not None
    second.write_bytes(part.read_bytes())
    inputs = find_inputs(None, [str(part.parent.parent)], wanted)
    assert inputs.parquet == [str(part)]
    assert list(inputs.damaged) == [str(second)]
    assert f"{part.parent.name}/{part.name}" in inputs.damaged[str(second)]


@pytest.mark.promise("D8")
@pytest.mark.parametrize("place", ["flat", "x/y", "renamed"])
def test_a_copy_of_a_sealed_part_counts_once_wherever_it_lies(
    log: tuple[Wanted, Path], tmp_path: Path, place: str
) -> None:
    wanted, part = log
    copy = tmp_path / place / (part.name if place != "renamed" else f"copy of {part.name}")
    copy.parent.mkdir(parents=True)
    copy.write_bytes(part.read_bytes())
    inputs = find_inputs(None, [str(part.parent.parent), str(copy.parent)], wanted)
    assert len(inputs.parquet) == len(inputs.repeated) == 1
    assert inputs.damaged == {}


def test_a_part_of_several_hours_is_one_part_for_each(log: tuple[Wanted, Path], tmp_path: Path) -> None:
    wanted, part = log
    second = part_of(log, part.name, hours_later=1)
    flat = [tmp_path / "flat" / f"{one.parent.name[-2:]}.parquet" for one in (part, second)]
    flat[0].parent.mkdir()
    for copy, one in zip(flat, (part, second), strict=True):
        copy.write_bytes(one.read_bytes())
    inputs = find_inputs(None, [str(part.parent.parent), str(tmp_path / "flat")], wanted)
    assert (len(inputs.parquet), len(inputs.repeated)) == (2, 2)
