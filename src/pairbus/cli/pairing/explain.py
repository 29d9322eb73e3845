"""``pairbus explain``: why an entity is in its state, from the journals of paired clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from pairbus.cli.kit.options import argument, command, json_option, option
from pairbus.cli.kit.output import show
from pairbus.errors import UsageError
from pairbus.model.text import safe_text

EPILOG: Final = """\b
Example:
  PAIRBUS_JOURNAL=/var/log/pairbus/journal pairbus explain orders

\b
A paired client writes its events to the file that PAIRBUS_JOURNAL names; this command reads it.
Inside a program, client.explain("orders") needs no journal.
Exit codes: 0 done, 1 the journal says nothing of this entity, 2 wrong usage.
"""


@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    path: str = argument()
    journal: str | None = option(
        "The journal.  [env: PAIRBUS_JOURNAL]", metavar="FILE", envvar="PAIRBUS_JOURNAL"
    )
    as_json: bool = json_option("One JSON array.")


@command(ExplainFlags, EPILOG)
def explain(flags: ExplainFlags) -> int:
    """Explain the health of the entity PATH: errors, timers, pings and decisions with their times."""
    from pairbus.pairing.journal import is_journal, read
    from pairbus.pairing.naming import entity_key

    if not flags.journal:
        raise UsageError("no journal is named: set PAIRBUS_JOURNAL, here and where the paired client runs")
    journal = Path(flags.journal)
    if not journal.exists():
        raise UsageError(
            f"there is no journal {journal}: name the file that PAIRBUS_JOURNAL names where the paired client runs"
        )
    if journal.is_dir():
        raise UsageError(f"{journal} is a directory: name the journal's file in it")
    key = entity_key(flags.path)
    try:
        if not is_journal(journal):
            raise UsageError(f"{journal} is no journal: name the file that PAIRBUS_JOURNAL names where the paired client runs")  # fmt: skip
        events = [event for event in read(journal) if entity_key(str(event.get("subject", ""))) == key]
    except OSError as error:
        raise UsageError(f"the journal {journal} cannot be read: {error.strerror}") from None
    show(events, flags.as_json, map(_line, events))
    if not events:
        click.echo(f"the journal says nothing of {flags.path!r}", err=True)
    return 0 if events else 1


def _line(event: Mapping[str, object]) -> str:
    at_ms = event.get("at_ms")
    when = datetime.fromtimestamp((at_ms if isinstance(at_ms, int) else 0) / 1000, UTC)
    kind = str(event.get("kind", "")).removeprefix("pairing.").replace("_", " ")
    text = safe_text(event.get("text", ""))
    return f"{when.isoformat(timespec='milliseconds')}  {safe_text(event.get('factory'))}  {kind:<14} {text}"
