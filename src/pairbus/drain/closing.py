"""Closes ports and clients within a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol


class _Closable(Protocol):
    async def close(self) -> None: ...


async def close_all(ports: Sequence[_Closable], seconds: float) -> None:
    """Close ports or clients together, and leave behind those that have not closed after ``seconds``."""
    closing = [asyncio.ensure_future(port.close()) for port in ports]
    _, late = await asyncio.wait(closing, timeout=seconds)
    for task in late:
        task.cancel()
    await asyncio.gather(*closing, return_exceptions=True)
