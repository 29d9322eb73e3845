"""Look into a data directory without changing it: for operators, export and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pairbus.errors import StoreCorrupt, StoreUnavailable
from pairbus.storage.files import UNFINISHED_SUFFIX, FileSystem, RealFileSystem
from pairbus.storage.identity import (
    FORMAT_FILE,
    LOCK_FILE,
    MARKED_SINCE,
    check_identity,
    missing_format,
    read_identity,
)
from pairbus.storage.log import recovery
from pairbus.storage.log.mark import MARK_FILE
from pairbus.storage.log.segment import segment_number

if TYPE_CHECKING:
    from pairbus.engine.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check found; damage is raised instead."""

    namespace: str
    format_version: int
    segments: int
    """Segments that matter."""
    spare_segments: int
    batches: int
    last_frame: int
    """The number of the last intact frame."""
    records: Mapping[str, int]
    """How many of each type."""
    is_torn: bool
    """An incomplete frame follows the last intact one and will be dropped: an interrupted write that was never acknowledged, or what
    an accepted loss left behind."""


def check(
    directory: str | Path,
    *,
    file_system: FileSystem | None = None,
    seen: Callable[[Record], None] | None = None,
) -> CheckReport:
    """Read everything and verify it. ``seen`` is shown every record, in order, messages without their bytes.

    Raises:
        StoreCorrupt: Acknowledged data is damaged; the text names file and offset.
        StoreUnavailable: There is no data, it cannot be read, or it is in use or of a newer format.
    """
    try:
        return _check(directory, file_system, seen)
    except OSError as error:
        raise StoreUnavailable(f"the data in {directory} cannot be read: {error}") from error


def _check(
    directory: str | Path, file_system: FileSystem | None, seen: Callable[[Record], None] | None
) -> CheckReport:
    counts: Counter[str] = Counter()
    with _Reader(directory, file_system) as reader:
        for _, records in recovery.decoded(reader.files, reader.found):
            for record in records:
                counts[type(record).__name__] += 1
                if seen is not None:
                    seen(record)
        version, namespace = reader.identity
        found = reader.found
        return CheckReport(
            namespace=namespace,
            format_version=version,
            segments=found.tail.number - found.oldest + 1,
            spare_segments=len(found.spares),
            batches=found.batches,
            last_frame=found.frame_number,
            records=dict(counts),
            is_torn=found.is_torn,
        )


def holds_data(directory: Path) -> bool:
    """Whether there is anything to look at; a directory that is not there must not be made."""
    return directory.is_dir() and any(
        path.name == FORMAT_FILE or segment_number(path.name) is not None for path in directory.iterdir()
    )


def foreign_files(directory: Path, marks: Collection[str] = ()) -> list[str]:
    """What lies in the directory of a log and is none of its files, if no log is there; empty: the directory may be removed.

    ``marks``: names of files that others write beside a log. The process that made or removed the log may have been killed, so any
    part of it may be left, also files that had not got their names yet.
    """
    if not directory.is_dir() or holds_data(directory):
        return []
    own = {LOCK_FILE, FORMAT_FILE, MARK_FILE, *marks}
    return sorted(path.name for path in directory.iterdir() if not _is_own(path.name, own))


def _is_own(name: str, own: Collection[str]) -> bool:
    final = name.removesuffix(UNFINISHED_SUFFIX)
    if final != name and name.startswith("."):  # ``server.files.write_whole`` adds a random part
        final = final[1:].rpartition(".")[0]
    return final in own or segment_number(final) is not None


class _Reader:
    """A locked directory and what was found in it."""

    def __init__(self, directory: str | Path, file_system: FileSystem | None) -> None:
        path = Path(directory)
        if file_system is None and not holds_data(path):
            raise StoreUnavailable(f"{directory} holds no data: the file '{FORMAT_FILE}' is missing")
        self.files = RealFileSystem(path) if file_system is None else file_system
        self.files.lock(LOCK_FILE)
        try:
            identity = read_identity(self.files)
            if identity is None:
                unnamed = recovery.find(self.files, expects_mark=False)
                if unnamed is not None and unnamed.frame_number:
                    raise missing_format(self.files)
                raise StoreUnavailable(f"{directory} holds no data: the file '{FORMAT_FILE}' is missing")
            check_identity(identity, None)
            found = recovery.find(self.files, expects_mark=identity[0] >= MARKED_SINCE)
            if found is None:
                raise StoreCorrupt(f"{directory} has lost all its segments; restore it from a copy")
        except BaseException:
            self.files.unlock()
            raise
        self.identity = identity
        self.found = found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.unlock()
