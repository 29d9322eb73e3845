"""``pairbus demo``: the whole story, live in the terminal."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from dataclasses import asdict, dataclass
from typing import Final, Literal

from pairbus.cli.kit.options import command, json_option, option
from pairbus.cli.kit.output import ended_by_sigterm, show, silence_logs
from pairbus.errors import UsageError

EPILOG: Final = """\b
Examples:
  pairbus demo
  pairbus demo --messages 4000 --seed 42 --engine local
  pairbus demo --json

\b
The demo needs no set-up and leaves nothing behind: both namespaces use a temporary directory.
Exit codes: 0 the certificate holds, 1 it does not, 2 wrong usage, 3 something did not start.
"""


@dataclass(frozen=True, kw_only=True)
class DemoFlags:
    messages: int = option("Number of messages to send.", 1_200, minimum=100, maximum=100_000)
    seed: int = option("Seed for sizes, batches and sessions.", 7)
    engine: Literal["spark", "local"] | None = option(
        "Where the drain runs.  [default: spark when Spark and Java are there, else local]"
    )
    as_json: bool = json_option("Print the result as one JSON object.")


@command(DemoFlags, EPILOG)
def demo(flags: DemoFlags) -> int:
    """Show an outage live: start a pair, kill the primary, drain the backlog, and prove that nothing is lost."""
    from rich.console import Console

    from pairbus.stage.demo.story import DemoOptions, new_scene, run_demo
    from pairbus.stage.demo.view import draw, show_result
    from pairbus.stage.screen import Screen

    silence_logs("azure", "pairbus", "py4j")
    # The demo's own state must not meet the user's.
    os.environ.pop("PAIRBUS_JOURNAL", None)
    obstacle = None if flags.engine == "local" else _obstacle()
    if flags.engine == "spark" and obstacle is not None:
        raise UsageError(f"--engine spark cannot run here: {obstacle}; or use --engine local")
    engine = "local" if flags.engine == "local" or obstacle is not None else "spark"
    console = Console(stderr=flags.as_json, highlight=False)
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="pairbus-demo-state-") as state:
        os.environ["PAIRBUS_STATE_DIR"] = state
        scene = new_scene()
        with Screen(console, scene, lambda: draw(scene, flags.messages, console.width)):
            if obstacle is not None:
                console.print(f"{obstacle}. Until then the backlog drains in this process.")
            options = DemoOptions(messages=flags.messages, seed=flags.seed, engine=engine)
            result = run_demo(options, scene)
    show(asdict(result), flags.as_json, ())
    if not flags.as_json:
        show_result(console, result)
    return 0 if result.holds else 1


def _obstacle() -> str | None:
    """Why Spark cannot run here, with the way out; None when it can."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark is not installed (pip install 'pairbus[spark]')"
    from pairbus.spark.java import find_java

    try:
        find_java(os.environ)
    except UsageError as error:
        return str(error)
    return None
