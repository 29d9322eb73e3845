"""What a node announces once its clients are served, by itself or by an owner that it relays to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pairbus.errors import StorageError
from pairbus.server.config.addresses import format_address, parse_address
from pairbus.server.ready import ReadyInfo, connection_string, is_local

if TYPE_CHECKING:
    from pairbus.server.cluster.settings import SharedSettings
    from pairbus.server.config.options import Options

ROOT_KEY: Final = "root-key"
"""The setting that holds the key of the root rule, so that every node can print the connection string."""
KEY_SECONDS: Final = 5.0
"""How often a node that relays looks whether the root key was replaced."""


class Readiness:
    """The ready file of one node, as it should be: written first when clients are served, and again when the root key was replaced.

    Args:
        options: How the node serves.
        node: Its name.
        settings: Where the root key is while another node is the owner.
    """

    def __init__(self, options: Options, node: str, settings: SharedSettings) -> None:
        self._options = options
        self._node = node
        self._settings = settings
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last: ReadyInfo | None = None
        self.not_before = 0.0
        """The instant before which a node that relays is not announced: the owner's certificate must hold its name first."""
        self._looks_at = 0.0
        self._is_looking = False
        self.addresses: tuple[tuple[str, int], tuple[str, int]] = (("", 0), ("", 0))
        """Where the node listens: for everything, and for HTTP and WebSocket alone."""
        self.advertised = ""
        """Where other nodes reach this one."""
        self.changed: Callable[[ReadyInfo], None] | None = None
        """Called if what was announced is not true any more."""

    async def wait(self) -> ReadyInfo:
        """Wait until clients of this node are served. Returns what is true then."""
        await asyncio.shield(self._first)
        assert self._last is not None, "something was announced"
        return self._last

    def announce(self, key: str) -> None:
        """Clients are served; ``key``: of the root rule."""
        ready = self._with(key)
        if ready == self._last:
            return
        self._last = ready
        if not self._first.done():
            self._first.set_result(None)
        elif self.changed is not None:
            self.changed(ready)

    def is_look_due(self, now: float, *, is_new: bool) -> bool:
        """Whether a node that relays should look at the root key; ``is_new``: the owner has changed since the last look."""
        if self._is_looking or now < self.not_before or (now < self._looks_at and not is_new):
            return False
        self._looks_at = now + KEY_SECONDS
        return True

    async def look(self) -> None:
        """Another node serves: announce this one with the key that the database has. If it does not answer, a later look will do."""
        before = self._last
        self._is_looking = True
        try:
            key = await self._settings.call(self._settings.table.get, ROOT_KEY)
        except StorageError:
            return
        finally:
            self._is_looking = False
        if (
            key is not None and self._last is before
        ):  # otherwise this node has become the owner meanwhile, and knows better
            self.announce(key.decode())

    async def share(self, key: str) -> None:
        """Other nodes, and `pairbus connection-string`, find the key in the database."""
        await self._settings.call(self._settings.table.put, ROOT_KEY, key.encode())

    def close(self) -> None:
        if not self._first.done():
            self._first.cancel()

    def _reachable(self) -> tuple[str, int]:
        """Where clients reach this node, also while it relays: plain text then ends at this machine, so beyond it they use TLS (M14)."""
        amqp = self.addresses[0]
        if not self.advertised:
            return amqp
        host, port = parse_address(self.advertised, "the address of this node")
        return amqp if is_local(host) else (host, port)

    def _with(self, key: str) -> ReadyInfo:
        options = self._options
        amqp, http = self.addresses
        has_authority = options.tls and options.tls_cert is None
        return ReadyInfo(
            namespace=options.namespace,
            pid=os.getpid(),
            amqp=format_address(*amqp),
            http=format_address(*http),
            connection_string=connection_string(*self._reachable(), options.namespace, key),
            ca_file=str((options.data / "tls" / "ca.pem").absolute()) if has_authority else None,
            node=self._node,
        )
