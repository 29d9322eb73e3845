"""How a paired client behaves: small, frozen, checked when it is made.

The defaults keep a program sending through its first outage without an exception: a send waits while its entity is
suspect, and a few seconds later goes to the backlog. ``like_retired_sdk`` gives the defaults of the retired .NET SDK.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pairbus.errors import UsageError, WrongTypeError

if TYPE_CHECKING:
    from typing import Self

BACKLOG_QUEUE_COUNT_DEFAULT: Final = 10
BACKLOG_QUEUE_COUNT_MAX: Final = 10_000
"""Most backlog queues of a pair: a namespace of Service Bus has no more queues."""
FAILOVER_INTERVAL_DEFAULT: Final = timedelta(seconds=5)
FAILOVER_INTERVAL_RETIRED: Final = timedelta(minutes=1)
FAILOVER_INTERVAL_MAX: Final = timedelta(minutes=60)
PING_INTERVAL_DEFAULT: Final = timedelta(minutes=1)
PING_INTERVAL_MIN: Final = timedelta(seconds=1)
PING_INTERVAL_MAX: Final = timedelta(minutes=30)
FENCE_TIMEOUT_DEFAULT: Final = timedelta(minutes=5)
FENCE_TIMEOUT_MIN: Final = timedelta(seconds=1)
FENCE_TIMEOUT_MAX: Final = timedelta(hours=24)
SPOOL_BYTES_DEFAULT: Final = 1 << 30
SPOOL_AGE_DEFAULT: Final = timedelta(days=7)
SPOOL_AGE_MIN: Final = timedelta(seconds=1)
SPOOL_AGE_MAX: Final = timedelta(days=3_650)

TriggerName = Literal["documented", "outage", "shipped"]
Trigger = TriggerName | Callable[[BaseException], bool]
"""Which errors of a send count as an outage of the primary: a name of one of three tables, or a function of the error.

