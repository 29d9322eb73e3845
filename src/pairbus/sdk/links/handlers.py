"""Senders and receivers of the SDK beneath their surface: retries, attempts, sharing one link, ending a connection."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final

from azure.servicebus._pyamqp.constants import (
    ConnectionState,
    LinkDeliverySettleReason,
    LinkState,
    MessageDeliveryState,
)
from azure.servicebus._pyamqp.error import AMQPConnectionError, AMQPException, ErrorCondition
from azure.servicebus._pyamqp.message import BatchMessage, _MessageDelivery
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError

_logger = logging.getLogger("pairbus.sdk")

READ_SECONDS: Final = 0.2
"""Seconds for which a link that opens reads one frame after the other before the SDK looks at its deadline again."""


KEEPING_SECONDS: Final = 2.0
"""How long the end of the thread that keeps a connection alive is waited for. It looks every second whether it should end."""


def set_retries(handler: Any, retries: int, backoff_s: float = 0.1) -> None:
    """How often a handler's own operations are tried again; the client's setting serves the application's own ones."""
    handler._config.retry_total = retries
    handler._config.retry_backoff_factor = backoff_s
    _bound_inner_retries(handler, retries, backoff_s)


def for_one_try(handler: Any) -> None:
    """Let a sender or receiver open once and quickly, without retries, and leave no socket behind."""
    set_retries(handler, 0)
    open_quickly(handler)
    free_sockets(handler)


def bound_retries(handler: Any, retries: int, backoff_s: float) -> None:
    """At most so many retries with at most that pause; fewer if the client is set so."""
    config = handler._config
    config.retry_total = min(config.retry_total, retries)
    config.retry_backoff_factor = min(config.retry_backoff_factor, backoff_s)
    _bound_inner_retries(handler, config.retry_total, config.retry_backoff_factor)


def _bound_inner_retries(handler: Any, retries: int, backoff_s: float) -> None:
    """The SDK's protocol layer has retries of its own below those of its sender."""
    policy = getattr(handler, "_error_policy", None)
    if policy is not None:
        policy.total_retries = min(policy.total_retries, retries)
        policy.backoff_factor = min(policy.backoff_factor, backoff_s)


def watch_attempts(
    sender: Any,
    noticed: Callable[[BaseException], object],
    is_final: Callable[[BaseException], bool] | None = None,
) -> None:
    """Call ``noticed`` with the error of each attempt, though the SDK tries again and raises only the last one.

    "Server busy" ends the SDK's own attempts: it would try again within a second, and ten must pass (P16). So does an
    error that ``is_final`` says yes to.
    """
    original = sender._handle_exception

    def judged(error: BaseException) -> BaseException:
        if isinstance(error, ServiceBusServerBusyError):
            raise error
        noticed(error)
        if is_final is not None and is_final(error):
            raise error
        return error

    if inspect.iscoroutinefunction(original):

        async def handle_later(exception: Exception) -> BaseException:
            return judged(await original(exception))

        sender._handle_exception = handle_later
    else:

        def handle(exception: Exception) -> BaseException:
            return judged(original(exception))

        sender._handle_exception = handle


def keep_link_after_refusals(sender: Any, is_refusal: Callable[[BaseException], bool]) -> None:
    """Let a refused message of an asynchronous sender cost its answer alone, when ``is_refusal`` says that it is one.

    The SDK closes the connection after every error and opens another one for the next send, which takes a second. It
    also sends again by itself, after seconds when the namespace is busy. A message that was refused leaves its link as it
    was, unless the link was closed over it.
    """
    original = sender._handle_exception
    policy = getattr(sender, "_error_policy", None)
    if policy is not None:
        policy.total_retries = 0  # the layer below knows no refusals; lost links are opened again above it

    async def handle(exception: Exception) -> BaseException:
        is_answer = isinstance(exception, ServiceBusError | AMQPException)
        if is_answer and is_refusal(exception) and _is_attached(sender):
            raise sender._amqp_transport.create_servicebus_exception(_logger, exception)
        error: BaseException = await original(exception)
        return error

    sender._handle_exception = handle


