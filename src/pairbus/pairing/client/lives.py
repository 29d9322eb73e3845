"""A paired client can be entered again after it was closed, as the official one can. Each time it begins a life of its own.

A life has all that a new client has: state, counters, events, spool, drain, and a name of its own in passports. It is made by the code
that makes the first one (``PairedClient._begin_life``), and knows nothing of the life before, which went on where any other client
goes on: in the backlog queues and in the spool.

Rule 1: a life begins only when nothing of the one before goes on, for what runs asks the client, not its life, whether it has ended.
Rule 2: whether the client is closed changes under ``client._life_lock``, so that nobody closes a life that was not there when it asked.
Rule 3: a sender belongs to the life that made it, and stays closed.
Rule 4: one caller at a time pairs the client. Others wait for its end, closing too, and then find the client paired, not paired, or closed.
Rule 5: sends that keep an order, or may meet a spool, wait while the client is paired: what lies there from before goes first.
Rule 6: a life ends with its event loop. A client that was not closed then is closed when it is entered again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import AlreadyPairedError
from pairbus.pairing.client.closing import close, finish, pairing_ended
from pairbus.pairing.errors import ClientClosedError
from pairbus.pairing.outcome import mark

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.client.sending.sender import SenderCore
    from pairbus.pairing.runtime.ports import Runtime

END_SECONDS: Final = 15.0
"""Seconds to wait for the end of the life before."""
PAIRING_SECONDS: Final = 60.0
"""Seconds to wait for another caller who pairs the client. One that is not over then hangs."""


async def live_again(client: PairedClient[Any, Any]) -> None:
    """Begin another life of a client that is closed, or whose event loop is. Does nothing for one that lives.

    Raises:
        ClientClosedError: Something of the life before has not ended.
    """
    with client._life_lock:  # another caller may be about to begin it
        runtime, is_closed = client._runtime, client._is_closed
    if not is_closed:
        if not runtime.is_over():
            return
        await close(client, END_SECONDS)
    is_calling_back = client._state.events.is_calling_back
    if not client._has_closed and not is_calling_back:
        # Another caller closes it, or was interrupted.
        await finish(client, runtime, END_SECONDS)
    is_quiet = not is_calling_back and await _is_quiet(client, runtime)
    with client._life_lock:
        if client._runtime is not runtime:
            return  # another caller has begun the next one meanwhile
        if not is_quiet or not client._has_closed or (client._pairing is not None and not runtime.is_over()):
            text = (
                "the paired client is closed, and something that it was doing then has not ended: enter it again later, or make a "
                "new one"
            )
            raise mark(ClientClosedError(text), is_in_doubt=False)
        interval_ms = client._state.ping_interval_ms
        with client._state.lock:
            senders = list(client._senders)
        for sender in senders:
            sender._is_closed = True
        client._begin_life()
        client._state.change_ping_interval(interval_ms)
        _hold_sends(client)  # the caller pairs it next


async def _is_quiet(client: PairedClient[Any, Any], runtime: Runtime) -> bool:
    """Whether nothing of a life that was closed goes on. Waits for that."""
    if (
        not await pairing_ended(client, runtime, 0.0 if runtime.is_over() else END_SECONDS)
        and not runtime.is_over()
    ):
        return False
    drain = client._drain
    return await runtime.quiet(END_SECONDS) and (drain is None or await drain.quiet(END_SECONDS))


@asynccontextmanager
async def pairing_call(client: PairedClient[Any, Any]) -> AsyncIterator[bool]:
    """Pair within this, alone: True when the client is paired already. No other life begins before it ends, which would be paired by it.

    Raises:
        AlreadyPairedError: Another caller is pairing it, and does not end.
        ClientClosedError: It is closed.
    """
    state = client._state
    until_ms = state.clock() + int(PAIRING_SECONDS * 1000)
    while True:
        runtime = client._runtime
        token, me = runtime.change_token(), runtime.caller()
        with client._life_lock:
            client._check_live()
            if client._runtime is not runtime:
                continue
            if client._pairing is None:
                client._pairing = me
                _hold_sends(client)
                runtime.begin()
                break
            is_mine = client._pairing == me
        left_ms = until_ms - state.clock()
        if is_mine or left_ms <= 0 or client._state.events.is_calling_back:
            raise AlreadyPairedError("another call is pairing this client: wait for its end")
        await runtime.wait_for_change(token, left_ms / 1000)
    try:
        yield client.is_paired
    finally:
        with client._life_lock:
            if client._runtime is runtime:
                client._pairing = None
                client._state.is_pairing = False
        runtime.notify()


def _hold_sends(client: PairedClient[Any, Any]) -> None:
    state = client._state
    state.is_pairing = not state.is_paired and (state.keeps_order or client._spooling is not None)


async def wait_for_pairing(client: PairedClient[Any, Any], until_ms: int) -> None:
    """Wait until nobody pairs the client any more, at most ``until_ms``. A call from within the pairing, as of a listener, goes on."""
    state, runtime = client._state, client._runtime
    while True:
        token = runtime.change_token()
        left_ms = until_ms - state.clock()
        is_within = client._pairing == runtime.caller() or state.events.is_calling_back
        if not state.is_pairing or is_within or left_ms <= 0 or runtime.is_over():
            return
        await runtime.wait_for_change(token, left_ms / 1000)


def end_if_former(client: PairedClient[Any, Any], sender: SenderCore) -> None:
    """Close a sender that was made while the client was closed, and perhaps entered again: nobody else would."""
    if client._is_ended or sender._state is not client._state:
        sender._is_closed = True
