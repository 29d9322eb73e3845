"""Transports of the administration client, which knows one address and HTTPS only: without TLS, and over several addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport

from pairbus.sdk.client_settings import DIRECT

if TYPE_CHECKING:
    from pairbus.sdk.addresses import Addresses


class PlainHttpTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core gives it lazily, as Any
    """The SDK's own transport, with the scheme changed, and past the proxies of the environment."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, **DIRECT})

    async def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **options)


class SpreadHttpTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core gives it lazily, as Any
    """The SDK's own transport, for a namespace with several addresses.

    A request that could not be sent goes to the next address. One without an answer may have been performed: the SDK's own policy
    decides whether it is repeated, and then it goes to the next address too.
    """

    def __init__(self, addresses: Addresses, **options: Any) -> None:
        super().__init__(**{**options, **({} if addresses.uses_tls else DIRECT)})
        self._addresses = addresses

    async def send(self, request: Any, **options: Any) -> Any:
        addresses = self._addresses
        for left in range(len(addresses), 0, -1):
            address = addresses.current
            request.url = addresses.url_at(address, request.url)
            try:
                return await super().send(request, **options)
            except (ServiceRequestError, ServiceResponseError) as error:
                addresses.failed(address)
                if left == 1 or not isinstance(error, ServiceRequestError):
                    raise
        return None
