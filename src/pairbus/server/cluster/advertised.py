"""Whether the address that a node advertises leads to that node alone.

A balancer, or a name of several nodes, leads elsewhere each time: a node that relays there reaches the owner once and another node the next
time, or itself. The node can find that out on its own, and before it is the owner: it asks ``/health`` there several times, now and
then, and looks whose answer comes. No answer proves nothing: not every network leads back. But a name that is not known, or an address where
nobody listens, is probably wrong.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pairbus.server.cluster.relaying.reach import who_else

logger = logging.getLogger(__name__)

CHECK_SECONDS: Final = 30.0
"""Between two looks: what the address leads to may change."""


class OwnAddress:
    """Looks at a node's own address, from ``watch`` to ``close``."""

    def __init__(self) -> None:
        self.trouble = ""
        """What is wrong with it; empty: nothing, as far as is known."""
        self._task: asyncio.Task[None] | None = None

    def watch(self, address: str, namespace: str, node: str) -> None:
        """``namespace`` and ``node``: who should answer at this address."""
        self._task = asyncio.get_running_loop().create_task(self._run(address, (namespace, node)))

    async def _run(self, address: str, expected: tuple[str, str]) -> None:
        while True:
            try:
                self._found(address, await who_else(address, expected))
            except OSError as error:
                self._unreached(address, error)
            await asyncio.sleep(CHECK_SECONDS)

    def _found(self, address: str, other: str) -> None:
        before = self.trouble
        self.trouble = other and (
            f"{other} answers at {address}, which this node advertises: --advertise must name an address of this node alone, not of a "
            "balancer or of several nodes"
        )
        if self.trouble and self.trouble != before:
            logger.error(
                "the address that this node advertises leads to another one",
                extra={"event": "cluster.advertise_wrong", "address": address, "error": self.trouble},
            )

    def _unreached(self, address: str, error: OSError) -> None:
        before = self.trouble
        self.trouble = (
            f"this node does not reach itself at {address}, which it advertises ({error.strerror or error}): other nodes relay to it only if "
            "they do; --advertise must name an address of this node"
        )
        if self.trouble != before:
            logger.warning(
                "this node does not reach itself at the address that it advertises",
                extra={"event": "cluster.advertise_unreached", "address": address, "error": self.trouble},
            )

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
