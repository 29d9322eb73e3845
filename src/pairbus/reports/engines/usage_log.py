"""What a usage log looks like, and which of its rows cannot be true. Both engines read it by these rules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.reports.columns import INTEGERS, TEXTS, TIMES
from pairbus.reports.inputs import Inputs, Wanted
from pairbus.server.clock import BrokerClock, utc

NAMES: Final = ("namespace", "entity", "operation", "stage")
VALUES: Final = ("count", "bytes", "units", "connection_peak")
COLUMNS: Final = ("bucket", *NAMES, *VALUES)
USAGE: Final = Wanted(
    what="usage log",
    folder="usage",
    columns={"bucket": TIMES, **dict.fromkeys(NAMES, TEXTS), **dict.fromkeys(VALUES, INTEGERS)},
    weight="count",
    time_column="bucket",
    hour_column="bucket",
    local_rows_max=10_000_000,  # memory holds one file and the sums
    may_be_empty=False,
)
EVENT: Final = ("part", "ms", *NAMES)
"""What makes an event one: a minute's row of one life's part of one hour. A part is known by the file that was chosen for it; a line
of JSON may name its part.
"""
EARLIEST: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""No broker of this kind wrote a log before: a minute before this comes from a clock that was not set. Every month from the first
row on is billed, so such a row must not count as the first.
"""
AHEAD_MAX: Final = timedelta(days=2)
"""How far a broker's clock may be ahead of the one that the bill is made with. One row later than that would be billed with every
month up to its own.
"""
COUNT_MAX: Final = 10**15
"""More than this in a minute is not a count."""

NOT_JSON: Final = "not a row of JSON with these columns"
NO_BUCKET: Final = "bucket is missing or no time"
IN_FUTURE: Final = "bucket lies in the future"
TOO_EARLY: Final = f"bucket lies before {EARLIEST:%Y}"
NO_NAME: Final = "namespace or entity is missing"
BAD_OPERATION: Final = "operation is not known"
BAD_STAGE: Final = "stage is neither primary nor backlog"
BAD_VALUE: Final = "{} is missing, negative or beyond all bounds"
FEW_UNITS: Final = "fewer units than operations"
CONNECTIONS_BILLED: Final = "a row of connections with operations"
OTHER_HOUR: Final = "the minute is not in the hour of its part"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRange:
    """Which files to read, and which time of them."""

    inputs: Inputs
    start: datetime | None = None
    """Belongs to the range."""
    end: datetime | None = None
    """Does not belong to the range."""
    latest: datetime
    """Rows after this cannot be true."""


def usage_range(
    inputs: Inputs, start: datetime | None, end: datetime | None, now: datetime | None = None
) -> UsageRange:
    """The files of a report; ``now`` is the machine's time unless given."""
    return UsageRange(inputs=inputs, start=start, end=end, latest=(now or utc(BrokerClock()())) + AHEAD_MAX)
