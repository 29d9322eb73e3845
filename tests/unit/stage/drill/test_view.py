"""What is shown of a drill: inert text, calm lines, a picture that can be drawn at any moment."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pairbus.pairing.events import Event, Kind
from pairbus.stage.drill.card import Card, Line
from pairbus.stage.drill.view import Scene, draw, show_card
from pairbus.stage.screen import Screen

HOSTILE = "orders\x1b[2J\r\n[bold red]pass[/]"


def console(*, is_terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=120, highlight=False)


def printed(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def card(verdict: str) -> Card:
    line = Line("lost", "nothing accepted is lost", verdict, HOSTILE)  # type: ignore[arg-type]
    return Card(drill="d", outage="refuse", is_early=False, lines=(line,), lost=(HOSTILE,))


@pytest.mark.promise("M8")
def test_names_and_errors_are_shown_as_text() -> None:
    shown, scene = console(), Scene()
    with Screen(shown, scene, lambda: draw(scene)):
        scene.event(Event(Kind.FAILED_OVER, HOSTILE, "x", 0))
        scene.say(HOSTILE, "bad")
    show_card(shown, card("fail"))

    text = printed(shown)
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.count(r"orders\x1b[2J\r\n[bold red]pass[/]") == 4


def test_each_line_is_printed_once_and_in_order() -> None:
    shown, scene = console(), Scene()
    with Screen(shown, scene, lambda: draw(scene)):
        for number in range(50):
            scene.say(f"line {number}")

    assert [line.split("s  ")[1] for line in printed(shown).splitlines()] == [
        f"line {number}" for number in range(50)
    ]


def test_what_may_happen_thousands_of_times_is_told_once() -> None:
    scene = Scene()
    for _ in range(3):
        scene.event(Event(Kind.SET_ASIDE, "b/0", "x", 0))
        scene.event(Event(Kind.PING_SENT, "q", "x", 0))
        scene.event(Event(Kind.SUSPECT, "q", "x", 0))

    assert [said.text for said in scene.lines] == ["b/0 has dead-lettered messages", *["q is suspect"] * 3]


def test_a_person_sees_it_live_from_the_first_moment() -> None:
    shown, scene = console(is_terminal=True), Scene()
    with Screen(shown, scene, lambda: draw(scene)):
        shown.print(draw(scene))
        scene.act = "The outage"
        scene.outage_span = 0, 10**15
        scene.say("refuse is on", "bad")
        shown.print(draw(scene))

    text = printed(shown)
    assert "The outage" in text
    assert "ends by itself in" in text


def test_the_card_says_passed_or_failed() -> None:
    for verdict, word in (("pass", "passed"), ("fail", "FAILED"), ("not tested", "passed")):
        shown = console()
        show_card(shown, card(verdict))
        assert f"(refuse): {word}" in printed(shown)
