"""Messages in doubt: sent by a run that was killed, or before a lock was lost. Asked about once, and not for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import TokenAuthFailure

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.ports import CannotAsk, NotSent
from pairbus.drain.rules import delivered
from pairbus.drain.rules.message import BacklogMessage
from pairbus.errors import DrainStalledError
from tests.unit.drain.shell_kit import Kit, run
from tests.unit.drain.virtual_loop import VirtualLoop

QUEUE = "p/x-servicebus-transfer/0"


def after_a_kill(directory: Path, count: int, *, enqueued_ms: int = 0) -> DoubtfulSends:
    """The ledger of a syphon that was killed with ``count`` messages on their way."""
    before = DoubtfulSends.open(directory, "p")
    before.begin([(QUEUE, number, f"m{number}", enqueued_ms) for number in range(count)], 0)
    before.close()
    return DoubtfulSends.open(directory, "p")


def sent(kit: Kit) -> Counter[int]:
    return Counter(number for _, numbers in kit.outlet.sent for number in numbers)


@pytest.mark.promise("P41")
def test_650_messages_in_doubt_take_one_question_a_batch(loop: VirtualLoop, tmp_path: Path) -> None:
    ledger = after_a_kill(tmp_path, 650)
    done_ms: list[int] = []

    async def work(kit: Kit) -> None:
        kit.outlet.ask_s = 0.3
        kit.outlet.known = {f"m{number}" for number in range(500)}
        for number in range(1_000):
            kit.inboxes[0].put(number)
        task = asyncio.ensure_future(kit.syphon.run())
        while len(kit.inboxes[0].completed) < 1_000:
            await asyncio.sleep(0.1)
            assert kit.loop.now_ms() < 60_000
        done_ms.append(kit.loop.now_ms())
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work, ledger)

    assert kit.outlet.questions <= 8, "one for each batch with messages in doubt"
    assert sent(kit) == Counter(range(500, 1_000))
    assert done_ms[0] < 5_000
    assert len(ledger) == 0


@pytest.mark.promise("P44")
@pytest.mark.parametrize("seconds", [4.0, 1.5])
def test_a_stop_does_not_wait_for_questions_sends_or_links(
    loop: VirtualLoop, tmp_path: Path, seconds: float
) -> None:
    ledger = after_a_kill(tmp_path, 300)

    async def work(kit: Kit) -> None:
        async def close() -> None:
            await asyncio.sleep(30)

        async def renew(messages: Sequence[BacklogMessage]) -> list[int | None]:
            await asyncio.sleep(10)
            return [kit.loop.now_ms() + 60_000] * len(messages)

        kit.outlet.ask_s = 3_600.0
        kit.outlet.slow_s = 3_600.0
        for inbox in kit.inboxes:
            inbox.close = close  # type: ignore[method-assign]
        kit.inboxes[1].renew = renew  # type: ignore[method-assign]
        kit.inboxes[1].lock_ms = 5_000
        for number in range(300):
            kit.inboxes[0].put(number)
            kit.inboxes[1].put(1_000 + number, "events")
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(3)
        begun = kit.loop.now_ms()
        kit.syphon.stop(seconds)
        await task
        assert kit.loop.now_ms() - begun <= seconds * 1000 * 1.5
        assert len([task for task in asyncio.all_tasks() if not task.done()]) == 1, "no task is left"

    kit = run(loop, 2, work, ledger)

    assert len(kit.inboxes[0].given_back) == 300, "what was only asked about goes back at once"
    assert kit.inboxes[0].completed == []


def test_a_stop_sends_nothing_new(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.slow_s = 1.0
        for number in range(300):
            kit.inboxes[0].put(number)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(0.5)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work)

    assert sum(sent(kit).values()) == 100, "the batch that was on its way"
    assert len(kit.inboxes[0].completed) == 100
    assert len(kit.inboxes[0].given_back) == 200


def test_a_destination_that_does_not_show_its_messages_gets_them_again(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    ledger = after_a_kill(tmp_path, 10)

    async def work(kit: Kit) -> None:
        kit.outlet.ask_answer = lambda path: CannotAsk()
        for number in range(10):
            kit.inboxes[0].put(number)
        await kit.run_for(5)

    kit = run(loop, 1, work, ledger)

    assert sent(kit) == Counter(range(10))


def test_a_question_that_the_outage_swallowed_is_asked_again(loop: VirtualLoop, tmp_path: Path) -> None:
    ledger = after_a_kill(tmp_path, 10)

    async def work(kit: Kit) -> None:
        def gone(path: str) -> BaseException | None:
            return sdk.ServiceBusConnectionError() if kit.loop.now_ms() < 120_000 else None

        kit.outlet.ask_answer = gone
        kit.outlet.known = {f"m{number}" for number in range(10)}
        for number in range(10):
            kit.inboxes[0].put(number)
        await kit.run_for(140)

    kit = run(loop, 1, work, ledger)

    assert sent(kit) == Counter()
    assert sorted(kit.inboxes[0].completed) == list(range(10))
    assert kit.outlet.questions < 60, "with back-off"


def test_a_destination_that_never_answers_questions_is_not_asked_for_ever(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    ledger = after_a_kill(tmp_path, 10)

    async def work(kit: Kit) -> None:
        kit.outlet.ask_answer = lambda path: sdk.OperationTimeoutError()
        for number in range(10):
            kit.inboxes[0].put(number)
        await kit.run_for(60)

    kit = run(loop, 1, work, ledger)

    assert sent(kit) == Counter(range(10))
    assert sorted(kit.inboxes[0].completed) == list(range(10))


@pytest.mark.promise("P36")
def test_messages_of_the_retired_sdk_do_not_multiply_when_locks_are_lost(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        inbox = kit.inboxes[0]
        inbox.lock_ms = 5_000
        kit.outlet.slow_s = 12.0  # longer than a lock

        async def lose(messages: Sequence[BacklogMessage]) -> list[int | None]:
            return [None] * len(messages)

        inbox.renew = lose  # type: ignore[method-assign]
        for number in range(30):
            inbox.put_legacy(number)
        await kit.run_for(300)

    kit = run(loop, 1, work, locking=True)

    assert sent(kit) == Counter(range(30)), "each once, though every lock was lost after the send"
    assert sorted(kit.inboxes[0].completed) == list(range(30))


@pytest.mark.promise("P40")
def test_the_ledger_keeps_a_message_whose_lock_was_lost_after_the_send_for_the_next_run(
    loop: VirtualLoop, tmp_path: Path
) -> None:
    async def first(kit: Kit) -> None:
        kit.inboxes[0].loses_locks = True
        kit.inboxes[0].put(1)
        kit.inboxes[0].put_legacy(2)
        await kit.run_for(2)

    async def second(kit: Kit) -> None:
        kit.outlet.known = {"m1", "m2"}
        kit.inboxes[0].put(1)
        kit.inboxes[0].put_legacy(2)
        await kit.run_for(2)

    ledger = DoubtfulSends.open(tmp_path, "p")
    one = run(loop, 1, first, ledger)
    ledger.close()
    loop.offset = 0.0  # the messages came into the backlog at the same time as before
    ledger = DoubtfulSends.open(tmp_path, "p")
    two = run(loop, 1, second, ledger)

    assert sent(one) == Counter([1, 2])
    assert one.counters.possible_duplicates == 2
    assert sent(two) == Counter(), "the destination was asked and has both"
    assert sorted(two.inboxes[0].completed) == [1, 2]
    assert len(ledger) == 0


@pytest.mark.promise("P36")
@pytest.mark.parametrize(
    ("error", "is_in_doubt"),
    [
        (sdk.OperationTimeoutError(message="no answer"), True),
        (sdk.ServiceBusConnectionError(message="cut off"), True),
        (ConnectionResetError("reset by peer"), True),
        (sdk.ServiceBusError("internal error"), True),
        (sdk.ServiceBusServerBusyError(message="throttled"), False),
        (sdk.MessagingEntityDisabledError(message="disabled"), False),
    ],
)
def test_a_send_without_an_answer_is_asked_about_by_the_next_run_and_a_refused_one_is_sent(
    loop: VirtualLoop, tmp_path: Path, error: Exception, is_in_doubt: bool
) -> None:
    async def first(kit: Kit) -> None:
        kit.outlet.answer = lambda _path, _messages: error
        kit.inboxes[0].put(1)
        await kit.run_for(2)

    async def second(kit: Kit) -> None:
        kit.outlet.known = {"m1"}
        kit.inboxes[0].put(1)
        await kit.run_for(2)

    ledger = DoubtfulSends.open(tmp_path, "p")
    run(loop, 1, first, ledger)
    ledger.close()
    loop.offset = 0.0  # the message came into the backlog at the same time as before
    two = run(loop, 1, second, DoubtfulSends.open(tmp_path, "p"))

    assert (two.outlet.questions, sent(two)[1]) == ((1, 0) if is_in_doubt else (0, 1))
    assert two.inboxes[0].completed == [1]


@pytest.mark.promise("P36")
def test_a_lock_lost_after_the_send_is_remembered_beyond_what_memory_holds(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The in-memory list of acknowledged messages is bounded; behind it the ledger still knows, and asks."""
    monkeypatch.setattr(delivered, "DELIVERED_MAX", 0)

    async def work(kit: Kit) -> None:
        inbox = kit.inboxes[0]
        inbox.loses_locks = True
        inbox.put(1)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(2)
        inbox.loses_locks = False
        kit.outlet.known = {"m1"}
        inbox.waiting.append(inbox.delivery_at(1, 0))
        inbox.interrupt()
        await asyncio.sleep(2)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work)

    assert sent(kit) == Counter([1])
    assert kit.outlet.questions == 1


