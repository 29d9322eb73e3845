"""Names: connection strings taken apart, the primary's own name and identity, its backlog queues, entity paths."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
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
    """``host:port`` in the one form that all spellings of an address share.

    The three usual spellings of this machine (``localhost``, ``127.0.0.1``, ``[::1]``) become ``localhost``.
    """
    name, port = _split_host(host)
    return f"{name}:{port or (AMQP_PORT if is_emulator else AMQPS_PORT)}"


def _split_host(host: str) -> tuple[str, str]:
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


@dataclass(frozen=True, slots=True)
class PrimaryIdentity:
    """Which broker a primary is, beyond its name: the address at which clients reach it.

    Two brokers may have the same name (every ``pairbus serve`` is called ``local`` unless told otherwise). Their
    backlog queues in a shared secondary then have the same names too. The passport of every parked message and a
    mark on the backlog queues carry this identity, so that messages of one primary never reach the other.

    Args:
        address: The primary's address, from ``identity_of``.
        aliases: Further addresses of the same primary, from ``identity_of``: other names, another port, or where it
            ran before it moved.
    """

    address: str
    aliases: frozenset[str] = frozenset()

    @staticmethod
    def make(host: str, aliases: Iterable[str] = ()) -> PrimaryIdentity:
        """The identity of the primary at ``host``, which may also be called by the ``aliases``."""
        if isinstance(aliases, str):
            raise UsageError(
                f"primary_aliases is {aliases!r}: give a list of addresses, each a host or host:port"
            )
        return PrimaryIdentity(identity_of(host), frozenset(identity_of(alias) for alias in aliases))

    def accepts(self, address: str) -> bool:
        """Whether something marked with ``address`` belongs to this primary. Without a mark it does."""
        return not address or address == self.address or address in self.aliases


def identity_of(host: str) -> str:
    """The address of a broker as passports carry it: ``host``, or ``host:port`` unless it is AMQP's usual port.

    A broker that is reached with TLS on 5671 and without on 5672 is one broker. The same address on another machine
    (``localhost``) cannot be told apart.
    """
    name, port = _split_host(host)
    if not name:
        raise UsageError(f"the address {host!r} names no host: give a host or host:port")
    return name if port in ("", str(AMQP_PORT), str(AMQPS_PORT)) else f"{name}:{port}"


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
