"""Reads the bodies that ``pairbus send`` sends, and never more of its input than the largest message holds."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO

from pairbus.errors import UsageError
from pairbus.model.entity import MAX_MESSAGE_KB_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BODY_BYTES_MAX: Final = MAX_MESSAGE_KB_MAX * 1024
"""No entity takes more: the largest maximum message size that an entity can be given, here and on Service Bus."""
TOGETHER_BYTES: Final = 1_048_576
"""Bodies are held together until they have this size, so that many large ones do not fill the memory."""
LARGEST: Final = f"at most {MAX_MESSAGE_KB_MAX // 1024} MB fit into one message"


def bodies_of(body: str | None, file: str | None, lines: bool, count: int) -> Iterator[str | bytes]:
    """The bodies to send, from the one place that was named. Raises UsageError."""
    if sum((body is not None, file is not None, lines)) > 1:
        raise UsageError("give one of BODY, --file and --lines")
    if lines:
        if count > 1:
            raise UsageError("--count repeats one message; it cannot be combined with --lines")
        return _lines(_standard_input().buffer)
    if file is not None:
        try:
            with Path(file).open("rb") as opened:
                return itertools.repeat(_whole(opened, f"--file {file}"), count)
        except OSError as error:
            raise UsageError(f"--file {file} cannot be read: {error.strerror}") from None
    if body is not None and body != "-":
        return itertools.repeat(body, count)
    source = _standard_input()
    if body is None and source.isatty():
        raise UsageError(
            "there is nothing to send: give a BODY or --file, or send something to standard input"
        )
    read = _whole(source.buffer, "standard input", ends=1)
    if not read:
        raise UsageError("standard input is empty: give a BODY or --file; '' as BODY sends an empty message")
    # A shell ends what it pipes with a line break, which is not part of what the person wrote.
    return itertools.repeat(read.removesuffix(b"\n"), count)


def together(bodies: Iterable[str | bytes], count_max: int) -> Iterator[Sequence[str | bytes]]:
    """The bodies in groups that are built and sent together. Bodies that were read before a bad line are sent before it is refused."""
    group: list[str | bytes] = []
    size = 0
    rest = iter(bodies)
    while True:
        try:
            body = next(rest)
        except StopIteration:
            break
        except UsageError:
            if group:
                yield group
            raise
        group.append(body)
        size += len(body)
        if len(group) == count_max or size >= TOGETHER_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _whole(source: BinaryIO, what: str, ends: int = 0) -> bytes:
    """All of an input whose end is no more than ``ends`` bytes behind the largest body. Raises UsageError."""
    read = source.read(BODY_BYTES_MAX + ends + 1)
    if len(read) > BODY_BYTES_MAX + ends or len(read.removesuffix(b"\n" * ends)) > BODY_BYTES_MAX:
        raise UsageError(f"{what} is too large: {LARGEST}")
    return read


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """The lines without their ends; as bytes, because a line need not be UTF-8. Raises UsageError at one that is too large."""
    for number in itertools.count(1):
        line = source.readline(BODY_BYTES_MAX + 3)
        if not line:
            return
        body = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(body) > BODY_BYTES_MAX:
            sent = "; the lines before it were sent" if number > 1 else ""
            raise UsageError(f"line {number} of standard input is too large: {LARGEST}{sent}")
        yield body


def _standard_input() -> TextIO:
    # Python has none where the shell closed it: `<&-`.
    if sys.stdin is None:
        raise UsageError("standard input is closed: give a BODY or --file")
    return sys.stdin