def _is_attached(sender: Any) -> bool:
    link = getattr(sender._handler, "_link", None)
    return link is not None and link.get_state() == LinkState.ATTACHED


def end_retries(sender: Any, is_over: Callable[[], bool]) -> None:
    """Let the error of an attempt of a synchronous sender be its last one when ``is_over`` says so.

    The SDK opens a link without a time limit, and would try again after its caller has given up.
    """
    original = sender._handle_exception

    def handle(exception: Exception) -> BaseException:
        error: BaseException = original(exception)
        if is_over():
            raise error
        return error

    sender._handle_exception = handle


def leave_silent_connections(handler: Any) -> None:
    """Let a synchronous sender or receiver make each attempt after one without an answer over a fresh connection.

    The SDK keeps the connection, which may be dead without an error, and would wait for the same peer again.
    """
    original = handler._handle_exception

    def handle(exception: Exception) -> BaseException:
        error: BaseException = original(exception)
        if isinstance(error, OperationTimeoutError):
            client = take_handler(handler)
            if client is not None:
                with suppress(Exception):
                    end_handler(client)
        return error

    handler._handle_exception = handle


def watch_pauses(sender: Any, ended: Callable[[], None]) -> None:
    """Call ``ended`` after each pause that a synchronous sender makes before it tries again. An error of it ends the attempts."""
    original = sender._backoff

    def pause(*given: Any, **named: Any) -> None:
        original(*given, **named)
        ended()

    sender._backoff = pause


def share(sender: Any, send: Any) -> Any:
    """Let ``send`` stand where the SDK attempts to send a message. Returns what the SDK does there."""
    original, sender._send = sender._send, send
    return original


def open_quickly(sender: Any) -> None:
    """Let a sender or receiver read the frames that open its link as they come.

    The SDK reads one frame and sleeps for 50 ms, and a link needs nine of them: half a second, even beside its namespace.
    """
    create = getattr(sender, "_create_handler", None)
    if create is None:
        return

    def create_quick(auth: Any) -> None:
        create(auth)
        handler = sender._handler
        for name in ("client_ready", "client_ready_async"):
            if hasattr(handler, name):
                _read_on(handler, name)

    sender._create_handler = create_quick


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task, which asyncio reports otherwise."""
    if not task.cancelled():
        task.exception()


def _read_on(handler: Any, name: str) -> None:
    """Let the question whether a link is open read on until it is. The SDK asks it before each send too, and then as before."""
    is_ready = getattr(handler, name)

    def opened() -> bool:
        setattr(handler, name, is_ready)
        return True

    async def read_later() -> bool:
        task = asyncio.current_task()
        if getattr(task and task.get_coro(), "cr_code", None) is read_later.__code__:
            # Up to Python 3.11 ``asyncio.wait_for``, with which the SDK bounds this, makes a task of it, and does not look at its error
            # when the caller is cancelled in the moment in which the connection breaks.
            task.add_done_callback(_retrieved)  # type: ignore[union-attr]  # it has a coroutine
        until = time.monotonic() + READ_SECONDS
        while not await is_ready():
            if time.monotonic() >= until:
                return False
        return opened()

    def read() -> bool:
        until = time.monotonic() + READ_SECONDS
        while not is_ready():
            if time.monotonic() >= until:
                return False
        return opened()

    setattr(handler, name, read_later if inspect.iscoroutinefunction(is_ready) else read)


def share_closing(sender: Any, let_go: Callable[[], object]) -> None:
    """Let ``let_go`` stand where the SDK closes the connection of a sender."""
    sender._close_handler = let_go


def share_opening(sender: Any, open_: Any) -> Any:
    """Let ``open_`` stand where the SDK opens its connection: it is called when there is none. Returns how the SDK opens it."""
    original = sender._open

    async def open_later(timeout: float | None = None) -> None:  # noqa: ASYNC109 - the SDK's shape
        if not sender._running:
            await open_(timeout)

    def open_now(timeout: float | None = None) -> None:
        if not sender._running:
            open_(timeout)

    sender._open = open_later if inspect.iscoroutinefunction(original) else open_now
    return original


is_open: Final[Callable[[Any], bool]] = attrgetter("_running")
"""Whether a sender has a connection that it would use. No function of Python: each one is paid by every send."""


def connection_of(sender: Any) -> Any:
    """The connection of a sender; None when it has none."""
    return getattr(sender, "_handler", None)


def ends_connection(error: ServiceBusError) -> bool:
    """Whether the connection is of no use after an error: the SDK says so, or the answer may still come on it."""
    return error._shutdown_handler or isinstance(error, OperationTimeoutError)


def open_with_retries(sender: Any) -> Any:
    """Open a sender as the SDK does when it is entered."""
    return sender._open_with_retry()


def largest_message(sender: Any) -> int:
    """The largest message, in bytes, that an open sender's link takes; 0 when it does not say."""
    return int(sender._max_message_size_on_link or 0)


