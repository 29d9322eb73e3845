"""The official JavaScript client, run by Node. Each check of ``js/conformance.mjs`` names its source itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.sdk import connection_part, sas_token, spec

HERE = Path(__file__).parent / "js"
INSTALL_SECONDS_MAX = 180
RUN_SECONDS_MAX = 120

pytestmark = [
    pytest.mark.conformance_js,
    pytest.mark.slow,
    pytest.mark.timeout(INSTALL_SECONDS_MAX + RUN_SECONDS_MAX),
]


@pytest.fixture(scope="session")
def modules() -> Path:
    """Where the client's packages are, as pinned by the lock file; installed once into a cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pairbus" / "conformance-js"
    lock, stamp = HERE / "package-lock.json", cache / "installed.json"
    if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, cache / name)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=cache, check=True, capture_output=True, timeout=INSTALL_SECONDS_MAX)
        shutil.copy(lock, stamp)
    return cache


def run_checks(script: str, modules: Path, **environment: str) -> int:
    """Run a script of ``js`` and return how many of its checks passed; one that fails fails the test."""
    finished = subprocess.run(
        ["node", str(HERE / script)],
        check=False,
        env={**os.environ, "NODE_MODULES_HOME": str(modules), **environment},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )

    print(finished.stdout, finished.stderr)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout.count("ok ")


@spec("what the JavaScript client needs")
def test_javascript_client(namespace: Any, make_queue: Callable[..., str], modules: Path) -> None:
    plain = namespace.connection_string
    endpoint = connection_part(plain, "Endpoint")
    signature = sas_token(plain, endpoint, 3600)
    signed = f"Endpoint={endpoint};SharedAccessSignature={signature};UseDevelopmentEmulator=true"

    passed = run_checks(
        "conformance.mjs",
        modules,
        BUS=plain,
        BUS_SIGNATURE=signed,
        QUEUE=make_queue(),
        SESSION_QUEUE=make_queue(requires_session=True),
    )

    assert passed >= 13
