from __future__ import annotations

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import Int, Long
from pairbus.sdk.browsing import Browsed
from pairbus.spark.drain.order import in_order


def shown(number: int, state: int = 0) -> Browsed:
    annotations: dict[str, object] = {
        "x-opt-sequence-number": Long(number),
        "x-opt-message-state": Int(state),
    }
    return Browsed.of(encode_message(message_annotations=annotations, body=b"", body_kind="data"))


def test_everything_older_in_hand_lets_all_go() -> None:
    assert in_order([shown(n) for n in (1, 2, 3, 4)], {1, 2}, [3, 4]) == 2


def test_an_older_message_in_other_hands_holds_back_what_is_younger() -> None:
    assert in_order([shown(n) for n in (1, 2, 3, 4)], set(), [1, 3, 4]) == 1
    assert in_order([shown(n) for n in (1, 2)], set(), [2]) == 0


def test_deferred_and_scheduled_messages_hold_nobody_back() -> None:
    assert in_order([shown(1, state=1), shown(2, state=2), shown(3)], set(), [3]) == 1
