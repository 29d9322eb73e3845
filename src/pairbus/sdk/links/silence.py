"""Asynchronous receivers that leave a connection on which nothing comes any more.

A firewall that loses its state, or a peer that is paused, leaves a connection that is dead without an error. Who only waits for
messages cannot tell it from an idle queue, unless the peer has promised to send something now and then: empty frames, which AMQP
has for that (2.4.5) and which are not billed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from azure.servicebus._pyamqp.error import AMQPConnectionError, ErrorCondition

from pairbus.sdk.links.handlers import free_connection

SILENT_SECONDS: Final = 60
"""The idle time-out that the peer is asked for, and after which a connection counts as dead.

The official clients for .NET, Java and JavaScript ask for this time and give up after it. Libraries of Service Bus have refused
shorter ones. PairBus sends every 30 seconds.
"""


def ask_for_signs_of_life(receiver: Any) -> None:
    """Let a receiver ask its peer for a frame at least every ``SILENT_SECONDS``. Call before it opens."""
    create: Callable[..., None] = receiver._create_handler

    def create_handler(*arguments: Any) -> None:
        create(*arguments)
        receiver._handler._idle_timeout = SILENT_SECONDS

    receiver._create_handler = create_handler


def leave_when_silent(receiver: Any, clock: Callable[[], float] = time.monotonic) -> None:
    """Let the poll of an open receiver raise when nothing has come for ``SILENT_SECONDS``. Call after every open."""
    client = receiver._handler
    connection = client._connection
    # The SDK would look itself, by the time of day, which may step.
    connection._idle_timeout = None
    work = client.do_work_async
    frame, heard = connection._last_frame_received_time, clock()

    async def work_while_heard(**options: Any) -> Any:
        nonlocal frame, heard
        # Read first: what came while nobody read counts.
        result = await work(**options)
        if connection._last_frame_received_time != frame:
            frame, heard = connection._last_frame_received_time, clock()
        elif clock() - heard >= SILENT_SECONDS:
            free_connection(connection)
            raise AMQPConnectionError(
                ErrorCondition.SocketError,
                description=f"the connection fell silent: nothing came for {SILENT_SECONDS} s.",
            )
        return result

    client.do_work_async = work_while_heard
