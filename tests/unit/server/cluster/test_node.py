"""A node of a cluster, without its database."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pairbus.server.cluster.node import Node
from pairbus.server.config.options import ClusterOptions, Options


async def test_the_collector_learns_what_the_owner_holds_and_that_a_relay_holds_nothing(
    tmp_path: Path,
) -> None:
    database: Any = SimpleNamespace(settings=lambda: None)
    assemble: Any = None
    node = Node(
        Options(data=tmp_path, namespace="contoso"), ClusterOptions(node="node-0"), database, assemble
    )
    assert node.held_objects() == 0

    owner: Any = SimpleNamespace(held_objects=lambda: 4_000_000)
    node._server = owner

    assert node.held_objects() == 4_000_000
