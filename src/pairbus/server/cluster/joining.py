"""How clients reach a namespace that several nodes serve, from what the database knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pairbus.errors import StoreUnavailable, UsageError
from pairbus.server.cluster.readiness import ROOT_KEY
from pairbus.server.cluster.status import is_reporting
from pairbus.server.config.addresses import is_loopback, parse_address
from pairbus.server.ready import connection_string

if TYPE_CHECKING:
    from pairbus.server.cluster.ports import SettingTable
    from pairbus.storage.table.ports import NodeEntry


def joined_connection_string(
    namespace: str, nodes: Sequence[NodeEntry], settings: SettingTable, only: str | None = None
) -> tuple[str, list[str], bool]:
    """The connection string that lists the nodes which report, their names, and whether any does.

    If none reports, all that were not forgotten are listed. ``only``: the name of the one node that is wanted.

    Raises:
        UsageError: There is no such node.
        StoreUnavailable: No node has ever served the namespace.
    """
    if only is not None and all(node.node != only for node in nodes):
        names = ", ".join(node.node for node in nodes) or "none"
        raise UsageError(f"{namespace} has no node {only!r}; it has: {names}")
    key = settings.get(ROOT_KEY)
    if key is None or not nodes:
        raise StoreUnavailable(
            f"{namespace} was never served from this database: start a node with `pairbus serve --store …`"
        )
    wanted = [node for node in nodes if only in (None, node.node)]
    reporting = [node for node in wanted if is_reporting(node)]
    chosen = reporting or wanted
    addresses = [parse_address(node.address, f"the address of {node.node}") for node in chosen]
    if not all(is_loopback(host) for host, _ in addresses):
        # A node that only its own machine reaches is of no use to others.
        kept = [index for index, (host, _) in enumerate(addresses) if not is_loopback(host)]
        chosen, addresses = [chosen[index] for index in kept], [addresses[index] for index in kept]
    first, *others = (connection_string(*address, namespace, key.decode()) for address in addresses)
    listed = ",".join([_host(first), *(_host(one) for one in others)])
    return first.replace(_host(first), listed, 1), [node.node for node in chosen], bool(reporting)


def _host(text: str) -> str:
    return text.partition("://")[2].partition("/")[0]
