"""Virtual time for code that blocks: events in order, machines that pause and die, and threads that run one at a time.

The broker's commits and its lease renewals are plain blocking code on threads of their own. Here such a thread is a ``VirtualThread``: it
runs while everything else waits for it, and a call that blocks hands control back until its ``Reply`` has come. So the code that ships runs
unchanged, and the same seed gives the same history.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

JOIN_STEP_SECONDS: Final = 0.05


class Killed(BaseException):
    """The machine of this thread is gone. Not an ``Exception``: nothing that ships may catch it."""


class RestlessWorld(AssertionError):
    """More events happen than a world can need."""


class Reply:
    """What a blocking call waits for: a result or an error, once."""

    __slots__ = ("error", "is_done", "on_done", "result")

    def __init__(self) -> None:
        self.is_done = False
        self.result: object = None
        self.error: Exception | None = None
        self.on_done: Callable[[], None] | None = None

    def give(self, result: object = None, error: Exception | None = None) -> None:
        """End the wait. Only the first answer counts."""
        if self.is_done:
            return
        self.is_done = True
        self.result = result
        self.error = error
        if self.on_done is not None:
            self.on_done()


class VirtualTime:
    """True time in milliseconds, and everything that is going to happen."""

    def __init__(self, events_max: int = 1_000_000) -> None:
        self.now = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self._events_max = events_max

    def at(self, time: int, action: Callable[..., None], *arguments: object) -> None:
        """Have something happen."""
        self._count += 1
        heappush(self._events, (max(time, self.now), self._count, action, arguments))

    def after(self, wait: int, action: Callable[..., None], *arguments: object) -> None:
        """Have something happen so many milliseconds from now."""
        self.at(self.now + wait, action, *arguments)

    def expects(self, action: Callable[..., None]) -> bool:
        """Whether something is going to happen."""
        return any(planned == action for _, _, planned, _ in self._events)

    def run_until(self, time: int) -> None:
        """Let everything happen up to an instant."""
        while self._events and self._events[0][0] <= time:
            self._step()
        self.now = max(self.now, time)

    def run_until_done(self, reply: Reply) -> None:
        """Let everything happen until an answer has come."""
        while not reply.is_done:
            if not self._events:
                raise AssertionError("a call waits for an answer that nothing will bring")
            self._step()

    def _step(self) -> None:
        at, number, action, arguments = heappop(self._events)
        self.now = at
        if number > self._events_max:
            raise RestlessWorld(f"the world does not come to rest after {number} events")
        action(*arguments)


class Machine:
    """Something that can be stopped for a while, or for good: what happens on it waits, or is gone.

    Args:
        rate: How fast its monotonic clock runs, beside true time.
        offset_ms: What its monotonic clock shows at the beginning.
    """

    def __init__(self, time: VirtualTime, *, rate: float = 1.0, offset_ms: int = 0) -> None:
        self.time = time
        self.rate = rate
        self._offset_ms = offset_ms
        self.is_dead = False
        self.is_paused = False
        self._held: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._threads: list[VirtualThread] = []
        self._main: VirtualThread | None = None
        self._posted: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._work = Reply()

    def clock_ms(self) -> float:
        """Its monotonic clock. It goes on while the machine is paused."""
        return self._offset_ms + self.time.now * self.rate

    def after(self, wait_ms: float, action: Callable[..., None], *arguments: object) -> None:
        """Have something happen on this machine, so many milliseconds of its own clock from now."""
        true_ms = max(0, -int(-wait_ms // self.rate))
        self.time.after(true_ms, self.run, action, *arguments)

    def run(self, action: Callable[..., None], *arguments: object) -> None:
        """Do it now, when the machine goes on, or never."""
        if self.is_dead:
            return
        if self.is_paused:
            self._held.append((action, arguments))
        else:
            action(*arguments)

    def post(self, action: Callable[..., None], *arguments: object) -> None:
        """Have it done by the machine's main thread, in order: later if that blocks, never if the machine dies before."""
        if self.is_dead:
            return
        self._posted.append((action, arguments))
        if self._main is None:
            self._main = self.start(self._run_main, "main")
        self._work.give()

    def _run_main(self) -> None:
        while True:
            while self._posted:
                action, arguments = self._posted.pop(0)
                action(*arguments)
            self._work = Reply()
            self.wait(self._work)

    def pause(self) -> None:
        """Stop every thread of the machine where it stands."""
        self.is_paused = True

    def go_on(self) -> None:
        """What was due meanwhile happens now, in order."""
        if not self.is_paused or self.is_dead:
            return
        self.is_paused = False
        held, self._held = self._held, []
        for action, arguments in held:
            self.time.after(0, self.run, action, *arguments)

    def kill(self) -> None:
        """End it. Its threads end where they stand."""
        self.is_dead = True
        self._held.clear()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.kill()

    def start(self, target: Callable[[], None], name: str) -> VirtualThread:
        """Begin a thread on this machine."""
        thread = VirtualThread(self, target, name)
        self._threads = [one for one in self._threads if not one.is_ended]
        self._threads.append(thread)
        self.time.after(0, self.run, thread.resume)
        return thread

    def wait(self, reply: Reply) -> object:
        """Block until the answer has come, and return it or raise its error."""
        if self.is_dead:
            raise Killed
        thread = _current.thread
        if thread is None:
            self.time.run_until_done(reply)
        elif not reply.is_done:
            reply.on_done = lambda: self.time.after(0, self.run, thread.resume)
            thread.suspend()
        if reply.error is not None:
            raise reply.error
        return reply.result

    def sleep(self, seconds: float) -> None:
        """Block for a while, by this machine's own clock."""
        reply = Reply()
        self.after(seconds * 1000, reply.give)
        self.wait(reply)


