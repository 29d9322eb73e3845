"""Arguments of the kit that can never work are refused where they are given, with their field, their value and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairbus.errors import UsageError
from pairbus.testing import Namespace, Pair, Queue, Subscription, Topic, VirtualClock
from pairbus.testing.clock import NOW_MAX_MS


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": 5}, "name is 5"),
        ({"process": "yes"}, "process is 'yes': give True or False"),
        ({"faults": 1}, "faults is 1: give True or False"),
        ({"audit": None}, "audit is None: give True or False"),
        ({"queues": "orders"}, "queues is 'orders': give a list, queues=['orders']"),
        ({"queues": Queue("orders")}, "queues is one Queue: give a list"),
        ({"queues": ["a", 5]}, "queues[1] is 5: give a name or a Queue"),
        ({"queues": [""]}, "queues[0] is ''"),
        ({"queues": None}, "queues is None: give a list of names or of Queue"),
        ({"topics": "events"}, "topics is 'events': give a list, topics=['events']"),
        ({"topics": [Queue("q")]}, "topics[0] is Queue("),
        ({"topics": {"events": []}}, "topics is {'events': []}: give a list"),
        ({"config": "Config.json"}, "config is 'Config.json'"),
        ({"data": 5}, "data is 5: give the path of a directory"),
        ({"data": ""}, "data is ''"),
        ({"clock": 5}, "clock is 5: give a VirtualClock"),
        ({"amqp": 5672}, "amqp is 5672"),
    ],
)
def test_a_namespace_refuses_what_can_never_work(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        Namespace(**options)

    assert told in str(caught.value)


def test_the_data_directory_may_be_given_as_text(tmp_path: Path) -> None:
    assert Namespace(data=str(tmp_path / "data")).data == tmp_path / "data"


def test_entities_refuse_names_and_lists_that_are_none() -> None:
    with pytest.raises(UsageError, match="name is 5: give the name of a queue"):
        Queue(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="name is '': give the name of a topic"):
        Topic("")
    with pytest.raises(UsageError, match=r"subscriptions is 'audit': give a list, subscriptions=\['audit'\]"):
        Topic("events", subscriptions="audit")
    with pytest.raises(UsageError, match="rules is \\[1\\]"):
        Subscription("audit", rules=[1])  # type: ignore[arg-type]


def test_a_pair_does_not_ignore_queues_beside_a_primary() -> None:
    with pytest.raises(UsageError, match="give them to the Namespace that you pass as primary"):
        Pair(Namespace("mine"), queues=["orders"])
    with pytest.raises(UsageError, match="primary is 'contoso'"):
        Pair("contoso")  # type: ignore[arg-type]


@pytest.mark.parametrize("ms", [float("nan"), float("inf"), 1.5, True, "5", None, -1, NOW_MAX_MS], ids=repr)
def test_a_clock_takes_whole_milliseconds_only(ms: Any) -> None:
    clock = VirtualClock(1_000)

    with pytest.raises(UsageError, match="ms is .*: give a whole number from 0 to 253370764799000"):
        clock.advance(ms)

    assert clock() == 1_000


def test_a_clock_begins_at_an_instant_only() -> None:
    with pytest.raises(UsageError, match="now is nan: give a whole number"):
        VirtualClock(float("nan"))  # type: ignore[arg-type]
