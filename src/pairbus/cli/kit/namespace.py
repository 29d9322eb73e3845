"""Which namespace and which entity a command is about."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pairbus.errors import PairbusError, UsageError
from pairbus.gateway.atom import routes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure.servicebus.management import ServiceBusAdministrationClient

QUEUE_OR_TOPIC: Final = "queue or topic"
"""They share one form of path."""
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
READY_CHARACTERS_MAX: Final = 65_536
"""Most that is read of a ready file, which has a few hundred characters."""
DEAD_LETTER: Final = "deadletter"
TRANSFER_DEAD_LETTER: Final = "transferdeadletter"
_SUB_QUEUES: Final = (
    ("/$transfer/$deadletterqueue", TRANSFER_DEAD_LETTER),
    ("/$deadletterqueue", DEAD_LETTER),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A path taken apart, as arguments of the administration client."""

    kind: str
    name: str
    subscription: str
    rule: str

    @property
    def names(self) -> list[str]:
        """The arguments that lead the client there."""
        return [name for name in (self.name, self.subscription, self.rule) if name]


def find_target(path: str) -> Target:
    """What a path names. Raises UsageError."""
    route = routes.route_of("/" + quote(path))
    kinds = {routes.ENTITY: QUEUE_OR_TOPIC, routes.SUBSCRIPTION: "subscription", routes.RULE: "rule"}
    if route.what not in kinds:
        raise UsageError(
            f"'{path}' names no entity: write QUEUE, TOPIC, TOPIC/Subscriptions/NAME or …/Rules/NAME"
        )
    return Target(kinds[route.what], route.path, route.subscription, route.rule)


def split_sub_queue(path: str) -> tuple[str, str]:
    """An entity's path without its sub-queue, and the sub-queue; empty for the entity itself."""
    for suffix, name in _SUB_QUEUES:
        if path.lower().endswith(suffix):
            return path[: -len(suffix)], name
    return path, ""


def connection_of(
    connection_string: str | None, ready_file: str | None, ca_file: str | None, environment: Mapping[str, str]
) -> tuple[str, str | None]:
    """The connection string of the namespace that is meant, and the authority to trust for it. Raises UsageError."""
    from pairbus.sdk.trust import read_authorities

    if ca_file is not None:
        read_authorities([ca_file])
    if ready_file is not None:
        connection_string, known_ca = _read_ready_file(ready_file)
        ca_file = ca_file or known_ca
    connection_string = connection_string or environment.get("PAIRBUS_PRIMARY")
    if not connection_string:
        raise UsageError(
            "no namespace is named: set PAIRBUS_PRIMARY to a connection string, or give --ready-file"
        )
    return connection_string, ca_file or _local_authority(connection_string, environment)


def shown_namespace(connection_string: str) -> str:
    """The namespace with its address, for errors; nothing of its key."""
    from pairbus.sdk.connection_string import namespace_name, parse_connection_string

    try:
        parts = parse_connection_string(connection_string, "given")
    except UsageError:
        return "the namespace"
    try:
        name = f" {namespace_name(parts.host, parts.namespace)}"
    except PairbusError:
        name = ""  # nothing says it
    return f"the namespace{name} at {','.join(parts.hosts or (parts.host,))}"


def administration_client(
    connection_string: str, ca_file: str | None, options: dict[str, Any]
) -> ServiceBusAdministrationClient:
    """The official administration client for a namespace."""
    from azure.servicebus.management import ServiceBusAdministrationClient

    from pairbus.sdk.addresses import Addresses
    from pairbus.sdk.connection_string import parse_connection_string
    from pairbus.sdk.management.admin import within_limits
    from pairbus.sdk.management.plain_http import PlainHttpTransport, SpreadHttpTransport

    parts = parse_connection_string(connection_string, "given")
    trust = {"connection_verify": ca_file} if ca_file else {}
    settings = within_limits({**trust, **options}, len(parts.hosts))
    # A namespace that is reached without TLS is asked without TLS too, as pairing does: `pairbus up` just works.
    is_plain = not ca_file and parts.is_emulator
    if len(parts.hosts) > 1:
        addresses = Addresses(parts.hosts, uses_tls=not is_plain)
        settings.setdefault("transport", SpreadHttpTransport(addresses, **settings))
    elif is_plain:
        settings.setdefault("transport", PlainHttpTransport(**settings))
    try:
        return ServiceBusAdministrationClient.from_connection_string(parts.first_text, **settings)
    except (ValueError, UnboundLocalError) as error:
        # The second is how the client takes a connection string without a key. Neither text repeats the string.
        raise UsageError(
            f"the connection string cannot be used: {type(error).__name__}: it needs Endpoint, "
            "SharedAccessKeyName and SharedAccessKey"
        ) from None


def data_directory(namespace: str, data: str | None) -> Path:
    """The data directory that was named, or the namespace's own in the user's data directory."""
    from pairbus.server.config.options import default_data_directory

    return Path(data) if data is not None else default_data_directory(os.environ) / namespace


def _read_ready_file(name: str) -> tuple[str, str | None]:
    try:
        with Path(name).open(encoding="utf-8") as file:
            ready = json.loads(file.read(READY_CHARACTERS_MAX))
        return str(ready["connection_string"]), ready.get("ca_file")
    except OSError as error:
        raise UsageError(f"the ready file {name} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{name} is no ready file of a broker: it holds no connection_string") from error


def _local_authority(connection_string: str, environment: Mapping[str, str]) -> str | None:
    """The authority that a broker of this user on this machine made for itself."""
    from pairbus.sdk.connection_string import parse_connection_string
    from pairbus.server.config.options import default_data_directory

    try:
        parts = parse_connection_string(connection_string, "given")
    except UsageError:
        return None  # the client says better what is wrong with it
    if parts.host.rpartition(":")[0] not in LOOPBACK_HOSTS or not parts.namespace:
        return None
    authority = default_data_directory(environment) / parts.namespace / "tls" / "ca.pem"
    return str(authority) if authority.is_file() else None
