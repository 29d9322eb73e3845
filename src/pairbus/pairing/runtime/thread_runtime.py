"""The runtime on threads: every method blocks, and no coroutine ever suspends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakSet

from pairbus.pairing.runtime.thread_link import NEVER, ThreadLink
from pairbus.pairing.runtime.turns import Turn
from pairbus.sdk.links import handlers
from pairbus.sdk.links.opening import bound_opening
from pairbus.sdk.management.admin import admin_client, cut_requests

if TYPE_CHECKING:
    from pairbus.pairing.runtime.ports import Work
    from pairbus.spool.store import Append, Spool

_Result = TypeVar("_Result")

WATCH_SECONDS: Final = 0.1
"""How often the watcher looks for calls that overrun."""
CUT_AGAIN_SECONDS: Final = 0.5
"""Seconds after which a call that was cut off and goes on is cut off again."""
STOP_SECONDS: Final = 1.0
"""How long work in the background may take to end by itself when the client is closed, before its connections are cut."""
IDLE_TURNS: Final = 20
"""After so many looks without a call the watcher ends; the next call starts another one."""


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of a coroutine over a ``ThreadRuntime``, which blocks where another one would suspend."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError(f"{work!r} waits for an event loop, and there is none in a thread")


class ThreadRuntime:
    """See ``Runtime``."""

    def __init__(self) -> None:
        self.limits = Limits()
        self._changed = threading.Event()
        self._running: set[threading.Thread] = set()
        self._beside: set[threading.Thread] = set()
        """Threads of ``together``. One that was given up may go on."""
        self._admins: WeakSet[Any] = WeakSet()
        # Of a signal handler's thread too, which may close the client in the middle of anything.
        self._lock = threading.RLock()
        self._shared: tuple[int, threading.Event] | None = None
        """The thread that does the work that is shared, and what the others wait for."""

    def link(
        self,
        sender: Any,
        is_wanted: Callable[[], bool],
        is_final: Callable[[BaseException], bool] | None = None,
    ) -> ThreadLink:
        return ThreadLink(sender, self.limits, is_wanted, is_final)

    def notify(self) -> None:
        changed, self._changed = self._changed, threading.Event()
        changed.set()

    def change_token(self) -> threading.Event:
        return self._changed

    async def wait_for_change(self, token: threading.Event, seconds: float | None) -> None:
        token.wait(seconds)

    def limit(self, handler: Any, seconds: float) -> LimitedCall:
        return LimitedCall(self.limits, handler, time.monotonic() + seconds)

    async def call(self, work: Callable[..., Any], *given: Any, **options: Any) -> Any:
        return work(*given, **options)

    async def blocking(self, work: Callable[..., Any], *given: Any) -> Any:
        return work(*given)

    async def commit(self, spool: Spool, append: Append) -> None:
        spool.commit(append)

    async def collect(self, pages: Any) -> list[Any]:
        return list(pages)

    def entered(self, resource: Any) -> _Entered:
        bound_opening(resource)
        handlers.free_sockets(resource)
        return _Entered(resource)

    def admin_client(self, client: Any, options: dict[str, Any], host: str | None) -> Any:
        made = admin_client(client, options, host)
        with self._lock:
            self._admins.add(made)
        return made

    async def together(self, work: Work, items: Iterable[object], seconds: float) -> None:
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(
                target=self._run, args=(self._beside, work, item), name="pairbus-closing", daemon=True
            )
            for item in items
        ]
        for thread in threads:
            self._start(thread, self._beside)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    async def shared(self, work: Work, seconds: float) -> bool:
        mine = threading.Event()
        me = threading.get_ident()
        with self._lock:
            running = self._shared
            if running is None:
                self._shared = me, mine
        if running is not None:
            # A signal handler may ask in the thread that does it, and must not wait for itself.
            return running[0] != me and running[1].wait(seconds)
        try:
            await work(seconds)
        finally:
            self._shared = None
            mine.set()
        return True

    def spawn(self, work: Work, *arguments: object) -> None:
        thread = threading.Thread(
            target=self._run, args=(self._running, work, *arguments), name="pairbus", daemon=True
        )
        self._start(thread, self._running)

    async def stop_tasks(self, seconds: float) -> None:
        # A thread cannot be cancelled: each notices by itself that the client has ended, unless it waits for a silent peer. Its
        # connection is then ended here, before closing the clients takes it off its sender, where nobody would find it any more.
        begun = time.monotonic()
        cut_from, until = begun + min(STOP_SECONDS, seconds / 2), begun + seconds
        with self._lock:
            others = [thread for thread in self._running if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, cut_from - time.monotonic()))
            while thread.is_alive() and time.monotonic() < until:
                self._cut()
                thread.join(WATCH_SECONDS)
        self._cut()

    def _cut(self) -> None:
        """End the calls in progress, but for those of links, which close by themselves."""
        self.limits.cut()
        with self._lock:
            admins = list(self._admins)
        for admin in admins:
            cut_requests(admin)

    async def quiet(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        with self._lock:
            left = [*self._running, *self._beside]
        if threading.current_thread() in left:
            return False
        for thread in left:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in left)

    def begin(self) -> None:
        """Threads belong to no event loop."""

    def is_over(self) -> bool:
        return False

    def caller(self) -> object:
        return threading.get_ident()

    async def end(self, seconds: float) -> None:
        self.limits.end(seconds)

    def drain_host(self) -> Any:
        from pairbus.pairing.client.drain_host import ThreadDrainHost  # noqa: PLC0415 - it imports this room

        return ThreadDrainHost()

    def _start(self, thread: threading.Thread, those: set[threading.Thread]) -> None:
        # Others join those: a thread that has not started cannot be joined.
        with self._lock:
            thread.start()
            those.add(thread)

    def _run(self, those: set[threading.Thread], work: Work, *arguments: object) -> None:
        try:
            run(work(*arguments))
        finally:
            with self._lock:
                those.discard(threading.current_thread())


class _Entered:
    """A synchronous context manager in the asynchronous shape."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource

    async def __aenter__(self) -> Any:
        return self._resource.__enter__()

    async def __aexit__(self, *details: object) -> None:
        self._resource.__exit__(*details)


