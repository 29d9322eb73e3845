"""``pairbus drill``: a game day on a pair."""

from __future__ import annotations

import json
import logging
import os
import signal
import tempfile
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.errors import one_line, way_out
from pairbus.cli.kit.pair import authorities, needed, pair_options
from pairbus.errors import PairingError, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

    from pairbus.stage.drill.card import Card
    from pairbus.stage.drill.plan import DrillOptions

EXIT_FAILED: Final = 1
EXIT_ENDED_EARLY: Final = 130
AGAIN_SECONDS: Final = 1.0
"""Two signals closer together than this are one wish: `timeout` and some terminals send each twice."""
FAULTS: Final = (
    "auto", "refuse", "cut", "black-hole", "drop-acknowledgements", "fill", "throttle", "manual",
)  # fmt: skip
EPILOG: Final = """\b
Examples:
  pairbus drill
  pairbus drill --at 03:30 --for 5m --fault black-hole
  pairbus drill --in 10m --entity orders --entity events --yes
  pairbus drill --for 30s --failover-interval 3s --json

\b
The fault strikes the drill's own queue, unless --entity says otherwise, and is switched on with a duration: the primary ends
it by itself, even if this process dies. Where the primary offers no fault switchboard (`pairbus serve --faults`), as in the cloud,
auto means manual: the client is told to fail over, and everything but the detection is tested. Ctrl-C ends the drill, brings home
what is parked and tidies up; a second Ctrl-C leaves at once.
Exit codes: 0 every promise was kept, 1 one was not, 2 wrong usage, 3 could not reach or was refused, 130 ended by Ctrl-C.
"""


