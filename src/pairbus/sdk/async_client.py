"""An asynchronous client of the SDK made from a synchronous one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio._base_handler_async import (
    ServiceBusSASTokenCredential,
    ServiceBusSharedKeyCredential,
)

from pairbus.sdk import client_settings
from pairbus.sdk.addresses import shared_addresses, spread

if TYPE_CHECKING:
    from typing import Self


def asynchronous(client: Any) -> ServiceBusClient:
    """An asynchronous official client that reaches the same namespace in the same way as a synchronous one."""
    made = ServiceBusClient(
        client.fully_qualified_namespace,
        _asynchronous_credential(client_settings.credential_of(client)),
        **client_settings.settings_of(client),
    )
    addresses = shared_addresses(client)
    if addresses is not None:
        spread(made, addresses)
    return made


def _asynchronous_credential(credential: Any) -> Any:
    if isinstance(credential, AzureSasCredential | AzureNamedKeyCredential):
        return credential
    if hasattr(credential, "policy") and hasattr(credential, "key"):
        return ServiceBusSharedKeyCredential(credential.policy, credential.key)
    if hasattr(credential, "token") and hasattr(credential, "expiry"):
        return ServiceBusSASTokenCredential(credential.token, credential.expiry)
    return _ThreadedCredential(credential)


class _ThreadedCredential:
    """A synchronous token credential for an asynchronous client."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

        token_type = getattr(credential, "token_type", None)
        if token_type is not None:
            self.token_type = (
                token_type  # the SDK takes a token for a JWT unless its credential says otherwise
            )

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token, fetched in another thread."""
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)

    async def close(self) -> None:
        """The application owns the credential."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        """Nothing to close."""
