"""Sets up the backlog queues of a client whose secondary did not answer when it was paired, and starts its drain.

Only a client with a spool is paired without them. Nobody waits for this any more: what fails here is reported and tried again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing.events import Kind
from pairbus.pairing.options import milliseconds
from pairbus.pairing.runtime.pausing import pause
from pairbus.sdk.failures import shown

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient

STOP_SECONDS: Final = 2.0
"""Seconds that a drain may take to stop which began when the client was closed already."""

logger = logging.getLogger("pairbus.pairing")


async def pair_later(client: PairedClient[Any, Any]) -> None:
    """Find or create the queues once the secondary answers. Returns when the client has what it was asked for, or is closed."""
    queues = await _queues(client)
    if not queues:
        return
    client._state.paired_with(queues)
    if client._state.keeps_order:
        with client._state.lock:
            client._fences.watch()
    if client.options.enable_syphon:
        await _start_drain(client)
    client._runtime.notify()


async def _queues(client: PairedClient[Any, Any]) -> list[str]:
    """The queues that may be used; none when the client is closed before."""
    clock = client._state.clock
    # No look can end the uncertainty about sessions before the secondary answers, so only the bound does.
    overdue_ms = clock() + milliseconds(client.options.fence_timeout)
    while True:
        # The whole pause, whatever changes: each attempt asks the secondary, and may have to wait for it.
        until_ms = clock() + client._state.ping_interval_ms
        while (now := clock()) < until_ms and not client._is_ended:
            if now >= overdue_ms:
                client._fences.expire()
            next_ms = until_ms if now >= overdue_ms else min(until_ms, overdue_ms)
            await _pause(client, next_ms - now)
        if client._is_ended:
            return []
        try:
            if queues := await client._setup.usable_queues():
                return queues
        except Exception as error:  # noqa: BLE001 - whatever it is, a client without queues must try again
            logger.info("the secondary cannot be set up yet: %s", error, extra={"event": "pairing.later"})


async def _start_drain(client: PairedClient[Any, Any]) -> None:
    state = client._state
    reported = ""
    while not client._is_ended:
        try:
            await client._start_drain()
        except Exception as error:  # noqa: BLE001 - without a drain the backlog only grows
            why = shown(error)
            if why != reported:
                text = f"the drain cannot be started, and it is tried again: {why}"
                state.emit(Kind.SYPHON_STOPPED, state.primary, text, is_loud=True)
                reported = why
            await _pause(client, state.ping_interval_ms)
        else:
            break
    if client._is_ended:
        # The closing of the client may have been over before the drain had begun.
        await client._stop_drain(STOP_SECONDS)


async def _pause(client: PairedClient[Any, Any], ms: int) -> None:
    await pause(client._runtime, client._state.clock, ms, lambda: client._is_ended)
