"""``pairbus bench``: runs the benchmarks of the repository's ``bench/`` from a clone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

import pairbus
from pairbus.cli.kit.group import HelpfulGroup
from pairbus.errors import PairbusError, UsageError

FOLDER: Final = "bench"
_WITHOUT_VALUE: Final = re.compile(r"--[a-z-]+=\s*")
EPILOG: Final = """\b
Examples:
  pairbus bench settle
  pairbus bench pairing --json
  pairbus bench broker --quick

\b
The benchmarks are in the repository, not in the installed package: clone it and run them there.
Machines differ: compare the ratios between lines of one run, not the numbers.
Exit codes: 0 measured, 1 a figure is impossible, 2 wrong usage, 3 something it needs is not here.
"""
BENCHMARKS: Final = {
    "settle": (
        "Sends awaited one by one, ten in flight, all in flight: 70 ms away, 10 ms to store. Takes some 15 s.",
        "settle --json",
    ),
    "pairing": (
        "What pairing costs and how fast it reacts, beside the official SDK alone.",
        "pairing --rounds 40 --messages 500",
    ),
    "broker": ("Messages per second beside RabbitMQ's quorum queues.", "broker --quick --json"),
    "loads": (
        "Topics, sessions, large messages, a long backlog and other loads beside a plain queue. Takes some 15 minutes.",
        "loads --only topics --only sessions",
    ),
    "spark": (
        "The Spark syphon beside the in-process one and the plain SDK.",
        "spark --messages 20000 --json",
    ),
    "bill": ("Bill and certificate on Spark beside one process.", "bill --usage-rows 1000000"),
    "scale": (
        "A model of 100,000 namespaces with a million messages a second, from measured costs.",
        "scale --check",
    ),
    "stores": ("The embedded store beside SQLite.", "stores --messages 50000"),
    "topics": (
        "What finding a message's subscriptions costs, by kind of filter and number.",
        "topics",
    ),
}
"""What each benchmark measures, and an example."""


@click.group(cls=HelpfulGroup, epilog=EPILOG)
def bench() -> None:
    """Run a benchmark and its baseline in the same run. Needs a clone of the repository."""


def clone_root() -> Path | None:
    """The clone that this package is run from; None when it is installed without one."""
    folder = Path(pairbus.__file__).resolve().parents[2]
    return folder if (folder / FOLDER / "broker.py").is_file() else None


def run(name: str, options: Sequence[str]) -> int:
    """Run one benchmark as a program of its own, in the clone. Returns its exit code; raises PairbusError without a clone and for an empty option."""
    for option in options:
        if not option.strip() or _WITHOUT_VALUE.fullmatch(option):
            raise UsageError(
                f"bench {name}: {option.strip() or repr(option)} is empty: give it a value, or leave it out"
            )
    folder = clone_root()
    if folder is None:
        raise PairbusError(
            f"bench {name} is in the repository's bench/ and not in the installed package: clone the repository, "
            f"run `make setup` there, then `.venv/bin/pairbus bench {name}`"
        )
    command = [sys.executable, "-m", f"{FOLDER}.{name}", *options]
    return subprocess.run(command, cwd=folder, check=False).returncode  # noqa: S603 - our own module


def _command(name: str, summary: str, example: str) -> click.Command:
    return click.Command(
        name,
        callback=lambda options: run(name, options),
        params=[click.Argument(["options"], nargs=-1, type=click.UNPROCESSED)],
        help=f"{summary} OPTIONS are those of {FOLDER}/{name}.py.",
        epilog=f"\b\nExample:\n  pairbus bench {example}\n",
        context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
    )


for _name, (_summary, _example) in BENCHMARKS.items():
    bench.add_command(_command(_name, _summary, _example))
