"""Whether the owner can be reached from this node: what ``/health`` of a node that relays says depends on it.

Every relayed connection tells. Clients may stay away from a node that is unfit, so the node tries by itself too: once when the owner
changes, and after a failure again and again until a connection succeeds.

A connection may succeed and lead elsewhere, because the owner advertises a wrong address: back to this node, to another one that relays, or
to another namespace. So a try asks ``/health``, and whose answer it is decides. It asks several times, because a balancer may lead to the
owner only sometimes. What does not answer as a node is taken for the owner.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Final

from pairbus.errors import UsageError
from pairbus.server.config.addresses import parse_address

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX: Final = 3.0
ANSWER_BYTES_MAX: Final = 8 * 1024
RETRY_SECONDS: Final = 1.0
ASKED_TIMES: Final = 4
"""Connections, one after the other, to learn who answers at an address."""


async def connect(address: str) -> asyncio.Transport:
    """A connection to the owner that nobody reads yet. Raises OSError; TimeoutError is one."""
    try:
        host, port = parse_address(address, "the owner's address")
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    except (UsageError, UnicodeError) as error:  # what another node advertises
        raise OSError(str(error)) from error
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {CONNECT_SECONDS_MAX:g} s") from error
    return transport


async def ask_name(address: str) -> tuple[str, str] | None:
    """The namespace and the name of the node that answers there; None: what answers does not say. Raises OSError."""
    host, port = parse_address(address, "the owner's address")
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode())
            answer = await reader.read(ANSWER_BYTES_MAX)
            while more := await reader.read(ANSWER_BYTES_MAX - len(answer)):
                answer += more
        found = json.loads(answer.partition(b"\r\n\r\n")[2])
        return str(found["namespace"]), str(found["node"])
    except (TimeoutError, ValueError, LookupError, TypeError):
        return None
    finally:
        if writer is not None:
            writer.close()


async def who_else(address: str, expected: tuple[str, str]) -> str:
    """Who answers at an address in place of a namespace's node; empty: nobody else, or what answers does not say. Raises OSError."""
    for _ in range(ASKED_TIMES):
        found = await ask_name(address)
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
        self._is_elsewhere = False
        """Another node answers at the address, so a connection that can be made proves nothing."""
        self.failure = ""
        """Why the last connection to it could not be made; empty: it was made, or none was tried yet."""
        self.failures = 0
        self._logged: set[str] = set()
        self._trial: asyncio.Task[None] | None = None

    def aim(self, address: str, expected: tuple[str, str] | None = None) -> None:
        """Another node became the owner, or none. ``expected``: the namespace and its name."""
        self.close()
        self.address, self.failure = address, ""
        self._expected, self._is_elsewhere = expected, False
        self._logged.clear()
        if address:
            self._trial = asyncio.get_running_loop().create_task(self._try())

    def connected(self, address: str) -> None:
        if address == self.address and self.failure and not self._is_elsewhere:
            self.failure = ""
            self._logged.clear()
            logger.info(
                "the owner can be reached again", extra={"event": "cluster.relay_back", "address": address}
            )

    def failed(self, address: str, error: OSError) -> None:
        """A connection could not be made. Each reason is told once for an owner."""
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
        if self._trial is None or self._trial.done():
            self._trial = asyncio.get_running_loop().create_task(self._try())

    async def _try(self) -> None:
        """Connect until it succeeds."""
        address = self.address
        while True:
            try:
                (await connect(address)).abort()
                elsewhere = await self._who_else(address)
                self._is_elsewhere = bool(elsewhere)
                if elsewhere:
                    raise OSError(elsewhere)
            except OSError as error:
                self.failed(address, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.connected(address)
                return

    async def _who_else(self, address: str) -> str:
        """Who answers at the owner's address in its place; empty: the owner, or something that does not say."""
        expected = self._expected
        other = await who_else(address, expected) if expected is not None else ""
        if expected is None or not other:
            return ""
        owner = expected[1]
        return f"{other} answers there instead of node {owner}: the --advertise of {owner} is wrong"

    def close(self) -> None:
        if self._trial is not None:
            self._trial.cancel()
            self._trial = None