@pytest.mark.promise("P1")
@pytest.mark.parametrize(
    ("message_id", "enqueued_ms"), [("m0", 77), ("another", 0)], ids=["made-again", "another-message"]
)
def test_a_ledger_of_a_queue_that_was_made_again_does_not_claim_its_new_messages(
    loop: VirtualLoop, tmp_path: Path, message_id: str, enqueued_ms: int
) -> None:
    """Sequence numbers start again, and so they do in another namespace of that name."""
    before = DoubtfulSends.open(tmp_path, "p")
    before.begin([(QUEUE, 0, message_id, enqueued_ms)], 0)
    before.close()
    ledger = DoubtfulSends.open(tmp_path, "p")

    async def work(kit: Kit) -> None:
        kit.outlet.known = {"m0"}
        kit.inboxes[0].put(0)
        await kit.run_for(2)

    kit = run(loop, 1, work, ledger)

    assert sent(kit) == Counter([0])
    assert kit.outlet.questions == 0
    assert len(ledger) == 0


def test_a_ledger_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "p-0.ledger").write_text('["+","q",1,"a"]\n["+","q",2,"b"]\n["-","q",2]\n["+","q",3,"c"')
    ledger = DoubtfulSends.open(tmp_path, "p")

    assert len(ledger) == 1
    assert ledger.doubt(("q", 1), "a", 5) is not None
    assert ledger.doubt(("q", 3), "c", 5) is None


