"""``pairbus bench``: the benchmarks, each beside a baseline in the same run."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from pairbus.cli.group import HelpfulGroup

EXIT_NOT_KEPT: Final = 1
EPILOG: Final = """\b
Examples:
  pairbus bench settle
  pairbus bench pairing --json
  pairbus bench broker --quick

\b
settle and pairing run wherever pairbus is installed; the others need a clone of the repository and say so elsewhere.
Machines differ and are shared: read the ratios between lines of one run.
Exit codes: 0 measured, 1 a figure is where it cannot be, 2 wrong usage, 3 something it needs is not here.
"""
_FROM_A_CLONE: Final[dict[str, Any]] = {"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}


@click.group(cls=HelpfulGroup, epilog=EPILOG)
def bench() -> None:
    """Measure, each time beside a baseline in the same run."""
    for name in ("azure", "pairbus"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@bench.command(epilog="\b\nExample:\n  pairbus bench settle --json\n")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def settle(as_json: bool) -> int:
    """Sends awaited one by one, ten in flight, all in flight: 70 ms away, 10 ms to store. Takes some 15 s."""
    from pairbus.bench.settle import settle as measure

    result = measure(_tell)
    if as_json:
        click.echo(json.dumps({**asdict(result), "holds": result.holds}))
    else:
        click.echo("\n".join(result.lines()))
    return 0 if result.holds else EXIT_NOT_KEPT


@bench.command(epilog="\b\nExample:\n  pairbus bench pairing --rounds 40 --messages 500\n")
@click.option(
    "--rounds", type=click.IntRange(1), default=80, show_default=True, help="Turns of healthy sends."
)
@click.option(
    "--messages",
    type=click.IntRange(100),
    default=1_000,
    show_default=True,
    help="To drain in one round; by the hundred.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def pairing(rounds: int, messages: int, as_json: bool) -> None:
    """What pairing costs and how fast it reacts, beside the official SDK alone."""
    from pairbus.bench.pairing import PAGE
    from pairbus.bench.pairing import pairing as measure

    with tempfile.TemporaryDirectory(prefix="pairbus-bench-") as state:
        result = measure(rounds, messages - messages % PAGE, Path(state), _tell)
    click.echo(json.dumps(result.as_json()) if as_json else "\n".join(result.lines()))


@bench.command(context_settings=_FROM_A_CLONE, epilog="\b\nExample:\n  pairbus bench broker --quick --json\n")
@click.option(
    "--json", "as_json", is_flag=True, help="Every run as one JSON object; the table goes to standard error."
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def broker(as_json: bool, options: tuple[str, ...]) -> int:
    """Messages per second beside RabbitMQ's quorum queues; from a clone. OPTIONS are those of bench/broker.py."""
    from pairbus.bench.checkout import run

    if not as_json:
        return run("broker", options)
    with tempfile.TemporaryDirectory(prefix="pairbus-bench-") as folder:
        file = Path(folder) / "runs.json"
        code = run("broker", [*options, "--json", str(file)], output=sys.stderr)
        if file.exists():
            click.echo(json.dumps(json.loads(file.read_text(encoding="utf-8"))))
        return code


@bench.command(
    context_settings=_FROM_A_CLONE, epilog="\b\nExample:\n  pairbus bench spark --messages 20000 --json\n"
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def spark(options: tuple[str, ...]) -> int:
    """The Spark syphon beside the in-process one and the plain SDK; from a clone. OPTIONS are those of bench/spark.py."""
    from pairbus.bench.checkout import run

    return run("spark", options)


@bench.command(
    context_settings=_FROM_A_CLONE, epilog="\b\nExample:\n  pairbus bench bill --usage-rows 1000000\n"
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def bill(options: tuple[str, ...]) -> int:
    """Bill and certificate on Spark beside one process; from a clone. OPTIONS are those of bench/bill.py."""
    from pairbus.bench.checkout import run

    return run("bill", options)


@bench.command(
    context_settings=_FROM_A_CLONE, epilog="\b\nExample:\n  pairbus bench stores --messages 50000\n"
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def stores(options: tuple[str, ...]) -> int:
    """The embedded store beside SQLite; from a clone. OPTIONS are those of bench/stores.py."""
    from pairbus.bench.checkout import run

    return run("stores", options)


@bench.command(epilog="\b\nExample:\n  pairbus bench topics\n")
def topics() -> int:
    """What finding a message's subscriptions costs, by kind of filter and number; from a clone."""
    from pairbus.bench.checkout import run

    return run("topics", ())


def _tell(text: str) -> None:
    """What is under way, for a person who waits."""
    if sys.stderr.isatty():
        click.echo(f"{text} …", err=True)
