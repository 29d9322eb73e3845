"""Connection strings taken apart, and the address and name of the namespace they lead to."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
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
    """With the port, as the endpoint gives it; the first one when it lists several."""
    namespace: str | None
    is_emulator: bool
    key_name: str = ""
    key: str = ""
    hosts: tuple[str, ...] = ()
    """All addresses that the endpoint lists; any of them leads to the namespace."""
    first_text: str = ""
    """The connection string with the first address alone, as the official clients take it."""

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
    values = _values_of(text)
    endpoint = values.get("endpoint", values.get("hostname", ""))
    listed = endpoint.split("://", 1)[-1].split("/", 1)[0]
    hosts = tuple(dict.fromkeys(host.strip() for host in listed.split(",")))
    if not listed:
        raise UsageError(f"the {side} connection string has no Endpoint=sb://…")
    if not all(hosts):
        raise UsageError(
            f"the {side} connection string lists an empty address, in {listed!r}: give host:port,host:port"
        )
    host = hosts[0]
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
        hosts,
        text if len(hosts) == 1 else _with_hosts(text, listed, host),
    )


def merge_connection_strings(given: str | Sequence[str], side: str) -> str:
    """One connection string that lists the addresses of all given ones. Raises UsageError when they are not of one namespace."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        return parse_connection_string(given, side).text
    parts = [parse_connection_string(text, side) for text in given]
    if not parts:
        raise UsageError(
            f"the list of {side} connection strings is empty: give one like Endpoint=sb://…;SharedAccessKeyName=…"
        )
    first = parts[0]
    rest = _rest_of(first.text)
    for part in parts[1:]:
        differing = {key for key, value in rest.items() ^ _rest_of(part.text).items()}
        if differing:
            raise UsageError(
                f"the {side} connection strings of {first.host} and {part.host} differ in {', '.join(sorted(differing))}: several "
                "addresses of one namespace have the same key and the same Namespace"
            )
    hosts = dict.fromkeys(host for part in parts for host in part.hosts)
    return _with_hosts(first.first_text, first.host, ",".join(hosts))


def _values_of(text: str) -> dict[str, str]:
    pairs = (part.split("=", 1) for part in text.split(";") if "=" in part)
    return {key.strip().lower(): value.strip() for key, value in pairs}


def _with_hosts(text: str, before: str, after: str) -> str:
    pattern = rf"((?:endpoint|hostname)\s*=\s*(?:[a-z]+://)?\s*){re.escape(before)}"
    return re.sub(pattern, lambda found: found[1] + after, text, count=1, flags=re.IGNORECASE)


def _rest_of(text: str) -> dict[str, str]:
    return {key: value for key, value in _values_of(text).items() if key not in ("endpoint", "hostname")}


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
        f"the name of the primary namespace cannot be taken from its host {host!r}: give "
        "primary_namespace=<name>, or, with from_connection_strings, add ;Namespace=<name> to its connection string"
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
