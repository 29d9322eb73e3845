"""Transports of the administration client: they can be cut, go without TLS, or over several addresses. The SDK's own does neither."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import RequestsTransport

from pairbus.sdk.client_settings import DIRECT

if TYPE_CHECKING:
    from pairbus.sdk.addresses import Addresses


class HttpTransport(RequestsTransport):  # type: ignore[misc]  # azure-core gives it lazily, as Any
    """The SDK's own transport, whose requests another thread can end."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lock = threading.Lock()
        self._is_cut = False
        self._ends: list[socket.socket] = []
        """Second descriptors of the open sockets. While TLS begins, nobody else has a descriptor that can be shut down."""

    def cut(self) -> None:
        """End the request in progress, and refuse later ones."""
        with self._lock:
            self._is_cut = True
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def send(self, request: Any, **options: Any) -> Any:
        if self._is_cut:
            # No error of the SDK: its policy would try again.
            raise ConnectionAbortedError("the client was closed during the request")
        return super().send(request, **options)

    def close(self) -> None:
        super().close()
        with self._lock:
            for end in self._ends:
                end.close()
            self._ends.clear()

    def _init_session(self, session: Any) -> None:
        super()._init_session(session)
        for adapter in session.adapters.values():
            manager = adapter.poolmanager
            manager.pool_classes_by_scheme = {
                scheme: self._watched(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
            }

    def _watched(self, pool: Any) -> Any:
        """A class of connection pools whose connections are known here."""
        opened = self._opened

        class Connection(pool.ConnectionCls):  # type: ignore[misc]  # a class that is given
            def _new_conn(self) -> Any:
                made = super()._new_conn()
                opened(made)
                return made

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    def _opened(self, made: socket.socket) -> None:
        end = made.dup()
        with self._lock:
            self._ends.append(end)
            if self._is_cut:
                end.shutdown(socket.SHUT_RDWR)


class PlainHttpTransport(HttpTransport):
    """The same, with the scheme changed, and past the proxies of the environment."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, **DIRECT})

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)


class SpreadHttpTransport(HttpTransport):
    """The same, for a namespace with several addresses.

    A request that could not be sent goes to the next address. One without an answer may have been performed: the SDK's own policy
    decides whether it is repeated, and then it goes to the next address too.
    """

    def __init__(self, addresses: Addresses, **options: Any) -> None:
        super().__init__(**{**options, **({} if addresses.uses_tls else DIRECT)})
        self._addresses = addresses

    def send(self, request: Any, **options: Any) -> Any:
        addresses = self._addresses
        for left in range(len(addresses), 0, -1):
            address = addresses.current
            request.url = addresses.url_at(address, request.url)
            try:
                return super().send(request, **options)
            except (ServiceRequestError, ServiceResponseError) as error:
                addresses.failed(address)
                if left == 1 or not isinstance(error, ServiceRequestError):
                    raise
        return None
