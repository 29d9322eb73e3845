"""Transactions: work is planned as it comes and done in one engine call at the discharge, or not at all (B14).

Nothing of a transaction is visible before its commit; closing the controller link or the connection, or two
minutes, roll it back. Each planned piece is checked when it comes and once more before anything is done.

A delivery that is settled in a transaction stays unsettled on its link until the commit: after a rollback it is locked as
before, and the receiver can settle it again. Where the receiver has settled it already and so forgotten it, as Qpid JMS
does, a rollback abandons the message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from pairbus.amqp.conditions import AmqpError
from pairbus.amqp.message.whole import decode_message
from pairbus.amqp.states import STATE_ACCEPTED, encode_declared, encode_outcome_code, encode_transactional
from pairbus.amqp.transport.link import Link
from pairbus.amqp.types import Array, Described, Long
from pairbus.errors import (
    ArgumentError,
    EntityNotFound,
    ProtocolError,
    Refusal,
    TransactionRolledBack,
    TransactionTimedOut,
    Unauthorized,
    UnknownTransaction,
)
from pairbus.gateway.accept import check, store
from pairbus.gateway.addressing import node_scope
from pairbus.gateway.settlement import ABANDON, Settlement, settlement_of_outcome
from pairbus.gateway.telemetry.meter import SETTLE
from pairbus.model.access import LISTEN, SEND

if TYPE_CHECKING:
    from pairbus.amqp.message.scan import Scanned
    from pairbus.amqp.states import Outcome
    from pairbus.amqp.transport.session import Session
    from pairbus.engine.entity import Entity
    from pairbus.engine.queues.consumer import Lock
    from pairbus.engine.queues.queue import Queue
    from pairbus.gateway.broker import Broker
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.links import Coordinator, ReceiveLink, SendLink
    from pairbus.gateway.management.request import Request
    from pairbus.gateway.telemetry.meter import SendTallies

REQUEST_BYTES_MAX: Final = 16_384
"""The largest declare or discharge, which need about 40 bytes: strangers may send these (M6)."""
VALUES_MAX: Final = 64
"""Values in a declare or a discharge."""
LIFETIME_MS: Final = 120_000
WORK_MAX: Final = 100
"""Messages in one transaction."""
WORK_BYTES_MAX: Final = 67_108_864
"""Bytes of messages that wait in all transactions of one connection; a single message may be larger (B62)."""
TRANSACTIONS_MAX: Final = 100
"""Open transactions of one connection."""
STRANGER_TRANSACTIONS_MAX: Final = 8
"""Open transactions of a connection that has shown no right: the .NET and Java clients declare before they put a token (M6)."""
DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
_DESCRIPTORS: Final[dict[object, int]] = {
    DECLARE: DECLARE,
    DISCHARGE: DISCHARGE,
    "amqp:declare:list": DECLARE,
    "amqp:discharge:list": DISCHARGE,
}
"""Both forms of a descriptor: Qpid Proton writes the symbols."""


class PlannedSend:
    """A message to store at the commit."""

    __slots__ = ("_destination", "_entity", "_message", "_scope", "_tallies")

    def __init__(
        self, entity: Entity, scope: str, message: Scanned, tallies: SendTallies, destination: str = ""
    ) -> None:
        self._destination = destination
        self._entity = entity
        self._scope = scope
        self._message = message
        self._tallies = tallies

    def check(self, connection: GatewayConnection, more_bytes: int) -> int:
        """Refuse what could not be stored now; the right to it may have gone since it was planned (M5). The bytes it needs."""
        connection.authorize(self._scope, SEND)
        if self._destination:
            connection.authorize(self._destination, SEND)
        if self._entity.is_deleted:
            raise EntityNotFound(self._entity.path)
        check(connection.broker, self._entity, self._message, more_bytes, self._destination)
        return len(self._message.blob)

    def roll_back(self, connection: GatewayConnection) -> None:
        """Nothing was done."""

    def perform(self, broker: Broker, now: int) -> None:
        store(broker, self._entity, self._message, self._tallies, now, self._destination)


class PlannedSettlement:
    """A message of this connection to settle at the commit."""

    __slots__ = (
        "_changed",
        "_code",
        "_delivery_id",
        "_lock",
        "_queue",
        "_scope",
        "_session",
        "_settlement",
        "_state",
        "is_settled",
    )

    def __init__(self, queue: Queue, scope: str, lock: Lock, settlement: Settlement) -> None:
        self._queue = queue
        self._scope = scope
        self._lock = lock
        self._settlement = settlement
        self._changed = b""
        """What the last check returned."""
        self._session: Session | None = None
        self._delivery_id = -1
        self._code = 0
        self._state = b""
        self.is_settled = False
        """The receiver has forgotten the delivery."""

    def came_on(self, session: Session, delivery_id: int, code: int, state: bytes, is_settled: bool) -> None:
        """It came as a disposition with this outcome, not as a management request. ``state``: what answers it, encoded."""
        self._session = session
        self._delivery_id = delivery_id
        self._code = code
        self._state = state
        self.is_settled = is_settled

    def is_repeated_by(self, code: int) -> bool:
        """Whether a disposition with this outcome says nothing new."""
        return self._session is not None and code == self._code

    def check(self, connection: GatewayConnection, more_bytes: int) -> int:
        """Refuse it unless the lock is still held and nothing is left that could be refused half-way. The bytes it needs."""
        connection.authorize(self._scope, LISTEN)
        self._changed = self._settlement.check(self._queue, self._lock, connection.now, more_bytes)
        return self._settlement.carried_bytes(self._changed)

    def perform(self, broker: Broker, now: int) -> None:
        self._settlement.apply(broker, self._queue, self._lock, self._changed, now)
        broker.meter.tally(self._queue.path, SETTLE).add(0)
        session = self._session
        if session is not None and session.awaits_settlement(self._delivery_id, self._lock):
            # The Java client compares the state with the transactional one that it sent, and takes another for a refusal.
            session.answer_outgoing(self._delivery_id, self._state, settled=True)

    def roll_back(self, connection: GatewayConnection) -> None:
        """Give the message back if the receiver has forgotten it; else it is locked as before."""
        if not self.is_settled:
            return
        abandon = Settlement(ABANDON)
        try:
            changed = abandon.check(self._queue, self._lock, connection.now)
        except Refusal:
            return  # the lock has ended by itself
        abandon.apply(connection.broker, self._queue, self._lock, changed, connection.now)


Work: TypeAlias = PlannedSend | PlannedSettlement


@dataclass(slots=True, eq=False, repr=False)
class Transaction:
    """What has been planned under one id."""

    txn_id: bytes
    controller: Link
    deadline: int
    work: list[Work] = field(default_factory=list)
    size: int = 0
    """Bytes of the messages it will store, and of what its settlements carry; they wait in memory."""
    settled: dict[int, PlannedSettlement] = field(default_factory=dict)
    """What it settles, by the token of the lock: each once."""
    is_failed: bool = False
    """A piece was refused: the whole can only be rolled back."""


def receive(connection: GatewayConnection, context: Coordinator, delivery_id: int, payload: bytes) -> None:
    session = context.link.session
    try:
        body = decode_message(payload, VALUES_MAX).body
        if not isinstance(body, Described) or not isinstance(body.value, list):
            raise ArgumentError("A coordinator takes declare and discharge only.")
        kind = _DESCRIPTORS.get(body.descriptor)
        if kind == DECLARE:
            transaction = _declare(connection, context.link)
            session.settle_incoming_state(delivery_id, encode_declared(transaction.txn_id))
        elif kind == DISCHARGE:
            _discharge(connection, body.value)
            session.accept_incoming(delivery_id)
        else:
            raise ArgumentError("A coordinator takes declare and discharge only.")
    except Refusal as refusal:
        session.reject_incoming(
            delivery_id, connection.broker.tracker.error(refusal, "coordinator", connection.now)
        )
        connection.request_refused()
    except ProtocolError as error:
        session.reject_incoming(delivery_id, AmqpError("amqp:decode-error", str(error)))
        connection.request_refused()


def _declare(connection: GatewayConnection, controller: Link) -> Transaction:
    _roll_back_expired(connection)
    if connection.is_stranger and len(connection.transactions) >= STRANGER_TRANSACTIONS_MAX:
        raise Unauthorized(
            f"{STRANGER_TRANSACTIONS_MAX} transactions are open on this connection without a valid token: put one first."
        )
    if len(connection.transactions) >= TRANSACTIONS_MAX:
        raise ArgumentError(
            f"{TRANSACTIONS_MAX} transactions are open on this connection: discharge one first."
        )
    txn_id = connection.broker.next_transaction_id()
    transaction = Transaction(txn_id, controller, connection.now + LIFETIME_MS)
    connection.transactions[txn_id] = transaction
    return transaction


def _discharge(connection: GatewayConnection, fields: list[object]) -> None:
    txn_id = fields[0] if fields else None
    is_failed = bool(fields[1]) if len(fields) > 1 else False
    transaction = _find(connection, txn_id)
    if is_failed:
        roll_back(connection, transaction)
        return
    if transaction.is_failed:
        roll_back(connection, transaction)
        raise TransactionRolledBack("A part of the transaction was refused: it was rolled back.")
    now = connection.now
    size = 0
    try:
        for work in transaction.work:
            size += work.check(connection, size)
    except Refusal as refusal:
        roll_back(connection, transaction)
        raise TransactionRolledBack(f"The transaction was rolled back: {refusal.description}") from refusal
    del connection.transactions[transaction.txn_id]
    for work in transaction.work:
        work.perform(connection.broker, now)


def _find(connection: GatewayConnection, txn_id: object) -> Transaction:
    transaction = connection.transactions.get(txn_id) if isinstance(txn_id, bytes) else None
    if transaction is None:
        raise UnknownTransaction("No open transaction of this connection has this id.")
    if transaction.deadline <= connection.now:
        roll_back(connection, transaction)
        raise TransactionTimedOut(
            f"The transaction outlived its {LIFETIME_MS // 1000} seconds and was rolled back."
        )
    return transaction


def roll_back(connection: GatewayConnection, transaction: Transaction) -> None:
    """The work is not done."""
    connection.transactions.pop(transaction.txn_id, None)
    for work in transaction.work:
        work.roll_back(connection)


def _plan(connection: GatewayConnection, transaction: Transaction, work: Work) -> None:
    if len(transaction.work) >= WORK_MAX:
        transaction.is_failed = True
        raise ArgumentError(f"A transaction holds at most {WORK_MAX} messages.")
    try:
        size = work.check(connection, 0)
        if size:
            _check_size(connection, size)
    except Refusal:
        transaction.is_failed = True
        raise
    transaction.work.append(work)
    transaction.size += size


def _check_size(connection: GatewayConnection, size: int) -> None:
    _roll_back_expired(connection)
    held = sum(transaction.size for transaction in connection.transactions.values())
    if held and held + size > WORK_BYTES_MAX:
        raise ArgumentError(
            f"The open transactions of a connection hold at most {WORK_BYTES_MAX} bytes: discharge one first."
        )


def _roll_back_expired(connection: GatewayConnection) -> None:
    for old in [t for t in connection.transactions.values() if t.deadline <= connection.now]:
        roll_back(connection, old)


def _plan_settlement(
    connection: GatewayConnection,
    transaction: Transaction,
    queue: Queue,
    scope: str,
    lock: Lock,
    settlement: Settlement,
) -> PlannedSettlement:
    if lock.token in transaction.settled:
        transaction.is_failed = True
        raise ArgumentError("A message was settled twice in one transaction.")
    work = PlannedSettlement(queue, scope, lock, settlement)
    _plan(connection, transaction, work)
    transaction.settled[lock.token] = work
    return work


def add_sends(
    connection: GatewayConnection, context: SendLink, delivery_id: int, txn_id: bytes, messages: list[Scanned]
) -> None:
    """Plan the messages of one transfer and answer it under the transaction."""
    transaction = _find(connection, txn_id)
    for message in messages:
        work = PlannedSend(context.entity, context.path, message, context.tallies, context.destination)
        _plan(connection, transaction, work)
    context.link.session.settle_incoming_state(delivery_id, encode_transactional(txn_id, STATE_ACCEPTED))


def add_settlement(
    connection: GatewayConnection,
    context: ReceiveLink,
    delivery_id: int,
    lock: Lock,
    outcome: Outcome,
    settled: bool,
) -> None:
    """Plan a settlement from the link and answer it under the transaction, unless the receiver has settled it itself."""
    inner = outcome.inner
    if inner is None or outcome.txn_id is None:
        raise ArgumentError("A transactional settlement needs a transaction id and an outcome.")
    transaction = _find(connection, outcome.txn_id)
    session = context.link.session
    work = transaction.settled.get(lock.token)
    if work is None or not work.is_repeated_by(inner.code):
        try:
            settlement = settlement_of_outcome(inner)
        except ArgumentError:
            transaction.is_failed = True
            raise
        work = _plan_settlement(connection, transaction, context.queue, context.scope, lock, settlement)
    # Without the error of a rejection: to the .NET client an error in the answer means that the settlement failed.
    state = encode_transactional(outcome.txn_id, encode_outcome_code(inner.code))
    work.came_on(session, delivery_id, inner.code, state, settled)
    if not settled:
        session.answer_outgoing(delivery_id, state, settled=False)


def forgotten(connection: GatewayConnection, lock: Lock) -> bool:
    """Whether an open transaction settles this message. If so the transaction decides, and the receiver's release is only noted."""
    for transaction in connection.transactions.values():
        work = transaction.settled.get(lock.token)
        if work is not None:
            work.is_settled = True
            return True
    return False


def add_schedule(
    request: Request, txn_id: bytes, messages: list[Scanned], tallies: SendTallies
) -> dict[str, object]:
    """Plan scheduled messages. Their numbers are known only at the commit, so none are given back."""
    transaction = _find(request.connection, txn_id)
    scope = node_scope(request.entity.path)
    for message in messages:
        _plan(request.connection, transaction, PlannedSend(request.entity, scope, message, tallies))
    return {"sequence-numbers": Array([Long(0) for _ in messages])}


def add_dispositions(request: Request, txn_id: bytes, locks: list[Lock], settlement: Settlement) -> None:
    """Plan settlements from a management request."""
    transaction = _find(request.connection, txn_id)
    scope = node_scope(request.queue.path)
    for lock in locks:
        _plan_settlement(request.connection, transaction, request.queue, scope, lock, settlement)
