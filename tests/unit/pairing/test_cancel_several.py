"""Cancelling scheduled messages of several places with one call."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

from pairbus.pairing.errors import ScheduledMessageGoneError, SendAvailabilityError
from pairbus.pairing.scheduled import ParkedSchedule, tell_cancelled
from tests.unit.drain.virtual_loop import VirtualLoop
from tests.unit.pairing.fake_sdk import Bench, refuse, text

REFUSED = ServiceBusConnectionError(message="refused")


def parked(name: str) -> ParkedSchedule:
    return ParkedSchedule.make("p/x-servicebus-transfer/0", name, "client", len(name))


async def test_nothing_is_cancelled_when_the_primary_does_not_answer(loop: VirtualLoop) -> None:
    bench = Bench()
    client: Any = bench.paired()
    cancelled: list[str] = []

    async def cancel(handle: ParkedSchedule, *_: object) -> None:
        cancelled.append(handle.message_id)

    async def refused(*_given: object, **_options: object) -> None:
        raise ServiceBusConnectionError(message="refused")

    client._cancel_parked = cancel
    sender = client.get_queue_sender("orders")
    sender._primary_link().sender.cancel_scheduled_messages = refused
    with pytest.raises(ServiceBusConnectionError) as caught:
        await sender.cancel_scheduled_messages([parked("a"), 7])

    assert cancelled == []
    told: Any = caught.value
    assert str(told) == told.message == "refused. Of the others of this call, not tried: 'a'"
    assert (told.cancelled, told.not_tried) == ([], [parked("a")])
    await client.close()


async def test_the_error_of_one_names_those_that_were_cancelled_before(loop: VirtualLoop) -> None:
    client: Any = Bench().paired()

    async def cancel(handle: ParkedSchedule, *_: object) -> None:
        if handle.message_id == "gone":
            raise ScheduledMessageGoneError("it is gone")

    async def accepted(*_given: object, **_options: object) -> None: ...

    client._cancel_parked = cancel
    sender = client.get_queue_sender("orders")
    sender._primary_link().sender.cancel_scheduled_messages = accepted
    with pytest.raises(ScheduledMessageGoneError) as caught:
        await sender.cancel_scheduled_messages([parked("a"), 7, parked("gone"), parked("b")])

    text = "it is gone. Of the others of this call, cancelled before: 7, 'a'; not tried: 'b'"
    assert str(caught.value) == caught.value.message == text
    error: Any = caught.value
    assert (error.cancelled, error.not_tried) == ([7, parked("a")], [parked("b")])
    await client.close()


@pytest.mark.parametrize(
    "error",
    [
        ServiceBusConnectionError(message="refused."),
        OperationTimeoutError(message="refused"),
        SendAvailabilityError("refused"),
        TimeoutError("refused"),
    ],
)
def test_errors_of_every_kind_tell_what_was_cancelled(error: Exception) -> None:
    tell_cancelled(error, [parked(f"m{number}") for number in range(12)], [])

    assert str(error).startswith("refused. Of the others of this call, cancelled before: 'm0', 'm1', ")
    assert str(error).endswith("'m9' and 2 more")
    assert len(vars(error)["cancelled"]) == 12


def test_an_error_of_the_first_one_says_nothing_of_others() -> None:
    error: Any = SendAvailabilityError("refused")

    tell_cancelled(error, [], [])

    assert (str(error), error.cancelled, error.not_tried) == ("refused", [], [])


@pytest.mark.parametrize("handles", ["abc", b"abc", 1.5, None, ["abc"], [1, None]])
async def test_what_is_no_handle_is_named(loop: VirtualLoop, handles: Any) -> None:
    client = Bench().paired()
    with pytest.raises(TypeError, match="is no handle of a scheduled message: give the numbers"):
        await client.get_queue_sender("orders").cancel_scheduled_messages(handles)
    await client.close()


async def test_a_message_in_the_spool_of_another_client_is_said_to_be_there(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    benches = [Bench(spool=tmp_path), Bench(spool=tmp_path), Bench()]
    clients = [bench.paired() for bench in benches]
    for bench, client in zip(benches, clients, strict=True):
        bench.primary.answer = bench.secondary.answer = refuse(REFUSED)
        if client._spooling is not None:
            client._spooling.open()
    owner = clients[0].get_queue_sender("orders")
    (handle,) = await owner.schedule_messages(text(1), datetime.now(UTC) + timedelta(hours=1))
    assert isinstance(handle, ParkedSchedule)
    handle.has_other_copy = False
    for other in clients[1:]:
        with pytest.raises(SendAvailabilityError, match="of another client") as caught:
            await other.get_queue_sender("orders").cancel_scheduled_messages(handle)
        assert not isinstance(caught.value, ScheduledMessageGoneError)
        assert str(tmp_path / "0") in str(caught.value)

    await owner.cancel_scheduled_messages(handle)
    with pytest.raises(ScheduledMessageGoneError, match="any more"):
        await owner.cancel_scheduled_messages(handle)
    for client in clients:
        await client.close()