# --- time limits ----------------------------------------------------------------------------------


class Watched(Protocol):
    """A link whose calls are bounded: ``until`` is when the call in progress is cut off, or ``NEVER``."""

    sender: Any
    until: float
    cut_again: float
    is_overdue: bool
    turn: Turn

    def look_after_waiting(self) -> None:
        """Let callers go that wait for a turn which is of no use any more."""


class Limits:
    """Bounds on calls of the SDK, which waits without a limit for the first bytes of a silent peer.

    One thread watches the calls in progress and cuts the socket of one that overruns. It ends when there are none.
    """

    def __init__(self) -> None:
        self._calls: dict[int, LimitedCall] = {}
        self._lock = threading.Lock()
        self.watcher: threading.Thread | None = None
        self._ended = threading.Event()
        self._links: WeakSet[Watched] = WeakSet()
        _everywhere.add(self)

    def add(self, link: Watched) -> None:
        """Watch the calls of one more link."""
        # Under the lock: a set that grows while the watcher goes through it would end the watcher.
        with self._lock:
            self._links.add(link)

    def enter(self, call: LimitedCall) -> None:
        """A call begins."""
        self._calls[id(call)] = call
        if self.watcher is None:
            self.start()

    def leave(self, call: LimitedCall) -> None:
        """A call has ended."""
        self._calls.pop(id(call), None)

    def start(self) -> None:
        """Watch, if nobody does."""
        with self._lock:
            if self.watcher is None:
                watcher = threading.Thread(target=self._watch, name="pairbus-limits", daemon=True)
                watcher.start()
                self.watcher = watcher  # only now: ``end`` joins it

    def end(self, seconds: float) -> None:
        """The client is closed: the watcher ends with the last call in progress. Wait for that, at most ``seconds``."""
        watcher = self.watcher
        self._ended.set()
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(max(0.0, seconds))

    def cut(self) -> None:
        """Cut every call in progress, but for those of links."""
        for call in list(self._calls.values()):
            handlers.cut_socket(call.handler)

    def start_over(self) -> None:
        """In a forked process: the parent's watcher is not here, and nobody will release its locks."""
        self._lock = threading.Lock()
        self._calls = {}
        self.watcher = None
        self._ended = threading.Event()
        for link in list(self._links):
            link.turn, link.until = Turn(), NEVER

    def _watch(self) -> None:
        idle = 0
        while idle <= IDLE_TURNS:
            if not self._ended.wait(WATCH_SECONDS):
                idle = 0 if self._look(time.monotonic()) else idle + 1
            elif self._look(time.monotonic()):
                time.sleep(WATCH_SECONDS)
            else:
                break
        with self._lock:
            # A send that begins in this moment finds no watcher and starts the next one.
            self.watcher = None
        if self._is_busy():
            self.start()

    def _look(self, now: float) -> bool:
        """Cut calls that overrun. Returns whether there is anything to watch."""
        for call in list(self._calls.values()):
            if call.until <= now:
                # It stays watched: the SDK may try again, and the next connection may be as silent.
                call.until = now + CUT_AGAIN_SECONDS
                handlers.cut_socket(call.handler)
        for link in self._watched():
            link.look_after_waiting()
            until = link.until
            # ``until`` stays as it is, for the reason above. It is the caller's, who may set it back in this moment.
            if (until <= now or (link.is_overdue and until < NEVER)) and link.cut_again <= now:
                link.cut_again = now + CUT_AGAIN_SECONDS
                handlers.cut_socket(link.sender)
        return self._is_busy()

    def _is_busy(self) -> bool:
        return bool(self._calls) or any(link.until < NEVER for link in self._watched())

    def _watched(self) -> list[Watched]:
        with self._lock:
            return list(self._links)


class LimitedCall:
    """One call in progress, cut off at ``until``."""

    __slots__ = ("_limits", "handler", "until")

    def __init__(self, limits: Limits, handler: Any, until: float) -> None:
        self._limits = limits
        self.handler = handler
        self.until = until

    async def __aenter__(self) -> None:
        self._limits.enter(self)

    async def __aexit__(self, *details: object) -> None:
        self._limits.leave(self)


_everywhere: WeakSet[Limits] = WeakSet()


def _forked() -> None:
    for limits in list(_everywhere):
        limits.start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
