from __future__ import annotations

import random
from collections import Counter

from pairbus.pairing.rotation import Rotation

QUEUES = [f"q{index}" for index in range(10)]


def rotation(seed: int = 1) -> Rotation:
    return Rotation(QUEUES, 1_000, random.Random(seed))


def test_P31_the_choice_is_random_seedable_and_uniform() -> None:
    counts = Counter(rotation(seed).pick(()) for seed in range(5_000))

    assert rotation(7).pick(()) == rotation(7).pick(())
    assert set(counts) == set(QUEUES)
    assert max(counts.values()) < 1.3 * 500
    assert min(counts.values()) > 0.7 * 500


def test_P32_a_queue_that_refused_is_out_for_everybody_until_it_accepts() -> None:
    subject = rotation()

    assert subject.refused("q3", 0, "full")
    assert not subject.refused("q3", 1, "full"), "told once"
    assert all(subject.pick(()) != "q3" for _ in range(200))
    assert subject.take_trial(1_000, ()) is None, "the second refusal counts anew"
    assert subject.take_trial(1_001, ()) == "q3"
    assert subject.take_trial(1_500, ()) is None, "one send per interval tries it"
    assert subject.accepted("q3")
    assert not subject.accepted("q3")
    assert "q3" in subject.usable


def test_P33_with_an_empty_rotation_each_queue_is_tried_once_per_send() -> None:
    subject = rotation()
    for now, queue in enumerate(QUEUES):
        subject.refused(queue, now, "down")

    assert subject.pick(()) is None
    tried: list[str] = []
    while (last := subject.last_resort(tried)) is not None:
        tried.append(last)

    assert tried == QUEUES
