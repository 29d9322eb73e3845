"""The file with the namespace and the format of the data: JSON with a checksum, written once for each format.

A file without the checksum is one that an earlier PairBus wrote; it gets one at the next start. Earlier ones ignore it.

It is written after the first segment, so where it is, segments must be.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pairbus.errors import StoreUnavailable
from pairbus.storage.files import replace_file

if TYPE_CHECKING:
    from pairbus.storage.files import FileSystem

FORMAT_FILE: Final = "format"
LOCK_FILE: Final = "lock"
FORMAT_VERSION: Final = 2
MARKED_SINCE: Final = 2
"""From this format on a data directory has a mark (``mark``)."""


def read_identity(files: FileSystem) -> tuple[int, str] | None:
    """(format version, namespace) of the data, or None if there is none."""
    raw = _content(files)
    if raw is None:
        return None
    try:
        values = json.loads(raw)
        identity = int(values["format"]), str(values["namespace"])
        is_foreign = identity[0] > FORMAT_VERSION and "check" not in values
        is_damaged = len(values) > 2 and values != _values(*identity) and not is_foreign
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged_format(files) from error
    if is_damaged:
        raise _damaged_format(files)
    return identity


def _damaged_format(files: FileSystem) -> StoreUnavailable:
    return StoreUnavailable(
        f"{files.path(FORMAT_FILE)} is damaged: it does not name the format and the namespace, or its checksum "
        "does not fit; restore it from a copy"
    )


def is_current(files: FileSystem, namespace: str) -> bool:
    """Whether the file is what this PairBus would write."""
    return _content(files) == _encoded(namespace)


def _content(files: FileSystem) -> bytes | None:
    if FORMAT_FILE not in files.names():
        return None
    handle = files.open(FORMAT_FILE)
    try:
        return files.read(handle, files.size(FORMAT_FILE), 0)
    finally:
        files.close(handle)


def _values(version: int, namespace: str) -> dict[str, object]:
    return {
        "format": version,
        "namespace": namespace,
        "check": f"{crc32(f'{version} {namespace}'.encode()):08x}",
    }


def _encoded(namespace: str) -> bytes:
    return json.dumps(_values(FORMAT_VERSION, namespace)).encode() + b"\n"


def missing_format(files: FileSystem) -> StoreUnavailable:
    """The error for data of an unknown format."""
    return StoreUnavailable(f"{files.path(FORMAT_FILE)} is missing: restore it from a copy")


def check_identity(identity: tuple[int, str], namespace: str | None) -> None:
    """StoreUnavailable if the data is not ours to open. A namespace of None fits all."""
    version, owner = identity
    if version > FORMAT_VERSION:
        raise StoreUnavailable(
            f"the data has format {version}, this PairBus knows up to {FORMAT_VERSION}: start the newer PairBus that wrote it"
        )
    if namespace is not None and owner != namespace:
        raise StoreUnavailable(
            f"the data belongs to namespace '{owner}', not '{namespace}': "
            f"start with that name, or with another data directory"
        )


def write_identity(files: FileSystem, namespace: str) -> None:
    """Say whose data this is, durably."""
    replace_file(files, FORMAT_FILE, _encoded(namespace))
