"""What an address on a link means."""

from __future__ import annotations

import pytest

from pairbus.engine.records import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from pairbus.errors import EntityNotFound
from pairbus.gateway.addressing import find_entity, parse, path_of, queue_at
from tests.unit.gateway.wire_bench import WireBench


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("q", "q"),
        ("/q", "q"),
        ("/q/", "q"),
        ("amqps://host:5671/q", "q"),
        ("sb://host/a/b", "a/b"),
        ("amqps://host", ""),
        ("amqps://host/", ""),
        ("Q%2Fx", "Q%2Fx"),
    ],
)
def test_the_path_of_an_address_is_stripped_and_not_decoded(address: str, path: str) -> None:
    assert path_of(address) == path


@pytest.mark.parametrize(
    ("address", "path", "sub", "is_management"),
    [
        ("q", "q", MAIN, False),
        ("q/$management", "q", MAIN, True),
        ("q/$DeadLetterQueue", "q", DEAD_LETTER, False),
        ("Q/$deadletterqueue/$MANAGEMENT", "Q", DEAD_LETTER, True),
        ("q/$Transfer/$DeadLetterQueue", "q", TRANSFER_DEAD_LETTER, False),
        ("t/Subscriptions/s/$DeadLetterQueue", "t/Subscriptions/s", DEAD_LETTER, False),
    ],
)
def test_an_address_is_taken_apart(address: str, path: str, sub: int, is_management: bool) -> None:
    found = parse(address)
    assert (found.path, found.sub, found.is_management) == (path, sub, is_management)


def test_an_address_leads_to_a_place_or_nowhere(bench: WireBench) -> None:
    entity = bench.queue("Orders")
    address = parse("orders/$DeadLetterQueue")
    assert find_entity(bench.namespace, address) is entity
    assert queue_at(entity, address) is entity.dead_letter
    with pytest.raises(EntityNotFound):
        find_entity(bench.namespace, parse("missing"))
