"""The report card: each promise can be kept and can be broken, and says which."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest

from pairbus.pairing.rules.health import Health
from pairbus.stage.book import Refusal, SentMessage
from pairbus.stage.drill.card import Card, Course, Facts, judge
from pairbus.stage.drill.plan import OUTAGES, DrillOptions

BEGUN, ENDED = 10_000, 70_000
OPTIONS = DrillOptions(
    primary="p", secondary="s", slack=timedelta(seconds=1), failover_interval=timedelta(seconds=10)
)
GOOD = Course("q", suspect_ms=10_100, failed_over_ms=20_100, recovered_ms=71_500, failovers=1, pings=26)


def copies(*numbers: int) -> set[tuple[str, int]]:
    return {("q", number) for number in numbers}


def probe(number: int, **changes: Any) -> SentMessage:
    values: dict[str, Any] = {
        "entity": "q", "message_id": f"p-{number}", "begun_ms": BEGUN, "longest_ms": 10_000, "accepted_ms": 20_200,
        "is_parked": True, "arrived_ms": 72_000, "copies": copies(number),
    }  # fmt: skip
    return SentMessage(**{**values, **changes})


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "drill": "d", "begun_ms": BEGUN, "ended_ms": ENDED, "is_early": False, "courses": (GOOD,),
        "probes": (probe(1), probe(2, is_parked=False, arrived_ms=BEGUN)), "refusals": (), "repeats_allowed": 0,
        "operations": 10, "cost": "0.1", "currency": "USD",
    }  # fmt: skip
    return Facts(**{**values, **changes})


def verdicts(card: Card) -> dict[str, str]:
    return {line.name: line.verdict for line in card.lines}


def refused(state: Health) -> Refusal:
    return Refusal("q", 15_000, state, "no")


def test_a_good_day_passes_in_every_line() -> None:
    card = judge(facts(), OPTIONS, OUTAGES["refuse"])

    assert card.passed
    assert set(verdicts(card).values()) == {"pass", "told"}
    told = card.as_json()
    json.dumps(told)
    assert (told["failover_seconds"], told["failback_seconds"], told["drain_seconds"]) == (10.0, 1.5, 0.5)
    assert (told["parked"], told["home"], told["lost"], told["duplicates"]) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        ({"courses": (replace(GOOD, suspect_ms=None, failed_over_ms=None, recovered_ms=None),)}, "noticed"),
        ({"courses": (replace(GOOD, suspect_ms=12_300, failed_over_ms=22_300),)}, "noticed"),
        ({"courses": (replace(GOOD, failed_over_ms=21_200),)}, "failover"),
        ({"courses": (GOOD, Course("r"))}, "failover"),
        ({"refusals": (refused(Health.FAILED_OVER),)}, "go on"),
        ({"refusals": (refused(Health.SUSPECT),)}, "held"),
        ({"probes": (probe(1, longest_ms=16_100),)}, "longest wait"),
        ({"courses": (replace(GOOD, pings=0),)}, "pings"),
        ({"courses": (replace(GOOD, pings=28),)}, "pings"),
        ({"courses": (replace(GOOD, recovered_ms=None),)}, "failback"),
        ({"courses": (replace(GOOD, recovered_ms=94_100),)}, "failback"),
        ({"probes": (probe(1, arrived_ms=200_000),)}, "drain"),
        ({"probes": (probe(1, arrived_ms=None, copies=set(), waits_in="b/0"),)}, "drain"),
        ({"probes": (probe(1, arrived_ms=None, copies=set()),)}, "lost"),
        ({"probes": ()}, "lost"),
        ({"probes": (probe(1, copies=copies(1, 2)),)}, "duplicates"),
        ({"probes": (probe(1, waits_in="b/0", is_dead_lettered=True),)}, "dead-lettered"),
        ({"left_behind": ("a queue",)}, "tidy"),
    ],
)  # fmt: skip
def test_a_broken_promise_fails(broken: dict[str, Any], name: str) -> None:
    card = judge(facts(**broken), OPTIONS, OUTAGES["refuse"])

    assert verdicts(card)[name] == "fail"
    assert not card.passed


def test_backlog_queues_that_the_drill_created_are_on_the_card() -> None:
    created = facts(queues_created=("c/3", "c/4", "c/5"))
    card = judge(created, OPTIONS, OUTAGES["refuse"])
    [tidy] = [line for line in card.lines if line.name == "tidy"]

    assert card.passed
    assert tidy.verdict == "told"
    assert tidy.figure.startswith(
        "only 3 backlog queues (c/3 … c/5), which the drill created in the secondary"
    )
    assert card.as_json()["queues_created"] == ["c/3", "c/4", "c/5"]


@pytest.mark.parametrize("syphon", ["own", "running"])
def test_probes_in_a_queue_that_the_running_syphon_does_not_know_get_a_hint(
    syphon: Literal["own", "running"],
) -> None:
    left = facts(probes=(probe(1, arrived_ms=None, copies=set(), waits_in="c/3"),), queues_created=("c/3",))
    card = judge(left, replace(OPTIONS, syphon=syphon), OUTAGES["refuse"])
    [drain] = [line for line in card.lines if line.name == "drain"]

    assert ("the backlog queue c/3 did not exist before the drill" in drain.figure) is (syphon == "running")


@pytest.mark.promise("P36")
def test_a_copy_is_allowed_for_each_attempt_in_doubt() -> None:
    doubtful = facts(probes=(probe(1, copies=copies(1, 2, 3), doubts=2),))
    other = facts(probes=(probe(1, copies=copies(1, 2, 3), doubts=1), probe(2, doubts=5)))

    assert verdicts(judge(doubtful, OPTIONS, OUTAGES["refuse"]))["duplicates"] == "pass"
    assert verdicts(judge(other, OPTIONS, OUTAGES["refuse"]))["duplicates"] == "fail", (
        "doubts are each probe's own"
    )
    again = replace(other, repeats_allowed=1)
    assert verdicts(judge(again, OPTIONS, OUTAGES["refuse"]))["duplicates"] == "pass"


@pytest.mark.promise("P36")
def test_another_syphon_may_have_resent_in_doubt_what_was_parked() -> None:
    parked, direct = (facts(probes=(probe(1, copies=copies(1, 2), is_parked=way),)) for way in (True, False))

    assert verdicts(judge(parked, OPTIONS, OUTAGES["black-hole"]))["duplicates"] == "told"
    assert verdicts(judge(direct, OPTIONS, OUTAGES["black-hole"]))["duplicates"] == "fail"
    assert verdicts(judge(parked, OPTIONS, OUTAGES["refuse"]))["duplicates"] == "fail"


def test_what_waits_in_the_backlog_is_not_lost() -> None:
    card = judge(
        facts(probes=(probe(1, arrived_ms=None, copies=set(), waits_in="b/0"),)), OPTIONS, OUTAGES["refuse"]
    )

    assert verdicts(card)["lost"] == "pass"
    assert card.as_json()["lost_names"] == []
    assert "pairbus syphon --once" in next(line.figure for line in card.lines if line.name == "drain")


def test_lost_probes_are_named() -> None:
    card = judge(
        facts(probes=(probe(1), probe(2, copies=set(), arrived_ms=None))), OPTIONS, OUTAGES["refuse"]
    )

    assert card.lost == ("p-2",)


def test_throttling_must_not_fail_over() -> None:
    calm = facts(
        courses=(Course("q"),), probes=(probe(1, is_parked=False),), refusals=(refused(Health.HEALTHY),)
    )

    assert judge(calm, OPTIONS, OUTAGES["throttle"]).passed
    card = judge(replace(calm, courses=(GOOD,)), OPTIONS, OUTAGES["throttle"])
    assert verdicts(card)["no failover"] == "fail"


@pytest.mark.parametrize("outage", ["black-hole", "drop-acknowledgements"])
def test_a_silent_primary_may_cost_the_first_send(outage: str) -> None:
    card = judge(facts(refusals=(refused(Health.HEALTHY),)), OPTIONS, OUTAGES[outage])

    assert card.passed
    assert verdicts(card)["refused"] == "told"


def test_callers_that_asked_for_errors_get_them() -> None:
    card = judge(
        facts(refusals=(refused(Health.SUSPECT),)), replace(OPTIONS, while_suspect="raise"), OUTAGES["refuse"]
    )

    assert card.passed


def test_by_hand_the_detection_is_not_tested() -> None:
    course = replace(GOOD, suspect_ms=None, failed_over_ms=BEGUN, recovered_ms=ENDED + 100, pings=1)
    card = judge(facts(courses=(course,)), OPTIONS, OUTAGES["manual"])

    assert verdicts(card)["noticed"] == "not tested"
    assert card.passed


def test_consumers_of_their_own_are_left_to_prove_it() -> None:
    unread = facts(courses=(replace(GOOD, is_read=False),), probes=(probe(1, copies=set(), arrived_ms=None),))
    card = judge(unread, OPTIONS, OUTAGES["refuse"])

    assert card.passed
    assert verdicts(card)["arrivals"] == "not tested"
    assert "lost" not in verdicts(card)
    assert card.as_json()["home"] == 1


def test_what_was_cut_short_is_not_called_broken() -> None:
    early = facts(
        is_early=True,
        ended_ms=BEGUN + 50,
        courses=(Course("q"),),
        probes=(probe(1, is_parked=False, longest_ms=5),),
    )
    card = judge(early, OPTIONS, OUTAGES["refuse"])

    assert card.passed
    assert card.is_early
    assert {verdicts(card)[name] for name in ("noticed", "failover", "pings", "failback", "drain")} == {
        "not tested"
    }
