"""Names: connection strings taken apart, the primary's own name, its backlog queues, one form for entity paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pairbus.errors import NamespaceNameUnknownError, SameNamespaceError, UsageError

CLOUD_SUFFIXES: Final = (
    ".servicebus.windows.net",
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
    ".servicebus.cloudapi.de",
)
TRANSFER_SEGMENT: Final = "x-servicebus-transfer"
AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671

_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The parts of a connection string that pairing looks at; the SDK reads the rest."""

    text: str
    host: str
    """With the port, as the endpoint gives it."""
    namespace: str | None
    is_emulator: bool

    def __repr__(self) -> str:
        return f"ConnectionString(host={self.host!r}, namespace={self.namespace!r})"


def parse_connection_string(text: str, side: str) -> ConnectionString:
    """Take a connection string apart. Its errors never show it, for it holds a key."""
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
    return ConnectionString(text, host, namespace, values.get("usedevelopmentemulator") == "true")


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
        f"the name of the primary namespace cannot be told from its host {host!r}: add ;Namespace=<name> to its "
        "connection string, or give primary_namespace=<name>"
    )


def normal_host(host: str, *, is_emulator: bool = False) -> str:
    """A host and port in the one form that two writings of it share."""
    bare = host.strip().lower().split("://", 1)[-1].rstrip("/")
    name, _, port = bare.partition(":")
    return f"{name.rstrip('.')}:{port or (AMQP_PORT if is_emulator else AMQPS_PORT)}"


def check_different(primary: str, secondary: str) -> None:
    """Raise SameNamespaceError when both are one broker."""
    if primary == secondary:
        raise SameNamespaceError(f"primary and secondary are both {primary}: give two different namespaces")


def backlog_prefix(primary: str) -> str:
    """What the names of a primary's backlog queues start with."""
    return f"{primary}/{TRANSFER_SEGMENT}/"


def backlog_queue(primary: str, index: int) -> str:
    """The name of one backlog queue."""
    return f"{backlog_prefix(primary)}{index}"


def backlog_index(primary: str, queue: str) -> int | None:
    """Which backlog queue of ``primary`` this is, or None when it is not one."""
    prefix = backlog_prefix(primary)
    if not queue.lower().startswith(prefix.lower()):
        return None
    rest = queue[len(prefix) :]
    # "007" would be a second name for the same index: it is somebody else's queue.
    return int(rest) if rest.isdecimal() and str(int(rest)) == rest else None


def entity_key(path: str) -> str:
    """One key for a path however it is written: ``Orders``, ``orders``, ``/orders``, ``orders/``."""
    return path.strip("/").lower()
