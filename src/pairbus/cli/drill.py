"""``pairbus drill``: tests a pair with an outage that ends by itself."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pairbus.cli.kit.options import command, json_option, option, values_of
from pairbus.cli.kit.output import show, silence_logs, stop_on_signals
from pairbus.cli.kit.pair import PairFlags, refusals
from pairbus.errors import UsageError
from pairbus.stage.drill.plan import AHEAD_MAX, DrillOptions, DrillSettings, seconds_until

if TYPE_CHECKING:
    from rich.console import Console

    from pairbus.stage.drill.card import Card

EXIT_FAILED: Final = 1
EXIT_ENDED_EARLY: Final = 130
AGAIN_SECONDS: Final = 1.0
"""Two signals closer together than this are one wish: `timeout` and some terminals send each twice."""
EPILOG: Final = """\b
Examples:
  pairbus drill
  pairbus drill --at 03:30 --for 5m --fault black-hole
  pairbus drill --in 10m --entity orders --entity events --yes
  pairbus drill --for 30s --failover-interval 3s --json

\b
The fault affects only the drill's own queue, or the queues of --entity. It has a duration: the primary ends it by itself, even if
this process stops. Where the primary offers no fault switchboard (`pairbus serve --faults`), as in the cloud,
auto means manual: the drill makes the client fail over, and tests everything except the detection. Ctrl-C ends the drill, drains the
parked messages and cleans up; a second Ctrl-C ends it at once.
Exit codes: 0 every promise was kept, 1 one was not, 2 wrong usage, 3 could not reach or was refused, 130 ended by Ctrl-C.
"""


@dataclass(frozen=True, kw_only=True)
class DrillFlags(DrillSettings, PairFlags):
    at: str | None = option("Time to begin, on the clock of this machine.", metavar="HH:MM")
    ahead: timedelta | None = option(
        "Time to wait before the drill, for example 10m.", flag="--in", metavar="TIME"
    )
    as_json: bool = json_option("Print the report card as one JSON object.")

    def options(self) -> DrillOptions:
        primary, secondary = self.both
        return DrillOptions(
            primary=primary,
            secondary=secondary,
            namespace=self.namespace,
            ca_file=self.ca_file(),
            **values_of(self, DrillSettings),
        )


@command(DrillFlags, EPILOG)
def drill(flags: DrillFlags) -> int:
    """Test a pair: cause an outage that ends by itself, send probes through the paired client, and print a report card."""
    from rich.console import Console

    from pairbus.stage.drill.view import show_card

    silence_logs("azure", "pairbus")
    if flags.at and flags.ahead:
        raise UsageError("--at and --in both say when it begins: give one")
    console = Console(stderr=flags.as_json, highlight=False)
    options = flags.options()
    with refusals(flags):
        card = _hold(options, _seconds_ahead(flags), console)
    if card is None:
        click.echo("called off before it began", err=True)
        return EXIT_ENDED_EARLY
    show(card.as_json(), flags.as_json, ())
    if not flags.as_json:
        show_card(console, card)
    if not card.passed:
        return EXIT_FAILED
    return EXIT_ENDED_EARLY if card.is_early else 0


def _hold(options: DrillOptions, seconds_ahead: float, console: Console) -> Card | None:
    """Wait for the time, then hold the drill; None when it was called off."""
    from pairbus.stage.drill.run import look, play
    from pairbus.stage.drill.view import Scene, draw
    from pairbus.stage.screen import Screen

    # A second signal leaves at once: the fault ends by itself.
    stop = stop_on_signals(lambda: os._exit(EXIT_ENDED_EARLY), AGAIN_SECONDS)
    if seconds_ahead:
        outage = look(options)
        begins = datetime.fromtimestamp(time.time() + seconds_ahead).astimezone()
        click.echo(f"{outage.name} begins at {begins:%H:%M:%S} here; Ctrl-C calls it off", err=True)
        if stop.wait(seconds_ahead):
            return None
    scene = Scene()
    with (
        tempfile.TemporaryDirectory(prefix="pairbus-drill-") as work,
        Screen(console, scene, lambda: draw(scene)),
    ):
        return play(options, scene, stop, Path(work))


def _seconds_ahead(flags: DrillFlags) -> float:
    if flags.at:
        return seconds_until(flags.at, datetime.fromtimestamp(time.time()).astimezone())
    ahead = flags.ahead or timedelta(0)
    if ahead > AHEAD_MAX:
        raise UsageError(
            f"--in is {ahead}: plan {AHEAD_MAX.days} days ahead at the most, or use cron or a systemd timer"
        )
    return ahead.total_seconds()
