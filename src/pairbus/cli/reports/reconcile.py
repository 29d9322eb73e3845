"""``pairbus reconcile``: the certificate of what arrived."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from pairbus.cli.kit.options import command, json_option, option
from pairbus.cli.reports.engine import (
    EngineFlags,
    check_outputs,
    computing,
    end_on_sigterm,
    moment,
    write_page,
)

EXIT_LOSS: Final = 1
EXIT_UNPROVEN: Final = 2
LEDGER_COLUMNS: Final = ("message_id", "entity", "time", "sha256", "kind", "detail", "session_id")
EPILOG: Final = """\b
Examples:
  pairbus reconcile --sent DATA-PRIMARY --sent DATA-SECONDARY --received DATA-PRIMARY --backlog DATA-SECONDARY
  pairbus reconcile --sent sends.jsonl --received arrivals.parquet --out certificate --html certificate.html

\b
Exit codes: 0 nothing is lost, 1 something is lost, 2 wrong usage or input that proves nothing, 3 Spark did not start
or gave up.
"""


@dataclass(frozen=True, kw_only=True)
class ReconcileFlags(EngineFlags):
    sent: tuple[str, ...] = option(
        "What was confirmed to senders: audit files or directories. May repeat.",
        (),
        metavar="PATH",
        required=True,
    )
    received: tuple[str, ...] = option(
        "What destinations recorded. May repeat.", (), metavar="PATH", required=True
    )
    backlog: tuple[str, ...] = option(
        "What is still in the backlog: its audit, or a listing.", (), metavar="PATH"
    )
    dead_letter: tuple[str, ...] = option("What is in dead-letter queues: a listing.", (), metavar="PATH")
    spool: tuple[str, ...] = option(
        "What is still in a spool: the spool directory of a program, or a file of `pairbus spool export`. May repeat.",
        (),
        metavar="PATH",
    )
    primary: tuple[str, ...] = option(
        "Look at this primary only: leave out rows about others. Needed if the inputs do not tell. May repeat, for "
        "further names of the same primary.",
        (),
        metavar="NAME",
    )
    since: datetime | None = option(
        "Ignore rows before this moment (UTC), and with them the messages that were accepted before.",
        metavar="WHEN",
        parse=moment,
    )
    until: datetime | None = option(
        "Ignore sends from this moment on (UTC) if they have not arrived yet.", metavar="WHEN", parse=moment
    )
    no_body_hash: bool = option("Compare only destination and message id, not the body.", False)
    no_order: bool = option("Do not look for messages that were overtaken.", False)
    out: str | None = option(
        "Write the certificate as JSON, and every message that did not simply arrive as Parquet.",
        metavar="DIR",
    )
    html_file: str | None = option("Write a page.", flag="--html", metavar="FILE")
    as_json: bool = json_option("One JSON object.")


@command(ReconcileFlags, EPILOG)
def reconcile(options: ReconcileFlags) -> int:
    """Prove which messages arrived: compare the accepted sends with destinations, backlog and dead-letter queues."""
    from pairbus.reports.certificate.value import HOLDS, LOSS
    from pairbus.reports.engines.audit_log import (
        AUDIT,
        BACKLOG,
        DEAD_LETTER,
        RECEIVED,
        SENT,
        SPOOL,
        check_whole,
    )
    from pairbus.reports.views.certificate import certificate_document
    from pairbus.reports.views.html import page
    from pairbus.reports.views.json import certificate_json
    from pairbus.reports.views.terminal import print_document

    check_outputs([options.html_file], [options.out])
    end_on_sigterm()
    spools = Spools()
    locations = {
        SENT: options.sent,
        RECEIVED: options.received,
        BACKLOG: options.backlog,
        DEAD_LETTER: options.dead_letter,
        SPOOL: [listing for place in options.spool for listing in _listings(place, spools)],
    }
    with computing("pairbus reconcile", "comparing the ledgers", options, locations, AUDIT) as work:
        check_whole(work.inputs)
        done = work.engine.reconcile(
            work.inputs,
            options.until,
            with_body=not options.no_body_hash,
            with_order=not options.no_order,
            primaries=options.primary,
            since=options.since,
        )
        if options.out:
            done.write(options.out)
    certificate = done.certificate
    if options.out and "://" not in options.out:
        write_page(
            f"{options.out}/certificate.json", json.dumps(certificate_json(certificate), indent=2) + "\n"
        )
    if options.html_file:
        write_page(options.html_file, page(certificate_document(certificate)))
    if options.as_json:
        click.echo(json.dumps(certificate_json(certificate)))
    else:
        print_document(certificate_document(certificate))
    return _ended(spools, {LOSS: EXIT_LOSS, HOLDS: 0}.get(certificate.verdict, EXIT_UNPROVEN))


@dataclass(slots=True)
class Spools:
    """What was wrong in the spools."""

    problems: list[str] = field(default_factory=list)
    damaged: int = 0
    """Messages whose bytes are damaged."""


def _ended(spools: Spools, code: int) -> int:
    """The exit code, after what the certificate does not count."""
    from pairbus.reports.text import many

    for problem in spools.problems:
        click.echo(f"{problem}. The certificate lacks what could not be read of it", err=True)
    if spools.damaged:
        click.echo(
            f"damaged in a spool: {many(spools.damaged, 'message')}. The certificate does not count them, and they cannot be delivered as "
            "they were sent; `pairbus spool export` shows them",
            err=True,
        )
    if spools.damaged and code == 0:
        return EXIT_LOSS
    return EXIT_UNPROVEN if spools.problems and code == 0 else code


def _listings(place: str, spools: Spools) -> list[str]:
    """The files that list what is in a spool. Of a spool directory one is made, and goes when the command ends; none if it is empty."""
    from pairbus.pairing.spool_rows import DAMAGED, rows
    from pairbus.spool.directory import spool_directories

    root = Path(place)
    if not root.is_dir() or (not spool_directories(root) and any(root.rglob("*.*"))):
        return [place]
    folder = click.get_current_context().with_resource(TemporaryDirectory(prefix="pairbus-spool-"))
    listing = Path(folder) / "spool.jsonl"
    with listing.open("w", encoding="utf-8") as file:
        for row in rows(root, spools.problems):
            if row["detail"] == DAMAGED:
                spools.damaged += 1
                continue
            file.write(json.dumps({name: row[name] for name in LEDGER_COLUMNS}) + "\n")
    return [str(listing)] if listing.stat().st_size else []
