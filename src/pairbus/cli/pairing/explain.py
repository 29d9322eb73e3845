"""``pairbus explain``: why an entity is in its state, from the journals of paired clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pairbus.cli.kit.options import argument, command, json_option, option
from pairbus.cli.kit.output import show
from pairbus.errors import UsageError
from pairbus.model.text import safe_text
from pairbus.reports.text import many

if TYPE_CHECKING:
    from pairbus.pairing.journal_states import ProgramState

EPILOG: Final = """\b
Example:
  PAIRBUS_JOURNAL=/var/log/pairbus/journal pairbus explain orders

\b
A paired client writes its events to the file that PAIRBUS_JOURNAL names; this command reads it.
Inside a program, client.explain("orders") needs no journal.
Exit codes: 0 done, 1 the journal says nothing of this entity, 2 wrong usage.
"""

_SENT: Final = "pairing.ping_sent"
_ANSWERS: Final = ("pairing.ping_answered", "pairing.ping_failed")


@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    path: str = argument()
    journal: str | None = option(
        "The journal.  [env: PAIRBUS_JOURNAL]", metavar="FILE", envvar="PAIRBUS_JOURNAL"
    )
    as_json: bool = json_option("One JSON object: the states, and all events.")


@command(ExplainFlags, EPILOG)
def explain(flags: ExplainFlags) -> int:
    """Explain the health of the entity PATH: its state now, what happens next, and errors, pings and decisions with their times."""
    from pairbus.pairing.clock import wall_ms
    from pairbus.pairing.journal import STATUS, is_journal, read
    from pairbus.pairing.journal_states import states_of
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
        lines = list(read(journal))
    except OSError as error:
        raise UsageError(f"the journal {journal} cannot be read: {error.strerror}") from None
    events = [
        line
        for line in lines
        if line.get("kind") != STATUS and entity_key(str(line.get("subject", ""))) == key
    ]
    now_ms = wall_ms()
    states = states_of(lines, flags.path)
    found = {
        "path": flags.path,
        "states": [asdict(one) | {"is_running": one.is_running(now_ms)} for one in states],
        "events": events,
    }
    show(found, flags.as_json, [*state_lines(states, now_ms), *map(_line, folded_pings(events))])
    if not events and not states:
        click.echo(f"the journal says nothing of {flags.path!r}", err=True)
    return 0 if events or states else 1


def state_lines(states: Sequence[ProgramState], now_ms: int) -> list[str]:
    """The state of an entity now, as each running program sees it. Where none runs: as the last one saw it."""
    running = [one for one in states if one.is_running(now_ms)]
    lines: list[str] = []
    for one in running or states[-1:]:
        lines += _state_of(one, now_ms, is_running=bool(running))
    ended = len(states) - len(running or states[-1:])
    if ended:
        lines.append(
            f"{many(ended, 'program')} that wrote to the journal before {'have' if ended > 1 else 'has'} ended"
        )
    return lines + ([""] if lines else [])


def _state_of(one: ProgramState, now_ms: int, *, is_running: bool) -> list[str]:
    verb = "is" if is_running else "was"
    why = f": {safe_text(one.why)}" if one.why else ""
    lines = [f"{safe_text(one.path)} {verb} {one.state} since {_time(one.since_ms)}{why}"]
    if not is_running:
        lines.append(
            f"  the program has closed its client at {_time(one.closed_ms)}"
            if one.closed_ms is not None
            else f"  the program has written nothing since {_time(one.reported_ms)}: it has ended, or writes to another journal"
        )
    elif one.failover_ms is not None:
        lines.append(f"  fails over at {_time(one.failover_ms)} unless a send succeeds before")
    if is_running and one.next_ping_ms is not None:
        due = f"next ping at {_time(one.next_ping_ms)}" if one.next_ping_ms > now_ms else "a ping is due"
        lines.append(f"  {due}; {one.pings:,} sent so far")
    if one.parked:
        lines.append(
            f"  {many(one.parked, 'message')} parked so far, the last in {safe_text(one.backlog_queue)}"
        )
    if one.spooled:
        since = "" if one.oldest_spooled_ms is None else f", the oldest since {_time(one.oldest_spooled_ms)}"
        lines.append(f"  {many(one.spooled, 'message')} in the spool{since}")
    if one.fenced_sessions:
        lines.append(
            f"  {many(one.fenced_sessions, 'session')} parked on, because messages of them are still in the backlog"
        )
    return [*lines, f"  by the program {safe_text(one.factory)}"]


def folded_pings(events: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Events with one line for pings of a program that had the same answer one after the other.

    Such a line has ``times``, and ``last_at_ms``. That a ping was sent is left out once it has an answer.
    """
    lines: list[dict[str, object]] = []
    last: dict[object, dict[str, object]] = {}
    asked: dict[object, dict[str, object]] = {}
    for event in events:
        factory, kind = event.get("factory"), event.get("kind")
        line = {**event, "times": 1, "last_at_ms": event.get("at_ms")}
        if kind in _ANSWERS:
            if (sent := asked.pop(factory, None)) is not None:
                sent["times"] = 0
            known = last.get(factory)
            if known is not None and (known["kind"], known.get("text")) == (kind, event.get("text")):
                known["times"] = int(str(known["times"])) + 1
                known["last_at_ms"] = event.get("at_ms")
                continue
        elif kind == _SENT:
            asked[factory] = line
            lines.append(line)
            continue
        last[factory] = line
        lines.append(line)
    return [line for line in lines if line["times"]]


def _line(event: Mapping[str, object]) -> str:
    kind = str(event.get("kind", "")).removeprefix("pairing.").replace("_", " ")
    text = safe_text(event.get("text", ""))
    if event["times"] != 1:
        text += f" ({event['times']} times, the last at {_time(event['last_at_ms'])})"
    return f"{_time(event.get('at_ms'))}  {safe_text(event.get('factory'))}  {kind:<14} {text}"


def _time(at_ms: object) -> str:
    try:
        when = datetime.fromtimestamp((at_ms if isinstance(at_ms, int) else 0) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return safe_text(at_ms)
    return when.isoformat(timespec="milliseconds")
