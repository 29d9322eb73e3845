"""The names by which clients reach the nodes of a cluster, and the certificate for all of them."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pairbus.server.cluster.ports import SettingTable
    from pairbus.server.config.certificates import CertificateFiles
    from pairbus.server.config.options import Options
    from pairbus.storage.table.ports import NodeEntry


class NodeNames:
    """The names of one node and of those that it knows. What makes certificates is imported when it is needed: many nodes need none."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.advertised = ""
        """Where other nodes reach this one; empty until it listens."""
        self._certified: frozenset[str] = frozenset()
        """The names in the certificate that is in use."""

    def own(self) -> tuple[str, ...]:
        host = self.advertised.rpartition(":")[0].strip("[]")
        names = (socket.gethostname(), host, *self._options.tls_names)
        return tuple(dict.fromkeys(name for name in names if name))

    def _all(self, nodes: Iterable[NodeEntry]) -> frozenset[str]:
        return frozenset(self.own()).union(*(node.names for node in nodes))

    def are_certified(self, nodes: Iterable[NodeEntry]) -> bool:
        """Whether the certificate in use holds the names of these nodes."""
        return self._all(nodes) <= self._certified

    def certificates(self, nodes: Iterable[NodeEntry], now: datetime) -> CertificateFiles:
        """A certificate for the names of these nodes, which is in use from now on."""
        from pairbus.server.config.certificates import ensure_certificates

        self._certified = names = self._all(nodes)
        own = self.own()
        ordered = [*sorted(names.difference(own)), *own]
        return ensure_certificates(self._options.data / "tls", ordered, now)

    def share_authority(self, settings: SettingTable, now: datetime) -> None:
        """See ``authority.share_authority``. Blocks."""
        from pairbus.server.cluster.authority import share_authority

        share_authority(settings, self._options.data / "tls", self.own(), now)
