"""``pairbus reconcile``: the certificate of what arrived."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from pairbus.cli.reports.cost import moment
from pairbus.cli.reports.spark_report import conf_option

EXIT_LOSS: Final = 1
EXIT_UNPROVEN: Final = 2
LOCATIONS: Final = ("sent", "received", "backlog", "dead_letter")
"""The options that name ledgers, in the order of their roles."""
EPILOG: Final = """\b
Examples:
  pairbus reconcile --sent DATA-PRIMARY --sent DATA-SECONDARY --received DATA-PRIMARY --backlog DATA-SECONDARY
  pairbus reconcile --sent sends.jsonl --received arrivals.parquet --out certificate --html certificate.html

\b
Exit codes: 0 nothing is lost, 1 something is lost, 2 wrong usage or input that proves nothing, 3 Spark did not start
or gave up.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--sent",
    multiple=True,
    required=True,
    metavar="PATH",
    help="What senders were told: audit files or directories. May repeat.",
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
    help="Sends from this moment on (UTC) may still be on their way.",
)
@click.option("--no-body-hash", is_flag=True, help="Compare destination and message id alone.")
@click.option("--no-order", is_flag=True, help="Do not look for messages that were overtaken.")
@click.option("--master", metavar="URL", help="The Spark master.  [default: this machine]")
@conf_option
@click.option(
    "--out",
    metavar="DIR",
    help="Name every message that is not simply there, as Parquet; and the certificate as JSON.",
)
@click.option("--html", "html_file", metavar="FILE", help="Write a page.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def reconcile(**given: Any) -> int:
    """Prove what arrived: what was accepted joined with what destinations, backlog and dead-letter queues hold."""
    from pairbus.cli.reports.spark_report import (
        check_outputs,
        is_all_here,
        reporting,
        spark_settings,
        write_page,
    )

    settings = spark_settings(given["settings"])
    check_outputs([given["html_file"]], [given["out"]])
    is_here = is_all_here(path for name in LOCATIONS for path in given[name])
    from pairbus.reports.certificate.value import HOLDS, LOSS
    from pairbus.reports.engines.spark.certificate import reconcile as judge
    from pairbus.reports.engines.spark.certificate import write_messages
    from pairbus.reports.engines.spark.ledgers import ROLES, find_ledgers, read_ledgers

    locations = {role: given[name] for role, name in zip(ROLES, LOCATIONS, strict=True)}
    inputs = find_ledgers(None, locations) if is_here else None
    with reporting("pairbus reconcile", given["master"], "comparing the ledgers", settings) as spark:
        ledgers = read_ledgers(spark, locations, with_body=not given["no_body_hash"], inputs=inputs)
        done = judge(ledgers, given["until"], with_order=not given["no_order"])
        certificate = done.certificate
        if given["out"]:
            write_messages(done, given["out"])
    if given["out"] and "://" not in given["out"]:
        text = json.dumps(certificate.as_json(), indent=2)
        write_page(f"{given['out']}/certificate.json", text + "\n")
    if given["html_file"]:
        write_page(given["html_file"], certificate.as_html())
    click.echo(json.dumps(certificate.as_json()) if given["as_json"] else "\n".join(certificate.lines()))
    if certificate.verdict == LOSS:
        return EXIT_LOSS
    return 0 if certificate.verdict == HOLDS else EXIT_UNPROVEN
