"""The table of messages gives what a dictionary with sorted keys would give."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from pairbus.engine.queues.table import CHUNK_MESSAGES_MAX, MessageTable
from pairbus.model.message import Message

SOME = 20 * CHUNK_MESSAGES_MAX


def _message(number: int) -> Message:
    return Message(number, 0, 0, 1, None)


def _table(*numbers: int) -> MessageTable:
    table = MessageTable()
    for number in numbers:
        table.add(_message(number))
    return table


@pytest.mark.promise("B7")
@pytest.mark.parametrize("seed", range(40))
def test_it_holds_what_was_added_and_not_taken_out(seed: int) -> None:
    chance = random.Random(seed)
    table, model = MessageTable(), {}
    highest, spread, removing = 0, chance.choice((1, 1, 3, 400)), chance.choice((0.3, 0.5, 0.9))
    for step in range(3_000):
        if chance.random() < 0.6:
            # Mostly the next number; now and then an old one, as recovery finds it when compaction has restated a message.
            highest += chance.randint(1, spread)
            number = highest if chance.random() < 0.8 else chance.randrange(1, highest + 1)
            if number not in model:
                model[number] = _message(number)
                table.add(model[number])
        elif chance.random() < removing and model:
            number = min(model) if chance.random() < 0.7 else chance.randrange(highest + 2)
            assert table.pop(number) is model.pop(number, None)
            if chance.random() < 0.1:
                leaving = sorted(model)[chance.randrange(5) : chance.randrange(300) : chance.randint(1, 3)]
                if chance.random() < 0.3:
                    chance.shuffle(leaving)
                table.pop_all([model.pop(number) for number in leaving])
        asked = chance.randrange(-1, highest + 2)
        assert table.get(asked) is model.get(asked)
        assert (asked in table, len(table)) == (asked in model, len(model))
        if step % 500 == 0:
            assert list(table.items()) == sorted(model.items())
            expected = [model[number] for number in sorted(model) if number >= asked]
            assert list(table.values_from(asked)) == expected
            assert table.newest() is (model[max(model)] if model else None)
    while model:
        assert table.pop_newest() is model.pop(max(model))
    assert not table
    assert list(table) == []


def test_a_look_from_a_number_on_does_not_walk_over_what_left() -> None:
    table = _table(*range(1, SOME))
    for number in range(2, SOME - 5):
        table.pop(number)

    assert sum(map(len, table._chunks)) == 6, "nothing is left of those that are gone"
    assert [message.sequence_number for message in islice(table.values_from(2), 1)] == [SOME - 5]


def test_numbers_that_come_in_order_fill_their_chunks() -> None:
    """Also those that come in order between two others, as what compaction has restated does."""
    table = _table(1, 10 * SOME, *range(2, SOME + 1))

    assert len(table._chunks) <= SOME // CHUNK_MESSAGES_MAX + 2


def test_a_number_that_no_message_can_have_is_not_there() -> None:
    table = _table(1, 2, 3)

    for number in (-1, 0, 1 << 63, 1 << 200, -(1 << 200)):
        assert number not in table
        assert table.get(number) is None
        assert table.pop(number) is None
    with pytest.raises(KeyError):
        table[4]
