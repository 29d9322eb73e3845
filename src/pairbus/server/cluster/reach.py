"""Whether the owner can be reached from this node: what ``/health`` of a node that relays says depends on it.

Every relayed connection tells. Clients may stay away from a node that is unfit, so the node tries by itself too: once when the owner
changes, and after a failure again and again until a connection succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pairbus.errors import UsageError
from pairbus.server.config.addresses import parse_address

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX: Final = 3.0
RETRY_SECONDS: Final = 1.0


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


class OwnerReach:
    """What is known of the way to the owner."""

    def __init__(self) -> None:
        self.address = ""
        """Of the owner to relay to; empty: there is none."""
        self.failure = ""
        """Why the last connection to it could not be made; empty: it was made, or none was tried yet."""
        self.failures = 0
        self._logged: set[str] = set()
        self._trial: asyncio.Task[None] | None = None

    def aim(self, address: str) -> None:
        """Another node became the owner, or none."""
        self.close()
        self.address, self.failure = address, ""
        self._logged.clear()
        if address:
            self._trial = asyncio.get_running_loop().create_task(self._try())

    def connected(self, address: str) -> None:
        if address == self.address and self.failure:
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
            except OSError as error:
                self.failed(address, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.connected(address)
                return

    def close(self) -> None:
        if self._trial is not None:
            self._trial.cancel()
            self._trial = None
