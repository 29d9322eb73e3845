"""``pairbus cost``: what it will cost, what it did cost, what it would have cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import click

from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.reports.engine import (
    EngineOptions,
    check_outputs,
    computing,
    engine_options,
    instant,
    moment,
    write_page,
)
from pairbus.errors import UsageError
from pairbus.pairing.options import (
    BACKLOG_QUEUE_COUNT_DEFAULT,
    FAILOVER_INTERVAL_DEFAULT,
    PING_INTERVAL_DEFAULT,
)

if TYPE_CHECKING:
    from pairbus.reports.bill.days import Pricing

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
USAGE_ROLE: Final = "usage"
PING_INTERVAL_MS_MIN: Final = 1_000
FAILOVER: Final = f"{FAILOVER_INTERVAL_DEFAULT.total_seconds():g}s"
PINGS: Final = f"{PING_INTERVAL_DEFAULT.total_seconds() / 60:g}m"


@click.group(cls=HelpfulGroup, epilog=EPILOG)
def cost() -> None:
    """Estimate costs, calculate the bill, and replay usage with other settings."""


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Milliseconds of a length of time, as 90s, 15m, 2h."""
    from pairbus.reports.text import duration_ms

    try:
        return None if value is None else duration_ms(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from None


# -- prices -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PriceOptions:
    """Which price table."""

    prices: str | None
    tier: str
    region: str | None
    currency: str | None

    @property
    def wanted_currency(self) -> str | None:
        """With neither file, region nor currency given, the built-in table in this currency is the example."""
        is_example = self.prices is None and self.region is None and self.currency is None
        return CURRENCY_DEFAULT if is_example else self.currency

    def pricing(self, unbilled: tuple[str, ...] = (), data_out: str = "none") -> Pricing:
        """The prices. Raises UsageError when the file cannot be read, or has no table of this kind on any day."""
        from pairbus.reports.bill.catalogue import tables_of
        from pairbus.reports.bill.days import Pricing

        tables, currency = tables_of(self.prices), self.wanted_currency
        pricing = Pricing(
            tables=tables,
            tier=self.tier,
            region=self.region,
            currency=currency,
            unbilled=unbilled,
            data_out=data_out,
        )
        asked = [(self.tier, "tier"), (self.region, "region"), (currency, "currency")]
        if not any(all(value in (None, getattr(one, name)) for value, name in asked) for one in tables):
            pricing.table(_today())  # raises, and names the tables there are
        return pricing


def _today() -> Any:
    from pairbus.server.clock import BrokerClock, utc

    return utc(BrokerClock()()).date()


def price_options(command: Any) -> Any:
    """The options of ``PriceOptions``."""
    for option in (
        click.option("--currency", help="Currency of the price table, where more than one fits."),
        click.option("--region", help="Region of the price table."),
        click.option(
            "--tier", default="standard", show_default=True, help="Service tier in the price table."
        ),
        click.option(
            "--prices",
            metavar="FILE",
            help="A price file; docs/reference/prices.md.  [default: the built-in tables]",
        ),
    ):
        command = option(command)
    return command


# -- estimate -----------------------------------------------------------------------------------------


@cost.command(epilog="\b\nExample:\n  pairbus cost estimate --queues 10 --days 30\n")
@click.option(
    "--queues",
    type=click.IntRange(0),
    default=BACKLOG_QUEUE_COUNT_DEFAULT,
    show_default=True,
    help="Backlog queues.",
)
@click.option(
    "--syphons", type=click.IntRange(0), default=1, show_default=True, help="Processes that run a syphon."
)
@click.option("--days", type=click.IntRange(1, 3660), default=30, show_default=True)
@click.option(
    "--messages", type=click.IntRange(0), default=0, show_default=True, help="Messages sent in these days."
)
@click.option(
    "--size", type=click.IntRange(0), default=1024, show_default=True, help="Size of a message in bytes."
)
@click.option(
    "--outage", "outage_ms", metavar="TIME", callback=duration, default="0",
    help="Total time the primary is unavailable, for example 2h.",
)  # fmt: skip
@click.option(
    "--outages", type=click.IntRange(1), default=1, show_default=True, help="Number of outages in that time."
)
@click.option("--rate", metavar="N", help="Sends per second during an outage.  [default: as at other times]")
@click.option(
    "--entities", type=click.IntRange(1), default=1, show_default=True, help="Entities that are sent to."
)
@click.option("--clients", type=click.IntRange(1), default=1, show_default=True, help="Processes that send.")
@click.option(
    "--failover-interval", "failover_interval_ms", metavar="TIME", callback=duration, default=FAILOVER, show_default=True,
    help="Failover interval of the paired clients.",
)  # fmt: skip
@click.option(
    "--while-suspect", type=click.Choice(("wait", "raise")), default="wait", show_default=True, help="What sends do until the failover.",
)  # fmt: skip
@click.option(
    "--ping-interval", "ping_interval_ms", metavar="TIME", callback=duration, default=PINGS, show_default=True,
    help="Ping interval of the paired clients.",
)  # fmt: skip
@click.option(
    "--connections",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Connections open at the same time.",
)
@price_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def estimate(
    rate: str | None,
    prices: str | None,
    tier: str,
    region: str | None,
    currency: str | None,
    as_json: bool,
    **scenario: Any,
) -> None:
    """Estimate what pairing will cost. Every figure shows how it was calculated."""
    from pairbus.reports.bill.estimate import Scenario
    from pairbus.reports.bill.estimate import estimate as calculate
    from pairbus.reports.views.json import estimate_json
    from pairbus.reports.views.terminal import estimate_lines

    pricing = PriceOptions(prices=prices, tier=tier, region=region, currency=currency).pricing()
    table = pricing.table(_today())
    found = calculate(Scenario(rate_per_1000s=_rate(rate), **scenario), table)
    if as_json:
        click.echo(json.dumps({**estimate_json(found), "price_source": table.described}))
    else:
        click.echo("\n".join([*estimate_lines(found), f"Prices: {table.described}"]))


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


# -- report -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class UsageOptions(EngineOptions, PriceOptions):
    """Which usage, at which prices."""

    logs: tuple[str, ...]
    start: datetime | None
    end: datetime | None
    count_settlements: bool

    @property
    def unbilled(self) -> tuple[str, ...]:
        """Operations that are counted and cost nothing."""
        from pairbus.reports.bill.model import SETTLE, UNBILLED_DEFAULT

        return tuple(name for name in UNBILLED_DEFAULT if name != SETTLE or not self.count_settlements)

    def check_range(self) -> None:
        """Raise UsageError when the time ends before it begins."""
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise UsageError(
                f"--from {self.start:%Y-%m-%dT%H:%M} is not before --to {self.end:%Y-%m-%dT%H:%M}"
            )


def usage_options(command: Any) -> Any:
    """The options of ``UsageOptions``."""
    command = price_options(command)
    for option in (
        click.option(
            "--count-settlements", is_flag=True, help="Bill completing and abandoning as operations too."
        ),
        click.option("--to", "end", metavar="WHEN", callback=moment, help="Usage before this moment (UTC)."),
        click.option(
            "--from", "start", metavar="WHEN", callback=moment, help="Usage from this moment on (UTC)."
        ),
        engine_options,
    ):
        command = option(command)
    return click.argument("logs", nargs=-1, required=True, metavar="LOG…")(command)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(UsageOptions):
    """What ``cost report`` was given."""

    data_out: str
    as_json: bool
    csv_directory: str | None
    parquet_directory: str | None
    html_file: str | None


@cost.command(epilog="\b\nExample:\n  pairbus cost report /var/lib/pairbus/contoso --currency USD\n")
@usage_options
@click.option("--data-out", type=click.Choice(["backlog", "all", "none"]), default="backlog", show_default=True,
              help="Receives that leave the region.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--csv", "csv_directory", metavar="DIR", help="Write the table of days, entities and operations as CSV."
)
@click.option(
    "--parquet", "parquet_directory", metavar="DIR", help="Write it as Parquet, with the quarantined rows."
)
@click.option("--html", "html_file", metavar="FILE", help="Write a page with plots.")
def report(**given: Any) -> int:
    """Calculate the bill from usage LOGs: data directories of brokers, directories of logs, or files."""
    return _report(ReportOptions(**given))


def _report(options: ReportOptions) -> int:
    from pairbus.reports.engines.usage_log import USAGE, usage_range
    from pairbus.reports.views.bill import bill_document
    from pairbus.reports.views.html import page
    from pairbus.reports.views.json import cost_json
    from pairbus.reports.views.terminal import print_document

    check_outputs([options.html_file], [options.parquet_directory, options.csv_directory])
    options.check_range()
    pricing = options.pricing(options.unbilled, options.data_out)
    with computing(
        "pairbus cost", "adding up the usage logs", options, {USAGE_ROLE: options.logs}, USAGE
    ) as work:
        wanted = usage_range(work.inputs[USAGE_ROLE], options.start, options.end)
        priced = work.engine.price(wanted, pricing)
        if options.parquet_directory:
            priced.write_parquet(options.parquet_directory)
        if options.csv_directory:
            priced.write_csv(options.csv_directory)
    if options.html_file:
        write_page(options.html_file, page(bill_document(priced.report)))
    if options.as_json:
        click.echo(json.dumps(cost_json(priced.report)))
    else:
        print_document(bill_document(priced.report))
    rows = priced.report.rows
    return EXIT_INCOMPLETE if rows.damaged_files or rows.quarantined else 0


# -- what-if ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WhatIfOptions(UsageOptions):
    """What ``cost what-if`` was given."""

    failover_interval: int | None
    queues: int | None
    ping_interval: int | None
    away: tuple[str, ...]
    recorded_failover_interval: int
    recorded_ping_interval: int
    as_json: bool


@cost.command(
    "what-if", epilog="\b\nExample:\n  pairbus cost what-if /var/lib/pairbus/contoso --failover-interval 5m\n"
)
@usage_options
@click.option("--failover-interval", metavar="TIME", callback=duration, help="Failover interval to assume.")
@click.option("--queues", type=click.IntRange(1), help="Number of backlog queues to assume.")
@click.option("--ping-interval", metavar="TIME", callback=duration, help="Ping interval to assume.")
@click.option(
    "--away",
    multiple=True,
    metavar="FROM/TO",
    help="Assume that the primary was unavailable in this time (UTC).",
)
@click.option(
    "--recorded-failover-interval", metavar="TIME", callback=duration, default=FAILOVER, show_default=True,
    help="Failover interval that was in force.",
)  # fmt: skip
@click.option(
    "--recorded-ping-interval", metavar="TIME", callback=duration, default=PINGS, show_default=True,
    help="Ping interval that was in force.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def what_if(**given: Any) -> None:
    """Replay recorded usage with other settings: how many sends would have failed, how many detoured, and the cost."""
    _what_if(WhatIfOptions(**given))


def _what_if(options: WhatIfOptions) -> None:
    from pairbus.reports.bill.days import operations_amount
    from pairbus.reports.bill.what_if import Change, Replay, Settings, replay
    from pairbus.reports.engines.usage_log import USAGE, usage_range
    from pairbus.reports.views.json import replay_json
    from pairbus.reports.views.terminal import replay_lines

    if options.ping_interval is not None and options.ping_interval < PING_INTERVAL_MS_MIN:
        raise UsageError("--ping-interval must be one second at least")
    before = options.recorded_failover_interval
    after = before if options.failover_interval is None else options.failover_interval
    spans = [_span(text) for text in options.away]
    options.check_range()
    pricing = options.pricing(options.unbilled)
    with computing(
        "pairbus cost", "replaying the usage logs", options, {USAGE_ROLE: options.logs}, USAGE
    ) as work:
        wanted = usage_range(work.inputs[USAGE_ROLE], options.start, options.end)
        recorded, away = work.engine.recorded_usage(
            wanted, pricing.unbilled, abs(after - before), spans, after
        )
    settings = Settings(failover_interval_ms=before, ping_interval_ms=options.recorded_ping_interval)
    change = Change(
        failover_interval_ms=options.failover_interval,
        queues=options.queues,
        ping_interval_ms=options.ping_interval,
        away=away,
    )
    found: Replay = replay(recorded, settings, change)
    amounts = operations_amount(recorded, pricing, found.operations)
    if options.as_json:
        click.echo(json.dumps(replay_json(found, *amounts)))
    else:
        click.echo("\n".join(replay_lines(found, *amounts)))


def _span(text: str) -> tuple[int, int]:
    """The milliseconds from and to which the primary is supposed to be away."""
    first, slash, last = text.partition("/")
    try:
        start, end = instant(first), instant(last)
    except ValueError:
        raise UsageError(f"--away {text!r}: write FROM/TO, as 2026-11-15T10:00/2026-11-15T12:00") from None
    if not slash or end <= start:
        raise UsageError(f"--away {text!r}: it must end after it begins")
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000
