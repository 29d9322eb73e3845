"""A syphon on a false clock with a false inbox and outlet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from pairbus.drain.in_doubt import DoubtfulSends
from pairbus.drain.ports import Delivery, Observer
from pairbus.drain.rules.message import BacklogMessage
from pairbus.drain.rules.order import Seen
from pairbus.drain.rules.plan import DrainPlan
from pairbus.drain.shell import Drain
from pairbus.pairing import parking
from pairbus.pairing.parking import Passport
from pairbus.pairing.statistics import Counters
from pairbus.sdk.messages import sections
from tests.payloads import seen_of
from tests.simulation.pair.model import original
from tests.unit.drain.virtual_loop import VirtualLoop


class FakeInbox:
    """A backlog queue in memory."""

    def __init__(self, queue: str, loop: VirtualLoop) -> None:
        self.queue = queue
        self.loop = loop
        self.waiting: list[Delivery] = []
        self.completed: list[int] = []
        self.aside: dict[object, str] = {}
        self.given_back: list[object] = []
        self.renewed = 0
        self.renewals = 0
        self.loses_locks = False
        self.on_renew: Callable[[], None] = lambda: None
        self.lock_ms = 60_000
        self.is_taken: Callable[[BacklogMessage], bool] = lambda message: True
        self.withdrawn: set[str] = set()
        self.broken: list[str] = []
        self.browsed = 0
        self._out: dict[object, Delivery] = {}
        self.on_browse: Callable[[str], None] = lambda queue: None
        self.others: dict[str, FakeInbox] = {}
        self.deferred: set[int] = set()
        """Messages that browsing shows and no receive brings, but one by their numbers."""
        self._interrupted = asyncio.Event()

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        self._interrupted.clear()  # as with the official client: what came before the poll does not end it
        if not self.waiting:
            try:
                async with asyncio.timeout(seconds):
                    await self._interrupted.wait()
            except TimeoutError:
                pass
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self._out |= {delivery.token: delivery for delivery in taken}
        return taken

    def interrupt(self) -> None:
        self._interrupted.set()

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        self.broken += [
            f"P34: message {message.sequence_number} is completed before the primary has it"
            for message in messages
            if not self.is_taken(message) and message.message_id not in self.withdrawn
        ]
        done = [message for message in messages if self.holds_lock(message)]
        self.completed += [message.sequence_number for message in done]
        return done

    async def cancel(self, message: BacklogMessage) -> bool:
        return bool(await self.complete([message]))

    def holds_lock(self, message: BacklogMessage) -> bool:
        return not self.loses_locks

    async def dead_letter(self, token: object, reason: str, description: str) -> None:
        self.aside[token] = reason

    async def release(self, tokens: Sequence[object]) -> None:
        self.given_back += tokens
        for token in tokens:
            self.unlock(token)

    def unlock(self, token: object) -> None:
        delivery = self._out.pop(token, None)
        if delivery is not None:
            until = self.loop.now_ms() + self.lock_ms
            self.waiting.append(replace(delivery, locked_until_ms=until, attempt=delivery.attempt + 1))
            self.waiting.sort(key=lambda one: one.sequence_number)

    async def renew(self, messages: Sequence[BacklogMessage]) -> Sequence[int | None]:
        self.renewals += 1
        await asyncio.sleep(0)
        return [self.renewed_until(message) for message in messages]

    def renewed_until(self, message: BacklogMessage) -> int | None:
        self.renewed += 1
        self.on_renew()
        return self.loop.now_ms() + self.lock_ms

    async def browse(self, number: int, count: int, queue: str | None = None) -> Sequence[Seen]:
        self.browsed += 1
        self.on_browse(self.queue if queue is None else queue)
        inbox = self if queue is None else self.others[queue]
        there = [one for one in inbox.all_there() if one.sequence_number >= number][:count]
        seen = [seen_of(one.sequence_number, one.payload, one.enqueued_ms) for one in there]
        return [
            replace(
                one,
                is_active=one.sequence_number not in self.deferred,
                is_deferred=one.sequence_number in self.deferred,
            )
            for one in seen
        ]

    async def receive_deferred(self, numbers: Sequence[int]) -> Sequence[Delivery]:
        return []

    def all_there(self) -> list[Delivery]:
        return self.waiting

    async def close(self) -> None:
        return

    def put(self, number: int, path: str = "orders", *, detour: int = 0, parked_ms: int = 0) -> None:
        payload = parking.park(
            original(number, None, has_alias_name=False, has_life=True),
            path,
            Passport("f", parked_ms, detour or number + 1, "r"),
        )
        self.waiting.append(self.delivery(number, payload))

    def put_legacy(self, number: int, path: str = "orders") -> None:
        """A message as the retired SDK parked it: without a passport."""
        self.waiting.append(self.delivery(number, legacy(number, path)))

    def delivery_at(self, number: int, enqueued_ms: int) -> Delivery:
        """A message that came into the backlog at a given time, delivered once more."""
        self.put(number)
        return replace(self.waiting.pop(), enqueued_ms=enqueued_ms)

    def delivery(self, number: int, payload: bytes) -> Delivery:
        now = self.loop.now_ms()
        return Delivery(number, payload, now + self.lock_ms, now, f"t{number}")


def legacy(number: int, path: str = "orders") -> bytes:
    """A backlog message without a passport."""
    parts = sections.split(original(number, None, has_alias_name=False, has_life=False))
    items = sections.map_items(sections.find(parts, sections.APPLICATION_PROPERTIES))
    items.append((sections.encode_text(parking.ALIAS_PATH), sections.encode_text(path)))
    return sections.join(sections.replace(parts, sections.APPLICATION_PROPERTIES, sections.encode_map(items)))


class LockingInbox(FakeInbox):
    """A backlog queue whose locks lapse: what is not settled comes again, in its order."""

    def __init__(self, queue: str, loop: VirtualLoop) -> None:
        super().__init__(queue, loop)
        self.stored: dict[int, tuple[Delivery, int]] = {}

    def put(self, number: int, path: str = "orders", *, detour: int = 0, parked_ms: int = 0) -> None:
        super().put(number, path, detour=detour, parked_ms=parked_ms)
        self.stored[number] = (self.waiting.pop(), 0)

    def put_legacy(self, number: int, path: str = "orders") -> None:
        super().put_legacy(number, path)
        self.stored[number] = (self.waiting.pop(), 0)

    async def receive(self, count: int, seconds: float) -> Sequence[Delivery]:
        self._interrupted.clear()
        until = self.loop.now_ms() + int(seconds * 1000)
        while not (taken := self._lock(count)) and self.loop.now_ms() < until:
            lapses = [locked for number, (_, locked) in self.stored.items() if number not in self.deferred]
            wait_ms = max(1, min([until, *lapses]) - self.loop.now_ms())
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._interrupted.wait()
            except TimeoutError:
                continue
            break
        return taken

    def all_there(self) -> list[Delivery]:
        return [delivery for _, (delivery, _) in sorted(self.stored.items())]

    def _lock(self, count: int) -> list[Delivery]:
        return self._locked([number for number in sorted(self.stored) if number not in self.deferred], count)

    async def receive_deferred(self, numbers: Sequence[int]) -> Sequence[Delivery]:
        return self._locked([number for number in numbers if number in self.deferred], len(numbers))

    def _locked(self, numbers: Sequence[int], count: int) -> list[Delivery]:
        now = self.loop.now_ms()
        free = [number for number in numbers if number in self.stored and self.stored[number][1] <= now]
        taken = []
        for number in free[:count]:
            delivery = replace(self.stored[number][0], locked_until_ms=now + self.lock_ms)
            self.stored[number] = (delivery, now + self.lock_ms)
            taken.append(delivery)
        return taken

    async def complete(self, messages: Sequence[BacklogMessage]) -> Sequence[BacklogMessage]:
        done = await super().complete(messages)
        for message in done:
            del self.stored[message.sequence_number]
        return done

    async def dead_letter(self, token: object, reason: str, description: str) -> None:
        await super().dead_letter(token, reason, description)
        self.stored = {number: one for number, one in self.stored.items() if one[0].token != token}

    def holds_lock(self, message: BacklogMessage) -> bool:
        return self.stored.get(message.sequence_number, (None, 0))[1] > self.loop.now_ms()

    def unlock(self, token: object) -> None:
        for number, (delivery, _) in self.stored.items():
            if delivery.token == token:
                self.stored[number] = (delivery, 0)

    def renewed_until(self, message: BacklogMessage) -> int | None:
        if not self.holds_lock(message):
            return None
        until = super().renewed_until(message)
        assert until is not None
        self.stored[message.sequence_number] = (self.stored[message.sequence_number][0], until)
        return until


class FakeOutlet:
    """A primary that answers as a test asks it to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[int]]] = []
        self.answer: Callable[[str, Sequence[BacklogMessage]], BaseException | None] = lambda path, messages: (
            None
        )
        self.known: set[str] = set()
        self.slow_s = 0.0
        self.ask_s = 0.0
        self.questions = 0
        self.ask_answer: Callable[[str], BaseException | None] = lambda path: None

    async def send(self, path: str, messages: Sequence[BacklogMessage]) -> None:
        if self.slow_s:
            await asyncio.sleep(self.slow_s)
        error = self.answer(path, messages)
        if error is not None:
            raise error
        self.sent.append((path, [message.sequence_number for message in messages]))

    async def already_delivered(
        self, path: str, messages: Sequence[BacklogMessage], ids: frozenset[str]
    ) -> Sequence[BacklogMessage]:
        self.questions += 1
        if self.ask_s:
            await asyncio.sleep(self.ask_s)
        error = self.ask_answer(path)
        if error is not None:
            raise error
        assert {message.message_id for message in messages} <= ids
        return [message for message in messages if message.message_id in self.known]

    async def close(self) -> None:
        return


