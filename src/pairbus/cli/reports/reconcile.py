"""``pairbus reconcile``: the certificate of what arrived."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import click

from pairbus.cli.reports.engine import (
    EngineOptions,
    check_outputs,
    computing,
    engine_options,
    moment,
    write_page,
)

EXIT_LOSS: Final = 1
EXIT_UNPROVEN: Final = 2
EPILOG: Final = """\b
Examples:
  pairbus reconcile --sent DATA-PRIMARY --sent DATA-SECONDARY --received DATA-PRIMARY --backlog DATA-SECONDARY
  pairbus reconcile --sent sends.jsonl --received arrivals.parquet --out certificate --html certificate.html

\b
Exit codes: 0 nothing is lost, 1 something is lost, 2 wrong usage or input that proves nothing, 3 Spark did not start
or gave up.
"""


@dataclass(frozen=True, kw_only=True)
class ReconcileOptions(EngineOptions):
    """What the command line gave."""

    sent: tuple[str, ...]
    received: tuple[str, ...]
    backlog: tuple[str, ...]
    dead_letter: tuple[str, ...]
    until: datetime | None
    no_body_hash: bool
    no_order: bool
    out: str | None
    html_file: str | None
    as_json: bool


@click.command(epilog=EPILOG)
@click.option(
    "--sent",
    multiple=True,
    required=True,
    metavar="PATH",
    help="What was confirmed to senders: audit files or directories. May repeat.",
)
@click.option(
    "--received", multiple=True, required=True, metavar="PATH", help="What destinations recorded. May repeat."
)
@click.option(
    "--backlog", multiple=True, metavar="PATH", help="What is still in the backlog: its audit, or a listing."
)
@click.option(
    "--dead-letter", multiple=True, metavar="PATH", help="What is in dead-letter queues: a listing."
)
@click.option(
    "--until",
    callback=moment,
    metavar="WHEN",
    help="Ignore sends from this moment on (UTC) if they have not arrived yet.",
)
@click.option("--no-body-hash", is_flag=True, help="Compare only destination and message id, not the body.")
@click.option("--no-order", is_flag=True, help="Do not look for messages that were overtaken.")
@engine_options
@click.option(
    "--out",
    metavar="DIR",
    help="Write the certificate as JSON, and every message that did not simply arrive as Parquet.",
)
@click.option("--html", "html_file", metavar="FILE", help="Write a page.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def reconcile(**given: Any) -> int:
    """Prove which messages arrived: compare the accepted sends with destinations, backlog and dead-letter queues."""
    return _reconcile(ReconcileOptions(**given))


def _reconcile(options: ReconcileOptions) -> int:
    from pairbus.reports.certificate.value import HOLDS, LOSS
    from pairbus.reports.engines.audit_log import AUDIT, BACKLOG, DEAD_LETTER, RECEIVED, SENT, check_whole
    from pairbus.reports.views.certificate import certificate_document
    from pairbus.reports.views.html import page
    from pairbus.reports.views.json import certificate_json
    from pairbus.reports.views.terminal import print_document

    check_outputs([options.html_file], [options.out])
    locations = {
        SENT: options.sent,
        RECEIVED: options.received,
        BACKLOG: options.backlog,
        DEAD_LETTER: options.dead_letter,
    }
    with computing("pairbus reconcile", "comparing the ledgers", options, locations, AUDIT) as work:
        check_whole(work.inputs)
        done = work.engine.reconcile(
            work.inputs,
            options.until,
            with_body=not options.no_body_hash,
            with_order=not options.no_order,
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
    return {LOSS: EXIT_LOSS, HOLDS: 0}.get(certificate.verdict, EXIT_UNPROVEN)
