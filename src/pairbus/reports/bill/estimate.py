"""What a pairing will cost, by arithmetic alone: every figure with the sum that gives it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from pairbus.errors import UsageError
from pairbus.pairing.options import (
    BACKLOG_QUEUE_COUNT_DEFAULT,
    FAILOVER_INTERVAL_DEFAULT,
    FAILOVER_INTERVAL_MAX,
    PING_INTERVAL_DEFAULT,
    milliseconds,
)
from pairbus.reports.bill.model import (
    AWAY_INTERVAL_MS,
    DAY_MS,
    DETOUR_OPERATIONS,
    DIRECT_OPERATIONS,
    HOUR_MS,
    IDLE_POLLS_PER_HOUR,
    SECOND_MS,
    WINDOW,
    begun,
    drain_while_away,
    failed_over_ms,
    idle_receives,
    pings,
    units,
)
from pairbus.reports.bill.month import MonthBill, MonthUsage, month_bill
from pairbus.reports.bill.prices import PriceTable
from pairbus.reports.text import duration_text, many

MESSAGES_MAX: Final = 10**15
RATE_PLACES: Final = 1_000
"""A rate may have three decimal places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is to be expected in some days."""

    queues: int = BACKLOG_QUEUE_COUNT_DEFAULT
    syphons: int = 1
    days: int = 30
    messages: int = 0
    """Sent in all this time, the detoured ones among them."""
    size: int = 1_024
    outage_ms: int = 0
    """How long the primary is away in all."""
    outages: int = 1
    """In how many pieces."""
    rate_per_1000s: int | None = None
    """Sends in 1,000 seconds of an outage; None: as many as at any other time."""
    entities: int = 1
    """Primary entities that are sent to, each pinged while it is away."""
    clients: int = 1
    """Processes that send; each pings for itself."""
    failover_interval_ms: int = milliseconds(FAILOVER_INTERVAL_DEFAULT)
    while_suspect: Literal["wait", "raise"] = "wait"
    """What a send does until the failover."""
    ping_interval_ms: int = milliseconds(PING_INTERVAL_DEFAULT)
    connections: int = 0

    def __post_init__(self) -> None:
        period = self.days * DAY_MS
        if self.outage_ms > period:
            raise UsageError(f"an outage of {duration_text(self.outage_ms)} is longer than {self.days} days")
        if self.ping_interval_ms < SECOND_MS:
            raise UsageError(
                f"a ping interval of {duration_text(self.ping_interval_ms)} is too short: one second at least"
            )
        check_failover_interval(self.failover_interval_ms)
        if (
            min(
                self.queues,
                self.syphons,
                self.messages,
                self.size,
                self.outages - 1,
                self.entities,
                self.clients,
            )
            < 0
        ):
            raise UsageError("an estimate needs numbers that are not negative")
        if self.messages > MESSAGES_MAX:
            raise UsageError(f"{self.messages} messages are too many to be meant")


def check_failover_interval(interval_ms: int) -> None:
    """Raise UsageError for one that no paired client accepts."""
    longest = milliseconds(FAILOVER_INTERVAL_MAX)
    if interval_ms > longest:
        raise UsageError(
            f"a failover interval of {duration_text(interval_ms)} is too long: {duration_text(longest)} at most"
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and how it comes about."""

    name: str
    value: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All figures of a scenario."""

    figures: tuple[Figure, ...]
    operations: int
    pairing_operations: int
    """Those that there would not be without the pairing."""
    bill: MonthBill | None
    bill_without_pairing: MonthBill | None

    def value(self, name: str) -> int:
        """One figure by its name."""
        return next(figure.value for figure in self.figures if figure.name == name)

    @property
    def pairing_amount(self) -> Decimal | None:
        """What the pairing adds to the bill; None where a price is unknown."""
        if self.bill is None or self.bill_without_pairing is None:
            return None
        if self.bill.unknown or self.bill_without_pairing.unknown:
            return None
        return self.bill.known - self.bill_without_pairing.known


def estimate(scenario: Scenario, table: PriceTable | None = None) -> Estimate:
    """The figures, and with prices the bill of the days as if they were one month."""
    figures = _idle_figures(scenario)
    outage = _outage_figures(scenario)
    figures += outage
    values = {figure.name: figure.value for figure in figures}
    detoured, refused = values["messages through the backlog"], values["sends refused before failover"]
    each = units(scenario.size)
    direct = max(0, scenario.messages - detoured - refused)
    usual = direct * DIRECT_OPERATIONS * each
    detour = detoured * DETOUR_OPERATIONS * each
    extra = detour - detoured * DIRECT_OPERATIONS * each
    again = min(detoured, WINDOW * scenario.queues * scenario.syphons * scenario.outages)
    while_away = values["looks and renewals of the syphon"] + again * each
    pairing = values["idle receives"] + values["pings"] + while_away + extra
    everything = usual + detour + values["idle receives"] + values["pings"] + while_away
    figures += [
        Figure("units of a message", each, f"{many(scenario.size, 'byte')}, one unit for every 64 KB begun"),
        Figure(
            "operations of direct messages",
            usual,
            f"{many(direct, 'message')} × {DIRECT_OPERATIONS} (send, receive) × {many(each, 'unit')}",
        ),
        Figure(
            "operations of detoured messages",
            detour,
            f"{many(detoured, 'message')} × {DETOUR_OPERATIONS} (send to and receive from the backlog, send to and receive from the "
            f"primary) × {many(each, 'unit')}",
        ),
        Figure(
            "receives of messages given back",
            again * each,
            f"{many(again, 'message')} (each parked one, but no more than {WINDOW:,} for each backlog queue, syphon and outage) × {many(each, 'unit')}: "
            "received before their destination is known to be away, and again after it is back; more if other entities of the queue can be delivered meanwhile",
        ),
        Figure(
            "operations",
            everything,
            "direct + detoured + idle receives + pings + looks and renewals + receives of messages given back",
        ),
        Figure(
            "operations the pairing adds",
            pairing,
            "idle receives + pings + looks and renewals + receives of messages given back + "
            f"the {DETOUR_OPERATIONS - DIRECT_OPERATIONS} more of every detoured message",
        ),
    ]
    return Estimate(
        figures=tuple(figures),
        operations=everything,
        pairing_operations=pairing,
        bill=_bill(scenario, everything, table),
        bill_without_pairing=_bill(scenario, everything - pairing, table),
    )


def _bill(scenario: Scenario, operations: int, table: PriceTable | None) -> MonthBill | None:
    if table is None:
        return None
    hours = scenario.days * 24
    usage = MonthUsage(
        month=many(scenario.days, "day"),
        hours=hours,
        operations=operations,
        peak_hours=scenario.connections * hours,
    )
    return month_bill(usage, table)


def _idle_figures(scenario: Scenario) -> list[Figure]:
    hour = idle_receives(scenario.queues, scenario.syphons, HOUR_MS)
    day = idle_receives(scenario.queues, scenario.syphons, DAY_MS)
    whole = idle_receives(scenario.queues, scenario.syphons, scenario.days * DAY_MS)
    return [
        Figure(
            "idle receives an hour",
            hour,
            f"{many(scenario.queues, 'backlog queue')} × {many(scenario.syphons, 'syphon')} × {IDLE_POLLS_PER_HOUR} long polls of 15 minutes",
        ),
        Figure("idle receives a day", day, f"{hour:,} an hour × 24"),
        Figure("idle receives", whole, f"{day:,} a day × {many(scenario.days, 'day')}"),
    ]


def _outage_figures(scenario: Scenario) -> list[Figure]:
    if scenario.outage_ms == 0:
        return [
            Figure("pings", 0, "no outage"),
            Figure("looks and renewals of the syphon", 0, "no outage"),
            Figure("sends refused before failover", 0, "no outage"),
            Figure("messages through the backlog", 0, "no outage"),
        ]
    each = scenario.outage_ms // scenario.outages
    interval = scenario.failover_interval_ms
    waiting = min(each, interval)
    away = failed_over_ms(each, interval)
    sent, formula = _sends_while_away(scenario)
    raises = scenario.while_suspect == "raise"
    refused = sent * waiting // each if each and raises else 0
    pinged = scenario.clients * scenario.outages * pings(scenario.entities, away, scenario.ping_interval_ms)
    looks = begun(away, AWAY_INTERVAL_MS)
    detoured = sent - refused if away else 0
    short = f"none: an outage of {duration_text(each)} is no longer than the failover interval of {duration_text(interval)}"
    if raises:
        refusal = f"{sent:,} × {duration_text(waiting)} of {duration_text(each)}: until the failover interval is over a send fails"
    elif away:
        refusal = f"none: a send waits until the failover interval of {duration_text(interval)} is over, and goes to the backlog"
    else:
        refusal = f"none: a send waits for the primary, which is back before the failover interval of {duration_text(interval)} is over"
    return [
        Figure(
            "pings",
            pinged,
            f"{many(scenario.entities, 'entity', 'entities')} × {many(scenario.clients, 'client')} × {many(scenario.outages, 'outage')} × (the first + "
            f"{begun(away, scenario.ping_interval_ms):,}: {duration_text(away)} after failover, one for every {duration_text(scenario.ping_interval_ms)} begun)"
            if away
            else short,
        ),
        Figure(
            "looks and renewals of the syphon",
            scenario.outages * drain_while_away(scenario.queues, scenario.entities, scenario.syphons, away),
            f"({many(scenario.queues, 'backlog queue')} + {many(scenario.entities, 'entity', 'entities')}) × {many(scenario.syphons, 'syphon')} × "
            f"{many(scenario.outages, 'outage')} × {looks:,}: {duration_text(away)} after failover, one for every {duration_text(AWAY_INTERVAL_MS)} begun"
            if away
            else short,
        ),
        Figure("sends during the outage", sent, formula),
        Figure(
            "sends refused before failover",
            refused,
            refusal,
        ),
        Figure("messages through the backlog", detoured, f"{sent:,} − {refused:,}" if away else short),
    ]


def _sends_while_away(scenario: Scenario) -> tuple[int, str]:
    if scenario.rate_per_1000s is not None:
        sent = scenario.rate_per_1000s * scenario.outage_ms // (RATE_PLACES * SECOND_MS)
        rate = Decimal(scenario.rate_per_1000s) / RATE_PLACES
        return sent, f"{rate.normalize():f} a second × {duration_text(scenario.outage_ms)}"
    period = scenario.days * DAY_MS
    sent = scenario.messages * scenario.outage_ms // period if period else 0
    return (
        sent,
        f"{scenario.messages:,} × {duration_text(scenario.outage_ms)} of {many(scenario.days, 'day')}",
    )