def length(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """A length of time: 90s, 15m, 1h30m; plain numbers are seconds."""
    from pairbus.reports.text import duration_ms

    if value is None:
        return None
    try:
        return timedelta(milliseconds=duration_ms(f"{value}s" if value.isdecimal() else value))
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command(epilog=EPILOG)
@pair_options
@click.option("--at", metavar="HH:MM", help="Begin when the clock here next shows this.")
@click.option("--in", "ahead", metavar="TIME", callback=length, help="Begin after this long, as 10m.")
@click.option(
    "--for",
    "lasts",
    metavar="TIME",
    callback=length,
    default="60s",
    show_default=True,
    help="How long the outage lasts.",
)
@click.option(
    "--fault",
    type=click.Choice(FAULTS),
    default="auto",
    show_default=True,
    help="What happens to the primary.",
)
@click.option(
    "--entity",
    "entities",
    metavar="PATH",
    multiple=True,
    help="Drill on this queue or topic, which needs --yes; may repeat.  [default: a queue of the drill's own]",
)
@click.option(
    "--yes", is_flag=True, help="Yes, consumers of --entity may see probes; yes, bring others' backlog home."
)
@click.option("--rate", type=float, default=10.0, show_default=True, help="Probes a second for each entity.")
@click.option(
    "--failover-interval",
    metavar="TIME",
    callback=length,
    default="10s",
    show_default=True,
    help="Of the paired client.",
)
@click.option(
    "--ping-interval",
    metavar="TIME",
    callback=length,
    default="2s",
    show_default=True,
    help="Of the paired client.",
)
@click.option(
    "--while-suspect",
    type=click.Choice(["wait", "raise"]),
    default="wait",
    show_default=True,
    help="What sends do until the failover.",
)
@click.option(
    "--timeout",
    metavar="TIME",
    callback=length,
    help="Of one send.  [default: 5 s beyond the failover interval]",
)
@click.option(
    "--queues",
    "count",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="How many backlog queues.",
)
@click.option(
    "--syphon",
    type=click.Choice(["own", "running"]),
    default="own",
    show_default=True,
    help="Who brings the probes home: pumps of the drill, or the syphon that runs.",
)
@click.option(
    "--drain-within",
    metavar="TIME",
    callback=length,
    default="2m",
    show_default=True,
    help="How long the way home may take.",
)
@click.option(
    "--slack",
    metavar="TIME",
    callback=length,
    default="5s",
    show_default=True,
    help="How much later than promised passes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report card as one JSON object.")
def drill(**given: Any) -> int:
    """Hold a game day: an outage that ends by itself, probes through the paired client, and a report card."""
    from azure.core.exceptions import AzureError
    from rich.console import Console

    from pairbus.sdk.trust import bundle_of

    for name in ("azure", "pairbus"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if given["at"] and given["ahead"]:
        raise UsageError("--at and --in both say when it begins: give one")
    primary, secondary = needed(given["primary"], "primary"), needed(given["secondary"], "secondary")
    console = Console(stderr=given["as_json"], highlight=False)
    with bundle_of(authorities(given["ca_files"], primary, secondary)) as ca_file:
        options = _options(given, primary, secondary, ca_file)
        try:
            card = _hold(options, given, console)
        except AzureError as error:
            raise PairingError(way_out(error) or f"the namespace refused: {one_line(error)}") from error
    if card is None:
        click.echo("called off before it began", err=True)
        return EXIT_ENDED_EARLY
    _show(card, console, as_json=given["as_json"])
    if not card.passed:
        return EXIT_FAILED
    return EXIT_ENDED_EARLY if card.is_early else 0


def _options(given: dict[str, Any], primary: str, secondary: str, ca_file: str | None) -> DrillOptions:
    from pairbus.stage.drill.plan import DrillOptions

    return DrillOptions(
        primary=primary,
        secondary=secondary,
        namespace=given["namespace"],
        ca_file=ca_file,
        fault=given["fault"],
        lasts=given["lasts"],
        entities=given["entities"],
        rate=given["rate"],
        failover_interval=given["failover_interval"],
        ping_interval=given["ping_interval"],
        while_suspect=given["while_suspect"],
        queues=given["count"],
        brings_home=given["syphon"] == "own",
        timeout=given["timeout"],
        slack=given["slack"],
        drain_within=given["drain_within"],
        may_touch=given["yes"],
    )


def _hold(options: DrillOptions, given: dict[str, Any], console: Console) -> Card | None:
    from pairbus.stage.drill.game import look, play
    from pairbus.stage.drill.view import Scene, draw
    from pairbus.stage.screen import Screen

    stop = _stop_on_signals()
    seconds = _ahead(given)
    if seconds:
        outage = look(options)
        begins = datetime.fromtimestamp(time.time() + seconds).astimezone()
        click.echo(f"{outage.name} begins at {begins:%H:%M:%S} here; Ctrl-C calls it off", err=True)
        if stop.wait(seconds):
            return None
    scene = Scene()
    with (
        tempfile.TemporaryDirectory(prefix="pairbus-drill-") as work,
        Screen(console, scene, lambda: draw(scene)),
    ):
        return play(options, scene, stop, Path(work))


def _ahead(given: dict[str, Any]) -> float:
    from pairbus.stage.drill.plan import AHEAD_MAX, seconds_until

    if given["at"]:
        return seconds_until(given["at"], datetime.fromtimestamp(time.time()).astimezone())
    ahead: timedelta = given["ahead"] or timedelta(0)
    if ahead > AHEAD_MAX:
        raise UsageError(
            f"--in is {ahead}: plan {AHEAD_MAX.days} days ahead at the most, or use cron or a systemd timer"
        )
    return ahead.total_seconds()


def _stop_on_signals() -> threading.Event:
    """The first signal ends the drill in order, a later one at once: the fault ends by itself."""
    stop = threading.Event()
    heard_at = 0.0

    def hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's own form
        nonlocal heard_at
        if not stop.is_set():
            heard_at = time.monotonic()
            stop.set()
        elif time.monotonic() > heard_at + AGAIN_SECONDS:
            os._exit(EXIT_ENDED_EARLY)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hear)
    return stop


def _show(card: Card, console: Console, *, as_json: bool) -> None:
    from pairbus.stage.drill.view import show_card

    if as_json:
        click.echo(json.dumps(card.as_json()))
    else:
        show_card(console, card)