class Witness:
    """Stands between a syphon and its outlet and knows what the primary has acknowledged."""

    def __init__(self, outlet: FakeOutlet) -> None:
        self._outlet = outlet
        self._taken: set[object] = set()

    async def send(self, path: str, messages: Sequence[BacklogMessage]) -> None:
        await self._outlet.send(path, messages)
        self._taken |= {message.identity for message in messages}

    async def already_delivered(
        self, path: str, messages: Sequence[BacklogMessage], ids: frozenset[str]
    ) -> Sequence[BacklogMessage]:
        found = await self._outlet.already_delivered(path, messages, ids)
        self._taken |= {message.identity for message in found}
        return found

    async def close(self) -> None:
        await self._outlet.close()

    def has(self, message: BacklogMessage) -> bool:
        return message.identity in self._taken


class Events(Observer):
    """Notes what begins and ends to fail."""

    def __init__(self, events: list[tuple[str, str]]) -> None:
        self._events = events

    def unavailable(self, subject: str, sentence: str) -> None:
        self._events.append(("unavailable", subject))

    def order_given_up(self, message: BacklogMessage, sentence: str) -> None:
        self._events.append(("order given up", sentence))

    def dead_lettered(self, message: BacklogMessage, reason: str, description: str) -> None:
        if message.is_ordered:
            self._events.append(("set aside", f"{reason}: {description.rpartition('; ')[2]}"))

    def available(self, subject: str) -> None:
        self._events.append(("available", subject))


