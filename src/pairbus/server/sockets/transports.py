"""What a broker needs of asyncio's transports beyond their interface; a transport that has none of it works too."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from typing import Final

DRAIN_BYTES: Final = 256 * 1024
"""Bytes read at once of what a peer left behind."""


def limit_reads(transport: asyncio.Transport, count: int) -> None:
    """Have the transport read at most so many bytes at once, where it has such a limit; asyncio's own reads 256 KiB."""
    if hasattr(transport, "max_size"):
        transport.max_size = count


def release(transport: asyncio.Transport) -> None:
    """Undo what makes asyncio's transport refer to itself: methods that it keeps as attributes.

    Otherwise each connection that ends, about 7 KiB with its socket, would wait for the garbage collector.
    """
    kept = getattr(transport, "__dict__", {})
    for name in ("_read_ready_cb", "_write_ready"):
        if name in kept:
            kept[name] = None


def left_in(transport: asyncio.Transport | None) -> Iterator[bytes]:
    """Read what is still in the socket, piece by piece, past a transport that reads no more."""
    descriptor = _descriptor(transport)
    while descriptor >= 0:
        try:
            data = os.read(descriptor, DRAIN_BYTES)
        except OSError:
            return  # reset, or nothing there: that was all
        if not data:
            return
        yield data
        descriptor = _descriptor(transport)


def unread_bytes(transport: asyncio.Transport | None) -> int:
    """How much has come that the transport has not read; 0 where that is unknown."""
    descriptor = _descriptor(transport)
    if descriptor < 0:
        return 0
    try:
        answer = fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0))
    except OSError:
        return 0
    return int(struct.unpack("i", answer)[0])


def _descriptor(transport: asyncio.Transport | None) -> int:
    sock = transport.get_extra_info("socket") if transport is not None else None
    return -1 if sock is None else int(sock.fileno())
