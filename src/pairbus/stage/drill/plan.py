"""What a drill does and what it promises to stay within: kinds of outage, options, when it begins. No clock, no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from pairbus.errors import UsageError
from pairbus.model.flags import option
from pairbus.pairing.options import BACKLOG_QUEUE_COUNT_DEFAULT, FAILOVER_INTERVAL_DEFAULT

LASTS_MIN: Final = timedelta(seconds=1)
LASTS_MAX: Final = timedelta(hours=1)
MANUAL_MAX: Final = timedelta(minutes=30)
"""A manual drill ends with the first ping, and a ping is at most this far away."""
AHEAD_MAX: Final = timedelta(days=7)
"""A drill that is planned further ahead than this belongs into a scheduler."""
ENTITIES_MAX: Final = 20
RATE_MAX: Final = 200.0
TIMEOUT_BEYOND: Final = timedelta(seconds=5)
"""How much longer than the failover interval a caller waits for a send by default."""
AUTO: Final = "auto"
MANUAL: Final = "manual"
PROPERTY: Final = "pairbus_drill"
"""The application property that marks every probe; its value is the drill's id."""
PREFIX: Final = "pairbus-drill-"
"""What the names of a drill's own queue and subscription begin with."""

_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One kind of outage, and what the paired client promises for it (trigger ``documented``).

    Args:
        name: As people write it.
        fault: The switchboard's word; empty for the client's own switch.
        fails_over: Whether sends must go to the backlog.
        is_silent: Whether a send is not answered at all, so that the first one spends its whole timeout.
        leaves_doubt: Whether a send may have been stored although its sender got no answer.
    """

    name: str
    fault: str
    fails_over: bool = True
    is_silent: bool = False
    leaves_doubt: bool = False


OUTAGES: Final = {
    outage.name: outage
    for outage in (
        Outage(name="refuse", fault="refuse"),
        Outage(name="cut", fault="cut", leaves_doubt=True),
        Outage(name="black-hole", fault="black_hole", is_silent=True, leaves_doubt=True),
        Outage(
            name="drop-acknowledgements", fault="drop_acknowledgements", is_silent=True, leaves_doubt=True
        ),
        Outage(name="fill", fault="fill"),
        Outage(name="throttle", fault="throttle", fails_over=False),
        Outage(name=MANUAL, fault=""),
    )
}
"""Every kind by name. ``auto`` is ``refuse`` where there is a switchboard and ``manual`` where there is none."""


@dataclass(frozen=True, kw_only=True)
class DrillSettings:
    """How a drill is held; the options of ``pairbus drill``."""

    lasts: timedelta = option(
        "How long the outage lasts.", timedelta(seconds=60), flag="--for", metavar="TIME"
    )
    fault: str = option(
        f"What happens to the primary: {AUTO}, {', '.join(OUTAGES)}.",
        AUTO,
        choices=(AUTO, *OUTAGES),
        metavar="OUTAGE",
    )
    entities: tuple[str, ...] = option(
        "Drill on this queue or topic, which needs --yes; may repeat.  [default: a queue of the drill's own]",
        (),
        flag="--entity",
        metavar="PATH",
    )
    may_touch: bool = option(
        "Confirm that consumers of --entity may receive probes, and that messages of others in the backlog may be drained.",
        False,
        flag="--yes",
    )
    rate: float = option("Probes per second for each entity.", 10.0)
    failover_interval: timedelta = option(
        "Failover interval of the paired client.", FAILOVER_INTERVAL_DEFAULT, metavar="TIME"
    )
    ping_interval: timedelta = option(
        "Ping interval of the paired client.", timedelta(seconds=2), metavar="TIME"
    )
    while_suspect: Literal["wait", "raise"] = option("What sends do until the failover.", "wait")
    timeout: timedelta | None = option(
        "Timeout of one send.  [default: 5 s beyond the failover interval]", metavar="TIME"
    )
    queues: int = option("How many backlog queues.", BACKLOG_QUEUE_COUNT_DEFAULT, minimum=1, maximum=100)
    syphon: Literal["own", "running"] = option(
        "Who drains the probes: the drill itself, or the syphon that you run.", "own"
    )
    drain_within: timedelta = option("How long the drain may take.", timedelta(minutes=2), metavar="TIME")
    slack: timedelta = option(
        "Delay beyond the promised time that still passes.", timedelta(seconds=5), metavar="TIME"
    )


@dataclass(frozen=True, kw_only=True)
class DrillOptions(DrillSettings):
    """The settings, checked, and the pair: connection strings, the primary's own name, a file of authorities to trust."""

    primary: str = field(repr=False)
    secondary: str = field(repr=False)
    namespace: str | None = None
    ca_file: str | None = None
    calm: timedelta = timedelta(seconds=3)
    """How long all must be well before the outage."""

    @property
    def brings_home(self) -> bool:
        """Whether the drill drains the backlog itself; else a syphon that runs must do it."""
        return self.syphon == "own"

    def __post_init__(self) -> None:
        if self.fault not in (AUTO, *OUTAGES):
            raise UsageError(f"fault is {self.fault!r}: give one of {', '.join((AUTO, *OUTAGES))}")
        if not LASTS_MIN <= self.lasts <= LASTS_MAX:
            raise UsageError(f"--for is {shown(self.lasts)}: an outage lasts from 1 s to 1 h")
        if not 0 < self.rate <= RATE_MAX:
            raise UsageError(
                f"--rate is {self.rate:g}: give more than 0 and at most {RATE_MAX:g} probes a second"
            )
        if len(self.entities) > ENTITIES_MAX:
            raise UsageError(f"{len(self.entities)} entities: a drill takes {ENTITIES_MAX} at the most")
        if len({path.strip("/").lower() for path in self.entities}) < len(self.entities):
            raise UsageError("an entity is named twice: once is enough")
        if self.entities and not self.may_touch:
            raise UsageError(
                f"consumers of {', '.join(self.entities)} will see the probes (application property {PROPERTY}), and sends "
                "there will meet the fault: add --yes if that is meant, or leave --entity out for a queue of the drill's own"
            )

    @property
    def send_timeout(self) -> timedelta:
        """How long a caller waits for one send."""
        return self.timeout if self.timeout is not None else self.failover_interval + TIMEOUT_BEYOND

    def ping_interval_of(self, outage: Outage) -> timedelta:
        """A manual failover ends with the first ping: that one comes when the drill is to end."""
        return self.lasts if outage.name == MANUAL else self.ping_interval

    def check(self, outage: Outage) -> None:
        """Raise UsageError unless this outage is long enough to be noticed and short enough to be ended."""
        if outage.name == MANUAL:
            if self.lasts > MANUAL_MAX:
                raise UsageError(f"--for is {shown(self.lasts)}: with --fault manual give 30 min at the most")
            return
        needed = self.needed_for(outage)
        if outage.fails_over and self.lasts < needed:
            noticed = self.send_timeout if outage.is_silent else timedelta(0)
            raise UsageError(
                f"--for is {shown(self.lasts)}: too short to see a failover, which takes {shown(noticed)} to notice "
                f"({outage.name}) and {shown(self.failover_interval)} of failover interval; give at least {shown(needed)}"
            )

    def needed_for(self, outage: Outage) -> timedelta:
        """How long an outage must last for its failover to be seen, with a moment of sends into the backlog."""
        noticed = self.send_timeout if outage.is_silent else timedelta(0)
        return noticed + self.failover_interval + timedelta(seconds=2)


def seconds_until(at: str, now: datetime) -> float:
    """From ``now``, in local time with its zone, until the clock next shows ``HH:MM``. Raises UsageError."""
    found = _CLOCK.fullmatch(at.strip())
    if found is None:
        raise UsageError(f"--at is {at!r}: give a time of day as HH:MM, for one 03:30")
    hour, minute = int(found[1]), int(found[2])
    wanted = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if wanted <= now:
        wanted += timedelta(days=1)
    # The wall clock may be moved by an hour in between: the zone knows.
    return wanted.replace(tzinfo=None).astimezone().timestamp() - now.timestamp()


def shown(length: timedelta) -> str:
    """A length of time for people."""
    seconds = length.total_seconds()
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    return f"{seconds:.3g} s"
