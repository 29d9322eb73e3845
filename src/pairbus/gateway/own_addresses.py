"""The HTTP addresses of the broker itself that are legal names of entities as well, and which of the two a request means.

A queue may be called ``metrics``. Management of an entity has ``api-version`` in its query, as every official client sends it, or is no
reading. So a plain ``GET`` or ``HEAD`` of one of these addresses means the broker, and every other request means the entity.

The broker's other addresses (``/$page/…``, ``/$faults``, ``/$accessrules``, ``/$servicebus/websocket``, the root) meet no name: a name is
not empty and has no dollar sign. A new address without one belongs in this table (decision 0209).
"""

from __future__ import annotations

import re
from typing import Final

HEALTH: Final = "/health"
METRICS: Final = "/metrics"
NODE_ADDRESSES: Final = (HEALTH, "/health/owner", "/health/metrics")
"""Answered by every node of a cluster for itself; by a single broker the first."""
OWN_ADDRESSES: Final = (*NODE_ADDRESSES, METRICS)

_VERSION: Final = re.compile(r"(?:^|&)api-version(?:=|&|$)", re.IGNORECASE)


def own_address(method: str, target: str) -> str:
    """The address of the broker itself that a request means; empty: it means an entity, or another resource.

    Args:
        method: In capitals.
        target: Path and query, still percent-encoded.
    """
    path, _, query = target.partition("?")
    if path not in OWN_ADDRESSES or method not in ("GET", "HEAD") or _VERSION.search(query):
        return ""
    return path
