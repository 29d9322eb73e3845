"""Passes the bytes of relayed connections between their two sockets, in a thread of its own.

Every piece of every relayed message comes through here, so there is nothing between a read and its write: no transport, no task, no
buffer per connection. A loop of asyncio costs about as much per piece as the kernel's own work on it (decision 0124).

Rule 1: only the thread touches the sockets once they are handed over. Other threads leave a request and wake it.
Rule 2: neither side is read while the other does not take what was read before. A side that is not wanted for anything is not polled
        at all: the kernel reports a broken connection even to those who asked for nothing, again and again.
Rule 3: the end of one direction is passed on after everything that was read before it; the connection ends when both have ended, or at
        the first error.
Rule 4: once one side has ended, the connection ends ``END_SECONDS`` after the client last took a byte, and ``ENDING_SECONDS_MAX`` after that end at the
        latest. A client may send its end and wait for a long answer; a peer that never closes would keep both sockets (decision 0150).
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

READ_BYTES: Final = 256 * 1024
"""Of one read, and so the most that waits in one direction of a connection."""
STOP_SECONDS_MAX: Final = 2.0
END_SECONDS: Final = 5.0
"""After one side has ended: how long no byte may reach the client."""
ENDING_SECONDS_MAX: Final = 60.0
"""After one side has ended, while bytes reach the client: a client that takes few at a time would keep its place."""
SWEEP_SECONDS: Final = 1.0
"""Between two looks at connections that end or do not take their bytes; without such connections there are none."""

_READ: Final = select.POLLIN
_WRITE: Final = select.POLLOUT
_END: Final[int] = getattr(select, "POLLRDHUP", 0)
"""The peer sends nothing more, although there may be bytes to read. Elsewhere than on Linux only a broken connection is noticed."""
_TCP_INFO_BYTES: Final = 136
_RECEIVED_AT: Final = 128
"""Where Linux has ``tcpi_bytes_received``."""


class _Side:
    """One of the two sockets of a connection."""

    __slots__ = ("has_ended", "is_shut", "mask", "other", "pipe", "recv_into", "send", "sock", "unwritten")

    other: _Side

    def __init__(self, sock: socket.socket, pipe: Pipe) -> None:
        self.sock = sock
        self.pipe = pipe
        self.recv_into = sock.recv_into
        self.send = sock.send
        self.unwritten = b""
        """Read from the other side, and not taken by this socket yet."""
        self.has_ended = False
        """Its peer sends nothing more."""
        self.is_shut = False
        """Its peer was told that nothing more comes."""
        self.mask = 0
        """What it is polled for now."""

    def wanted(self) -> int:
        read = 0 if self.has_ended or self.other.unwritten else _READ
        return read | (_WRITE if self.unwritten else 0)


class Pipe:
    """A relayed connection.

    Args:
        near: The client's socket.
        far: The owner's.
        ended: Called once, in the thread, when both sockets are closed.
    """

    def __init__(self, near: socket.socket, far: socket.socket, ended: Callable[[Pipe], None]) -> None:
        self.near, self.far = _Side(near, self), _Side(far, self)
        self.near.other, self.far.other = self.far, self.near
        self.ended = ended
        self.is_closed = False
        self.ends_at: float | None = None
        """When it is closed if the client takes nothing until then; None: neither side has ended."""
        self.ends_by = 0.0
        """When it is closed at the latest."""

    def client_bytes(self) -> int | None:
        """How much the client has sent, as the system counts it; None: it does not tell. Any thread may ask."""
        if sys.platform != "linux":
            return None
        try:
            found = self.near.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            return int(struct.unpack_from("Q", found, _RECEIVED_AT)[0])
        except (OSError, struct.error):  # it was just closed, or the system is older than this count
            return None


class Pipes:
    """All relayed connections of a node. The thread begins with the first of them.

    Args:
        clock: Seconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sweep_at = 0.0
        self._ending: dict[Pipe, None] = {}
        """One side has ended."""
        self._stalled: dict[Pipe, None] = {}
        """A side does not take what the other sent, and so the other is not read and its end not seen."""
        self._requests: deque[Callable[[], None]] = deque()
        self._poller: select.epoll | select.poll | None = None
        self._wake_reader: socket.socket | None = None
        self._wake_writer: socket.socket | None = None
        self._sides: dict[int, _Side] = {}
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)

    def join(
        self,
        near: socket.socket,
        far: socket.socket,
        *,
        first: bytes,
        has_ended: bool,
        ended: Callable[[Pipe], None],
    ) -> Pipe:
        """Pass bytes between the sockets from now on, beginning with ``first`` to ``far``. They belong to the thread then.

        ``has_ended``: the client sends nothing behind ``first``.
        """
        for one in (near, far):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe = Pipe(near, far, ended)
        if self._is_stopping:
            self._close(pipe)
            return pipe
        pipe.far.unwritten = first
        pipe.near.has_ended = has_ended
        if self._thread is None:
            self._start()
        self._request(lambda: self._begin(pipe))
        return pipe

    def cut(self, pipe: Pipe) -> None:
        """End a connection at once and drop what was not written."""
        self._request(lambda: self._close(pipe))

    def close(self) -> None:
        """End every connection and the thread."""
        self._is_stopping = True
        if self._thread is not None:
            self._wake()
            self._thread.join(STOP_SECONDS_MAX)

    def _start(self) -> None:
        self._poller = select.epoll() if hasattr(select, "epoll") else select.poll()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._poller.register(self._wake_reader.fileno(), _READ)
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._thread = threading.Thread(target=self._run, name="pairbus-relay", daemon=True)
        self._thread.start()

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.append(request)
        self._wake()

    def _wake(self) -> None:
        if self._wake_writer is not None:
            with contextlib.suppress(OSError):  # full: the thread wakes anyway; closed: it has ended
                self._wake_writer.send(b"\0")

    # In the thread.

    def _run(self) -> None:
        assert self._poller is not None, "_start made it"
        assert self._wake_reader is not None, "_start made it"
        poll, sides, wake = self._poller.poll, self._sides, self._wake_reader.fileno()
        ending, stalled = self._ending, self._stalled
        # epoll counts seconds, poll milliseconds.
        pause = SWEEP_SECONDS if hasattr(select, "epoll") else SWEEP_SECONDS * 1000
        try:
            while not self._is_stopping:
                is_woken = False
                for fd, events in poll(pause if ending or stalled else None):
                    side = sides.get(fd)
                    if side is None:
                        # The socket that wakes the thread, or one that was closed by an earlier event of this round.
                        is_woken |= fd == wake
                    elif events == side.mask == _READ:
                        self._pass_on(side)
                    else:
                        self._handle(side, events)
                if is_woken:
                    # Also without a request: it may have been answered with the one before, and what woke the thread must be read.
                    self._answer_requests()
                if ending or stalled:
                    self._sweep()
        finally:
            self._release()

    def _pass_on(self, side: _Side) -> None:
        """Read once and write it to the other side."""
        try:
            count = side.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            self._close(side.pipe)
            return
        if not count:
            side.has_ended = True
            self._settle(side.pipe)
            return
        other = side.other
        try:
            sent = other.send(self._view[:count])
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(side.pipe)
            return
        if other.has_ended and sent:
            self._moved(other)
        if sent < count:
            other.unwritten = bytes(self._view[sent:count])
            self._settle(side.pipe)

    def _handle(self, side: _Side, events: int) -> None:
        """Events that are not just bytes to read."""
        if side.unwritten:
            self._flush(side)
        if not side.pipe.is_closed and side.mask & _READ and events & ~_WRITE:
            self._pass_on(side)

    def _flush(self, side: _Side) -> None:
        try:
            side.unwritten = side.unwritten[side.send(side.unwritten) :]
            self._moved(side)
        except BlockingIOError:
            pass
        except OSError:
            self._close(side.pipe)
            return
        self._settle(side.pipe)

    def _settle(self, pipe: Pipe) -> None:
        """After a change of what waits or has ended: pass the end on, and poll for what is wanted now."""
        for side in (pipe.near, pipe.far):
            if side.other.has_ended and not side.unwritten and not side.is_shut:
                side.is_shut = True
                try:
                    side.sock.shutdown(socket.SHUT_WR)
                except OSError:
                    self._close(pipe)
                    return
        if pipe.near.is_shut and pipe.far.is_shut:
            self._close(pipe)
            return
        if pipe.near.has_ended or pipe.far.has_ended:
            self._end_soon(pipe)
        if pipe.near.unwritten or pipe.far.unwritten:
            self._stalled[pipe] = None
        else:
            self._stalled.pop(pipe, None)
        assert self._poller is not None, "_start made it"
        for side in (pipe.near, pipe.far):
            wanted = side.wanted()
            if wanted == side.mask:
                continue
            if not side.mask:
                self._poller.register(side.sock.fileno(), wanted)
            elif wanted:
                self._poller.modify(side.sock.fileno(), wanted)
            else:
                self._poller.unregister(side.sock.fileno())
            side.mask = wanted

    def _end_soon(self, pipe: Pipe) -> None:
        if pipe.ends_at is None:
            now = self._clock()
            pipe.ends_at, pipe.ends_by = now + END_SECONDS, now + ENDING_SECONDS_MAX
            self._ending[pipe] = None

    def _moved(self, side: _Side) -> None:
        """A side took bytes. If the connection is ending, those that the client takes give it more time; what it sends does not."""
        pipe = side.pipe
        if pipe.ends_at is not None and side is pipe.near:
            pipe.ends_at = min(self._clock() + END_SECONDS, pipe.ends_by)

    def _sweep(self) -> None:
        """Close what had its time to end, and see whether a side that is not read has ended."""
        now = self._clock()
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        for pipe in self._stalled:
            if any(not side.mask & _READ and _has_ended(side.sock) for side in (pipe.near, pipe.far)):
                self._end_soon(pipe)
        for pipe in [pipe for pipe in self._ending if pipe.ends_at is not None and pipe.ends_at <= now]:
            self._close(pipe)

    def _begin(self, pipe: Pipe) -> None:
        for side in (pipe.near, pipe.far):
            self._sides[side.sock.fileno()] = side
        self._flush(pipe.far)

    def _close(self, pipe: Pipe) -> None:
        if pipe.is_closed:
            return
        pipe.is_closed = True
        for side in (pipe.near, pipe.far):
            fd = side.sock.fileno()
            if side.mask and self._poller is not None:
                self._poller.unregister(fd)
            self._sides.pop(fd, None)
            side.sock.close()
        self._ending.pop(pipe, None)
        self._stalled.pop(pipe, None)
        pipe.ended(pipe)

    def _answer_requests(self) -> None:
        assert self._wake_reader is not None, "_start made it"
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        while self._requests:
            self._requests.popleft()()

    def _release(self) -> None:
        """Close everything, also what was handed over and not begun."""
        self._is_stopping = True
        if self._wake_reader is not None:
            self._answer_requests()
        for side in list(self._sides.values()):
            self._close(side.pipe)
        for one in (self._wake_reader, self._wake_writer):
            if one is not None:
                one.close()
        if isinstance(self._poller, select.epoll):
            self._poller.close()


def _has_ended(sock: socket.socket) -> bool:
    """Whether the peer sends nothing more, also if there are bytes to read."""
    poller = select.poll()
    poller.register(sock.fileno(), _END)
    return bool(poller.poll(0))
