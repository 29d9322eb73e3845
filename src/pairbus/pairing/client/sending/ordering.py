"""What the send path does for a send whose messages have an order (``rules.order``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pairbus.errors import PairbusError
from pairbus.pairing.order_keys import key_of, message_id_of
from pairbus.pairing.parking import Follows
from pairbus.pairing.rules.order_values import Oldest, Planned, earlier

if TYPE_CHECKING:
    from pairbus.pairing.client.sending.send import Send
    from pairbus.pairing.client.state import PairingState
    from pairbus.pairing.rules.flow import SendFlow
    from pairbus.pairing.rules.health import EntityHealth
    from pairbus.pairing.rules.send_order import SendOrder


def order_of(state: PairingState, health: EntityHealth, send: Send) -> SendOrder | None:
    """What a send must keep in order; None: nothing. Scheduled messages have no order."""
    if send.is_scheduled:
        return None
    try:
        keys = [key_of(payload, state.options.order) for payload in send.encoded()]
    except PairbusError:
        return None  # the attempt to send it will say what is wrong with it
    if not any(key is not None for key in keys):
        return None
    return state.order_of(health, keys)


def chosen(
    state: PairingState,
    health: EntityHealth,
    send: Send,
    flow: SendFlow,
    queue: str,
    originals: Sequence[bytes],
) -> list[Planned]:
    """The messages of a send that go to a backlog queue now; their parked forms say what they follow."""
    assert send.left is not None
    if flow.order is None:
        return [Planned(place, None) for place in send.left]
    with state.lock:
        planned = flow.planned(queue)
    stamp = send.stamp
    for one in planned:
        follows = earlier(one.follows, stamp.client, stamp.first + one.index, one.held)
        if follows != send.follows.get(one.index, ()):
            send.follows[one.index] = follows
            send.forms[one.index] = state.parked_form(
                originals[one.index], health.path, stamp, one.index, follows
            )
    return planned


def accepted(
    state: PairingState,
    send: Send,
    order: SendOrder,
    queue: str,
    planned: Sequence[Planned],
    originals: Sequence[bytes],
) -> None:
    """Note what a backlog queue has accepted. Called under the lock of the state."""
    stamp, now = send.stamp, state.clock()
    assert send.left is not None
    order.left = send.left
    for one in planned:
        last = Follows(queue, stamp.client, stamp.first + one.index)
        oldest = Oldest(message_id_of(originals[one.index]), queue, stamp.at_ms)
        if (fenced := order.accepted(queue, one, last, oldest, now)) is not None:
            state.fences_stand([fenced])
