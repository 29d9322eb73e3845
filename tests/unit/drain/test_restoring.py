"""One rule for limited times to live (P11)."""

from __future__ import annotations

import pytest

from pairbus.drain.rules.restoring import TimeToLivePolicy, restore_to_send
from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.sdk.messages import sections
from tests.simulation.pair.model import original

HOUR_MS = 3_600_000


def parked(life_ms: int, *, first_send_ms: int = 0) -> bytes:
    parts = sections.split(original(1, None, has_alias_name=False, has_life=False))
    header = [sections.NULL, sections.NULL, sections.encode_uint(life_ms), sections.NULL, sections.NULL]
    parts = sections.replace(parts, sections.HEADER, sections.encode_list(header))
    return parking.park(sections.join(parts), "orders", Passport("f", first_send_ms, 1, "r"))


# Time to live, policy, time in the backlog, what is left; None: dead-lettered as expired.
CASES: list[tuple[int, TimeToLivePolicy, int, int | None]] = [
    (0, "freeze", 0, 0),
    (0, "freeze", HOUR_MS, 0),
    (HOUR_MS, "freeze", 5 * HOUR_MS, HOUR_MS),
    (HOUR_MS, "deduct", 0, HOUR_MS),
    (HOUR_MS, "deduct", HOUR_MS - 1, 1),
    (HOUR_MS, "deduct", HOUR_MS, None),
    (0, "deduct", 0, None),
]


@pytest.mark.promise("P11")
@pytest.mark.parametrize(("life_ms", "life", "waited_ms", "left"), CASES)
def test_what_is_left_of_a_time_to_live(
    life_ms: int, life: TimeToLivePolicy, waited_ms: int, left: int | None
) -> None:
    now = 10 * HOUR_MS
    # The sender's clock says something else: only the secondary's stamp counts.
    payload = parked(life_ms, first_send_ms=now - 9 * HOUR_MS)

    if left is None:
        with pytest.raises(InvalidParkedPropertyError) as raised:
            restore_to_send(payload, now_ms=now, enqueued_ms=now - waited_ms, time_to_live=life)
        assert raised.value.reason == "ExpiredInBacklog"
    else:
        restored = restore_to_send(payload, now_ms=now, enqueued_ms=now - waited_ms, time_to_live=life)
        assert restored.time_to_live_ms == left
