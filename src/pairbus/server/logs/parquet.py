"""Writes a Parquet file whole or not at all. Heavy parts are loaded when first needed, off the event loop.

A part has a seal between its pages and its footer, where no reader of Parquet looks: ``magic, number, CRC-32`` of all other bytes and of the number.
Copies have it too. The footer has the name of the part, so that a part that lost its seal is noticed. Parts of older versions have neither
(decision 0206).
"""

from __future__ import annotations

import io
import mmap
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pairbus.server.clock import utc
from pairbus.server.files import UNFINISHED_SUFFIX, make_directory, write_whole

HOUR_MS: Final = 3_600_000
SEAL_MAGIC: Final = b"\x89PBSEAL\n"
SEAL: Final = struct.Struct("<8sQI")
NAME_KEY: Final = b"pairbus.part"
"""The key of the name in the footer."""
TAIL: Final = struct.Struct("<I4s")
"""The end of every Parquet file: the length of the footer, and a magic."""
SEARCH_BYTES_MAX: Final = 256 << 20
"""In larger files a seal is not searched for. No part of a broker is so large."""


def hour_name(instant: int) -> str:
    """The directory of an hour, as Spark and others read partitions: ``hour=2026-11-15T10``."""
    return f"hour={utc(instant):%Y-%m-%dT%H}"


def hour_ms(name: str) -> int | None:
    """The beginning of the hour of such a directory; None: it is another one."""
    try:
        hour = datetime.strptime(name, "hour=%Y-%m-%dT%H").replace(tzinfo=UTC)
    except ValueError:
        return None
    return round(hour.timestamp() * 1000)


def write_part(
    directory: Path,
    name: str,
    types: Mapping[str, str],
    columns: Mapping[str, Sequence[object]],
    number: int = 0,
) -> None:
    """Replace ``directory/name`` by these columns, whole or not at all. ``number`` is kept in the seal."""
    import pyarrow
    import pyarrow.parquet

    makers = {
        "timestamp": pyarrow.timestamp("ms", tz="UTC"),
        "text": pyarrow.string(),
        "int64": pyarrow.int64(),
        "int32": pyarrow.int32(),
    }
    fields = [(column, makers[kind]) for column, kind in types.items()]
    schema = pyarrow.schema(fields, metadata={NAME_KEY: name.encode()})
    table = pyarrow.table(dict(columns), schema=schema)
    make_directory(directory)
    made = io.BytesIO()
    # Of the pages too: Spark checks these where it alone can read a part.
    pyarrow.parquet.write_table(table, made, write_page_checksum=True)
    write_whole(directory / name, sealed(made.getvalue(), number))


def sealed(data: bytes, number: int) -> bytes:
    """A Parquet file with a seal."""
    at = len(data) - TAIL.size - TAIL.unpack(data[-TAIL.size :])[0]
    return data[:at] + SEAL.pack(SEAL_MAGIC, number, _checksum(data, at, at, number)) + data[at:]


def seal_number(file: Path) -> int | None:
    """The number in the seal of a part; None if it has no seal, or that is not where it should be."""
    with file.open("rb") as stream:
        size = stream.seek(0, io.SEEK_END)
        if size < TAIL.size + SEAL.size:
            return None
        stream.seek(size - TAIL.size)
        at = size - TAIL.size - TAIL.unpack(stream.read(TAIL.size))[0] - SEAL.size
        if at < 0:
            return None
        stream.seek(at)
        magic, number, _ = SEAL.unpack(stream.read(SEAL.size))
    return int(number) if magic == SEAL_MAGIC else None


def is_damaged(file: Path) -> bool:
    """Whether a file has a seal that does not fit it, or has lost its seal. One that never had a seal tells nothing. Raises OSError."""
    if file.stat().st_size < TAIL.size + SEAL.size:
        return False
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = len(data) - TAIL.size - TAIL.unpack(data[-TAIL.size :])[0] - SEAL.size
        if at < 0 or data[at : at + len(SEAL_MAGIC)] != SEAL_MAGIC:
            # The length of the footer may be what is damaged.
            at = data.rfind(SEAL_MAGIC) if len(data) <= SEARCH_BYTES_MAX else -1
        if at < 0:
            # Other files may have the name of the part that their rows come from.
            return bool(data.rfind(NAME_KEY) >= 0 and data.rfind(file.name.encode()) >= 0)
        if at + SEAL.size > len(data):
            return True
        _, number, checksum = SEAL.unpack(data[at : at + SEAL.size])
        with memoryview(data) as view:
            return _checksum(view, at, at + SEAL.size, number) != int(checksum)


def _checksum(data: bytes | memoryview, end: int, start: int, number: int) -> int:
    """Of the bytes up to ``end`` and from ``start`` on, and of the number."""
    found = zlib.crc32(number.to_bytes(8, "little"), zlib.crc32(data[:end]))
    return zlib.crc32(data[start:], found)


def remove_unfinished(root: Path) -> None:
    """What a crash left half written."""
    for place in ("", "hour=*/"):
        for file in root.glob(f"{place}.*{UNFINISHED_SUFFIX}"):
            with suppress(OSError):
                file.unlink()


def remove_hours_before(root: Path, instant: int, *, kept: Path | None = None) -> int:
    """Remove the directories of hours that are older, but for ``kept``; how many."""
    limit = hour_name(instant)
    removed = 0
    for directory in sorted(root.glob("hour=*")):
        # Names of hours sort as the hours do; anything that is not such a name stays.
        if len(directory.name) != len(limit) or directory.name >= limit or directory == kept:
            continue
        for file in directory.glob("*.parquet"):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # it holds a file that is not ours
            directory.rmdir()
            removed += 1
    return removed
