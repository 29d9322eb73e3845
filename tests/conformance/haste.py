"""Shortens the pauses of the official Python client between two looks at its socket.

The client polls: it sleeps 50 ms between the frames of a handshake and up to a second before it notices that it was
closed, which makes a second for every sender and receiver and ten minutes for this suite. Only those sleeps become
shorter. What the client says, when it gives up waiting, and how it reads answers stay its own.

One patience becomes longer: the synchronous client gives up a connection whose peer does not read for 0.2 s (its system:
for 1 s) while it writes, which a peer on a busy machine may not.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from azure.servicebus._pyamqp import _transport

HANDSHAKE_PAUSE_SECONDS = 0.001
KEEP_ALIVE_PAUSE_SECONDS = 0.02
WRITE_SECONDS_MAX = 30.0

POLLING = ("_servicebus_sender", "_servicebus_receiver", "_session_browser", "_pyamqp.client")
POLLING_ASYNC = (
    "aio._servicebus_sender_async",
    "aio._servicebus_receiver_async",
    "aio._session_browser_async",
    "_pyamqp.aio._client_async",
)


def shorter(seconds: float) -> float:
    """The pause to make instead; what is no polling pause is left alone."""
    if seconds == 0.05:
        return HANDSHAKE_PAUSE_SECONDS
    return KEEP_ALIVE_PAUSE_SECONDS if seconds == 1 else seconds


class HastyTime:
    """The module ``time`` with shorter polling pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        time.sleep(shorter(seconds))


class HastyAsyncio:
    """The module ``asyncio`` with shorter polling pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(shorter(seconds))


def write_patiently(transport: Any, data: Any) -> None:
    """In place of the synchronous transport's own writing, which is called with its lock held."""
    sock = transport.sock
    if sock is None:
        _write(transport, data)
        return
    timeout = sock.gettimeout()
    sock.settimeout(WRITE_SECONDS_MAX)
    try:
        _write(transport, data)
    finally:
        with suppress(OSError):  # closed meanwhile
            sock.settimeout(timeout)


_write: Any = _transport.SSLTransport._write


def make_haste() -> None:
    """For this process, from now on."""
    vars(_transport)["SSLTransport"]._write = write_patiently
    _transport.DEFAULT_SOCKET_SETTINGS["TCP_USER_TIMEOUT"] = int(WRITE_SECONDS_MAX * 1000)
    for name in POLLING:
        vars(importlib.import_module(f"azure.servicebus.{name}"))["time"] = HastyTime()
    for name in POLLING_ASYNC:
        vars(importlib.import_module(f"azure.servicebus.{name}"))["asyncio"] = HastyAsyncio()
