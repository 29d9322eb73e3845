"""Addresses: which ones are of this machine alone, and how ``HOST:PORT`` is read and written. Pure."""

from __future__ import annotations

import ipaddress
from typing import Final

from pairbus.errors import UsageError

PORT_MAX: Final = 65535


def is_loopback(host: str) -> bool:
    """Whether an address literal is this machine's own: 127/8, ::1, and 127/8 mapped into IPv6 (M14)."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether an address literal means every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""


def parse_address(text: str, option: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[v6]:PORT`` as a pair. ``option`` names what was wrong in the error."""
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise UsageError(f"{option} needs HOST:PORT, for instance 127.0.0.1:5672, and got {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{option}: put an IPv6 address in brackets, as in [::1]:5672, instead of {text!r}")
    if not port_text.isascii() or not port_text.isdigit() or int(port_text) > PORT_MAX:
        raise UsageError(f"{option}: {port_text!r} is no port number between 0 (any free one) and {PORT_MAX}")
    return host, int(port_text)


def format_address(host: str, port: int) -> str:
    """The inverse of ``parse_address``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
