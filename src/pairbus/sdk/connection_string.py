"""Connection strings taken apart, and the address and name of the namespace they lead to."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from pairbus.errors import NamespaceNameUnknownError, UsageError

CLOUD_SUFFIXES: Final = (
    ".servicebus.windows.net",
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
    ".servicebus.cloudapi.de",
)
AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671

_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The parts of a connection string. Its text form never shows the key."""

    text: str
    host: str
    """With the port, as the endpoint gives it."""
    namespace: str | None
    is_emulator: bool
    key_name: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"ConnectionString(host={self.host!r}, namespace={self.namespace!r})"


def parse_connection_string(text: str, side: str) -> ConnectionString:
    """Take a connection string apart. Its errors never show it, for it holds a key."""
    given: object = text  # a variable of the environment that is not set arrives as None
    if not isinstance(given, str) or not given.strip():
        kind = "empty" if isinstance(given, str) else f"of type {type(given).__name__}"
        raise UsageError(
            f"the {side} connection string is {kind}: give one like Endpoint=sb://…;SharedAccessKeyName=…"
        )
    pairs = (part.split("=", 1) for part in text.split(";") if "=" in part)
    values = {key.strip().lower(): value.strip() for key, value in pairs}
    endpoint = values.get("endpoint", values.get("hostname", ""))
    host = endpoint.split("://", 1)[-1].split("/", 1)[0]
    if not host:
        raise UsageError(f"the {side} connection string has no Endpoint=sb://…")
    namespace = values.get("namespace") or None
    if namespace is not None and not _LABEL.match(namespace):
        raise UsageError(
            f"the {side} connection string says Namespace={namespace}: letters, digits, '-', '_' and '.' only"
        )
    return ConnectionString(
        text,
        host,
        namespace,
        values.get("usedevelopmentemulator") == "true",
        values.get("sharedaccesskeyname", ""),
        values.get("sharedaccesskey", ""),
    )


def namespace_name(host: str, declared: str | None = None, given: str | None = None) -> str:
    """The namespace's own name: as given, as its connection string declares it, or a cloud host's first label.

    Raises:
        NamespaceNameUnknownError: It can be none of these. The first label of an arbitrary host is never taken:
            two brokers on one host must not share backlog queues.
    """
    if given is not None:
        if not _LABEL.match(given):
            raise UsageError(f"primary_namespace is {given!r}: letters, digits, '-', '_' and '.' only")
        return given
    if declared is not None:
        return declared
    bare = host.rsplit(":", 1)[0].rstrip("./").lower()
    for suffix in CLOUD_SUFFIXES:
        if bare.endswith(suffix) and len(bare) > len(suffix):
            return host[: len(bare) - len(suffix)]
    raise NamespaceNameUnknownError(
        f"the name of the primary namespace cannot be taken from its host {host!r}: add ;Namespace=<name> to its "
        "connection string, or give primary_namespace=<name>"
    )


def normal_host(host: str, *, is_emulator: bool = False) -> str:
    """``host:port`` in the one form that all spellings of an address share.

    The three usual spellings of this machine (``localhost``, ``127.0.0.1``, ``[::1]``) become ``localhost``.
    """
    name, port = split_host(host)
    return f"{name}:{port or (AMQP_PORT if is_emulator else AMQPS_PORT)}"


def split_host(host: str) -> tuple[str, str]:
    """The normal form of a host name, and the port as text; empty without a port."""
    bare = host.strip().lower().split("://", 1)[-1].split("/", 1)[0]
    if bare.startswith("["):
        name, _, rest = bare[1:].partition("]")
        port = rest.removeprefix(":")
    elif bare.count(":") > 1:
        name, port = bare, ""
    else:
        name, _, port = bare.partition(":")
    name = name.rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name, port
    if address in _LOOPBACK:
        return "localhost", port
    return (f"[{address}]" if address.version == 6 else str(address)), port


_LOOPBACK: Final = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
