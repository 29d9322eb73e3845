"""What a drill may be asked to do, and when it begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pairbus.errors import UsageError
from pairbus.gateway.faults import KINDS
from pairbus.stage.drill.plan import OUTAGES, DrillOptions, seconds_until, shown

SECRET = "Endpoint=sb://a;SharedAccessKeyName=R;SharedAccessKey=canary"


def options(**changes: Any) -> DrillOptions:
    return DrillOptions(primary=SECRET, secondary=SECRET, **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fault": "flood"}, "'flood'"),
        ({"lasts": timedelta(milliseconds=900)}, "1 s to 1 h"),
        ({"lasts": timedelta(hours=2)}, "120 min"),
        ({"rate": 0.0}, "--rate is 0"),
        ({"rate": 10_000.0}, "at most 200"),
        ({"entities": ("orders",)}, "--yes"),
        ({"entities": ("orders", "/Orders"), "may_touch": True}, "twice"),
        ({"entities": tuple(f"q{n}" for n in range(21)), "may_touch": True}, "20 at the most"),
    ],
)
def test_what_cannot_be_a_drill_is_refused_with_the_way_out(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        options(**changes)


@pytest.mark.promise("M7")
def test_options_do_not_show_their_keys() -> None:
    assert "canary" not in repr(options())


@pytest.mark.parametrize("name", OUTAGES)
def test_every_outage_is_known_to_the_switchboard_or_needs_none(name: str) -> None:
    assert OUTAGES[name].fault in ("", *KINDS)


def test_an_outage_must_last_until_its_failover_can_be_seen() -> None:
    short = options(lasts=timedelta(seconds=13), failover_interval=timedelta(seconds=10))

    short.check(OUTAGES["refuse"])
    with pytest.raises(UsageError, match="at least 27 s"):
        short.check(OUTAGES["black-hole"])


def test_an_outage_without_failover_may_be_short() -> None:
    options(lasts=timedelta(seconds=1)).check(OUTAGES["throttle"])


def test_a_manual_drill_ends_with_its_first_ping() -> None:
    drill = options(lasts=timedelta(minutes=5), ping_interval=timedelta(seconds=2))

    assert drill.ping_interval_of(OUTAGES["manual"]) == timedelta(minutes=5)
    assert drill.ping_interval_of(OUTAGES["refuse"]) == timedelta(seconds=2)
    with pytest.raises(UsageError, match="30 min"):
        options(lasts=timedelta(minutes=31)).check(OUTAGES["manual"])


@pytest.mark.parametrize(
    ("at", "minutes"), [("12:30", 30), ("13:00", 60), ("12:00", 24 * 60), ("0:05", 12 * 60 + 5)]
)
def test_a_time_of_day_is_the_next_one(at: str, minutes: int) -> None:
    now = datetime(2026, 11, 15, 12, 0).astimezone()

    assert seconds_until(at, now) == minutes * 60


@pytest.mark.parametrize("at", ["25:00", "12:60", "noon", "12", "12:3", ""])
def test_what_is_no_time_of_day_is_refused(at: str) -> None:
    with pytest.raises(UsageError, match="HH:MM"):
        seconds_until(at, datetime(2026, 11, 15, tzinfo=UTC))


def test_lengths_are_shown_as_people_write_them() -> None:
    assert [shown(timedelta(seconds=n)) for n in (0.5, 60, 120, 150, 3600)] == [
        "0.5 s", "60 s", "2 min", "2 min 30 s", "60 min",
    ]  # fmt: skip
