"""Compaction of a capture: many small files of an hour become few, at once for every reader.

An hour is rewritten beside the old one, out of readers' sight, and then both directories change places in one step of
the file system. So a reader, Spark or other, sees the old files or the new ones, never both and never neither, whatever
is killed when. Only batches that are committed are joined: they are never written again (docs/decisions/0021).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.errors import PairbusError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES: Final = 128 * 1024 * 1024
"""How large a file of a compacted hour becomes at the most, roughly."""
JOINED: Final = "compact-"
"""How the batch of joined files is called."""
WORK: Final = "_compaction"
LOCK: Final = "_lock"
_STAGING: Final = (".spark-staging-*", "_temporary")
_HERE: Final = -100
_EXCHANGE: Final = 2
_CANNOT: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

Join = Callable[[Sequence[Path], Path, int], None]
"""Writes the rows of some files into a new directory, in so many files."""


@dataclass(frozen=True, slots=True)
class Compacted:
    hours: int = 0
    files_before: int = 0
    files_after: int = 0
    """Of the hours that were rewritten."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a checkpoint says: every batch of this query up to this number is final."""

    query: str
    number: int

    def has(self, batch: str) -> bool:
        """Whether a batch will never be written again."""
        query, _, number = batch.rpartition("-")
        if batch.startswith(JOINED):
            return True
        return query == self.query and number.isdecimal() and int(number) <= self.number


def compact(path: str, spark: SparkSession, checkpoint: str | None = None) -> Compacted:
    """Join the small files of each hour of a capture. Safe beside a running capture and against a kill at any point.

    Raises:
        UsageError: The directory is not a capture on a local disk.
    """
    directory = local_directory(spark, path)
    where = local_directory(spark, checkpoint or f"{path}/_checkpoint")
    if directory is None or where is None:
        raise UsageError(
            f"{path} is not on a local disk: its files cannot be exchanged at once; read it with Spark and write it "
            "into another directory"
        )
    return compact_directory(directory, committed(where), _joining(spark))


def compact_directory(
    directory: Path, final: Committed, join: Join, file_bytes: int = FILE_BYTES
) -> Compacted:
    """Join the files of every hour that has more of them than it needs."""
    with exclusive(directory):
        # What a killed compaction left: its half-written hour, or an old one that was exchanged already.
        shutil.rmtree(directory / WORK, ignore_errors=True)
        _try_exchange(directory / WORK)
    done = Compacted()
    for hour in sorted(directory.glob("entity=*/date=*/hour=*")):
        # A running capture waits for one hour at the most.
        with exclusive(directory):
            before, after = _compact_hour(directory, hour, final, join, file_bytes)
        if before:
            done = Compacted(done.hours + 1, done.files_before + before, done.files_after + after)
    with exclusive(directory):
        shutil.rmtree(directory / WORK, ignore_errors=True)
    return done


def _compact_hour(
    directory: Path, hour: Path, final: Committed, join: Join, file_bytes: int
) -> tuple[int, int]:
    """Rewrite one hour if that is worth it. Returns how many files were joined into how many."""
    batches = sorted(hour.glob("batch=*"))
    joined = [batch for batch in batches if final.has(batch.name.removeprefix("batch="))]
    files = [file for batch in joined for file in sorted(batch.glob("*.parquet"))]
    wanted = max(1, -(-sum(file.stat().st_size for file in files) // file_bytes))
    if len(files) <= wanted:
        return 0, 0
    draft = directory / WORK / hour.relative_to(directory)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    target = draft / f"batch={JOINED}{uuid.uuid4().hex}"
    join(files, target, wanted)
    written = sorted(target.glob("*.parquet"))
    _check(files, written, hour)
    for batch in batches:
        if batch not in joined:
            # The same files under a second name: they are not final, and may still be written again.
            shutil.copytree(batch, draft / batch.name, copy_function=os.link)
    _sync_tree(draft)
    exchange(draft, hour)
    _sync(hour.parent)
    shutil.rmtree(draft)
    return len(files), len(written)


def _check(files: Sequence[Path], written: Sequence[Path], hour: Path) -> None:
    from pyarrow import parquet

    before, after = (sum(parquet.read_metadata(file).num_rows for file in some) for some in (files, written))
    if before != after:
        raise PairbusError(f"{hour}: {before} rows became {after}; nothing was changed")


def _joining(spark: SparkSession) -> Join:
    def join(files: Sequence[Path], target: Path, count: int) -> None:
        # Not as_uri(): Spark takes names as they are, and does not decode them.
        rows = spark.read.option("mergeSchema", "true").parquet(*(f"file://{file}" for file in files))
        spread = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, "sequence_number")
        spread.sortWithinPartitions("sequence_number").write.parquet(f"file://{target}")
        (target / "_SUCCESS").unlink(missing_ok=True)

    return join


# --- what is final --------------------------------------------------------------------------------


def committed(checkpoint: Path) -> Committed:
    """What a checkpoint says is final, made durable first: a commit that a power failure undoes would not be final."""
    try:
        query = str(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{checkpoint} is no checkpoint of a capture: give --checkpoint, else it is not known which files are final"
        ) from None
    numbers = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*") if file.name.isdecimal()]
    for folder in ("offsets", "commits"):
        if numbers:
            _sync(checkpoint / folder / str(max(numbers)))
            _sync(checkpoint / folder)
    return Committed(query, max(numbers, default=-1))


# --- the file system ------------------------------------------------------------------------------


def local_directory(spark: SparkSession, path: str) -> Path | None:
    """Where a path of Spark is on this machine's disks; None when it is elsewhere."""
    java = spark.sparkContext._jvm
    assert java is not None, "a session has its Java"
    place = java.org.apache.hadoop.fs.Path(path)
    system = place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if system.getScheme() != "file":
        return None
    return Path(system.makeQualified(place).toUri().getPath())


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Nobody else changes the capture meanwhile: a batch is written, or an hour compacted. A kill lets go."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_leftovers(directory: Path) -> None:
    """Remove what a killed batch was writing; no reader ever saw it."""
    with exclusive(directory):
        for pattern in _STAGING:
            for left in directory.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)


def exchange(left: Path, right: Path) -> None:
    """Let two directories change places, in one step (renameat2 with RENAME_EXCHANGE). Raises UsageError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    failed = errno.ENOSYS
    if function is not None:
        done = function(_HERE, os.fsencode(left), _HERE, os.fsencode(right), ctypes.c_uint(_EXCHANGE))
        if done == 0:
            return
        failed = ctypes.get_errno()
    if failed in _CANNOT:
        raise UsageError(
            f"the file system of {right} cannot exchange two directories at once: compaction needs a local disk of Linux"
        )
    raise OSError(failed, os.strerror(failed), str(right))


def _try_exchange(work: Path) -> None:
    """Find out before anything is written."""
    first, second = work / "a", work / "b"
    for directory in (first, second):
        directory.mkdir(parents=True)
    exchange(first, second)
    for directory in (first, second):
        directory.rmdir()


def _sync_tree(directory: Path) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            _sync(Path(folder) / name)
        _sync(Path(folder))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
