from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pytest
from pyarrow import dataset, parquet

from pairbus.errors import PairbusError, UsageError
from pairbus.spark.capture import compaction
from pairbus.spark.capture.compaction import Committed, Compacted, committed, compact_directory, exchange

QUERY = "5f0c6c0e-0000-4000-8000-000000000001"
HOUR = "entity=orders/date=2026-11-15/hour=13"
FINAL = Committed(QUERY, 3)


def write_batch(directory: Path, number: int, ids: range, hour: str = HOUR, query: str = QUERY) -> Path:
    batch = directory / hour / f"batch={query}-{number:09d}"
    batch.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"sequence_number": list(ids)}), batch / "part-0.parquet")
    return batch


def join(files: Sequence[Path], target: Path, count: int) -> None:
    target.mkdir()
    rows = pyarrow.concat_tables(parquet.read_table(file, partitioning=None) for file in files)
    size = -(-rows.num_rows // count)
    for index in range(count):
        parquet.write_table(rows.slice(index * size, size), target / f"part-{index}.parquet")


def seen(directory: Path) -> list[int]:
    """What a reader that knows nothing of us finds, each as often as it does."""
    table = dataset.dataset(directory, format="parquet", partitioning="hive").to_table(["sequence_number"])
    return sorted(table["sequence_number"].to_pylist())


def files(directory: Path) -> list[str]:
    return sorted(str(file.relative_to(directory)) for file in directory.glob("entity=*/*/*/*/*.parquet"))


def test_files_of_an_hour_become_one_and_every_message_stays_once(tmp_path: Path) -> None:
    for number in range(4):
        write_batch(tmp_path, number, range(number * 10, number * 10 + 10))
    write_batch(tmp_path, 3, range(90, 95), hour="entity=orders/date=2026-11-15/hour=14")

    done = compact_directory(tmp_path, FINAL, join)

    assert done == Compacted(1, 4, 1)
    assert seen(tmp_path) == [*range(40), *range(90, 95)]
    assert len(files(tmp_path)) == 2
    assert not (tmp_path / compaction.WORK).exists()
    assert compact_directory(tmp_path, FINAL, join) == Compacted()


def test_a_second_compaction_takes_up_what_came_since(tmp_path: Path) -> None:
    for number in range(2):
        write_batch(tmp_path, number, range(number * 10, number * 10 + 10))
    compact_directory(tmp_path, FINAL, join)
    write_batch(tmp_path, 2, range(20, 30))

    assert compact_directory(tmp_path, FINAL, join) == Compacted(1, 2, 1)
    assert seen(tmp_path) == list(range(30))


def test_an_hour_is_cut_into_files_of_a_fair_size(tmp_path: Path) -> None:
    sizes = [
        next(write_batch(tmp_path, number, range(number * 100, number * 100 + 100)).iterdir()).stat().st_size
        for number in range(4)
    ]

    done = compact_directory(tmp_path, FINAL, join, file_bytes=sum(sizes) // 2 + 1)

    assert done == Compacted(1, 4, 2)
    assert seen(tmp_path) == list(range(400))


@pytest.mark.promise("D1")
def test_a_batch_that_may_be_written_again_is_left_alone(tmp_path: Path) -> None:
    for number in (2, 3, 4):
        write_batch(tmp_path, number, range(number * 10, number * 10 + 10))
    write_batch(tmp_path, 1, range(90, 95), query="5f0c6c0e-0000-4000-8000-000000000002")

    assert compact_directory(tmp_path, FINAL, join) == Compacted(1, 2, 1)

    # Number 4 is not committed: a restart writes it anew, at the same place.
    again = tmp_path / HOUR / f"batch={QUERY}-{4:09d}"
    assert again.is_dir()
    shutil.rmtree(again)
    write_batch(tmp_path, 4, range(40, 50))
    assert seen(tmp_path) == [*range(20, 50), *range(90, 95)]


def test_a_join_that_loses_rows_changes_nothing(tmp_path: Path) -> None:
    for number in range(2):
        write_batch(tmp_path, number, range(number * 10, number * 10 + 10))
    before = files(tmp_path)

    with pytest.raises(PairbusError, match="20 rows became 10; nothing was changed"):
        compact_directory(tmp_path, FINAL, lambda some, target, count: join(some[:1], target, count))

    assert files(tmp_path) == before


KILLED = """
import os, signal, sys
from pathlib import Path
from pairbus.spark.capture import compaction
from tests.unit.spark.test_compaction import FINAL, join

place = sys.argv[2]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def joining(files, target, count):
    join(files, target, count)
    if place == "written":
        die()

exchange, removed = compaction.exchange, compaction.shutil.rmtree

def exchanging(left, right):
    is_hour = right.name.startswith("hour=")
    if is_hour and place == "before exchange":
        die()
    exchange(left, right)
    if is_hour and place == "after exchange":
        die()

def removing(path, **more):
    if Path(path).name.startswith("hour=") and Path(path).exists() and place == "while removing":
        next(Path(path).rglob("*.parquet")).unlink()
        die()
    removed(path, **more)

compaction.exchange, compaction.shutil.rmtree = exchanging, removing
compaction.compact_directory(Path(sys.argv[1]), FINAL, joining)
"""


@pytest.mark.promise("D2")
@pytest.mark.parametrize("place", ["written", "before exchange", "after exchange", "while removing"])
def test_killed_anywhere_a_reader_finds_every_message_once_before_and_after_the_next_try(
    tmp_path: Path, place: str
) -> None:
    for number in range(4):
        write_batch(tmp_path, number, range(number * 10, number * 10 + 10))
    write_batch(tmp_path, 4, range(40, 50))

    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), place], cwd=Path(__file__).parents[3], check=False
    )

    assert killed.returncode == -signal.SIGKILL
    assert seen(tmp_path) == list(range(50))
    compact_directory(tmp_path, FINAL, join)
    assert seen(tmp_path) == list(range(50))
    assert len(files(tmp_path)) == 2
    assert not (tmp_path / compaction.WORK).exists()


def test_what_a_checkpoint_calls_final(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
        for name in ("0", "9", "10", ".10.crc"):
            (tmp_path / folder / name).touch()

    final = committed(tmp_path)

    assert final == Committed(QUERY, 10)
    assert final.has(f"{QUERY}-000000010")
    assert final.has("compact-0123")
    assert not final.has(f"{QUERY}-000000011")
    assert not final.has("another-000000001")
    assert not final.has("nothing")


def test_without_a_checkpoint_nothing_is_final_and_one_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no checkpoint of a capture: give --checkpoint"):
        committed(tmp_path)


def test_directories_change_places_or_a_sentence_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"in {name}").touch()

    exchange(tmp_path / "a", tmp_path / "b")

    assert os.listdir(tmp_path / "a") == ["in b"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "nowhere")
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    with pytest.raises(UsageError, match="cannot exchange two directories at once"):
        exchange(tmp_path / "a", tmp_path / "b")


def test_leftovers_of_a_killed_batch_go(tmp_path: Path) -> None:
    (tmp_path / ".spark-staging-1" / "entity=orders").mkdir(parents=True)
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    batch = write_batch(tmp_path, 0, range(3))

    compaction.remove_leftovers(tmp_path)

    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["_lock", "entity=orders"]
    assert batch.is_dir()
