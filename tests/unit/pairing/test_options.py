from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from pairbus import SendAvailabilityOptions, UsageError


def test_defaults_keep_a_program_sending() -> None:
    options = SendAvailabilityOptions()

    assert options.backlog_queue_count == 10
    assert options.failover_interval == timedelta(seconds=5)
    assert options.ping_primary_interval == timedelta(minutes=1)
    assert (options.enable_syphon, options.trigger, options.while_suspect) == (False, "documented", "wait")
    assert (options.order, options.time_to_live, options.healthy_pings, options.spool) == (
        "relaxed",
        "freeze",
        1,
        None,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backlog_queue_count", 0),
        ("backlog_queue_count", 10_001),
        ("backlog_queue_count", True),
        ("backlog_queue_count", 2.5),
        ("backlog_queue_count", "10"),
        ("failover_interval", timedelta(seconds=-1)),
        ("failover_interval", timedelta(minutes=61)),
        ("failover_interval", 10),
        ("ping_primary_interval", timedelta(milliseconds=999)),
        ("ping_primary_interval", timedelta(minutes=31)),
        ("enable_syphon", 1),
        ("trigger", "sometimes"),
        ("while_suspect", "hope"),
        ("order", "strict"),
        ("time_to_live", "ignore"),
        ("fence_timeout", timedelta(milliseconds=999)),
        ("fence_timeout", timedelta(hours=25)),
        ("fence_timeout", 300),
        ("fence_policy", "hope"),
        ("healthy_pings", 0),
        ("healthy_pings", True),
        ("spool", 7),
        ("spool", ""),
        ("spool_max_bytes", 0),
        ("spool_max_bytes", 1.5),
        ("spool_max_age", timedelta(0)),
        ("spool_max_age", 60),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_value(field: str, value: object) -> None:
    given: dict[str, Any] = {field: value}

    with pytest.raises(UsageError) as caught:
        SendAvailabilityOptions(**given)

    assert field in str(caught.value)
    assert str(value) in str(caught.value)


def test_an_order_comes_with_a_bound_and_a_policy() -> None:
    options = SendAvailabilityOptions(order="session")

    assert (options.fence_timeout, options.fence_policy) == (timedelta(minutes=5), "wait")
    assert SendAvailabilityOptions(order="partition", fence_policy="overtake").order == "partition"


def test_limits_themselves_are_allowed() -> None:
    SendAvailabilityOptions(failover_interval=timedelta(0), ping_primary_interval=timedelta(seconds=1))
    SendAvailabilityOptions(
        failover_interval=timedelta(minutes=60), ping_primary_interval=timedelta(minutes=30)
    )


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SendAvailabilityOptions().backlog_queue_count = 3  # type: ignore[misc]


def test_the_defaults_of_the_retired_sdk_are_one_word_away() -> None:
    options = SendAvailabilityOptions.like_retired_sdk(backlog_queue_count=3)

    assert options == SendAvailabilityOptions(
        backlog_queue_count=3,
        failover_interval=timedelta(minutes=1),
        ping_primary_interval=timedelta(minutes=1),
        while_suspect="raise",
    )
    assert SendAvailabilityOptions.like_retired_sdk(while_suspect="wait").while_suspect == "wait"


@pytest.mark.parametrize("field", ["backlog_queue_count", "failover_interval", "enable_syphon"])
def test_a_value_of_a_wrong_type_is_a_type_error_too(field: str) -> None:
    given: dict[str, Any] = {field: "10"}
    with pytest.raises(TypeError, match=f"{field} is '10'"):
        SendAvailabilityOptions(**given)
