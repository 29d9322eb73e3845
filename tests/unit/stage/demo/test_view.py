"""The demo's screen shows every number, on a narrow terminal too."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from pairbus.pairing.rules.health import Health
from pairbus.stage.book import Book
from pairbus.stage.demo.scene import Scene
from pairbus.stage.demo.view import draw, show_result

ENTITIES = ("orders", "baskets", "events/Subscriptions/audit")


def scene() -> Scene:
    made = Scene(Book(dict.fromkeys(ENTITIES, ())), "contoso", "contoso-dr")
    made.primary.entities = {"orders": 1_234_567, "events/Subscriptions/audit": 7_654}
    made.secondary.backlog = 98_765
    made.home = 43_210
    report = SimpleNamespace(state=Health.FAILED_OVER, parked=55_443, pings_sent=3_322)
    made.client = SimpleNamespace(  # type: ignore[assignment]
        health=lambda: dict.fromkeys(ENTITIES, report),
        statistics=lambda: SimpleNamespace(to_backlog=76_543, pings=2_211),
    )
    return made


def drawn(width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(draw(scene(), 654_321, width))
    file: Any = console.file
    return str(file.getvalue())


@pytest.mark.parametrize("width", [60, 80, 95, 96, 140])
def test_every_number_is_on_the_screen(width: int) -> None:
    picture = drawn(width)

    for number in (
        "1,234,567",
        "7,654",
        "98,765",
        "43,210 of 76,543",
        "0 of 654,321",
        "55,443",
        "3,322",
        "2,211",
    ):
        assert number in picture, f"{number} is missing at {width} columns:\n{picture}"
    assert all(len(line) <= width for line in picture.splitlines())


@pytest.mark.parametrize("width", [60, 72, 120])
def test_every_number_is_in_the_result(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    bill = [{"purpose": "sends to the primary", "operations": 1_234_567, "cost": "0.98765"}]
    show_result(
        console,
        SimpleNamespace(  # type: ignore[arg-type]
            failover_seconds=12.5,
            failback_seconds=3.25,
            drain_seconds=44.75,
            engine="spark",
            bill=bill,
            operations=2_345_678,
            cost="1.23456",
            pairing_operations=345_678,
            pairing_cost="0.34567",
            currency="USD",
            price_source="standard tier, uksouth",
            holds=True,
            accepted=777_666,
            unknown=11,
            parked=55_444,
            home=55_443,
            lost=0,
            duplicated=22,
            redelivered=33,
            spark_certificate=None,
        ),
    )
    file: Any = console.file
    picture = str(file.getvalue())

    for number in ("12.5 s", "1,234,567", "0.98765", "2,345,678", "345,678", "0.34567", "777,666", "55,443"):
        assert number in picture, f"{number} is missing at {width} columns:\n{picture}"