class Kit:
    """A syphon and what surrounds it."""

    def __init__(self, loop: VirtualLoop, queues: int, ledger: DoubtfulSends, **options: object) -> None:
        self.loop = loop
        self.counters = Counters()
        self.outlet = FakeOutlet()
        kind = LockingInbox if options.get("locking") else FakeInbox
        self.inboxes = [kind(f"p/x-servicebus-transfer/{index}", loop) for index in range(queues)]
        self.ledger = ledger
        self.events: list[tuple[str, str]] = []
        witness = Witness(self.outlet)
        for inbox in self.inboxes:
            inbox.is_taken = witness.has
            inbox.others = {one.queue: one for one in self.inboxes}
        self.syphon = Drain(
            self.inboxes,
            witness,
            plan=DrainPlan(**({"window": options["window"]} if "window" in options else {})),  # type: ignore[arg-type]
            doubts=ledger,
            counters=self.counters,
            clock=loop.now_ms,
            wall_clock=loop.now_ms,
            time_to_live="deduct" if options.get("deduct") else "freeze",
            observer=Events(self.events),
        )

    def check(self) -> None:
        """What holds whatever else a test looks at.

        No message is completed before the primary has acknowledged it, and each that left the backlog is counted in one
        place (P45).
        """
        assert [claim for inbox in self.inboxes for claim in inbox.broken] == []
        count = self.counters
        counted = count.restored + count.set_aside + count.repeats_dropped + count.cancelled
        assert counted == sum(len(inbox.completed) + len(inbox.aside) for inbox in self.inboxes)

    async def run_for(self, seconds: float) -> None:
        task = asyncio.ensure_future(self.syphon.run())
        await asyncio.sleep(seconds)
        self.syphon.stop()
        await task


def run(
    loop: VirtualLoop,
    queues: int,
    work: Callable[[Kit], object],
    ledger: DoubtfulSends | None = None,
    **options: object,
) -> Kit:
    async def main() -> Kit:
        kit = Kit(loop, queues, DoubtfulSends() if ledger is None else ledger, **options)
        result = work(kit)
        if asyncio.iscoroutine(result):
            await result
        kit.check()
        return kit

    return loop.run_until_complete(main())
