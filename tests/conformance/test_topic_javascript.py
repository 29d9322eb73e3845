"""The official JavaScript client on topics, rules and forwarding. Each check of ``js/topics.mjs`` names its source itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.conformance.test_javascript import HERE, RUN_SECONDS_MAX, modules, pytestmark

__all__ = ["modules", "pytestmark"]  # a fixture and marks: pytest finds them by name

CHECKS = 11


def test_javascript_client_on_topics(namespace: Any, modules: Path) -> None:
    environment = {
        **os.environ,
        "BUS": namespace.connection_string,
        "NODE_EXTRA_CA_CERTS": str(namespace.ca_file),
        "NODE_MODULES_HOME": str(modules),
    }

    finished = subprocess.run(
        ["node", str(HERE / "topics.mjs")],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )

    print(finished.stdout, finished.stderr)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("ok ") == CHECKS