class VirtualThread:
    """Blocking code that runs only while everything else waits for it."""

    def __init__(self, machine: Machine, target: Callable[[], None], name: str) -> None:
        self.machine = machine
        self.name = name
        self.is_ended = False
        self._target = target
        self._is_killed = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._my_turn = threading.Lock()
        self._my_turn.acquire()
        self._others_turn = threading.Lock()
        self._others_turn.acquire()

    def resume(self) -> None:
        """Let it run until it blocks or ends. Called by the world, never by another thread of this kind."""
        if self.is_ended:
            return
        assert _current.thread is None, f"{self.name} is resumed while {_current.thread} runs"
        if self._thread is None:
            if self._is_killed:
                self.is_ended = True
                return
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        _current.thread = self
        self._my_turn.release()
        self._others_turn.acquire()
        _current.thread = None
        self._raise_its_error()

    def _raise_its_error(self) -> None:
        if self.is_ended and self._thread is not None:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def suspend(self) -> None:
        """Hand control back until ``resume``. Called in the thread itself."""
        self._others_turn.release()
        self._my_turn.acquire()
        if self._is_killed:
            raise Killed

    def kill(self) -> None:
        """End it where it stands."""
        self._is_killed = True
        if _current.thread is self:
            raise Killed
        self.resume()

    def _run(self) -> None:
        self._my_turn.acquire()
        try:
            if not self._is_killed:
                self._target()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the world raises it
            self._error = error
        self.is_ended = True
        self._others_turn.release()


class _Current:
    """Which virtual thread runs now; only one ever does."""

    thread: VirtualThread | None = None


_current = _Current()


class Threading:
    """Stands in for the module ``threading`` in code that ships: its threads are of the machine on which they are made.

    Only one virtual thread runs at a time and it is interrupted only where it blocks, so a lock has nothing to do.
    """

    class Thread:
        """See ``threading.Thread``."""

        def __init__(self, *, target: Callable[[], None], name: str, daemon: bool = False) -> None:
            thread = _current.thread
            assert thread is not None, f"{name} is made on no machine"
            self._machine = thread.machine
            self._target = target
            self._name = name
            self.is_daemon = daemon
            self._thread: VirtualThread | None = None

        @property
        def ident(self) -> int | None:
            return None if self._thread is None else id(self._thread)

        def start(self) -> None:
            self._thread = self._machine.start(self._target, self._name)

        def is_alive(self) -> bool:
            return self._thread is not None and not self._thread.is_ended

        def join(self, timeout: float | None = None) -> None:
            waited = 0.0
            while self.is_alive() and (timeout is None or waited < timeout):
                self._machine.sleep(JOIN_STEP_SECONDS)
                waited += JOIN_STEP_SECONDS

    class Condition:
        """See ``threading.Condition``."""

        def __init__(self) -> None:
            self._waiting: list[Reply] = []

        def __enter__(self) -> Threading.Condition:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def wait(self, timeout: float | None = None) -> bool:
            thread = _current.thread
            assert thread is not None, "only virtual threads wait"
            reply = Reply()
            self._waiting.append(reply)
            if timeout is not None:
                thread.machine.after(timeout * 1000, reply.give, False)
            try:
                return bool(thread.machine.wait(reply))
            finally:
                if reply in self._waiting:
                    self._waiting.remove(reply)

        def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
            thread = _current.thread
            assert thread is not None, "only virtual threads wait"
            end = None if timeout is None else thread.machine.clock_ms() + timeout * 1000
            while not predicate():
                left = None if end is None else (end - thread.machine.clock_ms()) / 1000
                if left is not None and left <= 0:
                    return False
                self.wait(left)
            return True

        def notify(self, count: int = 1) -> None:
            for reply in [one for one in self._waiting if not one.is_done][:count]:
                reply.give(True)

        def notify_all(self) -> None:
            self.notify(len(self._waiting))

    Lock = Condition


class Queues:
    """Stands in for the module ``queue`` in code that ships."""

    class SimpleQueue:
        """See ``queue.SimpleQueue``."""

        def __init__(self) -> None:
            self._items: list[object] = []
            self._arrival = Reply()

        def __class_getitem__(cls, _item: object) -> type[Queues.SimpleQueue]:
            return cls

        def put(self, item: object) -> None:
            self._items.append(item)
            self._arrival.give()

        def get(self) -> object:
            thread = _current.thread
            assert thread is not None, "only virtual threads wait"
            while not self._items:
                self._arrival = Reply()
                thread.machine.wait(self._arrival)
            return self._items.pop(0)
