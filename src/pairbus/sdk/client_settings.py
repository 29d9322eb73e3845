"""What an SDK client knows about its namespace, and how to notice that somebody closed it."""

from __future__ import annotations

import weakref
from typing import Any, Final

from pairbus.errors import UsageError
from pairbus.sdk.connection_string import CLOUD_SUFFIXES

DIRECT: Final = {"use_env_settings": False}
"""Options of an HTTP transport without TLS: a proxy of the environment would read its tokens, and cannot reach the brokers of this machine."""


def host_of(client: Any) -> str:
    """The fully qualified name of a client's namespace."""
    return client.fully_qualified_namespace  # type: ignore[no-any-return]


def uses_tls(client: Any) -> bool:
    """Whether an SDK client speaks TLS: all do but those for a development namespace."""
    return bool(client._config.use_tls)


def address_of(client: Any) -> str:
    """The address at which an SDK client reaches its namespace: ``host`` or ``host:port``.

    A client that uses TLS forgets the port of its connection string. A port that is not the usual one is then in the
    custom endpoint. In front of a cloud namespace the custom endpoint is a gateway, and the namespace's host counts.
    """
    host: str = client.fully_qualified_namespace
    custom = getattr(client, "_custom_endpoint_address", None)
    if not custom or host.lower().rstrip("./").endswith(CLOUD_SUFFIXES):
        return host
    return str(custom).split("://", 1)[-1].split("/", 1)[0]


def addresses_of(client: Any) -> tuple[str, ...]:
    """All addresses at which an SDK client reaches its namespace: one, unless ``sdk.addresses`` gave it more."""
    listed = getattr(client, "_pairbus_addresses", None)
    return (address_of(client),) if listed is None else listed.hosts


def check_entity(client: Any, path: str) -> None:
    """Raise UsageError, as the SDK does, when a client's connection string is for another entity than ``path``."""
    only = getattr(client, "_entity_name", None)
    if only and path != only:
        raise UsageError(
            f"the connection string of the primary has EntityPath={only}, and the sender is for {path!r}: use that "
            "name, or a connection string of the namespace"
        )


def credential_of(client: Any) -> Any:
    """What an SDK client proves itself with."""
    return client._credential


def settings_of(client: Any) -> dict[str, Any]:
    """How an SDK client reaches its namespace, as arguments for another one."""
    config = client._config
    return {
        "retry_total": config.retry_total,
        "retry_backoff_factor": config.retry_backoff_factor,
        "retry_backoff_max": config.retry_backoff_max,
        "retry_mode": str(getattr(config.retry_mode, "value", config.retry_mode)).lower(),
        "transport_type": config.transport_type,
        "http_proxy": config.http_proxy,
        "user_agent": config.user_agent,
        "logging_enable": config.logging_enable,
        "custom_endpoint_address": client._custom_endpoint_address,
        "connection_verify": client._connection_verify,
        "ssl_context": client._ssl_context,
        "use_tls": config.use_tls,
    }


def observe_close(client: Any, owner: Any, *arguments: object) -> None:
    """Call ``owner._side_ended(*arguments)`` when somebody closes an SDK client, which itself reports nothing.

    The owner is not kept alive by it: the application may pair the same clients again later.
    """
    original = client.close
    reference = weakref.ref(owner)

    def close(*given: Any, **options: Any) -> Any:
        alive = reference()
        if alive is not None:
            alive._side_ended(*arguments)
        return original(*given, **options)

    client.close = close