def can_pipeline(sender: Any) -> bool:
    """Whether the parts below the sender are those that ``transfer`` and ``work`` know."""
    return getattr(sender._amqp_transport, "KIND", "") == "pyamqp" and hasattr(sender, "_create_handler")


async def transfer(handler: Any, message: Any, settled: Callable[[BaseException | None], None]) -> Any:
    """Put a message on an open asynchronous link; ``settled`` is called with its answer while ``work`` runs."""
    content = message._message
    if isinstance(content, list):
        content = BatchMessage(*content)
    delivery: Any = _MessageDelivery(content, MessageDeliveryState.WaitingForSendAck)  # type: ignore[no-untyped-call]

    async def completed(reason: Any, state: Any) -> None:
        await handler._on_send_complete_async(delivery, reason, state)
        if (
            reason != LinkDeliverySettleReason.NOT_DELIVERED
        ):  # otherwise the link is gone, and ``work`` says why
            settled(None if delivery.state == MessageDeliveryState.Ok else delivery.error or _no_answer())

    return await handler._link.send_transfer(content, on_send_complete=completed, send_async=True)


def withdraw(delivery: Any) -> None:
    """A message that is not written yet is not written any more."""
    delivery.timeout, delivery.start = 1, float("-inf")


async def work(handler: Any) -> None:
    """Write what is to be written and read what came. Raises when the link has ended."""
    is_running = await handler.do_work_async()
    link = handler._link
    if not is_running or link is None:
        raise _no_answer()
    if link.get_state() != LinkState.ATTACHED:
        raise _no_answer()


def _no_answer() -> AMQPConnectionError:
    return AMQPConnectionError(ErrorCondition.SocketError, description="The link ended before it answered.")


def take_handler(sender: Any) -> Any:
    """Take the connection away from a sender, so that its next use opens another one."""
    handler = getattr(sender, "_handler", None)
    sender._handler, sender._running = None, False
    return handler


def end_handler(handler: Any) -> None:
    """Close a synchronous connection, and its socket: the SDK leaves that to the garbage collector when the peer ended first."""
    connection, keeping = _own_connection(handler), getattr(handler, "_keep_alive_thread", None)
    try:
        handler.close()
    finally:
        free_connection(connection)
        _wait_for(keeping)


def free_sockets(sender: Any) -> None:
    """Let a sender or receiver close the socket of each connection that it gives up. See ``end_handler``.

    A client has no connection of its own and stays as it is.
    """
    original = getattr(sender, "_close_handler", None)
    if original is None:
        return
    if inspect.iscoroutinefunction(original):

        async def close_later() -> None:
            connection = _own_connection(sender._handler)
            try:
                await original()
            finally:
                free_connection(connection)

        sender._close_handler = close_later
    else:

        def close() -> None:
            connection, keeping = (
                _own_connection(sender._handler),
                getattr(sender._handler, "_keep_alive_thread", None),
            )
            try:
                original()
            finally:
                free_connection(connection)
                _wait_for(keeping)

        sender._close_handler = close


