"""A receiver leaves a connection on which nothing comes any more, and no other one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus._pyamqp.error import AMQPConnectionError

from pairbus.sdk.links.silence import SILENT_SECONDS, ask_for_signs_of_life, leave_when_silent


class FalseClient:
    """As much of the SDK's protocol client as a poll uses."""

    def __init__(self) -> None:
        self.frames: list[float] = []
        """When frames come that nobody has read."""
        self.now = 0.0
        self._connection = SimpleNamespace(
            _idle_timeout=SILENT_SECONDS, _last_frame_received_time=-1.0, _transport=None
        )
        self._idle_timeout: float | None = None

    async def do_work_async(self, **_: Any) -> bool:
        while self.frames and self.frames[0] <= self.now:
            self._connection._last_frame_received_time = self.frames.pop(0)
        return True


async def poll_until(client: FalseClient, seconds: float) -> float:
    """When the poll was given up; ``seconds`` when it was not."""
    receiver = SimpleNamespace(_handler=client)
    leave_when_silent(receiver, lambda: client.now)
    while client.now < seconds:
        client.now += 1
        try:
            assert await client.do_work_async()
        except AMQPConnectionError:
            break
    return client.now


async def test_a_poll_is_given_up_when_nothing_has_come_for_the_time_that_was_asked_for() -> None:
    client = FalseClient()
    client.frames = [30.0, 55.0]

    assert await poll_until(client, 900) == 55 + SILENT_SECONDS


@pytest.mark.parametrize("pause", [30, SILENT_SECONDS * 7 / 8])
async def test_a_poll_goes_on_while_signs_of_life_come(pause: float) -> None:
    client = FalseClient()
    client.frames = [number * pause for number in range(1, 100)]

    assert await poll_until(client, 900) == 900


async def test_what_came_while_nobody_read_counts() -> None:
    client = FalseClient()
    leave_when_silent(SimpleNamespace(_handler=client), lambda: client.now)
    client.frames = [float(number) for number in range(30, 600, 30)]
    client.now = 600.0

    assert await client.do_work_async()


async def test_the_sdk_does_not_look_by_the_time_of_day() -> None:
    client = FalseClient()
    leave_when_silent(SimpleNamespace(_handler=client))

    assert client._connection._idle_timeout is None


def test_the_peer_is_asked_in_whole_milliseconds_as_amqp_has_them() -> None:
    receiver: Any = SimpleNamespace(_handler=None)

    def create(_: object) -> None:
        receiver._handler = FalseClient()

    receiver._create_handler = create
    ask_for_signs_of_life(receiver)
    receiver._create_handler(None)

    assert receiver._handler._idle_timeout * 1000 == 60_000
    assert isinstance(receiver._handler._idle_timeout * 1000, int)
