"""Dead letters as they go back into their backlog queue."""

from __future__ import annotations

from pairbus.drain.redriving import redriven
from pairbus.pairing import parking
from pairbus.pairing.client.sending.limits import BACKLOG_LIMIT_BYTES, ENVELOPE_BYTES
from pairbus.pairing.parking import Passport
from pairbus.sdk.messages import sections
from tests.simulation.pair.model import original


def dead_letter(*properties: tuple[str, bytes], body: bytes = b"x") -> bytes:
    items = [(sections.encode_text(name), value) for name, value in properties]
    return sections.join(
        [
            sections.Section(sections.APPLICATION_PROPERTIES, sections.encode_map(items)),
            sections.Section(0x75, b"\xb0" + len(body).to_bytes(4, "big") + body),
        ]
    )


def names(payload: bytes) -> list[str | None]:
    items = sections.map_items(sections.find(sections.split(payload), sections.APPLICATION_PROPERTIES))
    return [sections.text_of(key) for key, _ in items]


WHY = ("DeadLetterReason", sections.encode_text("why"))
PATH = ("x-ms-path", sections.encode_text("orders"))


def test_the_marks_of_the_dead_letter_queue_go_and_one_says_that_nobody_sent_it_again() -> None:
    marked = dead_letter(PATH, WHY, ("mine", sections.encode_long(1)))
    again = dead_letter(PATH, ("x-pairbus-redriven", b"\x41"), WHY)

    assert parking.dead_letter_reason(marked) == "why"
    assert names(redriven(marked)) == ["x-ms-path", "mine", "x-pairbus-redriven"]
    assert names(redriven(again)) == ["x-ms-path", "x-pairbus-redriven"]


def test_a_message_that_just_fits_goes_back_without_a_mark() -> None:
    size = BACKLOG_LIMIT_BYTES - ENVELOPE_BYTES - len(dead_letter(PATH, body=b""))

    assert names(redriven(dead_letter(PATH, WHY, body=bytes(size)))) == ["x-ms-path"]
    assert names(redriven(dead_letter(PATH, WHY, body=bytes(size - 30)))) == [
        "x-ms-path",
        "x-pairbus-redriven",
    ]


def test_the_original_of_a_redriven_message_knows_nothing_of_it() -> None:
    message = original(1, None, has_alias_name=False, has_life=False)
    parked = parking.park(message, "orders", Passport("f", 1, 1, "r"))

    assert parking.restore(redriven(parked), 0).payload == parking.restore(parked, 0).payload
