"""The limit that a process has for the size of its files: beyond it the system answers "File too large", whatever room the disk has."""

from __future__ import annotations

import resource
from typing import Final

RAISE_FILE_SIZE_LIMIT: Final = "raise the limit (`ulimit -f unlimited`, or LimitFSIZE=infinity of its service); the disk may have room enough"


def file_size_limit() -> int | None:
    """The largest file that this process may write, in bytes; None: there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


def file_size_way_out() -> str:
    """What to say after an error ``EFBIG``."""
    limit = file_size_limit()
    known = "" if limit is None else f" of {shown_size(limit)}"
    return f"the broker met the file size limit{known} of its process: {RAISE_FILE_SIZE_LIMIT}"


def shown_size(size: int) -> str:
    """In megabytes, or in kilobytes where it is none."""
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} kB"
