"""Syphons in the simulated world: the production plan and parking, with the pump's shell as generators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from azure.servicebus import exceptions as sdk

from pairbus.drain.plan import DrainPlan, Letter, SetAside
from pairbus.errors import InvalidParkedPropertyError
from pairbus.pairing import parking
from pairbus.pairing.naming import entity_key
from pairbus.sdk.failures import IN_DOUBT, classify
from tests.simulation.pair.model import Stored
from tests.simulation.pair.work import Ask, Sleep, Work

if TYPE_CHECKING:
    from tests.simulation.pair.world import World


class SimSyphon:
    """One syphon: the production plan with shells as generators."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"y{number}"
        self.plan = DrainPlan(window=50, ready_max=20)
        self.work: dict[str, list[Letter | SetAside]] = {queue: [] for queue in world.backlog}
        self.lines: set[str] = set()
        self.hands: list[Letter] = []
        self.home: set[tuple[str, int, int] | None] = set()
        for queue in world.backlog:
            world.spawn(self.pump(queue), self)

    def pump(self, queue: str) -> Work:
        """Receive and settle one backlog queue."""
        world = self.world
        model = world.secondary
        while True:
            try:
                yield from self.settle(queue)
                for letter in self.plan.renewals(queue, world.now):
                    yield from self.renew(queue, letter)
                room = self.plan.room(queue, world.now)
                if not room:
                    yield Sleep(50)
                    continue
                taken = yield Ask(model, partial(self._receive, queue, min(room, 10)), 5_000)
                for stored, lock in taken:
                    yield from self.take(queue, stored.number, lock, stored.payload)
                if not taken:
                    yield Sleep(world.random.randrange(50, 400))
            except Exception:  # noqa: BLE001 - as the real pump: give up the locks, wait, go on
                self.plan.drop_queue(queue)
                yield Sleep(250)

    def _receive(self, queue: str, count: int) -> list[tuple[Stored, int]]:
        return self.world.secondary.queue(queue).receive(count, self.world.now)

    def _settle(self, queue: str, number: int, lock: int, aside: str | None) -> None:
        self.world.secondary.queue(queue).settle(number, lock, self.world.now, aside=aside)

    def take(self, queue: str, number: int, lock: int, payload: bytes) -> Work:
        """Restore one message and put it in line."""
        world = self.world
        try:
            restored = parking.restore(payload, world.now)
        except InvalidParkedPropertyError:
            yield Ask(
                world.secondary, partial(self._settle, queue, number, lock, "InvalidParkedProperty"), 5_000
            )
            return
        assert restored.passport is not None
        passport = restored.passport
        letter = Letter(
            queue, number, restored.path, restored.payload, restored.message_id_text, restored.session_id,
            restored.partition_key, world.now + 60_000, token=lock,
            detour=(passport.factory, passport.detour, passport.first_send_ms),
        )  # fmt: skip
        if world.bug == "complete_before_send":
            world.checks.completing(letter)
            yield Ask(
                world.secondary, lambda: world.secondary.queue(queue).settle(number, lock, world.now), 5_000
            )
        knows_copies = world.bug != "copies_not_known"
        if (knows_copies and self.plan.holds_copy(letter)) or self.plan.passes_over(letter, world.now):
            return
        if knows_copies and letter.detour in self.home:
            self.work[queue].append(letter)
            return
        refusal = self.plan.received(letter)
        world.checks.placed(letter, refusal)
        key = entity_key(letter.path)
        if key not in self.lines:
            self.lines.add(key)
            world.spawn(self.send_line(key), self)

    def settle(self, queue: str) -> Work:
        """Complete or set aside what is done."""
        world = self.world
        while self.work[queue]:
            item = self.work[queue].pop(0)
            letter = item.letter if isinstance(item, SetAside) else item
            aside = item.reason if isinstance(item, SetAside) else None
            lock: Any = letter.token
            if aside is None:
                world.checks.completing(letter)
                self.hands.append(letter)
            try:
                yield Ask(
                    world.secondary, partial(self._settle, queue, letter.sequence_number, lock, aside), 5_000
                )
            except sdk.MessageLockLostError:
                world.checks.in_doubt_resend(letter.message_id)
            except Exception:
                world.checks.in_doubt_resend(letter.message_id)
                raise
            else:
                if aside is not None:
                    world.checks.set_aside(letter, aside)
            finally:
                if letter in self.hands:
                    self.hands.remove(letter)

    def renew(self, queue: str, letter: Letter) -> Work:
        """Renew one lock."""
        world = self.world
        lock: Any = letter.token
        try:
            letter.locked_until_ms = yield Ask(
                world.secondary,
                lambda: world.secondary.queue(queue).renew(letter.sequence_number, lock, world.now),
                5_000,
            )
        except sdk.MessageLockLostError:
            if letter.is_in_flight:
                world.checks.in_doubt_resend(letter.message_id)
            self.plan.lock_lost(letter)
            letter.locked_until_ms = world.now + 60_000

    def letters(self) -> list[Letter]:
        """Every letter that may be home already: in flight, sent, or in its hands for settling."""
        held = [letter for queue in self.work for letter in self.plan._of(queue) if letter.is_in_flight]
        work = [item for items in self.work.values() for item in items if isinstance(item, Letter)]
        return held + work + self.hands

    def send_line(self, key: str) -> Work:
        """Send the letters of one destination until there are none."""
        world = self.world
        while key in self.plan.lines():
            batch = self.plan.next_batch(key, world.now)
            if not batch:
                yield Sleep(50)
                continue
            payloads = [letter.payload for letter in batch]
            path = batch[0].path
            try:
                yield Ask(world.primary, partial(world.put, world.primary, path, payloads), 10_000)
            except Exception as error:  # noqa: BLE001 - every error is an answer to judge
                failure = classify(error)
                if failure in IN_DOUBT:
                    for letter in batch:
                        world.checks.in_doubt_resend(letter.message_id)
                for item in self.plan.send_failed(key, failure, str(error), world.now):
                    self.work[item.letter.queue].append(item)
            else:
                for letter in self.plan.sent(key):
                    self.home.add(letter.detour)
                    world.checks.acknowledged(letter)
                    self.work[letter.queue].append(letter)
        self.lines.discard(key)
