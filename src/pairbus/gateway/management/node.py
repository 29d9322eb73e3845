"""The management node of an entity over AMQP: one request, one answer.

Each operation takes a ``Request``, returns the body of its answer and raises a Refusal to say no. The status
numbers and the odd spellings ("defered", "sessions-ids") are the service's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import Int, Symbol
from pairbus.errors import (
    ArgumentError,
    EntityNotFound,
    NotSupported,
    ProtocolError,
    Refusal,
    ServerBusy,
)
from pairbus.gateway.addressing import find_entity, node_scope, queue_at
from pairbus.gateway.faults import BLACK_HOLE
from pairbus.gateway.management import messages as management_messages
from pairbus.gateway.management import rules as management_rules
from pairbus.gateway.management import sessions as management_sessions
from pairbus.gateway.management.replies import REPLY_BYTES_MAX, may_ask, reply, reply_link, take_request
from pairbus.gateway.management.request import NoContent, Postponed, Request
from pairbus.gateway.telemetry.meter import MANAGEMENT
from pairbus.model.access import LISTEN, MANAGE, SEND

if TYPE_CHECKING:
    from collections.abc import Callable

    from pairbus.amqp.message.whole import DecodedMessage
    from pairbus.amqp.states import Outcome
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.links import ManagementRequests

VALUES_MAX: Final = 32_768
"""Values in a management request: thousands of lock tokens or sequence numbers; messages are binaries, one value each."""
POSTPONED_TIMES_MAX: Final = 4
"""How often a request may wait for message bytes. After that the rest is read on the spot: together they may be more than is kept."""
_PREFIX: Final = "com.microsoft:"
OPERATIONS: Final[dict[str, tuple[str, Callable[[Request], dict[str, object]]]]] = {
    "renew-lock": (LISTEN, management_messages.renew_locks),
    "peek-message": (LISTEN, management_messages.peek),
    "schedule-message": (SEND, management_messages.schedule),
    "cancel-scheduled-message": (SEND, management_messages.cancel),
    "receive-by-sequence-number": (LISTEN, management_messages.receive_deferred),
    "update-disposition": (LISTEN, management_messages.update_disposition),
    "batch-delete-messages": (LISTEN, management_messages.delete_batch),
    "renew-session-lock": (LISTEN, management_sessions.renew),
    "set-session-state": (LISTEN, management_sessions.set_state),
    "get-session-state": (LISTEN, management_sessions.get_state),
    "get-message-sessions": (LISTEN, management_sessions.list_sessions),
    "add-rule": (MANAGE, management_rules.add),
    "remove-rule": (MANAGE, management_rules.remove),
    "enumerate-rules": (LISTEN, management_rules.enumerate_rules),
}
RULE_OPERATIONS: Final = ("add-rule", "remove-rule", "enumerate-rules")
ENTITY_OPERATIONS: Final = ("schedule-message", "cancel-scheduled-message", *RULE_OPERATIONS)
"""What is done to the entity itself, whichever of its places the node belongs to: the token must cover the entity (M2)."""
AUDITED: Final = {"add-rule": "create rule", "remove-rule": "delete rule"}
"""Changes of configuration, under the names that the HTTP API gives them in the audit log (M13)."""


def receive(
    connection: GatewayConnection,
    context: ManagementRequests,
    delivery_id: int,
    settled: bool,
    payload: bytes,
    state: Outcome | None,
) -> None:
    faults = connection.broker.faults
    if faults.is_on and faults.strike(BLACK_HOLE, context.address.path, connection.now) is not None:
        return
    if not may_ask(connection):
        return  # before anything is read or locked for an answer that could not leave
    message, malformed = take_request(connection, context, delivery_id, settled, payload, VALUES_MAX)
    if message is None:
        return
    if malformed is None:
        _serve(connection, context, message, state, POSTPONED_TIMES_MAX)
        return
    description = connection.broker.tracker.describe(malformed.description, context.path, connection.now)
    _answer(connection, context, message, malformed.status, description, malformed.condition, {})


def _serve(
    connection: GatewayConnection,
    context: ManagementRequests,
    message: DecodedMessage,
    state: Outcome | None,
    postponements: int,
) -> None:
    """Perform and answer; up to so many times later, when what the answer needs is here."""
    status, description, condition = 200, "OK", ""
    body: dict[str, object] = {}
    try:
        if connection.amqp.output_size > REPLY_BYTES_MAX:
            # A small request can have a large answer, and a burst many requests (B62).
            raise ServerBusy("Too many answers wait on this connection. Read them, then ask again.")
        body = _perform(connection, context, message, state, postponements > 0)
    except Postponed:
        _postpone(connection, context, message, state, postponements - 1)
        return
    except NoContent as nothing:
        status, description, condition = 204, nothing.description, nothing.condition
    except Refusal as refusal:
        connection.broker.tracker.refused(refusal.condition)
        status, condition = refusal.status, refusal.condition
        description = connection.broker.tracker.describe(refusal.description, context.path, connection.now)
    except ProtocolError as error:
        status, condition = 400, "amqp:decode-error"
        description = connection.broker.tracker.describe(
            f"The request cannot be read: {error}", context.path, connection.now
        )
    _audit(connection, context, message, status)
    _answer(connection, context, message, status, description, condition, body)


def _postpone(
    connection: GatewayConnection,
    context: ManagementRequests,
    message: DecodedMessage,
    state: Outcome | None,
    postponements: int,
) -> None:
    def again() -> None:
        if (
            connection in connection.broker.connections
            and not connection.is_closed
            and context.link.is_attached
        ):
            connection.now = connection.broker.now
            _serve(connection, context, message, state, postponements)
            connection.broker.touch(connection)

    entity = find_entity(connection.broker.namespace, context.address)
    queue_id = queue_at(entity, context.address).queue_id
    connection.broker.postponed.setdefault(queue_id, []).append(again)


def _audit(
    connection: GatewayConnection, context: ManagementRequests, message: DecodedMessage, status: int
) -> None:
    operation = message.application_properties.get("operation")
    name = operation.removeprefix(_PREFIX) if isinstance(operation, str) else ""
    if name not in AUDITED:
        return
    rule = message.body.get("rule-name") if isinstance(message.body, dict) else None
    path = context.address.path
    resource = f"{path}/rules/{rule}" if isinstance(rule, str) else path
    who = connection.rule_for(node_scope(path), MANAGE)
    audit = connection.broker.audit if who else connection.broker.audit_refusal
    audit(AUDITED[name], resource, who, str(status), connection.peer)


def _perform(
    connection: GatewayConnection,
    context: ManagementRequests,
    message: DecodedMessage,
    state: Outcome | None,
    may_postpone: bool,
) -> dict[str, object]:
    operation = message.application_properties.get("operation")
    name = operation.removeprefix(_PREFIX) if isinstance(operation, str) else ""
    if name not in OPERATIONS:
        raise NotSupported(f"The operation {operation!r} is not known.")
    right, perform = OPERATIONS[name]
    address = context.address
    connection.authorize(node_scope(address.path if name in ENTITY_OPERATIONS else address.scope), right)
    entity = find_entity(connection.broker.namespace, context.address)
    if entity.is_deleted:
        raise EntityNotFound(entity.path)
    entity.numbers.accessed_at = connection.now  # whatever is asked here is use of the entity
    if not isinstance(message.body, dict):
        raise ArgumentError(f"The body of '{name}' is not a map.")
    txn_id = state.txn_id if state is not None else None
    request = Request(
        connection,
        entity,
        queue_at(entity, context.address),
        message.body,
        message.application_properties,
        txn_id,
        may_postpone,
    )
    if name not in RULE_OPERATIONS:
        return perform(request)  # counted by itself, under a name of its own
    try:
        body = perform(request)
    except NoContent:
        request.tally(MANAGEMENT).add(0)
        raise
    request.tally(MANAGEMENT).add(0)
    return body


def _answer(
    connection: GatewayConnection,
    context: ManagementRequests,
    request: DecodedMessage,
    status: int,
    description: str,
    condition: str,
    body: dict[str, object],
) -> None:
    link = reply_link(connection, context.link, context.path, request.properties.reply_to)
    if link is None:
        return
    properties: dict[str, object] = {"statusCode": Int(status), "statusDescription": description}
    if condition:
        properties["errorCondition"] = Symbol(condition)
    tracking = request.application_properties.get("com.microsoft:tracking-id")
    if isinstance(tracking, str):
        properties["com.microsoft:tracking-id"] = tracking
    answer = encode_message(
        correlation_id_raw=request.properties.message_id_raw, application_properties=properties, body=body
    )
    reply(connection, link, answer)
