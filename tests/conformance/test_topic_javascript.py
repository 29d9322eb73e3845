"""The official JavaScript client on topics, rules and forwarding. Each check of ``js/topics.mjs`` names its source itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conformance.test_javascript import modules, pytestmark, run_checks

__all__ = ["modules", "pytestmark"]  # a fixture and marks: pytest finds them by name

CHECKS = 11


def test_javascript_client_on_topics(namespace: Any, modules: Path) -> None:
    passed = run_checks(
        "topics.mjs", modules, BUS=namespace.connection_string, NODE_EXTRA_CA_CERTS=str(namespace.ca_file)
    )

    assert passed == CHECKS
