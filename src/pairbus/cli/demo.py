"""``pairbus demo``: the whole story, live in the terminal."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import tempfile
from dataclasses import asdict
from typing import Final

import click

from pairbus.errors import UsageError

EPILOG: Final = """\b
Examples:
  pairbus demo
  pairbus demo --messages 4000 --seed 42 --engine local
  pairbus demo --json

\b
Needs nothing and leaves nothing behind: both namespaces live in a temporary directory.
Exit codes: 0 the certificate holds, 1 it does not, 2 wrong usage, 3 something did not start.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--messages",
    type=click.IntRange(100, 100_000),
    default=1_200,
    show_default=True,
    help="How many to send.",
)
@click.option(
    "--seed", type=int, default=7, show_default=True, help="Sizes, batches and sessions come from it."
)
@click.option(
    "--engine",
    type=click.Choice(["spark", "local"]),
    help="Who drains the backlog.  [default: spark when Spark and Java are there, else local]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def demo(messages: int, seed: int, engine: str | None, as_json: bool) -> int:
    """Two namespaces, senders and consumers; the primary is killed and returns; nothing is lost, and that is proved."""
    from rich.console import Console

    from pairbus.stage.demo.story import DemoOptions, new_scene, run_demo
    from pairbus.stage.demo.view import draw, show_result
    from pairbus.stage.screen import Screen

    for name in ("azure", "pairbus", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # The story's own state must not meet the user's.
    os.environ.pop("PAIRBUS_JOURNAL", None)
    chosen, why = (engine, "") if engine is not None else _engine()
    console = Console(stderr=as_json, highlight=False)
    with tempfile.TemporaryDirectory(prefix="pairbus-demo-state-") as state:
        os.environ["PAIRBUS_STATE_DIR"] = state
        scene = new_scene()
        with Screen(console, scene, lambda: draw(scene, messages, console.width)):
            if why:
                console.print(why)
            result = run_demo(DemoOptions(messages=messages, seed=seed, engine=chosen), scene)
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        show_result(console, result)
    return 0 if result.holds else 1


def _engine() -> tuple[str, str]:
    """Spark when it can run here, and why not otherwise."""
    if importlib.util.find_spec("pyspark") is None:
        return (
            "local",
            "Spark is not installed (pip install 'pairbus[spark]'): the backlog drains in this process.",
        )
    from pairbus.spark.java import find_java

    try:
        find_java(os.environ)
    except UsageError as error:
        return "local", f"{error}. Until then the backlog drains in this process."
    return "spark", ""
