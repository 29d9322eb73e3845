"""Whoever works in transactions in a simulated world: takes a message, sends what follows from it, completes it, all at once (B14).

Each attempt's messages have names of their own, so the ledger sees which attempts came true: of every message exactly one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.states import ACCEPTED_CODE, STATE_ACCEPTED, encode_transactional
from pairbus.amqp.types import Described, ULong
from tests.simulation.broker.checkers import FAILED, OK, PENDING, UNKNOWN, Attempt, Sent
from tests.simulation.broker.consumers import Consumer
from tests.simulation.wire import declared_txn_id

if TYPE_CHECKING:
    from pairbus.amqp.states import Outcome
    from tests.simulation.broker.scene import Scene
    from tests.simulation.wire import ClientReceiver, ClientSender, ClientSession, Delivery

DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
THINK_MS: Final = (0, 5, 200, 2_500, 7_000)
"""How long a transaction stays open; the longest outlives the lock on its message."""


class Transactor(Consumer):
    """Receives from ``path`` and sends to ``target``, in transactions."""

    def __init__(self, world: Scene, name: str, path: str, target: str) -> None:
        super().__init__(world, name, path)
        self._target = target
        self._controller: ClientSender | None = None
        self._sender: ClientSender | None = None
        self._declaring: dict[int, tuple[ClientReceiver, Delivery, str]] = {}
        self._open: dict[bytes, Attempt] = {}
        self._discharging: dict[int, Attempt] = {}

    @property
    def is_finished(self) -> bool:
        """Nothing is half done."""
        return not self._declaring and not self._open and not self._discharging

    @property
    def can_defer(self) -> bool:
        """See Consumer."""
        return False

    def attach(self, session: ClientSession) -> None:
        """See Client."""
        super().attach(session)
        self._controller = session.sender(None, coordinator=True)
        self._sender = session.sender(self._target)

    def settle(self, receiver: ClientReceiver, delivery: Delivery, uid: str) -> None:
        """See Consumer: begin a transaction for it."""
        controller = self._controller
        if receiver.detached or controller is None:
            return
        if not controller.is_attached:
            self.later(50, self.settle, receiver, delivery, uid)
            return
        body = Described(ULong(DECLARE), [None])
        self._declaring[controller.send(encode_message(body=body))] = (receiver, delivery, uid)

    def react(self) -> None:
        """See Client."""
        super().react()
        controller = self._controller
        if controller is None:
            return
        for delivery_id in [one for one in self._declaring if one in controller.outcomes]:
            self._declared(controller.outcomes.pop(delivery_id), *self._declaring.pop(delivery_id))
        for delivery_id in [one for one in self._discharging if one in controller.outcomes]:
            self._discharged(controller.outcomes.pop(delivery_id), self._discharging.pop(delivery_id))

    def _declared(self, outcome: Outcome, receiver: ClientReceiver, delivery: Delivery, uid: str) -> None:
        sender, world = self._sender, self.world
        if outcome.txn_id is None or sender is None or receiver.detached:
            return  # its lock will expire
        txn_id = declared_txn_id(outcome)
        attempt = world.ledger.attempt(self.copy_path, uid, world.next_emission())
        self._open[txn_id] = attempt
        steps = ["settle"] + ["send"] * world.chance.choice((1, 2, 3))
        world.chance.shuffle(steps)
        for step in steps:
            if step == "send":
                sender.send(self._message(attempt), state=encode_transactional(txn_id, None))
            else:
                receiver.settle(delivery, encode_transactional(txn_id, STATE_ACCEPTED))
        world.say(self.name, f"plans {' '.join(attempt.uids)} for {uid}")
        self.later(0 if world.is_calm else world.chance.choice(THINK_MS), self._discharge, txn_id)

    def _message(self, attempt: Attempt) -> bytes:
        world = self.world
        uid = f"uid-{self._target}-{len(world.ledger.sent)}"
        body = f"{uid}:{'z' * world.chance.choice((0, 60))}:"
        sent = Sent(uid, self._target, body, (self._target,), 0, 0, attempt.number, world.time)
        sent.is_hidden = True
        world.ledger.sent[uid] = sent
        attempt.uids.append(uid)
        return encode_message(message_id=uid, body=body)

    def _discharge(self, txn_id: bytes) -> None:
        controller, world = self._controller, self.world
        if controller is None:
            return
        attempt = self._open.pop(txn_id)
        chance = 1.0 if world.is_calm else world.chance.random()
        if chance < 0.08 and self.socket is not None:
            self._open[txn_id] = attempt
            self.socket.cut("the transactor crashed")
            return
        attempt.commits = chance >= 0.25
        world.say(self.name, f"{'commits' if attempt.commits else 'rolls back'} {' '.join(attempt.uids)}")
        if attempt.commits:
            world.ledger.committing(attempt)
        # The planted bug: a broker that takes a rollback for a commit.
        fails = not attempt.commits and not world.bugs.commits_rollbacks
        body = Described(ULong(DISCHARGE), [txn_id, fails])
        self._discharging[controller.send(encode_message(body=body))] = attempt

    def _discharged(self, outcome: Outcome, attempt: Attempt) -> None:
        is_done = outcome.code == ACCEPTED_CODE and attempt.commits
        self._end(attempt, OK if is_done else FAILED)

    def _end(self, attempt: Attempt, outcome: str) -> None:
        world = self.world
        world.say(self.name, f"is told {outcome} for the transaction of {' '.join(attempt.uids)}")
        for uid in attempt.uids:
            if world.ledger.sent[uid].outcome == PENDING:
                world.ledger.told(uid, outcome, world.time)
        if outcome == OK:
            world.ledger.completed(attempt.path, attempt.uid, world.time)

    def forget(self) -> None:
        """See Client. What was not discharged is rolled back with the connection; what was is in doubt."""
        super().forget()
        self._controller = self._sender = None
        self._declaring.clear()
        for attempt in self._open.values():
            self._end(attempt, FAILED)
        self._open.clear()
        for attempt in self._discharging.values():
            self._end(attempt, UNKNOWN if attempt.commits else FAILED)
        self._discharging.clear()
