"""Whether the owner can be reached from this node: what ``/health`` of a node that relays says depends on it.

The node asks by itself, again and again, sooner after a failure: clients may stay away from a node that is unfit. A relayed connection that
cannot be made is a failure too. That one can be made proves nothing, so only an answer ends a failure:

- It leads elsewhere, because the owner advertises a wrong address: back to this node, to another one that relays, or to another namespace. So
  a try asks ``/health``, and whose answer it is decides. The first try asks several times, because a balancer may lead to the owner only
  sometimes. What answers something else than a node is taken for the owner.
- It leads to an owner that answers no client, because its database does not answer it: it says so itself (decision 0192).
- It leads nowhere: a network that swallows everything, or a process that is frozen, takes connections and says nothing (decision 0183).
- It leads to something in between that has nobody behind it, takes connections and closes them (decision 0198).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

from pairbus.errors import UsageError
from pairbus.server.config.addresses import parse_address

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX: Final = 3.0
"""For a connection, and for its answer."""
ANSWER_BYTES_MAX: Final = 8 * 1024
RETRY_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 3.0
"""Between two tries while the owner answers. Each is one request for ``/health``."""
ASKED_TIMES: Final = 4
"""Connections, one after the other, to learn who answers at an address."""
SAYS_NOTHING: Final = "it takes connections and says nothing"
CLOSES: Final = "it takes connections and closes them without a word"


class _SaysNothing(Exception):
    """A connection was made, and nothing came over it in time."""


class _Closes(OSError):
    """A connection was made, and ended before anything came over it."""


@contextlib.contextmanager
def _connecting() -> Iterator[None]:
    """Raises OSError for everything that may go wrong; TimeoutError is one."""
    try:
        yield
    except (UsageError, UnicodeError) as error:  # what another node advertises
        raise OSError(str(error)) from error
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {CONNECT_SECONDS_MAX:g} s") from error


async def connect(address: str) -> asyncio.Transport:
    """A connection to the owner that nobody reads yet. Raises OSError; TimeoutError is one."""
    with _connecting():
        host, port = parse_address(address, "the owner's address")
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    return transport


async def ask_name(address: str) -> tuple[str, str] | None:
    """The namespace and the name of the node that answers there; None: what answers does not say, or nothing does. Raises OSError."""
    try:
        return await _ask(address)
    except (TimeoutError, _SaysNothing, _Closes):
        return None


async def _ask(
    address: str, heard: Callable[[tuple[str, str], str], None] | None = None
) -> tuple[str, str] | None:
    """As ``ask_name``, but silence raises _SaysNothing, an end without a word _Closes, and a connection that takes too long TimeoutError.

    ``heard``: called with who answers, and why that node serves nobody, if it says so.
    """
    with _connecting():
        host, port = parse_address(address, "the owner's address")
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(host, port)
    answer = b""
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            writer.write(f"GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode())
            answer = await reader.read(ANSWER_BYTES_MAX)
            while more := await reader.read(ANSWER_BYTES_MAX - len(answer)):
                answer += more
        if not answer:
            raise _Closes(CLOSES)
        found = json.loads(answer.partition(b"\r\n\r\n")[2])
        name = str(found["namespace"]), str(found["node"])
        if heard is not None:
            heard(name, str(found.get("reason", "")) if found.get("role") == "silent" else "")
        return name
    except TimeoutError:
        if not answer:
            raise _SaysNothing from None
        return None
    except (ValueError, LookupError, TypeError):
        return None
    finally:
        writer.transport.abort()  # what was not taken must not keep the socket


async def who_else(
    address: str,
    expected: tuple[str, str],
    times: int = ASKED_TIMES,
    ask: Callable[[str], Awaitable[tuple[str, str] | None]] = ask_name,
) -> str:
    """Who answers at an address in place of a namespace's node; empty: nobody else, or what answers does not say. Raises OSError."""
    for _ in range(times):
        found = await ask(address)
        if found is not None and found != expected:
            namespace, node = found
            return f"node {node}" if namespace == expected[0] else f"namespace {namespace}"
    return ""


class OwnerReach:
    """What is known of the way to the owner."""

    def __init__(self) -> None:
        self.address = ""
        """Of the owner to relay to; empty: there is none."""
        self._expected: tuple[str, str] | None = None
        """The namespace and the owner's name; None: they are not known."""
        self._silent_since: float | None = None
        """When the first connection was made over which nothing has come; None: there was an answer since, or no connection."""
        self._silence = ""
        """Why the owner serves nobody, as it says itself; empty: it serves, or did not say."""
        self.failure = ""
        """Why the owner could not be reached lately; empty: it was, or nothing was tried yet."""
        self.failures = 0
        self._logged: set[str] = set()
        self._watch: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def aim(self, address: str, expected: tuple[str, str] | None = None) -> None:
        """Another node became the owner, or none. ``expected``: the namespace and its name."""
        self.close()
        self.address, self.failure = address, ""
        self._expected, self._silent_since = expected, None
        self._silence = ""
        self._logged.clear()
        if address:
            self._watch = asyncio.get_running_loop().create_task(self._keep_looking(address))

    def trouble(self) -> str:
        """Why no client is served through this node; empty: the owner can be reached, as far as is known."""
        if self._silent_since is not None:
            seconds = asyncio.get_running_loop().time() - self._silent_since
            return f"the owner at {self.address} takes connections and has said nothing for {seconds:.1f} s"
        if self.failure:
            return f"the owner at {self.address} cannot be reached: {self.failure}"
        return self._silence and f"the owner at {self.address} serves nobody: {self._silence}"

    def _answered(self, address: str) -> None:
        if address == self.address and self.failure:
            self.failure = ""
            self._logged.clear()
            logger.info(
                "the owner can be reached again", extra={"event": "cluster.relay_back", "address": address}
            )

    def failed(self, address: str, error: OSError) -> None:
        """A connection could not be made. Each reason is told once for an owner."""
        self._note(address, error)
        self._hurry.set()

    def _note(self, address: str, error: OSError) -> None:
        self.failures += 1
        if address != self.address:
            return
        self.failure = str(error) or type(error).__name__
        if self.failure not in self._logged:
            self._logged.add(self.failure)
            logger.warning(
                "the owner cannot be reached, so no client is served through this node: look at the owner's --advertise and at the "
                "network in between",
                extra={"event": "cluster.relay_failed", "address": address, "error": self.failure},
            )

    async def _keep_looking(self, address: str) -> None:
        times = ASKED_TIMES
        while True:
            self._hurry.clear()
            try:
                await self._look(address, times)
            except OSError as error:
                self._note(address, error)
                times = ASKED_TIMES
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._answered(address)
            times = 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS if self._silence else WATCH_SECONDS):
                    await self._hurry.wait()

    async def _look(self, address: str, times: int) -> None:
        """Raises OSError unless the owner answers there, or something that does not say who it is."""
        expected = self._expected
        try:
            if expected is None:
                (await connect(address)).abort()
                other = ""
            else:
                other = await who_else(address, expected, times, partial(_ask, heard=self._heard))
        except _SaysNothing:
            if self._silent_since is None:
                self._silent_since = asyncio.get_running_loop().time() - CONNECT_SECONDS_MAX
            raise OSError(SAYS_NOTHING) from None
        except OSError:
            self._silent_since = None
            raise
        self._silent_since = None
        if other and expected is not None:
            owner = expected[1]
            raise OSError(
                f"{other} answers there instead of node {owner}: the --advertise of {owner} is wrong"
            )

    def _heard(self, name: tuple[str, str], silence: str) -> None:
        if name == self._expected:
            self._silence = silence

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
