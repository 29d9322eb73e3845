"""Benchmarks that only a clone of the repository has: they need its C load generator, its test data or a peer to install."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

import pairbus
from pairbus.errors import PairbusError

FOLDER: Final = "bench"
NEEDS: Final = {
    "broker": "a load generator in C and RabbitMQ beside it",
    "spark": "the tests' backlog generator",
    "bill": "generated logs of some gigabytes",
    "stores": "a look into the store's own files",
    "topics": "a look into the engine's own index",
}
"""Each benchmark of a clone, and what the package lacks for it."""


def root() -> Path | None:
    """The clone that this package is run from; None when it is installed without one."""
    folder = Path(pairbus.__file__).resolve().parents[2]
    return folder if (folder / FOLDER / "broker.py").is_file() else None


def run(name: str, arguments: Sequence[str], output: TextIO | None = None) -> int:
    """Run one as a program of its own, in the clone; its exit code. Raises PairbusError where there is none.

    What it prints goes to ``output`` unless to where this process prints.
    """
    folder = root()
    if folder is None:
        raise PairbusError(
            f"bench {name} needs {NEEDS[name]}, which a clone of the repository has and the installed package has not: "
            f"run `pairbus bench {name}` or `make bench-broker` there; settle and pairing run anywhere"
        )
    command = [sys.executable, "-m", f"{FOLDER}.{name}", *arguments]
    return subprocess.run(command, cwd=folder, stdout=output, check=False).returncode  # noqa: S603 - ours
