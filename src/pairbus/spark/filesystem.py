"""The file system of a path or URI, for code that reads or writes files without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def filesystem_of(location: str) -> tuple[FileSystem, str]:
    """The file system of a local path or of a URI that pyarrow understands, and the path there."""
    from pyarrow import fs

    return fs.FileSystem.from_uri(location) if "://" in location else (fs.LocalFileSystem(), location)
