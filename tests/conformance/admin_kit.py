"""The official administration client in its two flavours behind one face, and what the cases need around it.

The cases (``admin_cases``) run twice: in ``tests/unit/gateway`` against the API in this process through a transport
of the client's own making, and in this folder against a broker over HTTPS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

FACES = ("sync", "async")
_numbers = count(1)


class Admin:
    """One administration client. Methods are those of the official one; lists come whole."""

    def __init__(self, face: str, connection_string: str, options: Callable[[str], dict[str, Any]]) -> None:
        self.face = face
        self.connection_string = connection_string
        self._options = options
        self._loop = asyncio.new_event_loop() if face == "async" else None
        self._others: list[Admin] = []
        self._client: Any = None
        self._version: dict[str, str] = {}

    def with_version(self, version: str) -> Admin:
        """Another client of the same kind that speaks another api version."""
        return self._other(self.connection_string, {"api_version": version})

    def with_connection_string(self, connection_string: str) -> Admin:
        """Another client of the same kind with another key."""
        return self._other(connection_string, self._version)

    def _other(self, connection_string: str, version: dict[str, str]) -> Admin:
        other = Admin(self.face, connection_string, self._options)
        other._version = version
        self._others.append(other)
        return other

    def name(self, stem: str) -> str:
        """A name nobody has used."""
        return f"{stem}{next(_numbers)}"

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._loop is None:
                result = getattr(self._opened(), method)(*args, **kwargs)
                return list(result) if method.startswith("list_") else result
            return self._loop.run_until_complete(self._called(method, args, kwargs))

        return call

    async def _called(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = getattr(self._opened(), method)(*args, **kwargs)
        return [item async for item in result] if method.startswith("list_") else await result

    def _opened(self) -> Any:
        if self._client is None:
            kind: Any = ServiceBusAdministrationClient if self._loop is None else AsyncAdministrationClient
            options = {"retry_total": 0, **self._options(self.face), **self._version}
            self._client = kind.from_connection_string(self.connection_string, **options)
        return self._client

    def close(self) -> None:
        for other in self._others:
            other.close()
        if self._client is not None:
            closed = self._client.close()
            if self._loop is not None:
                self._loop.run_until_complete(closed)
        if self._loop is not None:
            self._loop.close()
