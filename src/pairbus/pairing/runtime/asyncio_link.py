"""One sender of the SDK that any number of coroutines share.

The SDK serves one coroutine at a time: two that open a sender's link replace each other's connection, and two that send
write each other's messages again. So one owner does each of these things and the others wait for its result:

Rule 1: a task of its own opens the link. Callers wait for its result, and may give up without ending it.
Rule 2: a caller that is alone has the link to itself and sends the SDK's way.
Rule 3: callers that come meanwhile wait in their order. Then one task sends for all of them: one round trip serves many.
The time of an attempt begins when that task takes the message, or opens the link for it: that others wait for the peer, too, says
nothing about the peer.
Rule 4: a connection that broke, or that a caller left in the middle of a send, is dropped at once. The next caller gets a
fresh one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.pairing.outcome import copy_of, mark_impatient
from pairbus.pairing.runtime.asyncio_callers import HOLD, OPEN, SEND, Caller
from pairbus.pairing.runtime.asyncio_limits import Call, Limits
from pairbus.pairing.runtime.attempts import (
    Attempts,
    Failed,
    LinkClosed,
    NotWanted,
    current_attempts,
    is_cut_short,
    notice,
    seconds_after_waiting,
    waited_in_vain,
)
from pairbus.sdk.failures import is_of_the_transport
from pairbus.sdk.links import handlers

IN_FLIGHT_MAX: Final = 64
"""Messages of one link that may wait for their answer at a time. More would exceed the credit of a small namespace."""
OPEN_SECONDS_MAX: Final = 60.0
"""Seconds after which one opening is given up, however long its callers would wait."""
END_SECONDS: Final = 1.5
"""Seconds to wait for the end of a connection before its socket is cut."""


class AsyncioLink:
    """See ``Link``.

    Args:
        sender: The SDK's sender; nobody else may call it.
        is_wanted: Whether a message should still go this way, asked before each attempt that does not begin at once.
        is_final: Errors after which the SDK shall not try again.
    """

    def __init__(
        self,
        sender: Any,
        is_wanted: Callable[[], bool],
        is_final: Callable[[BaseException], bool] | None = None,
    ) -> None:
        self.sender = sender
        self._is_wanted = is_wanted
        self.is_closed = False
        self._is_held = False
        self._was_wanted = True
        """The answer of ``is_wanted`` when ``look_again`` asked last."""
        self._is_stale = False
        """Whether a message got no answer in its time, and no other message got one since. The link then waits for the messages
        in flight and drops the connection; callers that come meanwhile get the next one."""
        self._holder: asyncio.Task[Any] | None = None
        self._waiting: OrderedDict[Caller, None] = OrderedDict()
        """In the order in which they came. A caller that gives up leaves as soon as its coroutine runs: see ``_still_waiting``."""
        self._fresh: deque[Caller] = deque()
        self._flying: dict[Caller, None] = {}
        self._opening: asyncio.Task[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._limits = Limits()
        handlers.watch_attempts(sender, notice, is_final)
        handlers.open_quickly(sender)
        self._sdk_send = handlers.share(sender, self._send)
        self._sdk_open = handlers.share_opening(sender, self._open)
        handlers.share_closing(sender, self._let_go)
        self._can_pipeline = handlers.can_pipeline(sender)

    # --- for pairing.client -----------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses the link or waits for it."""
        return not (self._is_held or self._waiting or self._flying or self._opening or self._pump)

    async def send(
        self, message: Any, seconds: float, cut_seconds: float, patience: float | None = None
    ) -> None:
        failed = await self.try_to_send(message, seconds, cut_seconds, current_attempts.get(None), patience)
        if failed is not None:
            raise failed.error

    async def try_to_send(
        self,
        message: Any,
        seconds: float,
        cut_seconds: float,
        attempts: Attempts | None = None,
        patience: float | None = None,
    ) -> Failed | None:
        call = self._limits.call(cut_seconds)
        if attempts is None:
            current_attempts.set(call)
        else:
            attempts.call = call
        call.until = call.begun + (seconds if patience is None else patience)
        call.grace = cut_seconds - seconds
        try:
            await self.sender.send_messages(message, timeout=seconds)
        except BaseException as error:  # noqa: BLE001 - the caller judges it
            took = asyncio.get_running_loop().time() - call.begun
            return Failed(call.judged(error), attempts or call, took)
        finally:
            self._limits.until.pop(call, None)
            if call.cancelled:
                call.end()
            call.task = None  # which refers to its context, and that to the call
            if attempts is not None:
                attempts.call = None
        return None

    async def open(self, seconds: float) -> None:
        async with _within(seconds, "Opening the link"):
            await handlers.open_with_retries(self.sender)

    async def call(
        self,
        work: Callable[..., Awaitable[Any]],
        seconds: float,
        *given: Any,
        patience: float | None = None,
        **options: Any,
    ) -> Any:
        until = asyncio.get_running_loop().time() + (seconds if patience is None else patience)
        async with _within(seconds, "Opening the link"):
            await handlers.open_with_retries(self.sender)
        left, is_short = await self._hold(seconds, until)
        try:
            if patience is not None and not self._is_wanted():
                raise NotWanted
            if options.get("timeout") is not None:
                options["timeout"] = min(options["timeout"], left)
            return await self._work(work, left, is_short, given, options)
        finally:
            self._release()

    async def _work(
        self, work: Callable[..., Awaitable[Any]], seconds: float, is_short: bool, given: Any, options: Any
    ) -> Any:
        """Call a method of the sender, which is held. ``is_short``: waiting has taken most of its time."""
        attempts = current_attempts.get(None)
        try:
            async with _within(seconds, "The request"):
                if attempts is not None:
                    attempts.sending()
                return await work(*given, **options)
        except ServiceBusError as error:
            if is_short and isinstance(error, OperationTimeoutError):
                mark_impatient(error)
            if handlers.ends_connection(error):
                self._drop()
            raise
        except BaseException:
            self._drop()
            raise

    def rest(self) -> None:
        if self.is_idle:
            self._drop()

    async def close(self) -> None:
        self.is_closed = True
        # What belongs to a loop that is closed never goes on.
        tasks = [
            one for one in (self._opening, self._pump) if one is not None and not one.get_loop().is_closed()
        ]
        self._ending = {task for task in self._ending if not task.get_loop().is_closed()}
        for task in tasks:
            task.cancel()
        for entry in (*self._waiting, *self._flying):
            entry.done(LinkClosed())
        self._waiting.clear()
        self._flying.clear()
        self._fresh.clear()
        try:
            if tasks:
                await asyncio.wait(tasks)
            self._drop()
            if self._ending:
                await asyncio.wait(self._ending)
            await self.sender.close()
        finally:
            self._drop()
            for task in (*tasks, *self._ending):
                task.cancel()
            self._limits.stop()

    # --- under the SDK's sender -------------------------------------------------------------------

    async def _open(self, timeout: float | None = None) -> None:
        """What the SDK calls before each use of a sender that is not open."""
        if self._holder is not None and self._holder is asyncio.current_task():
            await self._sdk_open(timeout)
            return
        await self._wait(Caller(OPEN), timeout)

    async def _send(
        self,
        message: Any,
        timeout: float | None = None,
        last_exception: Exception | None = None,
    ) -> None:
        """One attempt of the SDK to send a message."""
        attempts = current_attempts.get(None)
        # Attributes, not ``begin``, ``sending`` and ``is_idle``: what this costs is paid by every send.
        if (
            last_exception is not None or type(attempts) is not Call
        ):  # else it begins at once, and nothing has left
            if attempts is not None:
                attempts.is_sent = False
            if not self._is_wanted():
                raise NotWanted
        if (
            self._is_held
            or self._waiting
            or self._flying
            or self._opening is not None
            or self._pump is not None
            or not handlers.is_open(self.sender)
        ):
            if self._can_pipeline:
                await self._wait(Caller(SEND, message, attempts), timeout)
                return
            if not handlers.is_open(self.sender):
                await self._open(timeout)
            entry = Caller(HOLD, attempts=attempts)
            if not self.is_idle:
                await self._wait(entry, timeout)
            self._is_held = True
            timeout = entry.given or timeout
            if not self._is_wanted():
                self._release()
                raise NotWanted
        self._is_held = True
        if attempts is not None:
            attempts.is_sent = True
        try:
            await self._sdk_send(message, timeout=timeout, last_exception=last_exception)
        except ServiceBusError as error:
            if handlers.ends_connection(error):
                self._drop()
            raise
        except BaseException:
            # Broken, or left in the middle of a send: the state of the connection is unknown.
            self._drop()
            raise
        finally:
            self._is_held = False
            if self._waiting:
                self._advance()

    async def _let_go(self) -> None:
        """What the SDK calls to close its connection after an error of one caller, who must not end another's."""
        is_opening = self._opening is not None and self._opening is asyncio.current_task()
        is_holding = self._holder is not None and self._holder is asyncio.current_task()
        if is_opening or is_holding or self.is_closed:
            self._drop()

    # --- whose turn it is -------------------------------------------------------------------------

    async def _hold(self, seconds: float, until: float) -> tuple[float, bool]:
        """Have the link to oneself: how long one may, of ``seconds``, and whether waiting has taken most of that.

        ``until``: when all the time of the caller is over.
        """
        loop = asyncio.get_running_loop()
        had = max(0.001, until - loop.time())
        seconds = min(seconds, had)
        if not self.is_idle:
            await self._wait(Caller(HOLD), had)
        self._is_held = True
        self._holder = asyncio.current_task()
        given = seconds_after_waiting(seconds, had, until - loop.time())
        return given, is_cut_short(given, seconds)

    def _release(self) -> None:
        self._is_held = False
        self._holder = None
        if self._waiting:
            self._advance()

    async def _wait(self, entry: Caller, timeout: float | None) -> None:
        if self.is_closed:
            raise LinkClosed
        entry.seconds = timeout
        try:
            self._end_opening()  # all others may have given up in this moment, and not have run since
            if timeout is not None:
                self._wait_with(entry, timeout)
            self._waiting[entry] = None
            self._advance()
            if self._opening is not None and entry.kind != HOLD:
                self._begin(entry)
            await entry.future
            if entry.is_overdue:
                self._was_silent(entry)
                raise self._late(entry)
        except asyncio.CancelledError:
            if entry.kind == HOLD and entry.has_turn:
                self._release()
            self._was_left(entry)
            raise
        finally:
            self._limits.until.pop(entry, None)
            self._given_up(entry)

    def _wait_with(self, entry: Caller, seconds: float) -> None:
        """A caller waits for its turn, as long as it has any time."""
        if not entry.is_waiting:
            return  # its call may have ended, and nobody would take the limit away
        call = entry.call
        entry.had, entry.given = seconds, None
        if call is not None:
            entry.had = max(0.001, call.until - asyncio.get_running_loop().time())
            self._limits.begin(call, entry.had + call.grace)
        self._limits.begin(entry, entry.had)

    def _begin(self, entry: Caller) -> None:
        """The turn of a caller has come: the time of its attempt begins."""
        if entry.seconds is None or entry.given is not None or not entry.is_waiting:
            return
        left = self._limits.until[entry] - asyncio.get_running_loop().time()
        entry.given = seconds_after_waiting(entry.seconds, entry.had, left)
        self._limits.begin(entry, entry.given)
        if entry.call is not None:
            self._limits.begin(entry.call, entry.given + entry.call.grace)

    def _late(self, entry: Caller) -> OperationTimeoutError:
        """The error of a caller whose time is over."""
        if entry.given is None and entry.seconds is not None:
            return waited_in_vain()
        what = "the link" if entry.delivery is None else "its answer"
        late = OperationTimeoutError(message=f"Timed out waiting for {what}.")
        if entry.given is not None and entry.seconds is not None and is_cut_short(entry.given, entry.seconds):
            mark_impatient(late)
        return late

    def _was_silent(self, entry: Caller) -> None:
        """A caller got no answer in all its time: the connection may be dead without an error."""
        if entry.delivery is not None:
            if entry in self._flying:  # else its connection is gone already
                self._grow_stale()
        else:
            self._end_opening()

    def _was_left(self, entry: Caller) -> None:
        """A caller was cancelled. What nobody waits for any more may wait for a silent peer, and the next caller must not."""
        if entry.delivery is not None:
            if self._written() == [entry]:
                self._grow_stale()
        else:
            self._end_opening()

    def _written(self) -> list[Caller]:
        """Those whose messages have left over the connection that there is, and have no answer."""
        return [entry for entry in self._flying if entry.delivery is not None]

    def _grow_stale(self) -> None:
        """The connection may be dead without an error: what is not written yet waits for the next one."""
        self._is_stale = True
        while self._fresh:
            entry = self._fresh.pop()
            if entry in self._flying:
                del self._flying[entry]
                self._waiting[entry] = None
                self._waiting.move_to_end(entry, last=False)
                if entry.seconds is not None:
                    self._wait_with(entry, entry.seconds)

    def _is_left(self) -> bool:
        """Whether all who wait for an answer over the connection have given up in this moment, and have not run since."""
        written = self._written()
        return bool(written) and not any(entry.is_waiting for entry in written)

    def _still_waiting(self, *kinds: int) -> list[Caller]:
        """Callers in the queue. One that has given up a moment ago, and has not run since, is in it but waits no more."""
        return [entry for entry in self._waiting if entry.kind in kinds and entry.is_waiting]

    def _end_opening(self) -> None:
        """Give up an opening for which nobody waits."""
        if self._opening is not None and not self._still_waiting(OPEN, SEND, HOLD):
            self._opening.cancel()

    def look_again(self) -> None:
        """Let callers go whose messages are no longer wanted on this way. One that is under way stays.

        Messages that are wanted again: the peer has answered, though not here. Who waited here all the time may wait for a dead
        connection. An opening begins again, and newcomers do not join messages that have no answer.
        """
        was_wanted, self._was_wanted = self._was_wanted, self._is_wanted()
        if not self._was_wanted:
            for entry in self._still_waiting(SEND):
                if entry.given is None:
                    self._answer(entry, NotWanted())
            self._advance()
        elif not was_wanted:
            if self._opening is not None:
                self._opening.cancel()
            elif self._written():
                self._grow_stale()

    def _given_up(self, entry: Caller) -> None:
        """A caller has its answer or waits no longer. A message that was not written yet never will be."""
        self._waiting.pop(entry, None)
        if entry in self._flying:
            del self._flying[entry]
            if entry.delivery is not None:
                handlers.withdraw(entry.delivery)
            if self._is_stale and not self._flying and self._pump is not None:
                self._pump.cancel()  # it may be writing to a peer that does not read, and would do so for ever
        self._advance()

    def _answer(self, entry: Caller, error: BaseException | None = None) -> None:
        """A caller waits no more: it has its turn, or is told why not."""
        self._waiting.pop(entry, None)
        entry.done(error)

    def _advance(self) -> None:
        """Give turns to the callers that wait, in their order.

        Callers that end ask for this, whatever ended them: what it raised would take the place of their own error.
        """
        while self._waiting and not self._is_held and self._opening is None:
            entry = next(iter(self._waiting))
            if not entry.is_waiting:
                del self._waiting[entry]
            elif entry.kind == HOLD:
                if self._flying or self._pump is not None:
                    return
                self._begin(entry)
                self._is_held = True
                self._answer(entry)
            elif not handlers.is_open(self.sender):
                if self._pump is None and not self.is_closed:
                    self._begin_opening()
                return
            elif entry.kind == OPEN:
                self._answer(entry)
            elif self._pump is not None and (self._is_stale or self._is_left()):
                return  # a caller that joined those in flight would keep a dead connection for ever
            elif not self._is_wanted():
                self._answer(entry, NotWanted())
            elif len(self._flying) < IN_FLIGHT_MAX:
                del self._waiting[entry]
                self._begin(entry)
                self._flying[entry] = None
                self._fresh.append(entry)
                if self._pump is None:
                    self._pump = asyncio.get_running_loop().create_task(self._send_for_all())
            else:
                return

    # --- one owner --------------------------------------------------------------------------------

    def _begin_opening(self) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._open_once())
        self._opening.add_done_callback(self._has_opened)
        for entry in self._still_waiting(OPEN, SEND):
            self._begin(entry)

    def _has_opened(self, opening: asyncio.Task[None]) -> None:
        """An opening that nobody waited for any more may have been cancelled before it ran: then it has not told anybody."""
        if self._opening is opening:
            self._opening = None
            self._advance()

    async def _open_once(self) -> None:
        failure: Exception | None = None
        try:
            for is_last in (False, True):
                try:
                    await self._sdk_open(OPEN_SECONDS_MAX)
                    break
                except Exception as error:
                    self._drop()
                    # An error inside the client says nothing about the namespace: a fresh connection may do.
                    if is_last or is_of_the_transport(error):
                        raise
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            failure = error
        except BaseException:
            self._drop()
            raise
        finally:
            self._opening = None
            if failure is not None:
                for entry in self._still_waiting(OPEN, SEND):
                    self._answer(entry, copy_of(failure))
            self._advance()
            if self._opening is None:
                for entry in self._still_waiting(OPEN, SEND):  # for an answer to others
                    if entry.given is not None and entry.seconds is not None:
                        self._wait_with(entry, entry.seconds)

    async def _send_for_all(self) -> None:
        """Send the messages of all callers and read the answers, until nothing is in flight."""
        handler = handlers.connection_of(self.sender)
        try:
            while self._flying:
                while self._fresh:
                    entry = self._fresh.popleft()
                    if entry in self._flying:
                        if entry.attempts is not None:
                            entry.attempts.sending()
                        entry.delivery = await handlers.transfer(handler, entry.message, self._settler(entry))
                await handlers.work(handler)
        except BaseException as error:
            self._drop()
            failed, self._flying = self._flying, {}
            for entry in failed:
                entry.done(copy_of(error) if isinstance(error, Exception) else LinkClosed())
            if not isinstance(error, Exception):
                raise
        finally:
            self._fresh.clear()
            self._pump = None
            if self._is_stale:
                self._drop()
            self._advance()

    def _settler(self, entry: Caller) -> Callable[[BaseException | None], None]:
        def settled(error: BaseException | None) -> None:
            if entry in self._flying:  # an answer; otherwise it was withdrawn
                del self._flying[entry]
                self._is_stale = False
            entry.delivery = None
            entry.done(error)
            self._advance()

        return settled

    def _drop(self) -> None:
        """Let go of the connection. A task closes it: that takes a second or more when its peer is gone."""
        self._is_stale = False
        handler = handlers.take_handler(self.sender)
        if handler is not None:
            task = asyncio.get_running_loop().create_task(handlers.end_client(handler, END_SECONDS))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    """A time limit that ends in the SDK's own error: programs catch ServiceBusError, not the language's TimeoutError."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise OperationTimeoutError(message=f"{what} did not end in time.") from error
