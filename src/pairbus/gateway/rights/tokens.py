"""The token node ``$cbs``: clients put shared-access signatures, and get rights for the paths they cover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pairbus.amqp.message.whole import encode_message
from pairbus.amqp.types import Int
from pairbus.errors import EntityNotFound, Refusal, Unauthorized
from pairbus.gateway.addressing import parse, path_of
from pairbus.gateway.management.replies import reply, reply_link, take_request
from pairbus.gateway.rights.access import claimed_rule, covers
from pairbus.model.names import canonical

if TYPE_CHECKING:
    from pairbus.amqp.message.whole import DecodedMessage
    from pairbus.gateway.connection import GatewayConnection
    from pairbus.gateway.links import TokenRequests

REQUEST_BYTES_MAX: Final = 16_384
"""The largest put-token request: strangers may send these (M6)."""
VALUES_MAX: Final = 256
"""Values in a put-token request: the clients send about 20."""
GRANTS_MAX: Final = 1_000
"""Audiences remembered for one connection."""
PUT_TOKEN: Final = "put-token"  # noqa: S105 - the operation's name


def receive(
    connection: GatewayConnection, context: TokenRequests, delivery_id: int, settled: bool, payload: bytes
) -> None:
    """Answer one put-token request."""
    request, malformed = take_request(connection, context, delivery_id, settled, payload, VALUES_MAX)
    if request is None:
        connection.request_refused()
        return
    status, description = 202, "Accepted"
    try:
        if malformed is not None:
            raise malformed
        _put(connection, request)
    except Refusal as refusal:
        status = refusal.status
        path = str(request.application_properties.get("name", ""))
        description = connection.broker.tracker.describe(refusal.description, path, connection.now)
        rule_name = claimed_rule(request.body) if isinstance(request.body, str) else ""
        connection.broker.refused_token(connection.peer, path, rule_name, refusal.description)
    link = reply_link(connection, context.link, context.path, request.properties.reply_to)
    if link is not None:
        answer = encode_message(
            correlation_id_raw=request.properties.message_id_raw,
            application_properties={"status-code": Int(status), "status-description": description},
            body=None,
        )
        reply(connection, link, answer)
    if status >= 400:
        connection.request_refused()


def _put(connection: GatewayConnection, request: DecodedMessage) -> None:
    operation = request.application_properties.get("operation")
    audience = request.application_properties.get("name")
    if operation != PUT_TOKEN or not isinstance(audience, str):
        raise Unauthorized("MalformedToken: The request is not a put-token with a name.")
    if not isinstance(request.body, str):
        raise Unauthorized("MalformedToken: The token is not a string.")
    grant = connection.broker.access.verify(request.body, connection.now)
    path = canonical(path_of(audience))
    if not covers(grant.path, path):
        raise Unauthorized("InvalidAudience: The token's resource does not cover the audience.")
    address = parse(path)
    if address.path and connection.broker.namespace.find(address.path) is None:
        # Here and not at attach: the Python client turns only this into the exception its users know. The token proves
        # the key all the same: a client may wait for its entity as long as it likes.
        connection.prove(grant)
        raise EntityNotFound(audience)
    if path not in connection.grants and len(connection.grants) >= GRANTS_MAX:
        raise Unauthorized(f"More than {GRANTS_MAX} audiences on one connection: open another one.")
    old = connection.grants.get(path)
    connection.grants[path] = grant
    connection.prove(grant)
    if old is not None and not grant.renews(old):
        # Only what the old token allowed can have become less (M4).
        connection.recheck(old.path)
