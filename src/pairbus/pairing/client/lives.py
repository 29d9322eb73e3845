"""A paired client can be entered again after it was closed, as the official one can. Each time it begins a life of its own.

A life has all that a new client has: state, counters, events, spool, drain, and a name of its own in passports. It is made by the code
that makes the first one (``PairedClient._begin_life``), and knows nothing of the life before, which went on where any other client
goes on: in the backlog queues and in the spool.

Rule 1: a life begins only when nothing of the one before goes on, for what runs asks the client, not its life, whether it has ended.
Rule 2: whether the client is closed changes under ``client._life_lock``, so that nobody closes a life that was not there when it asked.
Rule 3: a sender belongs to the life that made it, and stays closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pairbus.pairing.client.closing import finish
from pairbus.pairing.errors import ClientClosedError
from pairbus.pairing.outcome import mark

if TYPE_CHECKING:
    from pairbus.pairing.client.client import PairedClient
    from pairbus.pairing.client.sending.sender import SenderCore

END_SECONDS: Final = 15.0
"""Seconds to wait for the end of the life before."""


async def live_again(client: PairedClient[Any, Any]) -> None:
    """Begin another life of a client that is closed. Does nothing for one that is not.

    Raises:
        ClientClosedError: Something of the life before has not ended.
    """
    runtime = client._runtime
    if not client._is_closed:
        return
    is_calling_back = client._state.events.is_calling_back
    if not client._has_closed and not is_calling_back:
        # Another caller closes it, or was interrupted.
        await finish(client, runtime, END_SECONDS)
    is_quiet = not is_calling_back and await runtime.quiet(END_SECONDS)
    with client._life_lock:
        if client._runtime is not runtime:
            return  # another caller has begun the next one meanwhile
        if not is_quiet or not client._has_closed or client._pairing_calls:
            text = (
                "the paired client is closed, and something that it was doing then has not ended: enter it again later, or make a "
                "new one"
            )
            raise mark(ClientClosedError(text), is_in_doubt=False)
        interval_ms = client._state.ping_interval_ms
        for sender in list(client._senders):
            sender._is_closed = True
        client._begin_life()
        client._state.change_ping_interval(interval_ms)


@contextmanager
def pairing_call(client: PairedClient[Any, Any]) -> Iterator[None]:
    """Pair within this. No other life begins before it ends, which would be paired by it instead."""
    with client._life_lock:
        client._check_live()
        client._pairing_calls += 1
    try:
        yield
    finally:
        with client._life_lock:
            client._pairing_calls -= 1


def end_if_former(client: PairedClient[Any, Any], sender: SenderCore) -> None:
    """Close a sender that was made while the client was closed, and perhaps entered again: nobody else would."""
    if client._is_ended or sender._state is not client._state:
        sender._is_closed = True
