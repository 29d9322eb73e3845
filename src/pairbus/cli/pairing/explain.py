"""``pairbus explain``: why an entity is in its state, from the journals of paired clients."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from pairbus.errors import UsageError

EPILOG: Final = """\b
Example:
  PAIRBUS_JOURNAL=/var/log/pairbus/journal pairbus explain orders

\b
A paired client writes its events to the file that PAIRBUS_JOURNAL names; this command reads it.
Inside a program, client.explain("orders") needs no journal.
Exit codes: 0 done, 1 the journal says nothing of this entity, 2 wrong usage.
"""


@click.command(epilog=EPILOG)
@click.argument("path")
@click.option(
    "--journal", metavar="FILE", envvar="PAIRBUS_JOURNAL", help="The journal.  [env: PAIRBUS_JOURNAL]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def explain(path: str, journal: str | None, as_json: bool) -> None:
    """Say why the entity PATH is in its state: errors, timers, pings and decisions with their times."""
    from pairbus.pairing.journal import read
    from pairbus.pairing.naming import entity_key

    if not journal:
        raise UsageError("no journal is named: set PAIRBUS_JOURNAL, here and where the paired client runs")
    if not Path(journal).exists():
        raise UsageError(
            f"there is no journal {journal}: name the file that PAIRBUS_JOURNAL names where the paired client runs"
        )
    key = entity_key(path)
    events = [event for event in read(Path(journal)) if entity_key(str(event.get("subject", ""))) == key]
    if as_json:
        click.echo(json.dumps(events))
    for event in events if not as_json else ():
        at_ms = event.get("at_ms")
        when = datetime.fromtimestamp((at_ms if isinstance(at_ms, int) else 0) / 1000, UTC).isoformat(
            timespec="milliseconds"
        )
        kind = str(event.get("kind", "")).removeprefix("pairing.").replace("_", " ")
        text = "".join(
            character if character.isprintable() else "?" for character in str(event.get("text", ""))
        )
        click.echo(f"{when}  {event.get('factory')}  {kind:<14} {text}")
    if not events:
        click.echo(f"the journal says nothing of {path!r}", err=True)
        raise click.exceptions.Exit(1)
