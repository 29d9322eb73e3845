"""What a broker needs of asyncio's transports beyond their interface; a transport that has none of it works too."""

from __future__ import annotations

import asyncio


def limit_reads(transport: asyncio.Transport, count: int) -> None:
    """Have the transport read at most so many bytes at once, where it can be told; asyncio's own reads 256 KiB."""
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
