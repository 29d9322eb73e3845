"""``pairbus cost``: what it will cost, what it did cost, what it would have cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.reports.spark_report import conf_option
from pairbus.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.reports.bill.estimate import Estimate
    from pairbus.reports.bill.month import MonthBill
    from pairbus.reports.bill.prices import PriceTable
    from pairbus.reports.bill.report import CostReport
    from pairbus.reports.engines.spark.bill import Priced, Pricing
    from pairbus.reports.engines.spark.usage import Usage
    from pairbus.reports.inputs import Inputs

EPILOG: Final = """\b
Examples:
  pairbus cost estimate --queues 10 --days 30
  pairbus cost estimate --messages 5000000 --size 2000 --outage 2h --currency USD
  pairbus cost report /var/lib/pairbus/contoso --currency USD --html bill.html
  pairbus cost what-if /var/lib/pairbus/contoso --failover-interval 5m --queues 20

\b
Exit codes: 0 done, 1 done without rows or files that could not be counted (they are named), 2 wrong usage or nothing that can be read, 3 Spark
did not start or gave up.
"""


CURRENCY_DEFAULT: Final = "USD"
EXIT_INCOMPLETE: Final = 1


@click.group(cls=HelpfulGroup, epilog=EPILOG)
def cost() -> None:
    """Metering and the bill: estimate, report, what-if."""


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Milliseconds of a length of time, as 90s, 15m, 2h."""
    from pairbus.reports.text import duration_ms

    try:
        return None if value is None else duration_ms(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """A moment in UTC, as 2026-11-15 or 2026-11-15T10:00."""
    try:
        return None if value is None else _instant(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no moment: write 2026-11-15 or 2026-11-15T10:00", ctx, param
        ) from None


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def price_options(command: Any) -> Any:
    for option in (
        click.option("--currency", help="Of the price table, where more than one fits."),
        click.option("--region", help="Of the price table."),
        click.option("--tier", default="standard", show_default=True, help="Of the price table."),
        click.option(
            "--prices",
            metavar="FILE",
            help="A price file; docs/reference/prices.md.  [default: those that come along]",
        ),
    ):
        command = option(command)
    return command


def usage_options(command: Any) -> Any:
    """Which usage, and where to reckon."""
    for option in (
        click.option(
            "--count-settlements", is_flag=True, help="Bill completing and abandoning as operations too."
        ),
        click.option("--to", "end", metavar="WHEN", callback=moment, help="Usage before this moment (UTC)."),
        click.option(
            "--from", "start", metavar="WHEN", callback=moment, help="Usage from this moment on (UTC)."
        ),
        conf_option,
        click.option("--master", metavar="URL", help="The Spark master.  [default: this machine]"),
    ):
        command = option(command)
    return click.argument("logs", nargs=-1, required=True, metavar="LOG…")(command)


# -- estimate -----------------------------------------------------------------------------------------


@cost.command(epilog="\b\nExample:\n  pairbus cost estimate --queues 10 --days 30\n")
@click.option("--queues", type=click.IntRange(0), default=10, show_default=True, help="Backlog queues.")
@click.option(
    "--syphons", type=click.IntRange(0), default=1, show_default=True, help="Processes that run a syphon."
)
@click.option("--days", type=click.IntRange(1, 3660), default=30, show_default=True)
@click.option(
    "--messages", type=click.IntRange(0), default=0, show_default=True, help="Messages sent in these days."
)
@click.option("--size", type=click.IntRange(0), default=1024, show_default=True, help="Bytes of a message.")
@click.option(
    "--outage",
    metavar="TIME",
    callback=duration,
    default="0",
    help="How long the primary is away in all, as 2h.",
)
@click.option("--outages", type=click.IntRange(1), default=1, show_default=True, help="In how many pieces.")
@click.option("--rate", metavar="N", help="Sends a second during an outage.  [default: as at other times]")
@click.option(
    "--entities", type=click.IntRange(1), default=1, show_default=True, help="Entities that are sent to."
)
@click.option("--clients", type=click.IntRange(1), default=1, show_default=True, help="Processes that send.")
@click.option("--failover-interval", metavar="TIME", callback=duration, default="1m", show_default=True)
@click.option("--ping-interval", metavar="TIME", callback=duration, default="1m", show_default=True)
@click.option("--connections", type=click.IntRange(0), default=0, show_default=True, help="Open at once.")
@price_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def estimate(**given: Any) -> None:
    """Reckon what a pairing costs: pure arithmetic, each figure with the sum that gives it."""
    from pairbus.reports.bill.estimate import Scenario
    from pairbus.reports.bill.estimate import estimate as reckon

    scenario = Scenario(
        queues=given["queues"],
        syphons=given["syphons"],
        days=given["days"],
        messages=given["messages"],
        size=given["size"],
        outage_ms=given["outage"],
        outages=given["outages"],
        rate_per_1000s=_rate(given["rate"]),
        entities=given["entities"],
        clients=given["clients"],
        failover_interval_ms=given["failover_interval"],
        ping_interval_ms=given["ping_interval"],
        connections=given["connections"],
    )
    table = _one_table(given)
    told = reckon(scenario, table)
    if given["as_json"]:
        click.echo(json.dumps({**_estimate_json(told), "price_source": _source(table)}))
    else:
        _print_estimate(told)
        click.echo(f"Prices: {_source(table)}")


def _source(table: PriceTable) -> str:
    return f"{table.tier}, {table.region}, {table.currency}: {table.source} ({table.source_date})"


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    from pairbus.reports.bill.estimate import RATE_PLACES

    try:
        scaled = Decimal(text) * RATE_PLACES
    except InvalidOperation:
        raise UsageError(f"--rate {text!r} is no number") from None
    if not scaled.is_finite() or scaled < 0 or scaled != scaled.to_integral_value():
        raise UsageError(
            f"--rate {text!r}: give a number that is not negative, with three decimal places at most"
        )
    return int(scaled)


def _one_table(given: dict[str, Any]) -> PriceTable:
    """Today's prices; the example that comes along unless others are asked for."""
    from pairbus.reports.bill.catalogue import tables_of
    from pairbus.reports.bill.prices import choose
    from pairbus.server.clock import BrokerClock, utc

    today = utc(BrokerClock()()).date()
    return choose(tables_of(given["prices"]), today, given["tier"], given["region"], _currency(given))


def _currency(given: dict[str, Any]) -> str | None:
    """With neither file, region nor currency given, one table is the example."""
    if given["prices"] is None and given["region"] is None and given["currency"] is None:
        return CURRENCY_DEFAULT
    return given["currency"] if given["currency"] is None else str(given["currency"])


def _estimate_json(told: Estimate) -> dict[str, object]:
    amount = told.pairing_amount
    return {
        "figures": [asdict(figure) for figure in told.figures],
        "operations": told.operations,
        "pairing_operations": told.pairing_operations,
        "pairing_amount": None if amount is None else f"{amount:f}",
        "bill": None if told.bill is None else _bill_json(told.bill),
    }


def _bill_json(bill: MonthBill) -> dict[str, object]:
    lines = [
        {
            "meter": line.meter,
            "text": line.text,
            "amount": None if line.amount is None else f"{line.amount:f}",
        }
        for line in bill.lines
    ]
    return {
        "currency": bill.currency,
        "total": f"{bill.known:f}",
        "unknown": list(bill.unknown),
        "lines": lines,
    }


def _print_estimate(told: Estimate) -> None:
    from pairbus.reports.bill.money import shown

    for figure in told.figures:
        click.echo(f"{figure.value:>16,}  {figure.name:<34} = {figure.why}")
    assert told.bill is not None
    click.echo(f"\nThe bill of {told.bill.month}")
    for line in told.bill.lines:
        click.echo(f"{shown(line.amount):>16}  {line.meter:<34} = {line.text}")
    click.echo(f"{shown(told.bill.known, told.bill.currency):>20}  in all")
    for name in told.bill.unknown:
        click.echo(f"         unknown  {name}")
    click.echo(f"{shown(told.pairing_amount, told.bill.currency):>20}  of it by the pairing")


# -- report -------------------------------------------------------------------------------------------


@cost.command(epilog="\b\nExample:\n  pairbus cost report /var/lib/pairbus/contoso --currency USD\n")
@usage_options
@price_options
@click.option("--data-out", type=click.Choice(["backlog", "all", "none"]), default="backlog", show_default=True,
              help="Whose receives leave the region.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--csv", "csv_directory", metavar="DIR", help="Write the table of days, entities and operations as CSV."
)
@click.option(
    "--parquet", "parquet_directory", metavar="DIR", help="Write it as Parquet, with what was set apart."
)
@click.option("--html", "html_file", metavar="FILE", help="Write a page with plots.")
def report(**given: Any) -> int:
    """The bill from usage LOGs: data directories of brokers, directories of logs, or single files."""
    from pairbus.cli.reports.spark_report import check_outputs, reporting, spark_settings, write_page

    settings = spark_settings(given["settings"])
    check_outputs([given["html_file"]], [given["parquet_directory"], given["csv_directory"]])
    tables, inputs = _checked(given)
    from pairbus.reports.engines.spark.bill import cost_report

    with reporting("pairbus cost", given["master"], "adding up the usage logs", settings) as spark:
        usage, pricing = _usage_and_pricing(spark, given, tables, inputs)
        priced = cost_report(spark, usage, pricing)
        if given["parquet_directory"] or given["csv_directory"]:
            _write_tables(priced, given["parquet_directory"], given["csv_directory"])
    if given["html_file"]:
        write_page(given["html_file"], priced.report.as_html())
    if given["as_json"]:
        click.echo(json.dumps(priced.report.as_json()))
    else:
        _print_report(priced.report)
    rows = priced.report.rows
    return EXIT_INCOMPLETE if rows.damaged or rows.quarantined else 0


def _checked(given: dict[str, Any]) -> tuple[list[PriceTable], Inputs | None]:
    """The prices and the files, as far as they can be judged before Spark starts."""
    from pairbus.cli.reports.spark_report import is_all_here
    from pairbus.reports.bill.catalogue import tables_of

    if given["start"] is not None and given["end"] is not None and given["start"] >= given["end"]:
        raise UsageError(
            f"--from {given['start']:%Y-%m-%dT%H:%M} is not before --to {given['end']:%Y-%m-%dT%H:%M}"
        )
    tables = tables_of(given["prices"])
    asked = [(given["tier"], "tier"), (given["region"], "region"), (_currency(given), "currency")]
    if not any(all(value in (None, getattr(one, name)) for value, name in asked) for one in tables):
        _one_table(given)  # says which there are
    if not is_all_here(given["logs"]):
        return tables, None
    from pairbus.reports.engines.spark.usage import USAGE
    from pairbus.reports.inputs import find_inputs

    return tables, find_inputs(None, given["logs"], USAGE)


def _usage_and_pricing(
    spark: SparkSession, given: dict[str, Any], tables: list[PriceTable], inputs: Inputs | None
) -> tuple[Usage, Pricing]:
    from pairbus.reports.bill.model import SETTLE, UNBILLED_DEFAULT
    from pairbus.reports.engines.spark.bill import Pricing
    from pairbus.reports.engines.spark.usage import read_usage

    unbilled = tuple(name for name in UNBILLED_DEFAULT if name != SETTLE or not given["count_settlements"])
    usage = read_usage(spark, given["logs"], given["start"], given["end"], inputs)
    pricing = Pricing(
        tables=tables,
        tier=given["tier"],
        region=given["region"],
        currency=_currency(given),
        unbilled=unbilled,
        data_out=given.get("data_out", "none"),
    )
    return usage, pricing


def _write_tables(priced: Priced, parquet_directory: str | None, csv_directory: str | None) -> None:
    from pairbus.reports.engines.spark.files import write_csv, write_parquet

    if parquet_directory:
        write_parquet(priced, parquet_directory)
    if csv_directory:
        write_csv(priced, csv_directory)


def _print_report(told: CostReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from pairbus.reports.bill.money import shown
    from pairbus.reports.text import many
    from pairbus.reports.views.html import inert

    console = Console()
    if not told.bills:
        click.echo("No usage in these logs: nothing to bill.")

    def show(title: str, head: list[str], rows: list[list[str]], numeric: set[int]) -> None:
        table = Table(title=title, title_justify="left")
        for at, name in enumerate(head):
            table.add_column(
                name, justify="right" if at in numeric else "left", overflow="fold", no_wrap=at in numeric
            )
        for row in rows:
            table.add_row(*[Text(inert(cell)) for cell in row])
        console.print(table)

    if told.bills:
        show(
            "The bill",
            ["month", "meter", "how", told.currency],
            [
                [bill.month, line.meter, line.text, shown(line.amount)]
                for bill in told.bills
                for line in bill.lines
            ]
            + [["", "total", "", shown(told.known)]],
            {3},
        )
        show(
            "By stage",
            ["", "count", "billed", told.currency],
            [
                [name, f"{count:,}", f"{billed:,}", shown(amount)]
                for name, (count, billed, amount) in told.by_purpose().items()
            ],
            {1, 2, 3},
        )
        show(
            "Entities"
            if len(told.entities) >= told.entity_count
            else f"The {len(told.entities)} busiest of {told.entity_count:,} entities",
            ["namespace", "entity", "stage", "billed", told.currency],
            [
                [row.namespace, row.entity, row.stage, f"{row.billed:,}", shown(row.amount)]
                for row in told.entities
            ],
            {3, 4},
        )
        click.echo(told.pairing_text())
    click.echo(told.rows_text())
    for reason, count in told.rows.quarantined.items():
        click.echo(f"  set apart: {many(count, 'row')}: {reason}")
    for path, why in told.rows.damaged.items():
        click.echo(f"  damaged: {inert(path)}: {inert(why)}")
    for name in told.unknown:
        click.echo(f"  no known price: {name}")


# -- what-if ------------------------------------------------------------------------------------------


@cost.command(
    "what-if", epilog="\b\nExample:\n  pairbus cost what-if /var/lib/pairbus/contoso --failover-interval 5m\n"
)
@usage_options
@price_options
@click.option("--failover-interval", metavar="TIME", callback=duration, help="Suppose this one.")
@click.option("--queues", type=click.IntRange(1), help="Suppose so many backlog queues.")
@click.option("--ping-interval", metavar="TIME", callback=duration, help="Suppose this one.")
@click.option("--away", multiple=True, metavar="FROM/TO", help="Suppose the primary away in that time (UTC).")
@click.option(
    "--recorded-failover-interval",
    metavar="TIME",
    callback=duration,
    default="1m",
    show_default=True,
    help="What was in force.",
)
@click.option(
    "--recorded-ping-interval",
    metavar="TIME",
    callback=duration,
    default="1m",
    show_default=True,
    help="What was in force.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def suppose(**given: Any) -> None:
    """Replay recorded usage against other settings: what would have been refused, detoured and billed."""
    from pairbus.cli.reports.spark_report import reporting, spark_settings
    from pairbus.reports.bill.what_if import Change, Settings, what_if

    conf = spark_settings(given["settings"])
    if given["ping_interval"] is not None and given["ping_interval"] < 1000:
        raise UsageError("--ping-interval must be one second at least")
    before = given["recorded_failover_interval"]
    after_ms = before if given["failover_interval"] is None else given["failover_interval"]
    spans = [_span(text) for text in given["away"]]
    tables, inputs = _checked(given)
    from pairbus.reports.engines.spark.bill import operations_amount
    from pairbus.reports.engines.spark.usage import has_repeats
    from pairbus.reports.engines.spark.what_if import recorded_usage, supposed_outage

    with reporting("pairbus cost", given["master"], "replaying the usage logs", conf) as spark:
        usage, pricing = _usage_and_pricing(spark, given, tables, inputs)
        counted = usage.counted(has_repeats(usage))
        recorded = recorded_usage(counted, pricing.unbilled, abs(after_ms - before))
        away = tuple(supposed_outage(counted, start, end, after_ms) for start, end in spans)
        settings = Settings(failover_interval_ms=before, ping_interval_ms=given["recorded_ping_interval"])
        change = Change(
            failover_interval_ms=given["failover_interval"],
            queues=given["queues"],
            ping_interval_ms=given["ping_interval"],
            away=away,
        )
        differences = what_if(recorded, settings, change)
        after = recorded.operations + sum(difference.operations for difference in differences)
        paid, would = operations_amount(recorded, pricing, after)
    if given["as_json"]:
        found = {
            "recorded_operations": recorded.operations,
            "operations": after,
            "outages": len(recorded.detours),
            "recorded_amount": None if paid is None else f"{paid:f}",
            "amount": None if would is None else f"{would:f}",
            "differences": [asdict(difference) for difference in differences],
        }
        click.echo(json.dumps(found))
        return
    from pairbus.reports.bill.money import shown
    from pairbus.reports.text import many

    click.echo(
        f"recorded: {many(recorded.operations, 'operation')} ({shown(paid)}), {many(len(recorded.detours), 'outage')}, "
        f"{many(recorded.queues, 'backlog queue')}"
    )
    for difference in differences:
        click.echo(
            f"{difference.name}: {difference.operations:+,} operations, {difference.messages:+,} through the backlog, "
            f"{difference.refused:+,} refused\n    {difference.why}"
        )
    click.echo(f"supposed: {many(after, 'operation')} ({shown(would)})")


def _span(text: str) -> tuple[datetime, datetime]:
    first, slash, last = text.partition("/")
    try:
        start, end = _instant(first), _instant(last)
    except ValueError:
        raise UsageError(f"--away {text!r}: write FROM/TO, as 2026-11-15T10:00/2026-11-15T12:00") from None
    if not slash or end <= start:
        raise UsageError(f"--away {text!r}: it must end after it begins")
    return start, end
