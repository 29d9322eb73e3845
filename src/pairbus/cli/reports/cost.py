"""``pairbus cost``: what it will cost, what it did cost, what it would have cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from pairbus.cli.kit.group import HelpfulGroup
from pairbus.cli.kit.options import argument, command, json_option, option, values_of
from pairbus.cli.kit.output import show
from pairbus.cli.reports.engine import (
    EngineFlags,
    check_outputs,
    computing,
    end_on_sigterm,
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


def duration(text: str) -> int:
    """Milliseconds of a length of time, as 90s, 15m, 2h. Raises UsageError."""
    from pairbus.reports.text import duration_ms

    return duration_ms(text)


def duration_option(help: str, default: str | None = None, *, flag: str = "") -> Any:
    """An option whose value is a length of time."""
    return option(help, default, flag=flag, metavar="TIME", parse=duration)


# -- prices -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PriceFlags:
    """Which price table."""

    prices: str | None = option(
        "A price file; docs/reference/prices.md.  [default: the built-in tables]", metavar="FILE"
    )
    tier: str = option("Service tier in the price table.", "standard")
    region: str | None = option("Region of the price table.")
    currency: str | None = option("Currency of the price table, where more than one fits.")

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


# -- estimate -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScenarioFlags:
    queues: int = option("Backlog queues.", BACKLOG_QUEUE_COUNT_DEFAULT, minimum=0)
    syphons: int = option("Processes that run a syphon.", 1, minimum=0)
    days: int = option("Days that are counted.", 30, minimum=1, maximum=3660)
    messages: int = option("Messages sent in these days.", 0, minimum=0)
    size: int = option("Size of a message in bytes.", 1024, minimum=0)
    outage_ms: int = duration_option(
        "Total time the primary is unavailable, for example 2h.", "0s", flag="--outage"
    )
    outages: int = option("Number of outages in that time.", 1, minimum=1)
    entities: int = option("Entities that are sent to.", 1, minimum=1)
    clients: int = option("Processes that send.", 1, minimum=1)
    failover_interval_ms: int = duration_option(
        "Failover interval of the paired clients.", FAILOVER, flag="--failover-interval"
    )
    while_suspect: Literal["wait", "raise"] = option("What sends do until the failover.", "wait")
    ping_interval_ms: int = duration_option(
        "Ping interval of the paired clients.", PINGS, flag="--ping-interval"
    )
    connections: int = option("Connections open at the same time.", 0, minimum=0)


@dataclass(frozen=True, kw_only=True)
class EstimateFlags(ScenarioFlags, PriceFlags):
    rate: str | None = option("Sends per second during an outage.  [default: as at other times]", metavar="N")
    as_json: bool = json_option("One JSON object.")


@command(EstimateFlags, "\b\nExample:\n  pairbus cost estimate --queues 10 --days 30\n", group=cost)
def estimate(options: EstimateFlags) -> None:
    """Estimate what pairing will cost. Every figure shows how it was calculated."""
    from pairbus.reports.bill.estimate import Scenario
    from pairbus.reports.bill.estimate import estimate as calculate
    from pairbus.reports.views.json import estimate_json
    from pairbus.reports.views.terminal import estimate_lines

    table = options.pricing().table(_today())
    scenario = Scenario(rate_per_1000s=_rate(options.rate), **values_of(options, ScenarioFlags))
    found = calculate(scenario, table)
    show(
        {**estimate_json(found), "price_source": table.described},
        options.as_json,
        [*estimate_lines(found), f"Prices: {table.described}"],
    )


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
class UsageFlags(EngineFlags, PriceFlags):
    """Which usage, at which prices."""

    logs: tuple[str, ...] = argument(nargs=-1, required=True, metavar="LOG…")
    start: datetime | None = option(
        "Usage from this moment on (UTC).", flag="--from", metavar="WHEN", parse=moment
    )
    end: datetime | None = option(
        "Usage before this moment (UTC).", flag="--to", metavar="WHEN", parse=moment
    )
    count_settlements: bool = option("Bill completing and abandoning as operations too.", False)

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


@dataclass(frozen=True, kw_only=True)
class ReportFlags(UsageFlags):
    data_out: Literal["backlog", "all", "none"] = option("Receives that leave the region.", "backlog")
    as_json: bool = json_option("One JSON object.")
    csv_directory: str | None = option(
        "Write the table of days, entities and operations as CSV.", flag="--csv", metavar="DIR"
    )
    parquet_directory: str | None = option(
        "Write it as Parquet, with the quarantined rows.", flag="--parquet", metavar="DIR"
    )
    html_file: str | None = option("Write a page with plots.", flag="--html", metavar="FILE")


@command(
    ReportFlags, "\b\nExample:\n  pairbus cost report /var/lib/pairbus/contoso --currency USD\n", group=cost
)
def report(options: ReportFlags) -> int:
    """Calculate the bill from usage LOGs: data directories of brokers, directories of logs, or files."""
    from pairbus.reports.engines.usage_log import USAGE, usage_range
    from pairbus.reports.views.bill import bill_document
    from pairbus.reports.views.html import page
    from pairbus.reports.views.json import cost_json
    from pairbus.reports.views.terminal import print_document

    check_outputs([options.html_file], [options.parquet_directory, options.csv_directory])
    options.check_range()
    pricing = options.pricing(options.unbilled, options.data_out)
    end_on_sigterm()
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
class WhatIfFlags(UsageFlags):
    failover_interval: int | None = duration_option("Failover interval to assume.")
    queues: int | None = option("Number of backlog queues to assume.", minimum=1)
    ping_interval: int | None = duration_option("Ping interval to assume.")
    away: tuple[str, ...] = option(
        "Assume that the primary was unavailable in this time (UTC). May repeat for other times.",
        (),
        metavar="FROM/TO",
    )
    recorded_failover_interval: int = duration_option("Failover interval that was in force.", FAILOVER)
    recorded_ping_interval: int = duration_option("Ping interval that was in force.", PINGS)
    while_suspect: Literal["wait", "raise"] = option("What sends do until the failover.", "wait")
    as_json: bool = json_option("One JSON object.")


@command(
    WhatIfFlags,
    "\b\nExample:\n  pairbus cost what-if /var/lib/pairbus/contoso --failover-interval 5m\n",
    name="what-if",
    group=cost,
)
def what_if(options: WhatIfFlags) -> None:
    """Replay recorded usage with other settings: how many sends would have waited or failed, how many detoured, and the cost."""
    from pairbus.reports.bill.days import operations_amount
    from pairbus.reports.bill.estimate import check_failover_interval
    from pairbus.reports.bill.what_if import Change, Replay, Settings, replay
    from pairbus.reports.engines.usage_log import USAGE, usage_range
    from pairbus.reports.views.json import replay_json
    from pairbus.reports.views.terminal import replay_lines

    if options.ping_interval is not None and options.ping_interval < PING_INTERVAL_MS_MIN:
        raise UsageError("--ping-interval must be one second at least")
    before = options.recorded_failover_interval
    after = before if options.failover_interval is None else options.failover_interval
    check_failover_interval(before)
    check_failover_interval(after)
    spans = _spans(options.away)
    options.check_range()
    pricing = options.pricing(options.unbilled)
    end_on_sigterm()
    with computing(
        "pairbus cost", "replaying the usage logs", options, {USAGE_ROLE: options.logs}, USAGE
    ) as work:
        wanted = usage_range(work.inputs[USAGE_ROLE], options.start, options.end)
        recorded, away = work.engine.recorded_usage(
            wanted, pricing.unbilled, abs(after - before), spans, after
        )
    settings = Settings(
        failover_interval_ms=before,
        ping_interval_ms=options.recorded_ping_interval,
        while_suspect=options.while_suspect,
    )
    change = Change(
        failover_interval_ms=options.failover_interval,
        queues=options.queues,
        ping_interval_ms=options.ping_interval,
        away=away,
    )
    found: Replay = replay(recorded, settings, change)
    amounts = operations_amount(recorded, pricing, found.operations)
    show(replay_json(found, *amounts), options.as_json, replay_lines(found, *amounts))


def _spans(texts: Sequence[str]) -> list[tuple[int, int]]:
    """The times of all ``--away``, each a single outage of its own: what is sent in two of them would count twice.

    Raises:
        UsageError: One cannot be read, or two of them overlap or meet.
    """
    spans = [_span(text) for text in texts]
    in_order = sorted(zip(spans, texts, strict=True))
    for ((_, end), first), ((start, _), second) in pairwise(in_order):
        if start <= end:
            raise UsageError(
                f"--away {first} and --away {second} are one outage: give one FROM/TO that holds both, or times with the primary back between them"
            )
    return spans


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