def close_at_once(receiver: Any, end_opening: Callable[[], None]) -> None:
    """Let closing a receiver end a connection that a silent peer keeps from being opened, with the call that waits for it.

    The SDK leaves the socket to the garbage collector and the call waiting. What is no receiver stays as it is.

    Args:
        receiver: Synchronous or not.
        end_opening: Lets whatever opens the receiver, in this moment or later, end by itself: there may be no socket to cut yet.
    """
    is_closed = threading.Event()
    original: Any = getattr(receiver, "close", None)
    if inspect.iscoroutinefunction(getattr(receiver, "_close_handler", None)):
        free_sockets(receiver)
        handle = receiver._handle_exception

        async def close_later() -> None:
            is_closed.set()
            end_opening()
            connection = _own_connection(receiver._handler)
            await original()
            _end_opening(connection)

        async def handle_later(exception: Exception) -> BaseException:
            error: BaseException = await handle(exception)
            if is_closed.is_set():
                raise error
            return error

        receiver.close, receiver._handle_exception = close_later, handle_later
    elif hasattr(receiver, "_close_handler"):

        def close() -> None:
            is_closed.set()
            end_opening()
            handler = receiver._handler
            connection = _own_connection(handler)
            if connection is not None and connection.state is not ConnectionState.OPENED:
                # Nobody would answer, and the call that waits for the peer has the lock of the connection.
                cut_connection(handler)
            try:
                original()
            finally:
                free_connection(connection)

        receiver.close = close
        end_retries(receiver, is_closed.is_set)


def _end_opening(connection: Any) -> None:
    """An asynchronous connection whose socket is only being made when it is closed ends with its first write."""
    transport = getattr(connection, "_transport", None)
    if transport is None or getattr(transport, "writer", None) is not None:
        return

    async def end(*_: object) -> None:
        free_connection(connection)
        raise ConnectionResetError("the receiver is closed")

    transport.write = transport.negotiate = end


def cut_client(client: Any) -> None:
    """Let go of an asynchronous connection without a word to its peer, which is gone or silent."""
    keeping = getattr(client, "_keep_alive_thread", None)
    if keeping is not None:
        keeping.cancel()
    free_connection(_own_connection(client))


def _own_connection(handler: Any) -> Any:
    return None if getattr(handler, "_external_connection", False) else getattr(handler, "_connection", None)


def free_connection(connection: Any) -> None:
    """Close the socket of a connection, however far it has come."""
    transport = getattr(connection, "_transport", None)
    writer = getattr(transport, "writer", None)
    with suppress(Exception):
        if writer is not None:
            writer.transport.abort()
        elif transport is not None and not inspect.iscoroutinefunction(transport.close):
            transport.close()


def _wait_for(keeping: threading.Thread | None) -> None:
    """The SDK does not wait for the thread that keeps a connection alive when the end of a dead connection raises."""
    if keeping is not None:
        with suppress(RuntimeError):  # it was never started
            keeping.join(KEEPING_SECONDS)


async def end_client(handler: Any, seconds: float) -> None:
    """Close a connection in order, or cut it after ``seconds``. Nothing of it is left."""
    keeping = getattr(handler, "_keep_alive_thread", None)
    connection = getattr(handler, "_connection", None)
    try:
        async with asyncio.timeout(seconds):
            await handler.close_async()
    except Exception:  # noqa: BLE001 - it is given up either way, and its peer may be gone
        return
    finally:
        if keeping is not None:
            keeping.cancel()
        writer = getattr(getattr(connection, "_transport", None), "writer", None)
        if writer is not None:
            writer.transport.abort()


def cut_socket(handler: Any) -> None:
    """End whatever a synchronous sender or receiver is waiting for, by ending its connection under it."""
    cut_connection(getattr(handler, "_handler", None))


def cut_connection(client: Any) -> None:
    """End the socket of a synchronous connection under the thread that reads from it."""
    connection = getattr(client, "_connection", None)
    transport = getattr(connection, "_transport", None)
    end = getattr(transport, "sock", None)
    # A WebSocket wraps its socket, and its own ``shutdown`` only closes it here: nobody waiting would notice.
    end = getattr(end, "sock", end)
    if isinstance(end, socket.socket):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