``"documented"`` follows the documentation of the retired SDK, ``"shipped"`` what that SDK did, ``"outage"`` counts least. A function that
raises counts nothing.
"""

_TRIGGERS: Final = ("documented", "outage", "shipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAvailabilityOptions:
    """How a paired sender behaves when its primary stops answering. One object may serve any number of clients.

    Args:
        backlog_queue_count: How many backlog queues the secondary namespace has, 1 to 10,000.
        failover_interval: How long sends to an entity must have failed before they go to the backlog, 0 to 60 minutes. Zero
            detours the failing send itself.
        ping_primary_interval: How often a failed-over entity gets a ping, 1 second to 30 minutes.
        enable_syphon: Drain the backlog from inside this process.
        trigger: Which errors count: ``"documented"``, ``"outage"``, ``"shipped"``, or ``trigger(error) -> bool``.
        while_suspect: What a send does inside the failover interval: ``"wait"`` until the primary answers, the entity
            fails over, or the caller's timeout is spent, or ``"raise"`` its error.
        order: ``"relaxed"``: none across an outage. ``"session"``: messages of one session arrive in the order of their
            sends, also across failover, drain and failback. ``"partition"``: likewise, and messages without a session are
            kept in order by their partition key.
        time_to_live: ``"freeze"``: time in the backlog does not count; ``"deduct"``: it does.
        healthy_pings: Good pings in a row before sends go to the primary again; at least 1.
        fence_timeout: With an order: how long a session may go on being parked after failback, because messages of it
            are still in the backlog, before ``fence_policy`` applies; 1 second to 24 hours.
        fence_policy: What becomes of sends of that session then: ``"wait"``: they are still parked behind the others.
            ``"raise"``: they raise ``SessionFencedError``. ``"overtake"``: they go to the primary, out of order. There is
            an event in each case.
        spool: A directory that takes sends when the primary and every backlog queue refuse; None: such a send raises its
            error. One process has one spool in it; several may share the directory.
        spool_max_bytes: How many bytes of messages it takes; at least 1. A send that exceeds it raises ``SpoolRefusedError``.
        spool_max_age: How long its oldest message may wait before it takes no more; 1 second to 3,650 days.

    Raises:
        UsageError: A value is out of its range. The text names the field, the value and the range.
        WrongTypeError: A value has a wrong type: a number instead of a ``timedelta``, for instance.
    """

    backlog_queue_count: int = BACKLOG_QUEUE_COUNT_DEFAULT
    failover_interval: timedelta = FAILOVER_INTERVAL_DEFAULT
    ping_primary_interval: timedelta = PING_INTERVAL_DEFAULT
    enable_syphon: bool = False
    trigger: Trigger = "documented"
    while_suspect: Literal["raise", "wait"] = "wait"
    order: Literal["relaxed", "session", "partition"] = "relaxed"
    time_to_live: Literal["freeze", "deduct"] = "freeze"
    healthy_pings: int = 1
    fence_timeout: timedelta = FENCE_TIMEOUT_DEFAULT
    fence_policy: Literal["wait", "raise", "overtake"] = "wait"
    spool: Path | str | None = None
    spool_max_bytes: int = SPOOL_BYTES_DEFAULT
    spool_max_age: timedelta = SPOOL_AGE_DEFAULT

    def __post_init__(self) -> None:
        _check_count("backlog_queue_count", self.backlog_queue_count, BACKLOG_QUEUE_COUNT_MAX)
        _check_count("healthy_pings", self.healthy_pings)
        _check_duration("failover_interval", self.failover_interval, timedelta(0), FAILOVER_INTERVAL_MAX)
        check_ping_interval(self.ping_primary_interval)
        if not isinstance(self.enable_syphon, bool):
            raise WrongTypeError(f"enable_syphon is {self.enable_syphon!r}: give True or False")
        if not callable(self.trigger) and self.trigger not in _TRIGGERS:
            raise UsageError(f"trigger is {self.trigger!r}: give one of {_TRIGGERS} or a callable")
        _check_choice("while_suspect", self.while_suspect, ("raise", "wait"))
        _check_choice("order", self.order, ("relaxed", "session", "partition"))
        _check_choice("time_to_live", self.time_to_live, ("freeze", "deduct"))
        _check_duration("fence_timeout", self.fence_timeout, FENCE_TIMEOUT_MIN, FENCE_TIMEOUT_MAX)
        _check_choice("fence_policy", self.fence_policy, ("wait", "raise", "overtake"))
        _check_directory("spool", self.spool)
        _check_count("spool_max_bytes", self.spool_max_bytes)
        _check_duration("spool_max_age", self.spool_max_age, SPOOL_AGE_MIN, SPOOL_AGE_MAX)

    @classmethod
    def like_retired_sdk(cls, **changes: Any) -> Self:
        """Return options with the defaults of the retired .NET SDK: ``failover_interval`` is 1 minute, ``while_suspect`` is ``"raise"``.

        Sends to an entity raise their errors for one minute; those that fail after it go to the backlog.

        Args:
            changes: Fields that differ, by keyword.

        Raises:
            UsageError: A value is out of its range.
        """
        values: dict[str, Any] = {
            "failover_interval": FAILOVER_INTERVAL_RETIRED,
            "ping_primary_interval": PING_INTERVAL_DEFAULT,
            "while_suspect": "raise",
        }
        return cls(**{**values, **changes})


def check_ping_interval(value: timedelta) -> None:
    """Raise UsageError unless it is in range."""
    _check_duration("ping_primary_interval", value, PING_INTERVAL_MIN, PING_INTERVAL_MAX)


def milliseconds(value: timedelta) -> int:
    """A duration in the unit that the deciding code counts in."""
    return value // timedelta(milliseconds=1)


def _check_count(field: str, value: object, most: int | None = None) -> None:
    wanted = "of at least 1" if most is None else f"from 1 to {most:,}"
    # True is an int to Python and never meant as one here.
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongTypeError(f"{field} is {value!r}: give a whole number {wanted}")
    if value < 1 or (most is not None and value > most):
        raise UsageError(f"{field} is {value}: give " + ("at least 1" if most is None else wanted))


def _check_duration(field: str, value: object, least: timedelta, most: timedelta) -> None:
    if not isinstance(value, timedelta):
        raise WrongTypeError(f"{field} is {value!r}: give a timedelta from {least} to {most}")
    if not least <= value <= most:
        raise UsageError(f"{field} is {value}: give a timedelta from {least} to {most}")


def _check_directory(field: str, value: object) -> None:
    if value is not None and not (isinstance(value, str | Path) and str(value)):
        raise WrongTypeError(f"{field} is {value!r}: give the path of a directory, or None")


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{field} is {value!r}: give one of {choices}")