def test_a_ledger_does_not_grow_with_what_it_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.drain.in_doubt.COMPACT_BYTES", 10_000)
    ledger = DoubtfulSends.open(tmp_path, "p")
    ledger.begin([("q", 0, "stays", 1)], 0)
    for number in range(1, 2_000):
        ledger.begin([("q", number, "m", 1)], 0)
        ledger.end([("q", number)])
    ledger.close()

    assert (tmp_path / "p-0.ledger").stat().st_size < 12_000
    again = DoubtfulSends.open(tmp_path, "p")
    assert again.ids() == {"stays"}
    again.close()


# --- a drain that should end ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "seconds", "words"),
    [
        (sdk.ServiceBusConnectionError(), 35, ["orders", "is the namespace running"]),
        (sdk.ServiceBusAuthorizationError(), 15, ["orders", "unauthorized", "check the key"]),
        (sdk.MessagingEntityDisabledError(), 35, ["orders", "disabled", "enable the entity"]),
    ],
    ids=["down", "key", "disabled"],
)
def test_a_drain_that_should_end_gives_up_with_the_reason(
    loop: VirtualLoop, error: BaseException, seconds: int, words: Sequence[str]
) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.answer = lambda path, messages: error if path == "orders" else None
        kit.inboxes[0].put(1)
        kit.inboxes[0].put(2, "events")
        with pytest.raises(DrainStalledError) as raised:
            await kit.syphon.run(once=True)
        assert all(word in str(raised.value) for word in words), str(raised.value)
        assert kit.loop.now_ms() < (seconds + 5) * 1000

    kit = run(loop, 1, work)

    assert kit.inboxes[0].completed == [2]
    assert kit.inboxes[0].given_back == ["t1"]
    assert [kind for kind, _ in kit.events if kind == "unavailable"] == ["unavailable"], (
        "reported once, at once"
    )


