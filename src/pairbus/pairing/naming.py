"""Names of the pairing: which broker a primary is, its backlog queues, and keys for entity paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pairbus.errors import SameNamespaceError, UsageError
from pairbus.sdk.connection_string import AMQP_PORT, AMQPS_PORT, split_host

TRANSFER_SEGMENT: Final = "x-servicebus-transfer"
PORT_MAX: Final = 65_535
_HOST: Final = re.compile(r"\[[0-9a-f:.%\w]+\]|\w(?:[\w.-]{0,251}\w)?")
"""A name in the form that ``split_host`` gives it: an address of IPv6 is in brackets."""


@dataclass(frozen=True, slots=True)
class PrimaryIdentity:
    """Which broker a primary is, beyond its name: the address at which clients reach it.

    Two brokers may have the same name (every ``pairbus serve`` is called ``local`` by default). Their
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
    def make(hosts: str | Sequence[str], aliases: Iterable[str] = ()) -> PrimaryIdentity:
        """The identity of the primary at ``hosts``: the first one names it; the others, and the ``aliases``, lead to it too."""
        if isinstance(aliases, str):
            raise UsageError(
                f"primary_aliases is {aliases!r}: give a list of addresses, each a host or host:port"
            )
        first, *others = [hosts] if isinstance(hosts, str) else hosts
        return PrimaryIdentity(
            identity_of(first), frozenset(identity_of(alias) for alias in (*others, *aliases))
        )

    def accepts(self, address: str) -> bool:
        """Whether something marked with ``address`` belongs to this primary. Without a mark it does."""
        return not address or address == self.address or address in self.aliases


def identity_of(host: str) -> str:
    """The address of a broker as passports carry it: ``host``, or ``host:port`` unless it is AMQP's usual port.

    A broker that is reached with TLS on 5671 and without on 5672 is one broker. The same address on another machine
    (``localhost``) cannot be distinguished.
    """
    name, port = split_host(host)
    if not name:
        raise UsageError(f"the address {host!r} names no host: give a host or host:port")
    # A mistyped alias would send the messages of that address to the dead-letter queue.
    if not _HOST.fullmatch(name) or (port and not _is_port(port)):
        raise UsageError(
            f"{host!r} can be no address: give a host or host:port, with a port from 1 to {PORT_MAX}"
        )
    return name if port in ("", str(AMQP_PORT), str(AMQPS_PORT)) else f"{name}:{port}"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 1 <= int(text) <= PORT_MAX


def check_different(primary: str | Sequence[str], secondary: str | Sequence[str]) -> None:
    """Raise SameNamespaceError when an address of one is an address of the other."""
    own = [primary] if isinstance(primary, str) else primary
    for host in [secondary] if isinstance(secondary, str) else secondary:
        if host in own:
            raise SameNamespaceError(f"primary and secondary are both {host}: give two different namespaces")


def backlog_prefix(primary: str) -> str:
    """What the names of a primary's backlog queues start with."""
    return f"{primary}/{TRANSFER_SEGMENT}/"


def backlog_queue(primary: str, index: int) -> str:
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


def missing_queues(primary_namespace: str, found: Iterable[str], count: int) -> list[str]:
    """Backlog queues that must have been deleted: those with a number below ``count`` and below that of one that is found.

    Pairing creates the queues from the first number on. That the last ones are missing may mean that there were never more.
    """
    numbers = {index for name in found if (index := backlog_index(primary_namespace, name)) is not None}
    numbers = {index for index in numbers if index < count}
    last = max(numbers, default=0)
    return [backlog_queue(primary_namespace, index) for index in range(last) if index not in numbers]


def primaries_of(queues: Iterable[str]) -> list[str]:
    """The names of the primaries that some backlog queues belong to; other queues say nothing."""
    parts = [name.lower().partition(f"/{TRANSFER_SEGMENT}/".lower()) for name in queues]
    return sorted({primary for primary, _, index in parts if primary and index.isdecimal()})
