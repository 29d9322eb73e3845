from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from pairbus.pairing.rules.rotation import TRIAL_INTERVALS_MAX, Rotation

QUEUES = [f"q{index}" for index in range(10)]


def rotation(seed: int = 1) -> Rotation:
    return Rotation(QUEUES, 1_000, random.Random(seed))


@pytest.mark.promise("P31")
def test_the_choice_is_random_seedable_and_uniform() -> None:
    counts = Counter(rotation(seed).pick(()) for seed in range(5_000))

    assert rotation(7).pick(()) == rotation(7).pick(())
    assert set(counts) == set(QUEUES)
    assert max(counts.values()) < 1.3 * 500
    assert min(counts.values()) > 0.7 * 500


@pytest.mark.promise("P32")
def test_a_queue_that_refused_is_out_for_everybody_until_it_accepts() -> None:
    subject = rotation()

    assert subject.refused("q3", 0, "full")
    assert not subject.refused("q3", 1, "full"), "told once"
    assert all(subject.pick(()) != "q3" for _ in range(200))
    assert subject.take_trial(1_000, 500, ()) is None, "the second refusal counts anew"
    assert subject.take_trial(1_001, 500, ()) == "q3"
    assert subject.take_trial(1_600, 500, ()) is None, "one send per interval tries it"
    assert subject.accepted("q3")
    assert not subject.accepted("q3")
    assert "q3" in subject.usable


@pytest.mark.promise("P33")
def test_with_an_empty_rotation_each_queue_is_tried_once_per_send() -> None:
    subject = rotation()
    for now, queue in enumerate(QUEUES):
        subject.refused(queue, now, "down")

    assert subject.pick(()) is None
    tried: list[str] = []
    while (last := subject.last_resort(tried)) is not None:
        tried.append(last)

    assert tried == QUEUES


def test_trials_of_all_queues_together_are_one_at_a_time_and_one_per_interval() -> None:
    subject = rotation()
    for queue in QUEUES[:7]:
        subject.refused(queue, 0, "disabled")

    trials = []
    for now in range(0, 20_000, 50):
        while (due := subject.take_trial(now, 2_000, ())) is not None:
            trials.append(now)
            subject.refused(due, now + 500, "disabled")

    pauses = [later - earlier for earlier, later in itertools.pairwise(trials)]
    assert len(trials) > 7
    assert min(pauses) >= 1_000
    subject = rotation()
    subject.refused("q0", 0, "silent")
    subject.refused("q1", 0, "silent")
    assert subject.take_trial(1_000, 5_000, ()) == "q0"
    assert subject.take_trial(2_500, 5_000, ()) is None, "the first trial is still under way"
    assert subject.take_trial(6_000, 5_000, ()) == "q1", (
        "a trial that never ended does not hold up the others for ever"
    )


def test_a_queue_whose_trials_fail_is_tried_ever_more_rarely_until_it_accepts() -> None:
    subject = rotation()
    subject.refused("q0", 0, "disabled")
    trials: list[int] = []
    for now in range(0, 100_000, 100):
        if subject.take_trial(now, 100, ()) is not None:
            trials.append(now)
            subject.refused("q0", now, "disabled")
    pauses = [(later - earlier) // 1_000 for earlier, later in itertools.pairwise(trials)]

    assert pauses[:6] == [2, 4, 8, 16, 16, 16]
    assert max(pauses) == TRIAL_INTERVALS_MAX
    assert subject.accepted("q0")
    subject.refused("q0", 200_000, "disabled")
    assert subject.take_trial(201_000, 100, ()) == "q0", "one success makes it as good as new"


def test_sends_with_an_empty_rotation_are_no_trials() -> None:
    subject = rotation()
    for queue in QUEUES:
        subject.refused(queue, 0, "down")
    for now in range(1, 50):
        subject.refused("q0", now, "down")
    subject.accepted("q1")

    assert subject.evicted["q0"].next_try_ms == 49 + 1_000


@pytest.mark.promise("P33")
def test_when_all_were_away_the_first_that_accepts_brings_back_those_that_had_not_answered() -> None:
    subject = rotation()
    subject.refused("q0", 0, "disabled")
    for queue in QUEUES[1:]:
        subject.refused(queue, 0, "refused the connection", has_answered=False)

    assert subject.accepted("q3") == ["q3", "q1", "q2", *QUEUES[4:]]
    assert set(subject.evicted) == {"q0"}, "it has said itself that it takes nothing"
    assert subject.unproven == set(QUEUES[1:]) - {"q3"}
    assert subject.accepted("q1") == []
    assert "q1" not in subject.unproven


@pytest.mark.promise("P32")
def test_a_queue_that_came_back_with_another_one_and_fails_again_comes_back_by_its_own_trial_only() -> None:
    subject = rotation()
    for queue in QUEUES:
        subject.refused(queue, 0, "silent", has_answered=False)
    subject.accepted("q0")

    assert subject.refused("q1", 10, "silent", has_answered=False)
    assert subject.evicted["q1"].next_try_ms == 10 + 2_000, "coming back was its first trial"
    for queue in QUEUES:
        subject.refused(queue, 20, "silent", has_answered=False)
    assert "q1" not in subject.accepted("q0")
    assert subject.accepted("q1") == ["q1"]


def test_while_one_queue_works_none_comes_back_with_another() -> None:
    subject = rotation()
    for queue in QUEUES[:9]:
        subject.refused(queue, 0, "silent", has_answered=False)

    assert subject.accepted("q0") == ["q0"]
    assert not subject.unproven
