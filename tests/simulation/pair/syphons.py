"""Syphons in the simulated world: the production plan and parking, with the pump's shell as generators."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from azure.servicebus import exceptions as sdk

from pairbus.drain.plan import BacklogMessage, DeadLetter, DrainPlan
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
        self.work: dict[str, list[BacklogMessage | DeadLetter]] = {queue: [] for queue in world.backlog}
        self.lines: set[str] = set()
        self.hands: list[BacklogMessage] = []
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
                for message in self.plan.renewals(queue, world.now):
                    yield from self.renew(queue, message)
                room = self.plan.capacity(queue, world.now)
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
        message = BacklogMessage(
            queue, number, restored.path, restored.payload, restored.message_id_text, restored.session_id,
            restored.partition_key, world.now + 60_000, token=lock,
            detour=(passport.factory, passport.detour, passport.first_send_ms),
        )  # fmt: skip
        if world.bug == "complete_before_send":
            world.checks.completing(message)
            yield Ask(
                world.secondary, lambda: world.secondary.queue(queue).settle(number, lock, world.now), 5_000
            )
        knows_copies = world.bug != "copies_not_known"
        if (knows_copies and self.plan.holds_copy(message)) or self.plan.should_skip(message, world.now):
            return
        if knows_copies and message.detour in self.home:
            self.work[queue].append(message)
            return
        refusal = self.plan.add(message)
        world.checks.placed(message, refusal)
        key = entity_key(message.path)
        if key not in self.lines:
            self.lines.add(key)
            world.spawn(self.send_line(key), self)

    def settle(self, queue: str) -> Work:
        """Complete or set aside what is done."""
        world = self.world
        while self.work[queue]:
            item = self.work[queue].pop(0)
            message = item.message if isinstance(item, DeadLetter) else item
            aside = item.reason if isinstance(item, DeadLetter) else None
            lock: Any = message.token
            if aside is None:
                world.checks.completing(message)
                self.hands.append(message)
            try:
                yield Ask(
                    world.secondary, partial(self._settle, queue, message.sequence_number, lock, aside), 5_000
                )
            except sdk.MessageLockLostError:
                world.checks.in_doubt_resend(message.message_id)
            except Exception:
                world.checks.in_doubt_resend(message.message_id)
                raise
            else:
                if aside is not None:
                    world.checks.dead_letter(message, aside)
            finally:
                if message in self.hands:
                    self.hands.remove(message)

    def renew(self, queue: str, message: BacklogMessage) -> Work:
        """Renew one lock."""
        world = self.world
        lock: Any = message.token
        try:
            message.locked_until_ms = yield Ask(
                world.secondary,
                lambda: world.secondary.queue(queue).renew(message.sequence_number, lock, world.now),
                5_000,
            )
        except sdk.MessageLockLostError:
            if message.is_in_flight:
                world.checks.in_doubt_resend(message.message_id)
            self.plan.lock_lost(message)
            message.locked_until_ms = world.now + 60_000

    def messages(self) -> list[BacklogMessage]:
        """Every message that may be home already: in flight, sent, or in its hands for settling."""
        held = [message for queue in self.work for message in self.plan._of(queue) if message.is_in_flight]
        work = [item for items in self.work.values() for item in items if isinstance(item, BacklogMessage)]
        return held + work + self.hands

    def send_line(self, key: str) -> Work:
        """Send the messages of one destination until there are none."""
        world = self.world
        while self.plan.is_waited_for(key):
            batch = self.plan.next_batch(key, world.now)
            if not batch:
                yield Sleep(50)
                continue
            payloads = [message.payload for message in batch]
            path = batch[0].path
            try:
                yield Ask(world.primary, partial(world.put, world.primary, path, payloads), 10_000)
            except Exception as error:  # noqa: BLE001 - every error is an answer to judge
                failure = classify(error)
                if failure in IN_DOUBT:
                    for message in batch:
                        world.checks.in_doubt_resend(message.message_id)
                for item in self.plan.send_failed(key, failure, str(error), world.now):
                    self.work[item.message.queue].append(item)
            else:
                for message in self.plan.send_accepted(key):
                    self.home.add(message.detour)
                    world.checks.acknowledged(message)
                    self.work[message.queue].append(message)
        self.lines.discard(key)