def test_a_drain_that_should_end_gives_up_when_its_backlog_queue_cannot_be_read(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        async def receive(count: int, seconds: float) -> list[object]:
            raise sdk.MessagingEntityNotFoundError(message="no such queue")

        kit.inboxes[0].receive = receive  # type: ignore[method-assign,assignment]
        with pytest.raises(DrainStalledError, match="transfer/0"):
            await kit.syphon.run(once=True)
        assert kit.loop.now_ms() < 40_000

    run(loop, 1, work)


def test_a_backlog_queue_that_is_gone_is_called_so_and_tried_again_once_a_minute(
    loop: VirtualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """The official SDK says "authentication error" where the request for a token is answered with 404."""
    attempts = 0

    async def work(kit: Kit) -> None:
        async def receive(count: int, seconds: float) -> list[object]:
            nonlocal attempts
            attempts += 1
            refusal = TokenAuthFailure(404, b"could not be found")  # type: ignore[no-untyped-call]
            raise sdk.ServiceBusAuthenticationError(error=refusal)

        kit.inboxes[0].receive = receive  # type: ignore[method-assign,assignment]
        await kit.run_for(1_200)
        problem = kit.syphon.problems()[0].sentence()
        assert "entity not found" in problem
        assert "creates its backlog queues" in problem
        assert "key" not in problem

    run(loop, 1, work)

    assert attempts < 9 + 1_200 / 60, "the pauses grow to a minute"
    lines = [record.getMessage() for record in caplog.records if record.name == "pairbus.syphon"]
    assert lines
    assert all("MessagingEntityNotFoundError: status 404" in line for line in lines), lines[-1]


def test_a_drain_that_should_end_goes_on_while_something_moves(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.slow_s = 20.0
        for number in range(300):
            kit.inboxes[0].put(number)
        await kit.syphon.run(once=True)

    kit = run(loop, 1, work)

    assert len(kit.inboxes[0].completed) == 300


def test_a_continuous_drain_says_what_is_wrong_and_goes_on(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        kit.outlet.answer = lambda path, messages: (
            sdk.ServiceBusConnectionError() if kit.loop.now_ms() < 600_000 else None
        )
        kit.inboxes[0].put(1)
        await kit.run_for(620)

    kit = run(loop, 1, work)

    assert kit.inboxes[0].completed == [1]
    assert [kind for kind, subject in kit.events if subject == "orders"] == ["unavailable", "available"]


@pytest.mark.promise("P45")
def test_a_send_that_never_left_is_not_in_doubt(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        def answer(path: str, messages: Sequence[BacklogMessage]) -> BaseException | None:
            if kit.loop.now_ms() > 60_000:
                return None
            error = NotSent()
            error.__cause__ = sdk.ServiceBusConnectionError()
            return error

        kit.outlet.answer = answer
        for number in range(50):
            kit.inboxes[0].put(number)
        task = asyncio.ensure_future(kit.syphon.run())
        await asyncio.sleep(30)
        assert (kit.counters.in_doubt, len(kit.ledger)) == (0, 0)
        await asyncio.sleep(60)
        kit.syphon.stop()
        await task

    kit = run(loop, 1, work)

    assert kit.counters.in_doubt == 0
    assert sent(kit) == Counter(range(50))


def test_a_send_that_never_left_does_not_end_the_doubt_about_the_one_before(loop: VirtualLoop) -> None:
    async def work(kit: Kit) -> None:
        def answer(path: str, messages: Sequence[BacklogMessage]) -> BaseException | None:
            if kit.counters.in_doubt == 0:
                return sdk.ServiceBusConnectionError()
            error = NotSent()
            error.__cause__ = sdk.ServiceBusConnectionError()
            return error

        kit.outlet.answer = answer
        kit.inboxes[0].put(1)
        await kit.run_for(20)

    kit = run(loop, 1, work)

    assert kit.counters.in_doubt == 1
    assert len(kit.ledger) == 1
