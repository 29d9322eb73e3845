"""Closes a paired client: once for all who ask, and to the end.

Closing has several parts, and a caller may be cancelled or interrupted in any of them. On asyncio a task of its own does the work,
and goes on when a caller gives up. On threads the first caller does it; when that one is interrupted, the next call of ``close``
does what is left. So each part may be done again. A caller that comes while it is under way waits for its end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing.client.sending.sender import close_link
from pairbus.pairing.events import Kind
from pairbus.pairing.rules.closing import Side

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.client.sending.sender import SenderCore
    from pairbus.pairing.runtime.ports import Runtime

PAIRING_SECONDS: Final = 2.0
"""Seconds to wait for a caller that still pairs the client. One that takes longer finds it closed, and ends what it has begun."""
SIDES_SECONDS_MIN: Final = 0.1
"""Seconds that both sides have to close at least, even when the parts before took all the time."""


async def close(client: PairedClient[Any, Any], seconds: float) -> None:
    """Return when the client is closed, or ``seconds`` are over."""
    with client._life_lock:
        runtime, is_under_way = client._runtime, client._is_closed
        client._is_closed = client._is_ended = True
    if is_under_way and client._state.events.is_calling_back:
        # Who closes the client may wait for the end of this very callback.
        return
    await finish(client, runtime, seconds)


async def finish(client: PairedClient[Any, Any], runtime: Runtime, seconds: float) -> None:
    """Do, or wait for, what is left of a closing that has begun. ``runtime``: that of the life which is to end."""
    clock = client._state.clock
    until_ms = clock() + int(seconds * 1000)
    while not client._has_closed and client._runtime is runtime:
        left = max(0.0, (until_ms - clock()) / 1000)
        if not await runtime.shared(partial(_close, client, runtime), left):
            return


async def _close(client: PairedClient[Any, Any], runtime: Runtime, seconds: float) -> None:
    """Every part of closing. Each may be done again."""
    with client._life_lock:
        if client._has_closed or client._runtime is not runtime:
            return  # done, and perhaps entered again, since the caller looked
    clock = client._state.clock
    now = clock()
    until_ms = now + int(seconds * 1000)
    client._partnership.ended(Side.PRIMARY, now)
    client._partnership.ended(Side.SECONDARY, now)
    runtime.notify()
    try:
        await client._stop_drain(seconds / 3)
        await runtime.stop_tasks(seconds / 3)
        if client._pairing is not None:
            # Who pairs it finds it closed, and leaves nothing; only what it had begun before is left to end.
            await pairing_ended(client, runtime, min(PAIRING_SECONDS, seconds / 6))
            await client._stop_drain(seconds / 6)
            await runtime.stop_tasks(seconds / 6)
        with client._state.lock:
            senders = list(client._senders)
        # The time left is shared: half for the senders and their links, the rest for both sides at once.
        await runtime.together(_close_sender, senders, (until_ms - clock()) / 2000)
        # A link that opens outlives a sender that nobody has any more.
        with client._state.lock:
            links = [link for link in client._links if not link.is_closed]
        await runtime.together(partial(close_link, runtime), links, (until_ms - clock()) / 2000)
        left = max(SIDES_SECONDS_MIN, (until_ms - clock()) / 1000)
        if client._spooling is not None:
            await runtime.blocking(client._spooling.close)
        await runtime.together(client._close_side, (client.primary, client.secondary), left)
        await runtime.end((until_ms - clock()) / 1000)
    finally:
        client._leave_registry()
        if client._reporter is not None:
            client._reporter.stop()
    client._state.emit(Kind.CLOSED, client._state.primary, "closed")
    # Last: from here on the client may be entered again.
    client._has_closed = True


async def pairing_ended(client: PairedClient[Any, Any], runtime: Runtime, seconds: float) -> bool:
    """Wait until nobody pairs the client, at most ``seconds``. True: nobody does."""
    clock = client._state.clock
    until_ms = clock() + int(seconds * 1000)
    while True:
        token = runtime.change_token()
        pairing = client._pairing
        left_ms = until_ms - clock()
        # A signal handler may close the client in the thread that pairs it, and must not wait for itself.
        if client._runtime is not runtime:
            return True  # somebody has entered it again, which begins with the end of that
        if pairing is None or pairing == runtime.caller() or left_ms <= 0:
            return pairing is None
        await runtime.wait_for_change(token, left_ms / 1000)


async def _close_sender(sender: SenderCore) -> None:
    await sender._do_close()
