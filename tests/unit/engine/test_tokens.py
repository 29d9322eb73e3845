"""Lock tokens: unique, not to be guessed, and the same again for the same seed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pairbus.engine.queues.queue import Queue
from pairbus.engine.tokens import BLOCK_TOKENS, TokenStream
from tests.unit.engine.engine_kit import Bench


def taken(seed: bytes, count: int) -> list[int]:
    stream = TokenStream(seed)
    return [stream.next() for _ in range(count)]


def test_tokens_are_unique_and_none_is_zero() -> None:
    tokens = taken(b"seed", 3 * BLOCK_TOKENS)

    assert len(set(tokens)) == len(tokens)
    assert all(0 < token < 1 << 64 for token in tokens)


def test_the_same_seed_gives_the_same_tokens_and_another_one_others() -> None:
    assert taken(b"one", 600) == taken(b"one", 600)
    assert not set(taken(b"one", 600)) & set(taken(b"two", 600))


def test_a_token_tells_nothing_of_the_next() -> None:
    tokens = taken(b"seed", 2_000)
    steps = {after - before for before, after in pairwise(tokens)}

    assert len(steps) == len(tokens) - 1, "a step that comes twice could be counted on"
    for bit in range(64):
        ones = sum(token >> bit & 1 for token in tokens)
        assert 800 < ones < 1_200, f"bit {bit} is 1 in {ones} of {len(tokens)}"


@pytest.mark.promise("B27")
def test_a_token_of_the_message_before_opens_nothing(bench: Bench, queue: Queue) -> None:
    for _ in range(2):
        bench.send(queue)
    first = bench.receive(queue).token
    second = bench.receive(queue).token

    assert queue.find_lock(first, None) is not None
    for guess in (first + 1, first - 1, second + 1, 2 * second - first, 3):
        assert queue.find_lock(guess, None) is None
