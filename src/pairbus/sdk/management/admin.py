"""The administration client of the namespace that a Service Bus client reaches."""

from __future__ import annotations

from typing import Any, Final

from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import ServiceBusSharedKeyCredential as AioSharedKeyCredential
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.sdk import client_settings
from pairbus.sdk.addresses import OPEN_SECONDS, shared_addresses

ANSWER_SECONDS: Final = 15
"""Seconds that a request may take, with its second attempt."""


CONNECT_SECONDS: Final = 10
"""Seconds that a connection to the only address may take, with its TLS handshake."""


class NoManageRight(Exception):
    """The credential may not manage the namespace."""


def admin_client(
    client: Any, options: dict[str, Any], host: str | None = None
) -> ServiceBusAdministrationClient:
    """The administration client for a synchronous client. Raises NoManageRight for a credential that it cannot use.

    Args:
        client: The Service Bus client.
        options: Options of the administration client.
        host: The address with its port; a client that uses TLS does not know its port.
    """
    from pairbus.sdk.management import plain_http  # noqa: PLC0415 - it needs requests

    credential, given = _arguments(client, options, ServiceBusSharedKeyCredential, plain_http)
    if not given.get("transport"):
        given["transport"] = plain_http.HttpTransport(**given)
    return ServiceBusAdministrationClient(host or client.fully_qualified_namespace, credential, **given)


def within_limits(options: dict[str, Any], addresses: int) -> dict[str, Any]:
    """Options of an administration client with which every request ends, at a namespace with so many addresses; those given win."""
    is_alone = addresses == 1
    given = {
        "retry_total": max(1, addresses - 1),
        "connection_timeout": CONNECT_SECONDS if is_alone else OPEN_SECONDS,
        "read_timeout": ANSWER_SECONDS,
        **options,
    }
    if is_alone and given["read_timeout"]:
        # One that was silent all the time is not asked again; a connection that broke is. With several addresses the next one is.
        given.setdefault("timeout", given["read_timeout"])
    return given


def cut_requests(client: ServiceBusAdministrationClient) -> None:
    """End the request of a synchronous administration client that another thread waits for, and refuse later ones.

    A client with a transport of the application stays as it is.
    """
    cut = getattr(client._pipeline._transport, "cut", None)
    if cut is not None:
        cut()


def aio_admin_client(
    client: Any, options: dict[str, Any], host: str | None = None
) -> AioAdministrationClient:
    """As ``admin_client``, for an asynchronous client."""
    from pairbus.sdk.management import plain_http_aio  # noqa: PLC0415 - it needs aiohttp

    credential, given = _arguments(client, options, AioSharedKeyCredential, plain_http_aio)
    return AioAdministrationClient(host or client.fully_qualified_namespace, credential, **given)


def _arguments(client: Any, options: dict[str, Any], key: Any, transports: Any) -> tuple[Any, dict[str, Any]]:
    addresses = shared_addresses(client)
    given = within_limits(options, 1 if addresses is None else len(addresses))
    credential = client_settings.credential_of(client)
    if isinstance(credential, AzureNamedKeyCredential):
        # The administration client knows tokens and its own kind of key only.
        credential = key(*credential.named_key)
    elif not hasattr(credential, "get_token"):
        raise NoManageRight(f"{type(credential).__name__} is of no use to the administration client")
    if addresses is not None:
        given["transport"] = transports.SpreadHttpTransport(addresses, **given)
    elif not client_settings.uses_tls(client):
        # A namespace that is reached without TLS is asked without TLS too: the SDK has no switch for that.
        given["transport"] = transports.PlainHttpTransport(**given)
    return credential, given
