"""A short, repeatable form of the fuzzer; ``python -m tests.fuzz.fuzz_amqp`` looks longer and by coverage."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz_amqp import explore


@pytest.mark.promise("B59")
@pytest.mark.parametrize("seed", range(4))
def test_bent_inputs_end_in_a_refusal_or_in_nothing(seed: int) -> None:
    assert explore(seed, rounds=150) > 150
