"""Places that a command will write to, checked before it does anything."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from pairbus.errors import UsageError


def check_directory(path: str, flag: str) -> None:
    """Refuse a directory of this machine in which no file can be made. Leaves nothing behind. Raises UsageError.

    It tries, because rights do not tell: nobody may write to ``/proc``, and a disk may be full or read-only.
    """
    if ":/" in path:
        return  # a URI: Spark knows what is behind it
    place = Path(path).absolute()
    made: list[Path] = []
    try:
        there = next(one for one in (place, *place.parents) if one.exists())
        if not there.is_dir():
            raise UsageError(f"{flag} is {path}, and {there} is a file: name a directory")
        for one in reversed((place, *place.parents)):
            if not one.exists():
                one.mkdir(mode=0o700)
                made.append(one)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UsageError(
            f"{flag} is {path}, and nothing can be written there: {error.strerror}: name a directory of yours"
        ) from None
    finally:
        for one in reversed(made):
            with suppress(OSError):
                one.rmdir()
